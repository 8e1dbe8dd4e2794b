package linkf

import (
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// room says whether a generation may go on.
type room uint8

const (
	roomLeft room = iota
	roomNone      // the event was kept, the next one has to wait for agentReadOn
	roomGone      // nobody wants it: the generation is to end
)

// emit numbers an event of a generation and keeps it until the head has it. Data that is
// longer than maxPiece goes in pieces.
func (a *agentMachine) emit(now time.Duration, run uint64, e fleet.Event) room {
	a.advance(now)
	r := a.runs[run]
	if r == nil || r.session == nil || r.stopped != nil {
		return roomGone
	}
	s, w := r.session, eventOf(e)
	for data := w.Data; len(data) > maxPiece; data = w.Data {
		a.keep(s, event{Kind: w.Kind, Data: data[:maxPiece], More: true})
		w.Data = data[maxPiece:]
	}
	a.keep(s, w)
	if a.roomFor(s) {
		return roomLeft
	}
	if !r.waits {
		r.waits = true
		a.full = append(a.full, r)
	}
	return roomNone
}

func (a *agentMachine) roomFor(s *agentSession) bool {
	return s.total-s.paid() < retryRoom && a.kept < retryTotal
}

// paid is the cost of the events that the head has.
func (s *agentSession) paid() uint64 {
	if len(s.buf) == 0 {
		return s.total
	}
	return s.buf[0].upTo - s.buf[0].price
}

func (a *agentMachine) keep(s *agentSession, e event) {
	p := e.cost()
	s.total += p
	a.kept += p
	s.count++
	s.buf = append(s.buf, numbered{e, p, s.total})
	a.mark(s)
}

// finish says that a generation is over: its lane is free again.
func (a *agentMachine) finish(now time.Duration, run uint64, err error) {
	a.advance(now)
	r := a.runs[run]
	if r == nil {
		return
	}
	delete(a.runs, run)
	r.ended = true
	if r.lane {
		a.lanes.give(r.model)
		a.changed(nil)
	}
	s := r.session
	if s == nil {
		return
	}
	s.run = nil
	if r.stopped != nil {
		err = r.stopped
	}
	a.keep(s, event{Kind: eventEnd, Outcome: outcomeOf(err)})
	a.changed(s.head)
}

// discard forgets the events below next.
func (a *agentMachine) discard(s *agentSession, next uint64) {
	n := 0
	for n < len(s.buf) && s.base+uint64(n) < next {
		a.kept -= s.buf[n].price
		s.buf[n] = numbered{}
		n++
	}
	s.buf = s.buf[n:]
	s.base += uint64(n)
	if len(s.buf) == 0 {
		s.buf = nil
	}
	if n > 0 {
		a.readOn()
	}
}

// readOn lets the generations go on for which there is room again.
func (a *agentMachine) readOn() {
	left := a.full[:0]
	for _, r := range a.full {
		switch {
		case r.ended || r.session == nil || r.stopped != nil:
			r.waits = false
		case a.roomFor(r.session):
			r.waits = false
			a.act(agentAction{kind: agentReadOn, run: r.id})
		default:
			left = append(left, r)
		}
	}
	clear(a.full[len(left):])
	a.full = left
}

// acked forgets what the head has taken.
func (a *agentMachine) acked(c *agentConn, m ack) error {
	s := c.head.sessions[m.Session]
	if s == nil || s.epoch != m.Epoch || s.generation != m.Generation {
		return nil
	}
	if m.Next > s.sent {
		return fmt.Errorf("session %d: it has event %d, and %d were sent", s.id, m.Next, s.sent)
	}
	a.discard(s, m.Next)
	return nil
}

// credit lets more events be sent. It never takes back.
func (a *agentMachine) credit(c *agentConn, m credit) error {
	s := c.head.sessions[m.Session]
	if s != nil && s.epoch == m.Epoch && s.generation == m.Generation && m.Limit > s.limit {
		s.limit = m.Limit
		a.mark(s)
	}
	return nil
}

// mark has a session looked at when its connection can take more.
func (a *agentMachine) mark(s *agentSession) {
	if c := s.head.conn; c != nil && c.reconciled && !s.queued && s.head.sessions[s.id] == s {
		s.queued = true
		c.dirty = append(c.dirty, s)
	}
}
