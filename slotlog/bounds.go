package slotlog

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// What a log can make a reader remember is bounded, since anybody who can forge a
// line can choose a port, a number of slots and a name.
const (
	// maxLanes bounds the slots of a server that said how many it has, and lanesUnsaid
	// those of one that did not.
	maxLanes    = 4096
	lanesUnsaid = 256

	// maxPorts bounds how many servers are remembered, and maxSlots the slots of all
	// of them, which is less than 16 MiB. A router has a few children at once.
	maxPorts = 256
	maxSlots = 16384

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

// weight is how many slots count for a process: those that it has, or that it spoke of.
func (p *process) weight() int { return max(p.lanes, len(p.slots)) }

// makeRoom forgets those who were heard longest ago, until the bounds hold, after a
// process came or took some slots. The one that the line in hand speaks of was heard last.
func (r *Reader) makeRoom(taken int) {
	procs := 0
	for _, e := range r.eras {
		procs += len(e.procs)
	}
	// No count is needed before so many were taken, whatever became of them.
	if r.taken += taken; procs <= maxPorts && r.taken <= maxSlots {
		return
	}
	for {
		procs, slots := 0, 0
		var oldest *process
		for _, e := range r.eras {
			for _, p := range e.procs {
				procs, slots = procs+1, slots+p.weight()
				if oldest == nil || p.heard < oldest.heard || p.heard == oldest.heard && p.port < oldest.port {
					oldest = p
				}
			}
		}
		if procs <= maxPorts && slots <= maxSlots {
			r.taken = slots
			return
		}
		r.forget(oldest)
	}
}

// forget ends what is known of a process, here and at all who listen.
func (r *Reader) forget(p *process) {
	e := p.era
	e.procs.remove(p.own)
	e.unmemo(p)
	if e.cur == p {
		e.cur, e.steady = nil, nil
	}
	if p.spoke {
		r.tell(r.about(p, KindGone))
	}
	if cap(p.slots) <= lanesUnsaid && len(r.spare) < len(e.memo) {
		r.spare = append(r.spare, p)
	}
}

// clipName returns as much of a name as is kept, without half a letter at its end,
// and with a mark for what is no letter: names are shown to people.
func clipName(name []byte) []byte {
	if len(name) > maxName {
		n := maxName
		for n > maxName-utf8.UTFMax && !utf8.RuneStart(name[n]) {
			n--
		}
		name = name[:n]
	}
	if isPlain(name) || utf8.Valid(name) && bytes.IndexFunc(name, unicode.IsControl) < 0 {
		return name
	}
	return bytes.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return utf8.RuneError
		}
		return c
	}, bytes.ToValidUTF8(name, []byte("\ufffd")))
}

// isPlain reports whether a name is of printed ASCII, as nearly all are.
func isPlain(name []byte) bool {
	for _, c := range name {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}
