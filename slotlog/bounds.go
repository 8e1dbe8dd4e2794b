package slotlog

import "unicode/utf8"

// What a log can make a reader remember is bounded, since anybody who can forge a
// line can choose a port, a number of slots and a name.
const (
	// maxLanes bounds the slots of a server that said how many it has, and lanesUnsaid
	// those of one that did not.
	maxLanes    = 4096
	lanesUnsaid = 256

	// maxPorts bounds how many servers are remembered, and maxSlots the slots of all
	// of them. A router has a few children at once.
	maxPorts = 256
	maxSlots = maxPorts * lanesUnsaid

	// maxName bounds the bytes of a model's name.
	maxName = 256
)

// reach is how many slots are believed.
func (p *process) reach() int {
	if p.lanes > 0 {
		return p.lanes
	}
	return lanesUnsaid
}

// makeRoom forgets those who were heard longest ago, until the bounds hold. The one
// that the line in hand speaks of was heard last.
func (r *Reader) makeRoom() {
	slots := 0
	for _, p := range r.procs {
		slots += p.reach()
	}
	for len(r.procs) > maxPorts || slots > maxSlots {
		var oldest *process
		for _, p := range r.procs {
			if oldest == nil || p.heard < oldest.heard || p.heard == oldest.heard && p.port < oldest.port {
				oldest = p
			}
		}
		slots -= oldest.reach()
		r.forget(oldest)
	}
}

// forget ends what is known of a process, here and at all who listen.
func (r *Reader) forget(p *process) {
	delete(r.procs, p.port)
	r.unmemo(p)
	if r.cur == p {
		r.cur = nil
	}
	r.say(about(p, KindGone))
	if cap(p.slots) <= lanesUnsaid && len(r.spare) < len(r.memo) {
		r.spare = append(r.spare, p)
	}
}

// clipName returns as much of a name as is kept, without half a letter at its end.
func clipName(name []byte) []byte {
	if len(name) <= maxName {
		return name
	}
	n := maxName
	for n > maxName-utf8.UTFMax && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}
