package openai

import (
	"bytes"
	"cmp"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// Take reads one event and returns what the client may have of it. Bytes that are
// returned count once [Job.Delivered] was called; an event that gives none needs no
// such call. An error is a [*fleet.RequestError].
func (j *Job) Take(ev fleet.Event) (out []byte, err error) {
	r := &j.relay
	if out := j.takeMore(&ev); out != nil {
		return out, nil
	}
	j.rollback()
	r.out, r.scratch, r.edits, r.steady = r.out[:0], r.scratch[:0], r.edits[:0], steady{}
	data := bytes.TrimSpace(ev.Data)
	if ev.Kind != fleet.EventData || len(data) == 0 || string(data) == "null" || string(data) == "[DONE]" {
		return nil, nil
	}
	if !r.chunk.scan(j.kind.api, data) {
		r.chunk.parts = r.chunk.parts[:0] // they may be of no choice
		return nil, broken("the server sent something that is no answer; try again")
	}
	if r.chunk.fault.ok() {
		return nil, serverFault(&r.chunk)
	}
	err = j.takeChunk(&r.chunk, ev.Timings)
	if err == nil && j.streams && r.size > maxText && !j.LetGo() {
		err = outgrown()
	}
	if err != nil {
		j.rollback()
		return nil, err
	}
	if len(r.out) == 0 {
		j.Delivered()
		return nil, nil
	}
	r.taken = true
	j.settle(&r.chunk)
	return r.out, nil
}

// broken is about what this server sent; another one may do better.
func broken(message string) *fleet.RequestError {
	return &fleet.RequestError{Reason: fleet.ReasonBroken, Message: message, Again: true}
}

// serverFault is an error that came as an event. Links classify these; one that got
// here is passed as the server said it.
func serverFault(c *chunk) error {
	status := 500
	for key, v := range members(c.data, c.fault.val) {
		if n := figure(v.of(c.data)); string(key) == "code" && n >= 400 && n < 600 {
			status = int(n)
		}
	}
	body := bytes.Clone(c.data)
	if c.fault.val.from == 0 { // it was bare
		body = append(append([]byte(`{"error":`), body...), '}')
	}
	e := &fleet.RequestError{
		Reason: fleet.ReasonRefused, Again: true,
		Reply: &fleet.Reply{Status: status, Body: body},
	}
	e.Message = ErrorFor(e).Message
	return e
}

// takeChunk takes what is one JSON object.
func (j *Job) takeChunk(c *chunk, told *fleet.Timings) error {
	r := &j.relay
	counted := r.noteFigures(c, told)
	if j.kind.api == apiMessages && c.answerUsage.ok() {
		r.cur.noteMessageStart(c.answerUsage.of(c.data))
	}
	switch {
	case c.progress.ok() && !c.says():
		if j.tellsProgress(c) {
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

// tellsProgress reports whether the chunk brings progress that the client asked for: of the
// prompt that it sent, not of one that was made to go on.
func (j *Job) tellsProgress(c *chunk) bool { return c.progress.ok() && j.progress && !j.moved() }

// noteFigures takes the server's figures and reports whether they say how many tokens
// it generated so far.
func (r *relay) noteFigures(c *chunk, told *fleet.Timings) (counted bool) {
	switch {
	case c.progress.ok():
		// Older servers put the timings of another request beside it.
		r.cur.noteProgress(c.progress.val.of(c.data))
	case c.timings.ok():
		counted = r.cur.noteTimings(c)
	case told != nil:
		r.cur.predicted, r.cur.predictedMs, counted = int64(told.Predicted), decimal{}, true
	}
	if c.flat {
		r.cur.notePrompt(c)
		if c.predicted > 0 && !counted {
			r.cur.predicted, r.cur.predictedMs, counted = c.predicted, decimal{}, true
		}
	}
	return counted
}

// says reports whether any choice gets more than a role.
func (c *chunk) says() bool {
	for i := range c.parts {
		p := &c.parts[i]
		if p.says() || p.finish.ok() || p.tools.ok() || p.opaque || p.opens != 0 {
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
		ch := r.at(p.index)
		if j.kind.api == apiMessages {
			r.blocks.note(c, p)
		}
		changes := len(r.edits)
		v, err := j.takePart(c, ch, p, counted)
		if err != nil {
			return err
		}
		switch {
		case v == drop:
			r.edits = r.edits[:changes]
			if len(c.parts) > 1 {
				j.empty(p)
			}
		case v == pass && p.finish.ok():
			finish = true
			j.takeFinish(c, ch, p, counted)
		}
		all = max(all, v)
		if !j.streams {
			if err := j.checkSize(); err != nil {
				return err
			}
		}
	}
	if !j.streams || all != drop {
		j.own(c)
	}
	if j.streams && all != drop {
		j.order(c, all, finish)
	}
	return nil
}

// empty leaves nothing of a part that is dropped, should the chunk go out for the
// sake of its others.
func (j *Job) empty(p *part) {
	r := &j.relay
	at := len(r.scratch)
	r.scratch = strconv.AppendInt(append(r.scratch, `{"finish_reason":null,"index":`...), p.index, 10)
	if j.kind.api == apiChat {
		r.scratch = append(r.scratch, `,"delta":{}}`...)
	} else {
		r.scratch = append(r.scratch, `,"logprobs":null,"text":""}`...)
	}
	r.edits.replace(p.at, r.scratch[at:])
}

// takePart takes what a chunk brings for one choice.
func (j *Job) takePart(c *chunk, ch *choice, p *part, counted bool) (verdict, error) {
	r := &j.relay
	if ch.now.finished {
		return drop, nil
	}
	begins, goes := j.takeRole(c, ch, p)
	if !goes || p.opens != 0 && !ch.opens(p) && !j.tellsProgress(c) {
		return drop, nil
	}
	kept := 0
	if !j.streams {
		var err error
		if kept, err = j.assemble(c, ch, p); err != nil {
			return drop, err
		}
		r.size += kept + ch.takeLogprobs(c, p)
	}
	if j.holds(c, ch, p) {
		w := &ch.wait
		w.on, w.chunks, w.size = w.on || !p.closes, w.chunks+1, w.size+kept
		w.role, w.opened = w.role || begins, w.opened|p.opens
		if !j.streams || !j.moved() {
			w.closed |= p.shuts
		}
		return hold, nil
	}
	if !j.streams && ch.wait.on {
		ch.takeWaiting()
	}
	left, err := j.takeText(c, ch, p)
	if err != nil || !left {
		return drop, err
	}
	ch.now.opaque = ch.now.opaque || p.opaque
	ch.now.tools = ch.now.tools || p.tools.ok() || ch.wait.on
	ch.now.said = ch.now.said || p.says()
	if !p.says() && !p.tools.ok() && !p.opaque {
		return pass, nil
	}
	r.now.text = true
	r.count(j.expect, counted, 1)
	return pass, nil
}

// takeRole lets the role be said once. begins: this says it; not goes: nothing else is
// in the part.
func (j *Job) takeRole(c *chunk, ch *choice, p *part) (begins, goes bool) {
	if !p.role.ok() {
		return false, true
	}
	bare := !p.says() && !p.tools.ok() && !p.finish.ok() && !p.opaque
	late := ch.now.role || ch.now.said || ch.now.opaque || ch.now.tools
	if bare && late {
		return false, false
	}
	if late {
		j.relay.edits.removeInner(c.data, p.role)
	}
	ch.now.role = true
	return !late, true
}

// count notes how many tokens the attempt generated for what is going out.
func (r *relay) count(expect int, counted bool, chunks int64) {
	r.now.told = counted && expect == 1
	if !r.now.told {
		r.now.tokens += chunks
		r.now.ms = decimal{}
		return
	}
	r.now.tokens, r.now.ms = r.cur.predicted, r.cur.predictedMs
}

// holds reports whether the chunk waits for the finish: tool calls do, and all of
// their choice that comes after them. What closes a text waits too, because another
// node may have more of it.
func (j *Job) holds(c *chunk, ch *choice, p *part) bool {
	switch {
	case p.finish.ok() || !p.tools.ok() && !ch.wait.on && !p.closes:
		return false
	case !j.streams:
		return true
	case ch.now.tools || len(ch.wait.events)+len(c.data) > maxHeld:
		return false
	}
	return p.closes || !j.opts.StreamTools && !j.relay.full && len(c.parts) == 1
}

// takeFinish takes the end of one choice.
func (j *Job) takeFinish(c *chunk, ch *choice, p *part, counted bool) {
	r := &j.relay
	ch.now.finished = true
	r.lastIndex = p.index
	if counted {
		r.count(j.expect, true, 0)
	} else {
		r.now.tokens += ch.wait.chunks + j.endToken(ch, p.finish.of(c.data))
	}
	switch {
	case j.kind.typed() || j.kind.api == apiAudio:
		j.noteEventUsage(c)
	case c.usage.ok():
		j.noteUsage(c)
		r.now.usage++
	default:
		j.keepFigures(c)
	}
	if !j.streams {
		ch.finish = append(ch.finish[:0], p.finish.of(c.data)...)
		ch.last = append(ch.last[:0], c.data...)
		r.size += len(ch.finish) + len(ch.last)
	}
}

// endToken is how many tokens a finish adds to the figure that came with the last
// text, until the usage chunk says it, which may be lost with its node. A finish of
// "stop" is an end token, which the server counts and no text chunk has: one. With a
// stop string it may as well be the last text that ended the answer, and where text
// is counted by its chunks the figure is none: then nothing is added to what is known.
func (j *Job) endToken(ch *choice, finish []byte) int64 {
	if j.relay.now.told && ch.wait.chunks == 0 && string(finish) == `"stop"` && !j.doc.stops() {
		return 1
	}
	return 0
}

// order writes a chunk behind what waits of its choices, or lets it wait too: then it
// has only one.
func (j *Job) order(c *chunk, v verdict, finish bool) {
	r := &j.relay
	if v == hold {
		ch := &r.choices[c.parts[0].index]
		kept := r.out
		r.out = ch.wait.events
		j.emitPart(c, ch, false)
		ch.wait.events, r.out = r.out, kept
		return
	}
	for i := range c.parts {
		ch := &r.choices[c.parts[i].index]
		r.out = append(r.out, ch.wait.events...)
		if finish {
			j.shut(ch, allOpen)
		}
		if ch.wait.on || len(ch.wait.events) > 0 {
			ch.now.closed |= ch.wait.closed
			ch.wait = waiting{}
		}
	}
	j.emit(c, finish)
}

// emitPart is emit for what waits of one choice. What closes the text of several
// nodes is ours to write.
func (j *Job) emitPart(c *chunk, ch *choice, last bool) {
	p := &c.parts[0]
	if p.closes {
		j.shut(ch, cmp.Or(p.shuts, allOpen))
	}
	if p.shuts == 0 || !j.moved() {
		j.emit(c, last)
	}
}

// shut writes what closes the text of several nodes, once. Reasoning ends before the
// text does.
func (j *Job) shut(ch *choice, what opening) {
	if !j.kind.typed() || !j.moved() {
		return
	}
	if what&openText != 0 {
		what |= openReasoning
	}
	open := what & ch.now.opened &^ (ch.now.closed | ch.wait.closed)
	ch.wait.closed |= open
	if j.kind.api == apiMessages {
		j.relay.out = ch.appendStops(j.relay.out, open)
	} else {
		j.relay.out = j.relay.appendDones(j.relay.out, ch, open)
	}
}
