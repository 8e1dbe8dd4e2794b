package openai

import (
	"bytes"

	"github.com/slotfleet/slotfleet/fleet"
)

// steady is what was learned from an event of a stream about those that have all in common
// with it (alike.go): each adds a text to the one choice and goes out as it came, but for
// timings that are cut. Of the whole way of an event this leaves the transcript and the
// figures.
type steady struct {
	on        bool
	reasoning bool  // which text it is
	index     int64 // of the choice
	cut       bool  // timings go, from so far behind the text to so far before the end
	from, to  int
}

// settle finds out whether the chunk that was taken is followed by those that are taken
// in the same way.
func (j *Job) settle(c *chunk) {
	r := &j.relay
	m := &r.steady
	if !j.streams || len(c.alike.rest) == 0 || c.flat || j.kind.typed() || j.kind.api == apiAudio || j.keepsIDs() {
		return
	}
	p := &c.parts[0]
	text := p.content
	if m.reasoning = !text.ok(); m.reasoning {
		text = p.reasoning
	}
	m.index = p.index
	ch := &r.choices[p.index]
	repeats := ch.again.noReasoning || len(ch.again.content)+len(ch.again.reasoning) > 0
	if !hasText(text) || ch.wait.on || repeats || bytes.IndexByte(c.data, '\n') >= 0 || bytes.IndexByte(c.data, '\r') >= 0 {
		return
	}
	switch len(r.edits) {
	case 0:
		m.on = true
	case 1:
		e := &r.edits[0]
		at := e.bounds(c.data, 0)
		m.cut, m.from, m.to = true, at.from-text.to, len(c.data)-at.to
		m.on = e.cut && e.span == c.timings.span() && m.from >= 0
	}
}

// takeMore is Take for an event that is one of these; out is nil for any other.
func (j *Job) takeMore(ev *fleet.Event) (out []byte) {
	r := &j.relay
	m, c := &r.steady, &r.chunk
	if !m.on || r.taken || ev.Kind != fleet.EventData || r.size+len(ev.Data) > maxText {
		return nil
	}
	c.stale = true
	text, ok := c.match(ev.Data)
	if !ok || !hasText(text) {
		return nil
	}
	c.data, c.alike.follows = ev.Data, true
	counted := r.noteFigures(c, ev.Timings)
	if j.opts.Resume == ResumeOn && !r.full {
		ch := &r.choices[m.index]
		kept, now := &ch.content, &ch.now.content
		if m.reasoning {
			kept, now = &ch.reasoning, &ch.now.reasoning
		}
		*kept = appendText(*kept, inside(text).of(c.data))
		r.size += len(*kept) - *now
		*now = len(*kept)
	}
	r.count(j.expect, counted, 1)
	r.taken = true
	r.out = append(r.out[:0], "data: "...)
	rest := c.data
	if m.cut {
		r.out = append(r.out, rest[:text.to+m.from]...)
		rest = rest[len(rest)-m.to:]
	}
	r.out = append(append(r.out, rest...), '\n', '\n')
	return r.out
}
