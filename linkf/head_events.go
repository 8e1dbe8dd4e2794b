package linkf

import (
	"fmt"
	"time"
)

// took says that the caller has the events of a generation up to seq.
func (h *headMachine) took(now time.Duration, id, generation, seq uint64) {
	h.advance(now)
	s := h.sessions[id]
	if s == nil || s.generation != generation || seq < s.taken || seq >= s.next {
		return
	}
	n := int(seq + 1 - s.taken)
	for _, p := range s.prices[:n] {
		s.paid += p
	}
	s.prices = s.prices[n:]
	s.taken = seq + 1
	// Not for every event: reconcile tells what was taken, too, and so little cannot fill
	// the node's buffer, whatever number of sessions it is for.
	s.ackDue = s.ackDue || s.paid-s.acked >= retryTotal/maxSessions
	s.creditDue = s.creditDue || s.paid+creditRoom >= s.limit+creditRoom/4
	if s.ackDue || s.creditDue {
		h.mark(s)
	}
}

// events takes events of a generation, each once and in order.
func (h *headMachine) events(m events) error {
	s := h.sessions[m.Session]
	if s == nil || s.revoked || s.epoch != m.Epoch || s.generation != m.Generation || !s.running {
		return nil // of a past that this head gave up
	}
	if m.First > s.next {
		return fmt.Errorf("session %d: event %d, where %d was due", s.id, m.First, s.next)
	}
	for i := range m.Items {
		if m.First+uint64(i) < s.next {
			continue
		}
		if err := h.event(s, m.Items[i]); err != nil {
			return err
		}
	}
	if s.leaving && s.running {
		h.mark(s)
	}
	return nil
}

func (h *headMachine) event(s *headSession, e event) error {
	price := e.cost()
	seq := s.next
	s.next++
	if s.cost += price; s.cost > s.limit {
		return fmt.Errorf("session %d: events beyond the credit", s.id)
	}
	if e.Kind < eventOpen || e.Kind > eventEnd || e.Kind == eventEnd && e.Outcome == nil {
		return fmt.Errorf("session %d: an event of kind %d", s.id, e.Kind)
	}
	// That it came shows that everything up to generate took effect.
	s.cmds, s.cursor = dropThrough(s.cmds, s.cursor, s.generation)
	if e.Kind == eventEnd {
		h.ended(s, seq, e)
		return nil
	}
	if s.leaving {
		s.taken, s.paid, s.ackDue, s.creditDue = s.next, s.cost, true, true
		return nil
	}
	if s.parts += len(e.Data); s.parts > maxAssembly {
		return fmt.Errorf("session %d: an event of more than %d bytes", s.id, maxAssembly)
	}
	if !e.More {
		s.parts = 0
	}
	s.prices = append(s.prices, price)
	h.act(headAction{kind: headEvent, session: s.id, generation: s.generation, seq: seq, event: e})
	return nil
}

// dropThrough drops the commands up to the generate of a generation.
func dropThrough(cmds []*headCommand, cursor int, generation uint64) ([]*headCommand, int) {
	for i, c := range cmds {
		if c.typ == typeGenerate && c.generation == generation {
			return cmds[i+1:], max(0, cursor-i-1)
		}
	}
	return cmds, cursor
}

// ended is the last event of a generation.
func (h *headMachine) ended(s *headSession, seq uint64, e event) {
	s.running = false
	if s.leaving {
		s.leaving = false
		h.changed()
		_ = h.revoke(h.now, s.id)
		return
	}
	s.prices = append(s.prices, e.cost())
	h.act(headAction{kind: headEnded, session: s.id, generation: s.generation, seq: seq, err: e.Outcome.err(h.node)})
}
