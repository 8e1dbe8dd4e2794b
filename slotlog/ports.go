package slotlog

import (
	"slices"
	"time"
)

// Ports returns the ports of which a slot was spoken, rising.
func (t *Tracker) Ports() []int {
	out := make([]int, 0, len(t.ports))
	for port, p := range t.ports {
		if p.server.known {
			out = append(out, port)
		}
	}
	slices.Sort(out)
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
	p := t.ports[port]
	if p == nil {
		if len(t.ports) >= maxPorts {
			t.forget(t.ports[t.oldest()])
		}
		p = t.newPort(port)
		t.ports[port] = p
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

func (t *Tracker) oldest() (port int) {
	var found *portState
	for n, p := range t.ports {
		if p == t.last {
			continue // it is spoken of
		}
		if found == nil || p.heard < found.heard || p.heard == found.heard && n < port {
			port, found = n, p
		}
	}
	return port
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
		t.forget(t.ports[t.oldest()])
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
	delete(t.ports, p.port)
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
	for port := range t.ports {
		out = append(out, port)
	}
	slices.Sort(out)
	return out
}
