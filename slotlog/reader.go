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

	// Unknown is how many of them have no known shape, or say a figure in words
	// that no rule knows.
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
	part     []byte // a line whose end was not fed yet
	skipping bool   // the rest of the line in part is too long, or unwanted
	plain    []byte // scratch: a line without its colours
	event    Event  // scratch: of a framed line; Time is set for each chunk

	stats         Stats
	recent        int // lines of late, halved now and then
	recentUnknown int

	era
}

// NewReader returns a reader that was fed nothing. Of the options it uses Port
// and MaxLine.
func NewReader(o SourceOptions) *Reader {
	r := &Reader{maxLine: o.MaxLine}
	if r.maxLine <= 0 {
		r.maxLine = DefaultMaxLine
	}
	r.era.init(o.Port)
	return r
}

// Stats returns the counts so far.
func (r *Reader) Stats() Stats { return r.stats }

// Feed takes the next bytes, read at the given time, and emits an event for each
// line that says something. It keeps no reference to chunk; emit must not call
// the reader.
func (r *Reader) Feed(chunk []byte, at time.Time, emit func(Event)) {
	r.stats.Bytes += uint64(len(chunk))
	r.event.Time = at
	if len(r.part) > 0 || r.skipping {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			r.hold(chunk)
			return
		}
		r.hold(chunk[:i])
		chunk = chunk[i+1:]
		if len(r.part) > 0 {
			r.line(r.part, at, emit)
		}
		r.part, r.skipping = r.part[:0], false
	}
	for len(chunk) > 0 {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			r.hold(chunk)
			return
		}
		line := chunk[:i]
		chunk = chunk[i+1:]
		if i > 0 && line[0] == 0 {
			line = bytes.TrimLeft(line, "\x00")
		}
		if len(line) > r.maxLine {
			r.stats.Long++
			line = line[:r.maxLine]
		}
		r.line(line, at, emit)
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
	r.era.cut()
}

// Degraded reports whether most of the last lines have no known shape: the log
// of another program, or of a build that prints differently.
func (r *Reader) Degraded() bool {
	return r.recent >= 20 && r.recentUnknown*4 > r.recent*3
}

// line handles one whole line, without its line feed.
func (r *Reader) line(b []byte, at time.Time, emit func(Event)) {
	r.stats.Lines++
	if r.recent++; r.recent >= 256 {
		r.recent /= 2
		r.recentUnknown /= 2
	}
	if len(b) > 0 && (b[len(b)-1] == '\r' || b[0] < ' ' || b[0] >= 0x80) {
		b = trimLine(b)
	}
	var h head
	h.scan(b)
	if len(h.body) > 0 && h.body[0] == esc || len(b) > 0 && b[0] == esc {
		r.plain = stripANSI(r.plain[:0], b)
		h.scan(trimLine(r.plain))
	}
	p := r.cur
	if p == nil || h.port != p.mark {
		p = r.process(h.port, r.stats.Lines, at, emit)
	}
	known := true
	switch f, msg, framed := scanFrame(h.body); {
	case h.clocked:
		r.tick(p, h.clock, r.stats.Lines, at, emit)
		if framed {
			known = r.slotLine(p, f, msg, emit)
		} else {
			r.ownLine(p, h.body, at, emit)
		}
	case framed:
		known = r.bareFrame() && r.slotLine(p, f, msg, emit)
	default:
		known = r.bareLine(p, h.body, at, emit)
	}
	if !known {
		r.stats.Unknown++
		r.recentUnknown++
	}
}

// slotLine emits what a framed line says, and reports whether its words are known.
func (r *Reader) slotLine(p *process, f Frame, msg []byte, emit func(Event)) bool {
	if f.Slot >= p.reach() {
		return false // spliced or forged
	}
	r.stats.Framed++
	e := &r.event
	e.Seq, e.Port, e.Slot, e.Task = r.stats.Lines, p.port, f.Slot, f.Task
	e.Kind, e.HasTokens, e.HasRate = KindFrame, false, false
	e.Tokens, e.Rate = 0, 0
	known := e.read(msg)
	p.header.open = false
	if f.Slot >= 0 {
		p.settle(e, msg)
	}
	emit(*e)
	return known
}

// bareLine handles a line without frame and clock: a service line of an era
// without prefixes, a continuation, or text of others. It reports whether the
// shape is known.
func (r *Reader) bareLine(p *process, b []byte, at time.Time, emit func(Event)) bool {
	if len(b) == 0 {
		return true
	}
	if p.header.open {
		e := Event{Seq: r.stats.Lines, Time: at, Port: p.port, Slot: p.header.slot, Task: p.header.task}
		if e.read(b); e.Kind == KindTiming {
			p.header.open = false
			p.settle(&e, b)
			emit(e)
			return true
		}
	}
	if isContinuation(b) {
		return true
	}
	if r.prefixed {
		return hasPrefix(b, "cmd_child_to_router:")
	}
	return r.ownLine(p, b, at, emit) || isLibraryLine(b)
}

// ownLine handles a line of the server that is about no slot, and reports whether
// it is one.
func (r *Reader) ownLine(p *process, b []byte, at time.Time, emit func(Event)) bool {
	if msg, ok := scanService(b); ok {
		r.serviceLine(p, msg, at, emit)
		return true
	}
	if hasPrefix(b, "main: ") {
		r.mainLine(p, b[len("main: "):], at, emit)
		return true
	}
	return false
}

// isContinuation reports whether b is a further line of a timing block.
func isContinuation(b []byte) bool {
	b = b[skipBlanks(b, 0):]
	if len(b) == 0 {
		return false
	}
	switch b[0] {
	case 'p':
		return hasPrefix(b, "prompt eval time = ")
	case 'e':
		return hasPrefix(b, "eval time = ")
	case 't':
		return hasPrefix(b, "total time = ")
	case 'd':
		return hasPrefix(b, "draft acceptance")
	}
	return false
}
