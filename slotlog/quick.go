package slotlog

import (
	"bytes"
	"math"
)

// Nearly all lines of a log are those of a server that is known already, in a shape that
// it has shown, with nothing around them. They go a short way, straight from the chunk:
// what stands before a line's words is compared and taken apart eight bytes at a time,
// without a search (dial.go, quickslot.go, quickprompt.go), and the end of the line is
// looked for behind that, or not at all where its figures stand in columns. Whatever is not
// as expected, in any byte, is left to the general way (unwrap.go, native.go), and what goes
// the short way comes to the same as it would there: FuzzFeed and
// TestShortWayMeansWhatTheLongWayDoes hold that.

// ahead is how many bytes the short way wants to see at once: more than any line has whose
// end it does not look for.
const ahead = 288

// longWay is a number of bytes that no chunk has: as a Reader's ahead it keeps all lines
// off the short way.
const longWay = math.MaxInt

// quick reads the lines that text begins with, as long as they can go the short way, and
// returns how many bytes they take.
func (r *Reader) quick(text []byte) (at int) {
	r.text, r.last = text, len(text)-r.ahead
	for at <= r.last {
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
		next := at
		if c, d := line.clock(i), &p.dial; d.isAt(c) {
			next = r.quickClocks(p, d, at, i)
		} else if !isDigit(c[0]) {
			next = r.quickBares(p, at, i)
		} else if p.wind(&r.dial, line[i:]) {
			next = r.quickClocks(p, &r.dial, at, i)
		}
		if next == at {
			return at
		}
		at = next
	}
	return at
}

// quickClocks reads the lines of a process that begin at r.text[at] with its mark, of i
// bytes, and with the dial's minute. It returns how far it came.
func (r *Reader) quickClocks(p *process, d *dial, at, i int) int {
	for {
		line := (*lineWindow)(r.text[at : at+ahead : at+ahead])
		c := line.clock(i)
		if !d.isAt(c) || i > 0 && line.at(0) != p.printed {
			return at
		}
		t := dialText{c.at(d.width), c.at(d.width + 8)}
		if !t.isTime() || t.second() < d.last.second() {
			return at
		}
		d.next = t
		next, f := at+i+d.width+14, c.frame(d.width+14)
		if f.at(0)<<24 == frameSlot {
			next = r.quickSlot(p, d, f, next, shapeClock)
		} else {
			next = r.quickClock(p, d, f, next)
		}
		if next == 0 {
			return at
		}
		if at = next; at > r.last || p != r.cur || d == &r.dial {
			return at
		}
	}
}

// The functions below read a line whose words begin at r.text[at], and return where the
// next one begins; 0: nothing was done.

// quickClock reads the words of a line with a clock that is about no slot.
func (r *Reader) quickClock(p *process, d *dial, f *frameWindow, at int) (next int) {
	if isService(uint32(f.at(0))) {
		if !f.isService() {
			return 0
		} else if at += serviceWidth; serviceWords.have(f.at(serviceWidth)) {
			return r.quickService(p, d, f.at(serviceWidth), at, shapeClock)
		}
	} else if f[0] < ' ' || f[0] == 'm' || p.mark != 0 && f[0] == 'c' {
		return 0 // a function of the server, perhaps, or a child's word to its router
	}
	if p.shape != shapeClock {
		return 0
	}
	n := bytes.IndexByte(r.text[at:], '\n')
	if next = r.lineEnd(at, n); next > 0 {
		p.header.open = false
		r.acceptClock(p, d)
	}
	return next
}

// quickBares reads the lines without a clock of a process that begin at r.text[at] with its
// mark, of i bytes. It returns how far it came.
func (r *Reader) quickBares(p *process, at, i int) int {
	for {
		line := (*lineWindow)(r.text[at : at+ahead : at+ahead])
		c := line.clock(i)
		if isDigit(c[0]) || i == 0 && c[0] == '[' || i > 0 && line.at(0) != p.printed {
			return at
		}
		next := r.quickBare(p, c, at+i)
		if next == 0 {
			return at
		}
		if at = next; at > r.last || p != r.cur {
			return at
		}
	}
}

// quickBare reads a line without a clock, which begins there.
func (r *Reader) quickBare(p *process, c *clockWindow, at int) (next int) {
	f, shape := c.frame(0), shapeBare
	if c[1] == ' ' && isLevel(c[0]) {
		f, shape = c.frame(2), shapeLevel
		at += 2
	}
	w := f.at(0)
	switch {
	case w<<24 == frameSlot:
		return r.quickSlot(p, nil, f, at, shape)
	case uint32(w) == serviceSrv:
		if f.isService() {
			return r.quickService(p, nil, f.at(serviceWidth), at+serviceWidth, shape)
		}
		return 0
	case shape != shapeBare || p.mark != 0 && !p.header.open:
		return 0
	case p.header.open:
		return r.quickBlock(p, f, w, at)
	case w<<16 == wordsMain:
		return r.quickMain(p, f, at+len("main: "))
	case isName[f[0]]:
		if next = r.quickLibrary(p, f, at); next > 0 {
			return next
		}
	}
	return r.quickText(p, f, uint32(w), at)
}

// isService reports whether `%s %12.*s: ` stands here, its letters being known.
func (f *frameWindow) isService() bool {
	return f[17] == ':' && f[18] == ' ' && lettersOf(f.at(4))&lettersOf(f.at(9)) == allLetters
}

// accept is believe for a line in the shape that its process has shown, and acceptClock for
// one whose clock goes on from the last one.
func (r *Reader) accept(p *process) {
	r.stats.Lines++
	if p.bare = 0; p != r.steady {
		r.acceptNew(p)
	}
}

func (r *Reader) acceptClock(p *process, d *dial) {
	r.stats.Lines++
	p.bare, p.odd = 0, 0
	if d.last, d.moved = d.next, true; p != r.steady || d == &r.dial {
		p.dial = *d
		r.acceptNew(p)
	}
}

func (r *Reader) acceptNew(p *process) {
	r.best = max(r.best, p.shape)
	if !p.spoke {
		r.speak(p)
	}
	if p != r.cur {
		p.heard, r.cur = r.stats.Lines, p
	}
	r.steady = p
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
		p.heard, r.cur, r.steady = r.stats.Lines, p, nil
	}
}

// quickNext finds where the line ends that goes on at r.text[from], and returns where the
// next one begins; 0: the line needs a closer look.
func (r *Reader) quickNext(from int) (next int) {
	return r.lineEnd(from, bytes.IndexByte(r.text[from:], '\n'))
}

// lineEnd is quickNext when the line feed was found n bytes on.
func (r *Reader) lineEnd(from, n int) (next int) {
	if last := from + n - 1; uint(n-1) < uint(r.longest) && r.text[last] >= ' ' {
		return last + 2
	}
	return r.quickReturn(from, n)
}

// quickReturn is lineEnd for a line that ends in a carriage return.
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

// quickService reads what the server itself says, which begins with w at r.text[at].
func (r *Reader) quickService(p *process, d *dial, w uint64, at int, shape shape) (next int) {
	if next = r.lineEnd(at, bytes.IndexByte(r.text[at:], '\n')); next == 0 {
		return 0
	}
	if shape != p.shape {
		if r.doubt(p, shape) {
			return next
		}
		return 0
	}
	if d == nil {
		r.accept(p)
	} else {
		r.acceptClock(p, d)
	}
	if p.header.open = false; serviceWords.have(w) {
		r.serviceLine(p, r.upTo(at, next))
	}
	return next
}

// quickBlock reads a line of a timing block, which begins with w.
func (r *Reader) quickBlock(p *process, f *frameWindow, w uint64, at int) (next int) {
	if p.shape != shapeBare {
		return 0
	} else if w == wordsTotal && f.at(6) == wordsTotalTime && f.at(11) == wordsTimeIs {
		if next = r.quickNext(at); next > 0 {
			r.pass(p)
		}
		return next
	}
	e := r.slotEvent(p, p.header.slot, p.header.task)
	if n := e.quickTiming(f.message(0), w); n > 0 {
		next = at + n
	} else if next = r.quickNext(at); next == 0 {
		return 0
	} else if e = r.blockEvent(p, r.upTo(at, next)); e == nil {
		return 0
	}
	r.pass(p)
	r.tellBlock(p, e)
	return next
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
func isLevel(c byte) bool { return levels>>(c-'A')&1 != 0 }

const levels uint64 = 1<<('I'-'A') | 1<<('W'-'A') | 1<<('E'-'A') | 1<<('D'-'A')

// library is how the last line of one began: its `name: ` of 8 to 24 bytes, in three
// words that may overlap. Such lines come in rows.
type library struct {
	n                int // 0: none
	head, body, tail uint64
}

func libraryOf(f *frameWindow, n int) library {
	return library{n: n, head: f.at(0), body: f.at(min(8, n-8)), tail: f.at(n - 8)}
}

// quickLibrary reads lines of a library under the server that has no prefix.
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
	for body := min(8, n-8); ; {
		i := n
		for i < 100 && f[i] == ' ' {
			i++
		}
		if f[i] < ' ' || f[i] == '|' { // else a collector's column, perhaps
			return next
		}
		end := r.lineEnd(at+i, bytes.IndexByte(r.text[at+i:], '\n'))
		if end == 0 {
			return next
		}
		next = end
		if r.pass(p); p.shape != shapeBare {
			r.unknown()
		}
		if next > r.last {
			return next
		}
		at, f = next, (*frameWindow)(r.text[next:next+ahead:next+ahead])
		if l := &r.library; l.n == 0 || f.at(0) != l.head || f.at(body) != l.body || f.at(n-8) != l.tail {
			return next
		}
	}
}

// libraryName is how long the `name: ` is with which a line of a library begins; 0: none,
// or that of a function of the server, some of which print theirs alike.
func libraryName(f *frameWindow) int {
	if f[0] != '_' && (f[0] < 'a' || f[0] > 'z') || hasPrefix(f[:], "main: ") || hasPrefix(f[:], "print_timings: ") {
		return 0
	}
	return nameAt(f[:64])
}
