package slotlog

import (
	"cmp"
	"slices"
	"time"
)

// Ports returns the ports of which a slot was spoken, rising.
func (t *Tracker) Ports() []int {
	out := make([]int, 0, len(t.ports))
	for _, p := range t.ports {
		if p.server.known {
			out = append(out, p.port)
		}
	}
	return out
}

// port finds or makes a port. One too many takes the place of the one heard longest
// ago; below a [Reader], which has the same bound and says KindGone, there is none.
func (t *Tracker) port(port int) *portState {
	p := t.last
	if p == nil || p.port != port {
		p = t.otherPort(port)
	}
	p.heard = t.watermark
	return p
}

func (t *Tracker) otherPort(port int) *portState {
	p := t.ports.get(port)
	if p == nil {
		if len(t.ports) >= maxPorts {
			t.forget(t.oldest())
		}
		p = t.newPort(port)
		t.ports.add(p)
	}
	t.last = p
	return p
}

// newPort uses the room of a port that was forgotten, when there is some.
func (t *Tracker) newPort(port int) *portState {
	n := len(t.spare)
	if n == 0 {
		return &portState{port: port}
	}
	p := t.spare[n-1]
	t.spare = t.spare[:n-1]
	*p = portState{port: port, slots: p.slots[:0], spare: p.spare}
	return p
}

func (t *Tracker) oldest() (found *portState) {
	for _, p := range t.ports {
		if p == t.last {
			continue // it is spoken of
		}
		if found == nil || p.heard < found.heard {
			found = p
		}
	}
	return found
}

// portStates are by port, rising. They are few.
type portStates []*portState

// find returns where a port stands, or would.
func (s portStates) find(port int) (at int, ok bool) {
	return slices.BinarySearchFunc(s, port, func(p *portState, port int) int { return cmp.Compare(p.port, port) })
}

func (s portStates) get(port int) *portState {
	if i, ok := s.find(port); ok {
		return s[i]
	}
	return nil
}

func (s *portStates) add(p *portState) {
	i, _ := s.find(p.port)
	*s = slices.Insert(*s, i, p)
}

func (s *portStates) remove(p *portState) {
	if i, ok := s.find(p.port); ok {
		*s = slices.Delete(*s, i, i+1)
	}
}

// maxSpare bounds the room of forgotten slots that a port keeps.
const maxSpare = 64

// slot finds or makes a slot. One too many takes the place of those of the port heard
// longest ago, as with ports.
func (t *Tracker) slot(p *portState, id int) *slotState {
	if id < len(p.slots) {
		if s := p.slots[id]; s != nil {
			return s
		}
	}
	return t.newSlot(p, id)
}

func (t *Tracker) newSlot(p *portState, id int) *slotState {
	for t.slots >= maxSlots && len(t.ports) > 1 {
		t.forget(t.oldest())
	}
	t.slots++
	for len(p.slots) <= id {
		p.slots = append(p.slots, nil)
	}
	var s *slotState
	if n := len(p.spare); n > 0 {
		s, p.spare = p.spare[n-1], p.spare[:n-1]
		*s = slotState{}
	} else {
		s = new(slotState)
	}
	s.state = Unknown
	p.slots[id] = s
	return s
}

// clear forgets the slots and lets the port be seeded at once.
func (t *Tracker) clear(p *portState) {
	for i := len(p.slots) - 1; i >= 0; i-- {
		if s := p.slots[i]; s != nil {
			t.slots--
			if len(p.spare) < maxSpare {
				p.spare = append(p.spare, s)
			}
		}
		p.slots[i] = nil
	}
	p.slots = p.slots[:0]
	p.seedAttempts, p.seeded, p.staleHandled, p.lastAttempt = 0, false, false, time.Time{}
}

// clearSlots ends what runs and forgets the slots.
func (t *Tracker) clearSlots(p *portState, at time.Time) {
	for id, s := range p.slots {
		if s != nil {
			t.endLost(p, id, s, at)
		}
	}
	p.server.forgetEnds()
	t.clear(p)
}

// forget drops a port. What ran there is lost.
func (t *Tracker) forget(p *portState) {
	for id, s := range p.slots {
		if s != nil {
			t.endLost(p, id, s, s.updatedAt)
		}
	}
	t.clear(p)
	t.ports.remove(p)
	if t.last == p {
		t.last = nil
	}
	if len(t.spare) < 8 {
		t.spare = append(t.spare, p)
	}
}

// Servers returns the ports of which anything is known, rising: those of
// [Tracker.Ports], and servers of which no slot was spoken yet.
func (t *Tracker) Servers() []int {
	out := make([]int, 0, len(t.ports))
	for _, p := range t.ports {
		out = append(out, p.port)
	}
	return out
}
