package slotlog

import (
	"bytes"
	"time"
)

// DefaultMaxLine is how much of a line is looked at; the rest is skipped. Slot
// lines are short; long ones are request bodies at debug verbosity.
const DefaultMaxLine = 64 << 10

// Stats counts what a [Reader] was fed.
type Stats struct {
	// Lines is how many lines ended.
	Lines uint64 `json:"lines"`

	// Unknown is how many of them have no known shape, say a figure in words that no
	// rule knows, or were not believed.
	Unknown uint64 `json:"unknown"`

	// Framed is how many were taken as being about a slot.
	Framed uint64 `json:"framed"`

	// Long is how many were longer than the limit.
	Long uint64 `json:"long"`

	// Bytes is how many bytes were fed.
	Bytes uint64 `json:"bytes"`
}

// Reader turns the bytes of one log into events. It may be fed in pieces of any
// size; what it emits does not depend on where they were cut. It is not safe for
// concurrent use.
type Reader struct {
	maxLine  int
	ahead    int // bytes that the short way of a line must see
	coding   coding
	part     []byte // a line whose end was not fed yet
	skipping bool   // the rest of the line in part is too long, or unwanted

	text    []byte // of the lines that go the short way
	last    int    // where one of them may begin at most
	longest int    // of one from its words on

	emit  func(Event) // of the Feed that runs
	to    *Tracker    // of the FeedTo that runs, else nil
	event Event       // scratch: of a line about a slot; Time is set for each chunk
	aside Event       // scratch: of no slot
	rec   record      // scratch

	library library
	dial    dial // scratch

	texts  [maxNesting + 1][]byte // scratch: what objects held, and lines without colours
	joined [2][]byte              // parts of lines that a collector cut, by stream

	stats         Stats
	recentUnknown uint64 // of the lines of late, halved now and then
	halved        uint64 // the row of lines at whose beginning they last were

	*era              // of the line in hand
	eras   []*era     // the first one is that of lines without a container's name, too
	naming []byte     // the container of the line in hand, while none is known
	spare  []*process // forgotten, to be used again
	taken  int        // slots of all processes, and perhaps more: see makeRoom
}

// NewReader returns a reader that was fed nothing. Of the options it uses Port
// and MaxLine.
func NewReader(o SourceOptions) *Reader {
	r := &Reader{maxLine: o.MaxLine, ahead: ahead}
	if r.maxLine <= 0 {
		r.maxLine = DefaultMaxLine
	}
	if r.longest = r.maxLine - ahead; r.longest < 0 {
		r.ahead = longWay
	}
	r.halved = 1
	r.era = newEra("", o.Port)
	r.eras = []*era{r.era}
	return r
}

// Stats returns the counts so far.
func (r *Reader) Stats() Stats { return r.stats }

// Feed takes the next bytes, read at the given time, and emits an event for each
// line that says something. It keeps no reference to chunk; emit must not call
// the reader.
func (r *Reader) Feed(chunk []byte, at time.Time, emit func(Event)) {
	r.emit = emit
	r.feed(chunk, at)
	r.emit = nil
}

// FeedTo is Feed with the tracker's Apply, but hands events over without a copy.
func (r *Reader) FeedTo(t *Tracker, chunk []byte, at time.Time) {
	r.to = t
	r.feed(chunk, at)
	r.to = nil
}

func (r *Reader) feed(chunk []byte, at time.Time) {
	r.stats.Bytes += uint64(len(chunk))
	r.event.Time = at
	if r.coding.plain {
		r.split(chunk)
	} else {
		r.coding.decode(chunk, r.split)
	}
	r.text = nil
}

// split cuts text into lines.
func (r *Reader) split(chunk []byte) {
	if len(r.part) > 0 || r.skipping {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			r.hold(chunk)
			return
		}
		r.hold(chunk[:i])
		chunk = chunk[i+1:]
		if len(r.part) > 0 {
			r.line(r.part)
		}
		r.part, r.skipping = r.part[:0], false
	}
	for len(chunk) > 0 {
		chunk = chunk[r.quick(chunk):]
		n := bytes.IndexByte(chunk, '\n')
		if n < 0 {
			r.hold(chunk)
			return
		}
		line := chunk[:n]
		chunk = chunk[n+1:]
		if n > r.maxLine || n > 0 && line[0] == 0 {
			if line = bytes.TrimLeft(line, "\x00"); len(line) > r.maxLine {
				r.stats.Long++
				line = line[:r.maxLine]
			}
		}
		r.line(line)
	}
}

// hold keeps the beginning of a line until its end comes. The hole that
// copytruncate leaves is no part of a line and may be far longer than one.
func (r *Reader) hold(b []byte) {
	if r.skipping {
		return
	}
	if len(r.part) == 0 {
		b = bytes.TrimLeft(b, "\x00")
	}
	room := r.maxLine - len(r.part)
	if len(b) > room {
		r.stats.Long++
		r.skipping = true
		b = b[:room]
	}
	r.part = append(r.part, b...)
}

// Cut tells the reader that the next bytes do not follow the last ones: half a
// line is dropped, and what depends on the line before is forgotten. With inLine
// the next bytes may begin in the middle of a line, which is then skipped.
func (r *Reader) Cut(inLine bool) {
	r.part, r.skipping = r.part[:0], inLine
	r.joined[0], r.joined[1] = r.joined[0][:0], r.joined[1][:0]
	r.coding.cut(inLine)
	for _, e := range r.eras {
		e.cut()
	}
}

// lately is how many lines count in full when a log is judged; older ones count half,
// a quarter and so on.
const lately = 128

// Degraded reports whether most of the last lines have no known shape: the log
// of another program, or of a build that prints differently.
func (r *Reader) Degraded() bool {
	r.forgetUnknown()
	recent := r.stats.Lines
	if recent >= 2*lately {
		recent = lately + recent%lately
	}
	return recent >= 20 && r.recentUnknown*4 > recent*3
}

// forgetUnknown halves what was unknown once for each of the last rows of lines.
func (r *Reader) forgetUnknown() {
	if rows := r.stats.Lines / lately; rows > 1 {
		r.recentUnknown >>= rows - r.halved
		r.halved = rows
	}
}

// unknown counts a line that is not known, or not believed.
func (r *Reader) unknown() {
	if r.stats.Lines/lately > r.halved {
		r.forgetUnknown()
	}
	r.stats.Unknown++
	r.recentUnknown++
}

// line handles one whole line, without its line feed.
func (r *Reader) line(b []byte) {
	r.stats.Lines++
	if !r.open(b, wrapping{}) {
		r.unknown()
	}
}

// about begins an event that is about no slot of its own. There is one at a time.
func (r *Reader) about(p *process, k Kind) *Event {
	r.aside = Event{Kind: k, Port: p.port, Slot: -1, Task: noTask, Time: r.event.Time, Seq: r.stats.Lines}
	return &r.aside
}

// tell emits an event.
func (r *Reader) tell(e *Event) {
	if r.to != nil {
		r.to.apply(e)
	} else {
		r.emit(*e)
	}
}
