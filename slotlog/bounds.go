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

// makeRoom forgets those who were heard longest ago, until the bounds hold. The one
// that the line in hand speaks of was heard last.
func (r *Reader) makeRoom() {
	slots := 0
	for _, p := range r.procs {
		slots += p.weight()
	}
	for len(r.procs) > maxPorts || slots > maxSlots {
		var oldest *process
		for _, p := range r.procs {
			if oldest == nil || p.heard < oldest.heard || p.heard == oldest.heard && p.port < oldest.port {
				oldest = p
			}
		}
		slots -= oldest.weight()
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
