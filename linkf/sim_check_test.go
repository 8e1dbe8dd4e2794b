package linkf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// settle does what both machines want done and moves what they want sent, until
// neither wants anything.
func (w *world) settle() {
	for i := 0; w.failed == nil; i++ {
		if i == 1000 {
			w.fail("the machines never come to rest")
			return
		}
		w.headActions()
		w.nodeActions()
		if !w.sendHead() && !w.sendNode() {
			break
		}
	}
	w.check()
}

func (w *world) sendHead() bool {
	if !w.headUp {
		return false
	}
	var b []byte
	if w.greet != nil {
		b = w.greet.pull(nil, w.headTime())
	} else {
		wants := w.head.wants()
		b = w.head.pull(w.headTime(), nil, chunkLen)
		if len(b) > 0 && !wants && !onlyKeepalive(b) {
			w.fail("the head has %d bytes to send, and says that it has nothing", len(b))
		}
	}
	if len(b) > 0 && !w.dark && w.nodeUp {
		w.toNode = append(w.toNode, b)
	}
	return len(b) > 0
}

func onlyKeepalive(b []byte) bool {
	return len(b) == headerLen+1 && Type(binary.LittleEndian.Uint16(b[4:])) == typeKeepalive
}

func (w *world) sendNode() bool {
	sent := false
	for id := range w.agent.conns {
		b := w.agent.pull(w.nodeTime(), id, nil, chunkLen)
		w.watch.sends(id, b)
		sent = sent || len(b) > 0
		if len(b) > 0 && id == w.conn && !w.dark && w.headUp {
			w.toHead = append(w.toHead, b)
		}
	}
	return sent
}

func (w *world) headActions() {
	for _, x := range w.head.actions() {
		switch x.kind {
		case headClose:
			if w.head.wire != nil {
				w.head.pull(w.headTime(), nil, chunkLen)
			}
			w.headDown()
		case headEvent:
			w.event(x)
		case headEnded:
			w.ended(x)
		case headReply:
			if !w.calls[x.call] {
				w.fail("call %d was answered twice, or nobody asked", x.call)
			}
			delete(w.calls, x.call)
		}
	}
}

// event checks that each comes once, in order, from one generation, and that this one
// answers what was asked.
func (w *world) event(x headAction) {
	c := w.clients[x.session]
	if c == nil {
		w.fail("session %d: an event for nobody", x.session)
		return
	}
	c.unread, c.seen, c.gen = c.unread+1, x.seq, x.generation
	if len(x.event.Data) < 12 || len(x.event.Data) == maxPiece && !x.event.More || binary.LittleEndian.Uint64(x.event.Data) == 0 {
		return // the rest of one that came in pieces
	}
	run, n := w.spoken[binary.LittleEndian.Uint64(x.event.Data)-1], binary.LittleEndian.Uint32(x.event.Data[8:])
	if c.run == nil {
		c.run = run
	}
	if run != c.run || n != c.got {
		w.fail("session %d: event %d of run %d, where %d of run %d was due", x.session, n, run.id, c.got, c.run.id)
	}
	if run.ask != c.ask {
		w.fail("session %d asked for %d, and gets an answer to %d", x.session, c.ask, run.ask)
	}
	c.got++
}

// ended checks that a whole answer came whole.
func (w *world) ended(x headAction) {
	c := w.clients[x.session]
	if c == nil {
		w.fail("session %d ended twice, or for nobody", x.session)
		return
	}
	if x.err == nil && c.run != nil && (c.got != c.run.count || c.run.stopped) {
		w.fail("session %d ended after %d of %d events; stopped %v", x.session, c.got, c.run.count, c.run.stopped)
	}
	if c.parked && w.head.sessions[x.session] != nil {
		*c = client{ask: c.ask}
		if err := w.head.generate(x.session, fleet.Patience{}); err != nil {
			w.fail("go on: %v", err)
		}
		return
	}
	delete(w.clients, x.session)
	if err := w.head.revoke(w.headTime(), x.session); err != nil && !errors.Is(err, errUnknownSession) {
		w.fail("revoke: %v", err)
	}
}

func (w *world) nodeActions() {
	for _, x := range w.agent.actions() {
		switch x.kind {
		case agentStart:
			s := w.agent.runs[x.run].session
			if s == nil {
				s = new(agentSession) // dropped since
			}
			k := fmt.Sprint(w.agent.me.instance[0], x.run)
			if s.head != nil {
				k = fmt.Sprint(w.agent.me.instance[0], s.head.instance[0], s.id, s.epoch, s.generation)
			}
			if w.started[k] {
				w.fail("generation %s runs twice", k)
			}
			w.started[k] = true
			r := &upstream{id: uint64(len(w.spoken)) + 1, ask: binary.LittleEndian.Uint64(joined(x.assignment.Body, x.parts))}
			w.spoken = append(w.spoken, r)
			w.runs[x.run] = r
		case agentStop:
			if r := w.runs[x.run]; r != nil {
				r.stopped, r.waits = true, false
			}
		case agentReadOn:
			if r := w.runs[x.run]; r != nil {
				r.waits = false
			}
		case agentCall:
			w.asked[x.run] = true
		case agentCallStop:
			delete(w.asked, x.run)
		case agentClose:
			w.watch.sends(x.conn, w.agent.pull(w.nodeTime(), x.conn, nil, chunkLen))
			w.nodeDown(x.conn)
		}
	}
}

// check holds what must hold at any time.
func (w *world) check() {
	a := w.agent
	kept, held := uint64(0), 0
	for _, h := range a.heads {
		for _, s := range h.sessions {
			if w.had != nil && !w.had[s] {
				w.fail("session %d at epoch %d was taken by a node that leaves", s.id, s.epoch)
			}
			if age := a.now - s.granted; age >= s.lease {
				w.fail("session %d is held %v after its grant", s.id, age)
			}
			sum := uint64(0)
			for _, e := range s.buf {
				sum += e.price
			}
			if sum > retryRoom+7*maxPiece {
				w.fail("session %d keeps %d bytes", s.id, sum)
			}
			kept += sum
			if s.lane {
				held++
			}
		}
	}
	for _, r := range a.runs {
		if r.lane {
			held++
		}
		if r.session == nil && r.stopped == nil {
			w.fail("run %d goes on, and nobody gets its events", r.id)
		}
	}
	if kept != a.kept {
		w.fail("%d bytes of events are kept, and %d counted", kept, a.kept)
	}
	if held != a.lanes.used || held > 3 {
		w.fail("%d lanes are held of 3, and %d counted", held, a.lanes.used)
	}
	for _, s := range w.head.sessions {
		if s.cost-s.paid > creditRoom {
			w.fail("session %d: %d bytes wait for the client", s.id, s.cost-s.paid)
		}
		if len(s.cmds) > 8 {
			w.fail("session %d: %d commands are kept", s.id, len(s.cmds))
		}
	}
	wires := []*wire{}
	if w.head.wire != nil {
		wires = append(wires, w.head.wire)
	}
	for _, c := range a.conns {
		wires = append(wires, c.wire)
		if len(c.gones)+len(c.replies) > maxSessions {
			w.fail("%d answers wait to be sent", len(c.gones)+len(c.replies))
		}
	}
	for _, x := range wires {
		if n := len(x.dec.buf) - x.dec.off; n > 4+MaxFrame || len(x.acks)+len(x.aborts) > 2*maxTransfers || x.in.held > maxTransfer {
			w.fail("%d bytes of a frame, %d words on transfers, %d bytes of them are kept", n, len(x.acks)+len(x.aborts), x.in.held)
		}
	}
}

// rest lets everything come to its end, and checks that it does, also where the two
// never meet again.
func (w *world) rest() {
	apart := w.pick.IntN(4) == 0
	if apart {
		w.cut(true, true)
	}
	for i := 0; i < 60 && w.failed == nil; i++ {
		if !apart {
			w.connect()
		}
		w.settle()
		w.exchange()
		w.agreed()
		for id, r := range w.runs {
			if !r.waits {
				w.end(id)
			}
		}
		for len(w.asked) > 0 {
			w.work()
		}
		for id, c := range w.clients {
			if c.unread > 0 {
				w.take(id, c, c.unread)
			}
		}
		w.settle()
		w.exchange()
		if w.empty() == "" {
			if !w.agent.idle() {
				w.fail("nothing is left, and a node that leaves would wait")
			}
			return
		}
		w.pass(time.Second)
	}
	if why := w.empty(); why != "" {
		w.fail("at the end: %s", why)
	}
}

// agreed checks that the node holds nothing that the head does not, where each heard
// all that the other said.
func (w *world) agreed() {
	if !w.head.ready || !w.nodeUp || w.dark || len(w.toHead)+len(w.toNode) > 0 {
		return
	}
	if c := w.agent.conns[w.conn]; w.had != nil && !c.stateDue && (w.head.status == nil || !w.head.status.Leaving) {
		w.fail("the node leaves, and its head does not know")
	}
	for id, s := range w.agent.heads["head"].sessions {
		if h := w.head.sessions[id]; h == nil || h.epoch != s.epoch {
			w.fail("the node holds session %d at epoch %d, and the head does not", id, s.epoch)
		}
	}
}

func (w *world) empty() string {
	a := w.agent
	sessions := 0
	for _, h := range a.heads {
		sessions += len(h.sessions)
	}
	if len(w.clients)+len(w.head.sessions)+len(w.calls)+len(w.head.calls)+sessions+len(a.runs)+len(a.calls)+int(a.kept)+a.lanes.used > 0 {
		return fmt.Sprintf("%d clients and %d sessions of the head, %d calls, %d sessions, %d runs and %d calls of the node, %d bytes, %d lanes are left",
			len(w.clients), len(w.head.sessions), len(w.calls), sessions, len(a.runs), len(a.calls), a.kept, a.lanes.used)
	}
	return ""
}
