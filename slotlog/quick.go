package slotlog

import "encoding/binary"

// eight is the eight bytes at b[i:] as one number: whether some words begin there is
// then one comparison. b must have as many. (The third bound spares what Go does for
// slices that may be empty.)
func eight(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i : i+8 : i+8]) }

// eightOf is the number that eight letters are.
func eightOf(s string) uint64 { return eight([]byte(s), 0) }

// quick reads the lines that make up nearly all of a log: those of a server that is
// known already, in a shape that it has shown, with nothing around them. done is
// false for every other line, of which nothing is decided here.
func (r *Reader) quick(b []byte) (known, done bool) {
	if len(b) < 20 || b[len(b)-1] <= '\r' {
		return false, false
	}
	p, i := r.cur, 0
	if b[0] == '[' {
		if p == nil || p.printed != eight(b, 0) {
			if p = r.marked(b); p == nil {
				return false, false
			}
		}
		i = 8
	} else if p == nil || p.mark != 0 {
		if p = r.memo[0]; p == nil || p.mark != 0 {
			return false, false
		}
		p.heard, r.cur = r.stats.Lines, p
	}
	shape, clock := shapeBare, p.clock
	if isDigit(b[i]) {
		if clock, i = clockAt(b, i); i == 0 || !p.goesOn(clock) || !isLevel(b, i) {
			return false, false
		}
		i += 2
		shape = shapeClock
	}
	if p.shape == shape {
		if f, next := frameAt(b, i); next > 0 {
			p.believed(clock)
			return r.slotLine(p, f, b[next:]), true
		}
		if isService(b, i) {
			p.believed(clock)
			p.header.open = false
			r.serviceLine(p, b[i+serviceWidth:])
			return true, true
		}
	}
	if shape != shapeBare {
		return false, false
	}
	if p.header.open {
		return true, p.shape == shapeBare && (r.blockLine(p, b[i:]) || hasPrefix(b[skipBlanks(b, i):], "total time = "))
	}
	return p.shape == shapeBare, i == 0 && r.isLibraryLine(b)
}

func (p *process) believed(clock int64) {
	if p.bare = 0; clock != p.clock {
		p.clock, p.odd = clock, 0
	}
}

// goesOn reports whether a clock goes on from the last one.
func (p *process) goesOn(clock int64) bool {
	return p.clock != 0 && uint64(clock-p.clock+clockSlack) <= clockSlack+clockLeap
}

// isLevel reports whether b[i:] is a level's letter, a blank and something.
func isLevel(b []byte, i int) bool {
	if i+2 >= len(b) || b[i+1] != ' ' || b[i+2] < ' ' {
		return false
	}
	switch b[i] {
	case 'I', 'W', 'E', 'D':
		return true
	}
	return false
}

// marked finds the process that a router's mark names, if it is known.
func (r *Reader) marked(b []byte) *process {
	mark, n := scanPort(b)
	if n != 8 {
		return nil
	}
	p := r.memo[mark&7]
	if p == nil || p.mark != mark {
		return nil
	}
	p.printed = eight(b, 0)
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
	return p
}

// isLibraryLine knows a line of a library under the server, unless its name could be a
// collector's column, or that of a function of the server. Such lines come in rows.
func (r *Reader) isLibraryLine(b []byte) bool {
	n := len(r.library)
	if n < 8 || len(b) <= n || eight(b, 0) != r.libraryWord || string(b[:n]) != string(r.library) {
		if c := b[0]; c != '_' && (c < 'a' || c > 'z') {
			return false
		}
		n = libraryName(b)
		if n == 0 || n >= len(b) || hasPrefix(b, "main: ") || hasPrefix(b, "print_timings: ") {
			return false
		}
		r.library, r.libraryWord = append(r.library[:0], b[:n]...), eight(b, 0)
	}
	for _, c := range b[n:] {
		if c != ' ' {
			return c != '|'
		}
	}
	return false
}
