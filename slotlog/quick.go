package slotlog

import (
	"bytes"
	"math"
)

// Nearly all lines of a log are those of a server that is known already, in a shape that
// it has shown, with nothing around them. They go a short way, straight from the chunk:
// what stands before a line's words is compared and taken apart eight bytes at a time,
// without a search (dial.go, quickslot.go), and the end of the line is looked for behind
// that, or not at all where its figures stand in columns. Whatever is not as expected, in
// any byte, is left to the general way (unwrap.go, native.go), and what goes the short way
// comes to the same as it would there: FuzzFeed holds that.

// ahead is how many bytes the short way wants to see at once: more than any line has whose
// end it does not look for.
const ahead = 288

// longWay is a number of bytes that no chunk has: as a Reader's ahead it keeps all lines
// off the short way.
const longWay = math.MaxInt

// quick reads the lines that text begins with, as long as they can go the short way, and
// returns how many bytes they take.
func (r *Reader) quick(text []byte) int {
	r.text, r.at = text, 0
	ok := true
	for ok && len(text)-r.at >= r.ahead {
		line := (*lineWindow)(text[r.at:])
		p, i := r.cur, 0
		if line[0] == '[' {
			if p == nil || p.printed != line.at(0) {
				if p = r.marked(line); p == nil {
					break
				}
			}
			i = 8
		} else if p == nil || p.mark != 0 {
			if p = r.memo[0]; p == nil || p.mark != 0 {
				break
			}
		}
		c, d := line.clock(i), &p.dial
		if d.width == 0 || (c.at(0)^d.minutes)&d.mask != 0 {
			if !isDigit(c[0]) {
				ok = r.quickBare(p, c, r.at+i)
				continue
			} else if d = &r.dial; !p.wind(d, line[i:]) {
				break
			}
		}
		if !d.goesOn(c) {
			break
		}
		f := c.frame(d.width + 14)
		i += r.at + d.width + 14
		if w := f.at(0); w<<24 == frameSlot {
			ok = r.quickSlot(p, d, f, i, shapeClock)
		} else if isService(uint32(w)) {
			ok = r.quickService(p, d, f, i, shapeClock)
		} else {
			ok = r.quickClocked(p, d, f, i)
		}
	}
	return r.at
}

// The functions below read a line whose words begin at r.text[at], and go on behind it.
// Where they report false they did nothing.

// quickBare reads a line without a clock.
func (r *Reader) quickBare(p *process, c *clockWindow, at int) bool {
	f, shape := c.frame(0), shapeBare
	if c[1] == ' ' && isLevel(c[0]) {
		f, shape = c.frame(2), shapeLevel
		at += 2
	}
	if w := f.at(0); w<<24 == frameSlot {
		return r.quickSlot(p, nil, f, at, shape)
	} else if uint32(w) == serviceSrv {
		return r.quickService(p, nil, f, at, shape)
	} else if shape != shapeBare {
		return false
	} else if p.header.open {
		return r.quickBlock(p, at)
	}
	return p.mark == 0 && r.quickLibrary(p, f)
}

// accept is believe for a line in the shape that its process has shown, whose clock goes on
// from the last one. d is nil where none is printed.
func (r *Reader) accept(p *process, d *dial) {
	r.stats.Lines++
	p.bare = 0
	if d != nil {
		d.last, d.moved, p.odd = d.next, true, 0
	}
	if p != r.cur || d == &r.dial || r.best < p.shape {
		r.acceptNew(p, d)
	}
}

func (r *Reader) acceptNew(p *process, d *dial) {
	if d == &r.dial {
		p.dial = *d
	}
	r.best = max(r.best, p.shape)
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
}

// doubt is believe for a line in a lesser shape than its process has shown. It reports
// false, and does nothing, when there were so many that it has to be believed.
func (r *Reader) doubt(p *process, shape shape, next int) bool {
	if next == 0 || shape > p.shape || p.bare+1 >= bareLimit {
		return false
	}
	p.bare++
	r.pass(p, next)
	r.unknown()
	return true
}

// pass takes a line that nothing depends on.
func (r *Reader) pass(p *process, next int) {
	r.at = next
	r.stats.Lines++
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
}

// quickEnd finds the end of the line in hand at or after from: its text ends before end,
// and the next line begins at next. next is 0 when the line needs a closer look.
func (r *Reader) quickEnd(from int) (end, next int) {
	n := bytes.IndexByte(r.text[from:], '\n')
	if end = from + n; n <= 0 || end-r.at > r.maxLine {
		return 0, 0
	}
	if c := r.text[end-1]; c > '\r' {
		return end, end + 1
	} else if c == '\r' && n > 1 && r.text[end-2] > '\r' {
		return end - 1, end + 1
	}
	return 0, 0
}

// quickService reads a line of the server itself: `srv  %12.*s: ` and its sisters.
func (r *Reader) quickService(p *process, d *dial, f *frameWindow, at int, shape shape) bool {
	if f[17] != ':' || f[18] != ' ' || lettersOf(f.at(4))&lettersOf(f.at(9)) != allLetters {
		return false
	}
	at += serviceWidth
	end, next := r.quickEnd(at)
	if shape != p.shape {
		return r.doubt(p, shape, next)
	} else if next == 0 {
		return false
	}
	r.at = next
	r.accept(p, d)
	p.header.open = false
	if serviceWords.have(f.at(serviceWidth)) {
		r.serviceLine(p, r.text[at:end])
	}
	return true
}

// quickClocked reads a prefixed line of no frame: that of a library under the server.
func (r *Reader) quickClocked(p *process, d *dial, f *frameWindow, at int) bool {
	if p.shape != shapeClock || f[0] < ' ' || f[0] == 'm' || p.mark != 0 && f[0] == 'c' {
		return false // a function of the server, perhaps, or a child's word to its router
	}
	_, next := r.quickEnd(at)
	if next == 0 {
		return false
	}
	r.at = next
	r.accept(p, d)
	p.header.open = false
	return true
}

// quickBlock reads a line of a timing block.
func (r *Reader) quickBlock(p *process, at int) bool {
	end, next := r.quickEnd(at)
	if next == 0 || p.shape != shapeBare {
		return false
	}
	line := r.text[at:end]
	if e := r.blockEvent(p, line); e != nil {
		r.pass(p, next)
		r.tellBlock(p, e)
		return true
	} else if hasPrefix(line[skipBlanks(line, 0):], "total time = ") {
		r.pass(p, next)
		return true
	}
	return false
}

// marked finds the process that a router's mark names, if it is known.
func (r *Reader) marked(line *lineWindow) *process {
	mark, n := scanPort(line[:])
	if n != 8 {
		return nil
	}
	p := r.memo[mark&7]
	if p == nil || p.mark != mark {
		return nil
	}
	p.printed = line.at(0)
	return p
}

// isLevel knows the letters of the levels.
func isLevel(c byte) bool { return c == 'I' || c == 'W' || c == 'E' || c == 'D' }

// library is how the last line of one began: its `name: ` of 8 to 24 bytes, in three
// words that may overlap. Such lines come in rows.
type library struct {
	n                int // 0: none
	head, body, tail uint64
}

func libraryOf(f *frameWindow, n int) library {
	return library{n: n, head: f.at(0), body: f.at(min(8, n-8)), tail: f.at(n - 8)}
}

// quickLibrary reads a line of a library under the server that has no prefix.
func (r *Reader) quickLibrary(p *process, f *frameWindow) bool {
	n := r.library.n
	if n == 0 || r.library != libraryOf(f, n) {
		if n = libraryName(f[:]); n < 8 || n > 24 || !isLibrary(f[:]) {
			return false
		}
		r.library = libraryOf(f, n)
	}
	for n < 64 && f[n] == ' ' {
		n++
	}
	if f[n] < ' ' || f[n] == '|' { // else a collector's column, perhaps
		return false
	}
	_, next := r.quickEnd(r.at + n)
	if next == 0 {
		return false
	}
	r.pass(p, next)
	if p.shape != shapeBare {
		r.unknown()
	}
	return true
}

// isLibrary reports whether a name is that of a library: some functions of the server
// print theirs alike.
func isLibrary(b []byte) bool {
	return (b[0] == '_' || b[0] >= 'a' && b[0] <= 'z') && !hasPrefix(b, "main: ") && !hasPrefix(b, "print_timings: ")
}
