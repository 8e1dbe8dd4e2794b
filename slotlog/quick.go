package slotlog

import "bytes"

// quick reads the lines that make up nearly all of a log: those of a server that is
// known already, in a shape that it has shown, with nothing around them. done is
// false for every other line, of which nothing is decided here.
func (r *Reader) quick(b []byte) (known, done bool) {
	if len(b) < 8 || b[len(b)-1] <= '\r' {
		return false, false
	}
	mark, rest := 0, b
	if b[0] == '[' {
		port, n := scanPort(b)
		if n != 8 || len(b) < 16 {
			return false, false
		}
		mark, rest = port, b[8:]
	}
	p := r.cur
	if p == nil || p.mark != mark {
		if p = r.memo[mark&7]; p == nil || p.mark != mark {
			return false, false
		}
		p.heard, r.cur = r.stats.Lines, p
	}
	if rest[0]-'0' <= 9 {
		return r.quickClocked(p, rest)
	}
	if mark == 0 && len(r.library) > 0 && rest[0] == r.library[0] && bytes.HasPrefix(rest, r.library) {
		return p.shape == shapeBare, true
	}
	if p.shape != shapeBare {
		return false, false
	}
	switch rest[0] {
	case 's':
		if f, msg, ok := scanFrame(rest); ok {
			p.bare = 0
			return r.slotLine(p, f, msg), true
		}
		if msg, ok := scanService(rest); ok {
			p.bare, p.header.open = 0, false
			r.serviceLine(p, msg)
			return true, true
		}
	case ' ', 'p':
		if p.header.open {
			return true, r.blockLine(p, rest) || hasPrefix(bytes.TrimLeft(rest, " "), "total time = ")
		}
	}
	return false, false
}

// quickClocked reads a line with a clock that goes on from the last one.
func (r *Reader) quickClocked(p *process, b []byte) (known, done bool) {
	clock, n := scanClock(b)
	if n == 0 || p.shape != shapeClock || len(b) < n+3 || b[n+1] != ' ' || b[n+2] < ' ' {
		return false, false
	}
	if step := clock - p.clock; step < -clockSlack || step > clockLeap || p.clock == 0 {
		return false, false
	}
	switch b[n] {
	case 'I', 'W', 'E', 'D':
	default:
		return false, false
	}
	rest := b[n+2:]
	if f, msg, ok := scanFrame(rest); ok {
		p.clock, p.odd, p.bare = clock, 0, 0
		return r.slotLine(p, f, msg), true
	}
	if msg, ok := scanService(rest); ok {
		p.clock, p.odd, p.bare = clock, 0, 0
		p.header.open = false
		r.serviceLine(p, msg)
		return true, true
	}
	return false, false
}
