package openai

import (
	"bytes"

	"github.com/slotfleet/slotfleet/fleet"
)

// Take reads one event and returns what the client may have of it. Bytes that are
// returned count once [Job.Delivered] was called; an event that gives none needs no
// such call. An error is a [*fleet.RequestError].
func (j *Job) Take(ev fleet.Event) (out []byte, err error) {
	r := &j.relay
	j.rollback()
	r.out, r.scratch, r.edits = r.out[:0], r.scratch[:0], r.edits[:0]
	data := bytes.TrimSpace(ev.Data)
	if ev.Kind != fleet.EventData || len(data) == 0 || string(data) == "null" || string(data) == "[DONE]" {
		return nil, nil
	}
	if !r.chunk.scan(data) {
		return nil, broken("the server sent something that is no answer; try again")
	}
	if r.chunk.fault.ok() {
		return nil, serverFault(&r.chunk)
	}
	if err := j.takeChunk(&r.chunk, ev.Timings); err != nil {
		j.rollback()
		return nil, err
	}
	if len(r.out) == 0 {
		j.Delivered()
		return nil, nil
	}
	return r.out, nil
}

func broken(message string) *fleet.RequestError {
	return &fleet.RequestError{Reason: fleet.ReasonBroken, Message: message}
}

// serverFault is an error that came as an event. Links classify these; one that got
// here is passed as the server said it.
func serverFault(c *chunk) error {
	status := 500
	s := scanner{b: c.fault.val.of(c.data)}
	var buf [64]byte
	for s.enter('{'); s.more('}'); {
		is := string(name(s.key().of(s.b), &buf)) == "code"
		if n := figure(s.value().of(s.b)); is && n >= 400 && n < 600 {
			status = int(n)
		}
	}
	e := &fleet.RequestError{
		Reason: fleet.ReasonRefused, Again: true,
		Reply: &fleet.Reply{Status: status, Body: bytes.Clone(c.data)},
	}
	e.Message = ErrorFor(e).Message
	return e
}

// takeChunk takes what is one JSON object.
func (j *Job) takeChunk(c *chunk, told *fleet.Timings) error {
	r := &j.relay
	counted := false
	switch {
	case c.progress.ok():
		// Older servers put the timings of another request beside it.
		r.cur.noteProgress(c.progress.val.of(c.data))
	case c.timings.ok():
		counted = r.cur.noteTimings(c.timings.val.of(c.data))
	case told != nil:
		r.cur.predicted, r.cur.hasMs, counted = int64(told.Predicted), false, true
	}
	switch {
	case c.progress.ok() && !c.says():
		if j.progress && !j.moved() {
			j.emit(c, false)
		}
		return nil
	case len(c.parts) > 0:
		return j.takeParts(c, counted)
	case c.usage.ok():
		j.takeUsage(c)
		return nil
	}
	j.emit(c, false)
	return nil
}

// says reports whether any choice gets more than a role.
func (c *chunk) says() bool {
	for i := range c.parts {
		p := &c.parts[i]
		if p.says() || p.finish.ok() || p.tools.ok() || p.opaque {
			return true
		}
	}
	return false
}

// moved reports whether the client knows the answer as another node's.
func (j *Job) moved() bool {
	r := &j.relay
	return r.owned && r.owner != r.attempt
}

// takeUsage takes the chunk that has figures and no choices.
func (j *Job) takeUsage(c *chunk) {
	r := &j.relay
	j.noteUsage(c)
	if !j.streams || !j.usage || j.expect == 1 && r.now.usage > 0 {
		return
	}
	r.now.usage++
	j.emit(c, true)
}

func (j *Job) noteUsage(c *chunk) {
	r := &j.relay
	n, ok := r.cur.noteUsage(c.usage.val.of(c.data))
	if !ok {
		return
	}
	if j.expect == 1 {
		r.now.tokens = n
	} else {
		r.counted += n
	}
	j.keepFigures(c)
}

// keepFigures keeps the last figures for a whole answer. As in llama-server these
// are those of the first choice.
func (j *Job) keepFigures(c *chunk) {
	r := &j.relay
	if j.streams || r.lastIndex != 0 {
		return
	}
	if c.usage.ok() {
		r.rawUsage = append(r.rawUsage[:0], c.usage.val.of(c.data)...)
	}
	if c.timings.ok() {
		r.rawTiming = append(r.rawTiming[:0], c.timings.val.of(c.data)...)
	}
}

// verdict says what happens to a chunk.
type verdict uint8

const (
	drop verdict = iota
	hold
	pass
)

func (j *Job) takeParts(c *chunk, counted bool) error {
	r := &j.relay
	all := drop
	finish := false
	for i := range c.parts {
		p := &c.parts[i]
		if p.index < 0 || p.index >= maxChoices {
			return broken("the server sent more answers than were asked for")
		}
		ch := r.at(p.index)
		v := j.takePart(c, ch, p, counted)
		if v == pass && p.finish.ok() {
			finish = true
			j.takeFinish(c, ch, p, counted)
		}
		all = max(all, v)
	}
	if !j.streams {
		r.own(c)
		return j.checkSize()
	}
	if all == drop {
		return nil
	}
	r.own(c)
	if len(c.parts) == 1 {
		j.order(c, &r.choices[c.parts[0].index], all)
		return nil
	}
	j.emit(c, finish)
	return nil
}

// takePart takes what a chunk brings for one choice.
func (j *Job) takePart(c *chunk, ch *choice, p *part, counted bool) verdict {
	r := &j.relay
	if ch.now.finished {
		return drop
	}
	begins := false
	bare := !p.says() && !p.tools.ok() && !p.finish.ok() && !p.opaque
	if p.role.ok() {
		late := ch.now.role || ch.now.said || ch.now.opaque || ch.now.tools
		if bare && late {
			return drop
		}
		if late {
			r.edits.removeInner(c.data, p.role)
		}
		ch.now.role, begins = true, !late
	}
	kept := 0
	if !j.streams {
		kept = ch.assemble(c, p)
		r.size += kept
	}
	if j.holds(c, ch, p) {
		w := &ch.wait
		w.on, w.chunks, w.size = true, w.chunks+1, w.size+kept
		w.role = w.role || begins
		return hold
	}
	if !j.streams && ch.wait.on {
		ch.takeWaiting()
	}
	if !j.takeText(c, ch, p) {
		return drop
	}
	ch.now.opaque = ch.now.opaque || p.opaque
	ch.now.tools = ch.now.tools || p.tools.ok() || ch.wait.on
	ch.now.said = ch.now.said || p.says()
	if !p.says() && !p.tools.ok() && !p.opaque {
		return pass
	}
	r.now.text = true
	r.count(j.expect, counted, 1)
	return pass
}

// count notes how many tokens the attempt generated for what is going out.
func (r *relay) count(expect int, counted bool, chunks int64) {
	if !counted || expect > 1 {
		r.now.tokens += chunks
		r.now.hasMs = false
		return
	}
	r.now.tokens, r.now.ms, r.now.hasMs = r.cur.predicted, r.cur.predictedMs, r.cur.hasMs
}

// holds reports whether the chunk waits for the finish: tool calls do, and all of
// their choice that comes after them.
func (j *Job) holds(c *chunk, ch *choice, p *part) bool {
	if p.finish.ok() || !p.tools.ok() && !ch.wait.on {
		return false
	}
	return !j.streams || len(c.parts) == 1 && !ch.now.tools && len(ch.wait.events)+len(c.data) <= maxHeld
}

// takeText records the text of a part. It returns false if nothing is left of a
// chunk, because the node only repeated what it was given.
func (j *Job) takeText(c *chunk, ch *choice, p *part) bool {
	r := &j.relay
	keep := !j.streams || j.blocked == "" && j.opts.Resume == ResumeOn
	left := false
	for _, t := range []struct {
		at   span
		to   *[]byte
		n    *int
		saw  *bool
		sent []byte
	}{
		{p.reasoning, &ch.reasoning, &ch.now.reasoning, &r.now.sawReasoning, r.sent.reasoning},
		{p.content, &ch.content, &ch.now.content, &r.now.sawContent, r.sent.content},
	} {
		if !hasText(t.at) {
			continue
		}
		from := len(*t.to)
		*t.to = appendText(*t.to, inside(t.at).of(c.data))
		if !*t.saw && echoed((*t.to)[from:], t.sent) {
			rest := (*t.to)[from+len(t.sent):]
			*t.to = append((*t.to)[:from], rest...)
			at := len(r.scratch)
			r.scratch = appendString(r.scratch, (*t.to)[from:])
			r.edits.replace(t.at, r.scratch[at:])
		}
		*t.saw = true
		left = left || len(*t.to) > from
		if !keep || r.size > maxText && j.streams {
			r.full = r.full || keep
			*t.to = (*t.to)[:from]
		}
		r.size += len(*t.to) - from
		*t.n = len(*t.to)
	}
	return left || !p.says() || p.finish.ok() || p.tools.ok()
}

// longestPiece is more bytes than one token brings.
const longestPiece = 256

// echoed reports whether the first text that a node sends begins with all that it
// was given to go on with, although it was asked not to repeat it. A model may
// repeat itself too, so only what is too long for one piece is taken for an echo.
func echoed(text, sent []byte) bool {
	return len(sent) > longestPiece && bytes.HasPrefix(text, sent)
}

// takeFinish takes the end of one choice.
func (j *Job) takeFinish(c *chunk, ch *choice, p *part, counted bool) {
	r := &j.relay
	ch.now.finished = true
	r.lastIndex = p.index
	if counted {
		r.count(j.expect, true, 0)
	} else {
		r.now.tokens += ch.wait.chunks
	}
	if j.expect > 1 && counted && !c.usage.ok() && !j.usage && j.streams {
		r.counted += r.cur.predicted
	}
	if c.usage.ok() {
		j.noteUsage(c)
		r.now.usage++
	} else {
		j.keepFigures(c)
	}
	if !j.streams {
		ch.finish = append(ch.finish[:0], p.finish.of(c.data)...)
	}
}

// order writes a chunk of one choice, behind those of it that wait.
func (j *Job) order(c *chunk, ch *choice, v verdict) {
	r := &j.relay
	if v == hold {
		kept := r.out
		r.out = ch.wait.events
		j.emit(c, false)
		ch.wait.events, r.out = r.out, kept
		return
	}
	if ch.wait.on {
		r.out = append(r.out, ch.wait.events...)
		ch.wait = waiting{}
	}
	j.emit(c, c.parts[0].finish.ok())
}
