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
func (r *Reader) quick(text []byte) (at int) {
	r.text = text
	for at <= len(text)-r.ahead {
		line := (*lineWindow)(text[at : at+ahead : at+ahead])
		p, i := r.cur, 0
		if line[0] == '[' {
			if p == nil || p.printed != line.at(0) {
				if p = r.marked(line); p == nil {
					return at
				}
			}
			i = 8
		} else if p == nil || p.mark != 0 {
			if p = r.memo[0]; p == nil || p.mark != 0 {
				return at
			}
		}
		c, d := line.clock(i), &p.dial
		var next int
		if !d.isAt(c) {
			if !isDigit(c[0]) {
				if next = r.quickBare(p, c, at+i); next == 0 {
					return at
				}
				at = next
				continue
			} else if d = &r.dial; !p.wind(d, line[i:]) {
				return at
			}
		}
		if !d.goesOn(c) {
			return at
		}
		if next = r.quickClocked(p, d, c.frame(d.width+14), at+i+d.width+14); next == 0 {
			return at
		}
		at = next
	}
	return at
}

// The functions below read a line whose words begin at r.text[at], and return where the
// next one begins; 0: nothing was done.

// quickClocked reads the words of a line with a clock.
func (r *Reader) quickClocked(p *process, d *dial, f *frameWindow, at int) (next int) {
	w := f.at(0)
	if w<<24 == frameSlot {
		return r.quickSlot(p, d, f, at, shapeClock)
	}
	if !isService(uint32(w)) {
		if f[0] < ' ' || f[0] == 'm' || p.mark != 0 && f[0] == 'c' {
			return 0 // a function of the server, perhaps, or a child's word to its router
		}
	} else if !f.isService() {
		return 0
	} else if at += serviceWidth; serviceWords.have(f.at(serviceWidth)) {
		return r.quickService(p, d, at, shapeClock)
	}
	if next = r.quickNext(at); next == 0 || p.shape != shapeClock {
		return 0
	}
	p.header.open = false
	r.accept(p, d)
	return next
}

// quickBare reads a line without a clock.
func (r *Reader) quickBare(p *process, c *clockWindow, at int) (next int) {
	f, shape := c.frame(0), shapeBare
	if c[1] == ' ' && isLevel(c[0]) {
		f, shape = c.frame(2), shapeLevel
		at += 2
	}
	if w := f.at(0); w<<24 == frameSlot {
		return r.quickSlot(p, nil, f, at, shape)
	} else if uint32(w) == serviceSrv {
		if f.isService() {
			return r.quickService(p, nil, at+serviceWidth, shape)
		}
		return 0
	} else if shape != shapeBare {
		return 0
	} else if p.header.open {
		return r.quickBlock(p, at)
	} else if p.mark != 0 {
		return 0
	}
	return r.quickLibrary(p, f, at)
}

// isService reports whether `%s %12.*s: ` stands here, its letters being known.
func (f *frameWindow) isService() bool {
	return f[17] == ':' && f[18] == ' ' && lettersOf(f.at(4))&lettersOf(f.at(9)) == allLetters
}

// accept is believe for a line in the shape that its process has shown, whose clock goes on
// from the last one. d is nil where none is printed.
func (r *Reader) accept(p *process, d *dial) {
	r.stats.Lines++
	p.bare = 0
	if d != nil {
		d.last, d.moved, p.odd = d.next, true, 0
	}
	if p != r.cur || d == &r.dial || r.best < p.shape || !p.spoke {
		r.acceptNew(p, d)
	}
}

func (r *Reader) acceptNew(p *process, d *dial) {
	if d == &r.dial {
		p.dial = *d
	}
	r.best = max(r.best, p.shape)
	if !p.spoke {
		r.speak(p)
	}
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
}

// doubt is believe for a line in a lesser shape than its process has shown. It reports
// false, and does nothing, when there were so many that it has to be believed.
func (r *Reader) doubt(p *process, shape shape) bool {
	if shape > p.shape || p.bare+1 >= bareLimit {
		return false
	}
	p.bare++
	r.pass(p)
	r.unknown()
	return true
}

// pass takes a line that nothing depends on.
func (r *Reader) pass(p *process) {
	r.stats.Lines++
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
}

// quickNext finds where the line ends that goes on at r.text[from], and returns where the
// next one begins; 0: the line needs a closer look.
func (r *Reader) quickNext(from int) (next int) {
	n := bytes.IndexByte(r.text[from:], '\n')
	if n <= 0 || n > r.longest || r.text[from+n-1] < ' ' {
		return r.quickReturn(from, n)
	}
	return from + n + 1
}

// quickReturn is quickNext for a line that ends in a carriage return.
func (r *Reader) quickReturn(from, n int) (next int) {
	if n > 1 && n <= r.longest && r.text[from+n-1] == '\r' && r.text[from+n-2] > '\r' {
		return from + n + 1
	}
	return 0
}

// upTo is the text of a line from there up to the next one.
func (r *Reader) upTo(from, next int) []byte {
	if end := next - 1; r.text[end-1] == '\r' {
		return r.text[from : end-1]
	}
	return r.text[from : next-1]
}

// quickService reads what the server itself says, which begins at r.text[at].
func (r *Reader) quickService(p *process, d *dial, at int, shape shape) (next int) {
	if next = r.quickNext(at); next == 0 {
		return 0
	}
	if shape != p.shape {
		if r.doubt(p, shape) {
			return next
		}
		return 0
	}
	r.accept(p, d)
	if p.header.open = false; serviceWords.have(eight(r.text, at)) {
		r.serviceLine(p, r.upTo(at, next))
	}
	return next
}

// quickBlock reads a line of a timing block.
func (r *Reader) quickBlock(p *process, at int) (next int) {
	if next = r.quickNext(at); next == 0 || p.shape != shapeBare {
		return 0
	}
	line := r.upTo(at, next)
	if e := r.blockEvent(p, line); e != nil {
		r.pass(p)
		r.tellBlock(p, e)
		return next
	} else if hasPrefix(line[skipBlanks(line, 0):], "total time = ") {
		r.pass(p)
		return next
	}
	return 0
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
func (r *Reader) quickLibrary(p *process, f *frameWindow, at int) (next int) {
	n := r.library.n
	if n == 0 || r.library != libraryOf(f, n) {
		if n = libraryName(f); n == 0 {
			return 0
		}
		if r.library = (library{}); n >= 8 && n <= 24 {
			r.library = libraryOf(f, n)
		}
	}
	for n < 100 && f[n] == ' ' {
		n++
	}
	if f[n] < ' ' || f[n] == '|' { // else a collector's column, perhaps
		return 0
	}
	if next = r.quickNext(at + n); next == 0 {
		return 0
	}
	r.pass(p)
	if p.shape != shapeBare {
		r.unknown()
	}
	return next
}

// libraryName is how long the `name: ` is with which a line of a library begins; 0: none,
// or that of a function of the server, some of which print theirs alike.
func libraryName(f *frameWindow) int {
	if f[0] != '_' && (f[0] < 'a' || f[0] > 'z') || hasPrefix(f[:], "main: ") || hasPrefix(f[:], "print_timings: ") {
		return 0
	}
	return nameAt(f[:64])
}
