package slotlog

import "encoding/binary"

// eight is the eight bytes at b[i:] as one number: whether some words begin there is
// then one comparison. b must have as many. (The third bound spares what Go does for
// slices that may be empty.)
func eight(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i : i+8 : i+8]) }

// eightOf is the number that eight letters are.
func eightOf(s string) uint64 { return eight([]byte(s), 0) }

// quick reads a line, and reports whether it is known. Here are the lines that make up
// nearly all of a log: those of a server that is known already, in a shape that it has
// shown, with nothing around them. All others go the long way, and so would these.
func (r *Reader) quick(b []byte) (known bool) {
	if len(b) < 20 || b[len(b)-1] <= '\r' {
		return r.open(b, wrapping{})
	}
	p, i := r.cur, 0
	if b[0] == '[' {
		if p == nil || p.printed != eight(b, 0) {
			if p = r.marked(b); p == nil {
				return r.open(b, wrapping{})
			}
		}
		i = 8
	} else if p == nil || p.mark != 0 {
		if p = r.memo[0]; p == nil || p.mark != 0 {
			return r.open(b, wrapping{})
		}
		p.heard, r.cur = r.stats.Lines, p
	}
	shape, clock := shapeBare, int64(0)
	if isDigit(b[i]) {
		if clock, i = clockAt(b, i); i == 0 || !p.goesOn(clock) || !isLevel(b, i) {
			return r.open(b, wrapping{})
		}
		i += 2
		shape = shapeClock
	}
	if p.shape == shape {
		if f, next := frameAt(b, i); next > 0 {
			p.believed(clock)
			return r.slotLine(p, f, b[next:])
		}
		if isService(b, i) {
			p.believed(clock)
			p.header.open = false
			r.serviceLine(p, b[i+serviceWidth:])
			return true
		}
	}
	if shape == shapeBare {
		if p.header.open {
			if p.shape == shape && (r.blockLine(p, b[i:]) || hasPrefix(b[skipBlanks(b, i):], "total time = ")) {
				return true
			}
		} else if i == 0 && r.isLibraryLine(b) {
			return p.shape == shape
		}
	}
	return r.open(b, wrapping{})
}

// believed notes a line as believe does; clock is 0 where none is printed.
func (p *process) believed(clock int64) {
	if p.bare = 0; clock != 0 {
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

// library is how the last line of one began: its `name: ` of 8 to 24 bytes, in three
// words that may overlap. Such lines come in rows.
type library struct {
	n                int // 0: none
	head, body, tail uint64
}

func libraryOf(b []byte, n int) library {
	return library{n: n, head: eight(b, 0), body: eight(b, min(8, n-8)), tail: eight(b, n-8)}
}

// isLibraryLine knows a line of a library under the server, unless its name could be a
// collector's column, or that of a function of the server.
func (r *Reader) isLibraryLine(b []byte) bool {
	n := r.library.n
	if n == 0 || len(b) <= n || libraryOf(b, n) != r.library {
		if c := b[0]; c != '_' && (c < 'a' || c > 'z') {
			return false
		}
		n = libraryName(b)
		if n == 0 || n >= len(b) || hasPrefix(b, "main: ") || hasPrefix(b, "print_timings: ") {
			return false
		}
		r.library = library{}
		if n >= 8 && n <= 24 {
			r.library = libraryOf(b, n)
		}
	}
	for _, c := range b[n:] {
		if c != ' ' {
			return c != '|'
		}
	}
	return false
}
