package openai

import (
	"bytes"

	"github.com/slotfleet/slotfleet/fleet"
)

// own notes whose answer the client gets, once that is known.
func (j *Job) own(c *chunk) {
	r := &j.relay
	if r.owner != 0 || j.namesItself() && !c.envelope[envID].ok() {
		return
	}
	for k := range r.envelope {
		r.envelope[k] = append(r.envelope[k][:0], c.envelope[k].val.of(c.data)...)
	}
	r.owner = r.attempt
}

// namesItself reports whether every chunk says whose answer it is of.
func (j *Job) namesItself() bool { return j.kind.api == apiChat || j.kind.api == apiCompletion }

// emit appends a chunk as an event, without what the client did not ask for, and
// as the first node would have sent it. last: this is where the server puts its
// timings without being asked.
func (j *Job) emit(c *chunk, last bool) {
	r := &j.relay
	if !j.streams {
		return
	}
	j.own(c)
	switch {
	case !c.verbose.ok():
	case j.verbose:
		j.fitVerbose(c, last)
	default:
		r.edits.remove(c.verbose)
	}
	if c.progress.ok() && !j.progress {
		r.edits.remove(c.progress) // llama-server puts it on the echo of a prefill, too
	}
	j.fitTimings(c, last)
	switch {
	case c.flat:
		j.fitNative(c, last)
	case j.kind.typed():
		j.fitEvent(c)
		r.out = appendName(r.out, c.kind.of(c.data))
	default:
		j.fitUsage(c)
	}
	if j.namesItself() && r.owner != 0 && r.owner != r.attempt {
		r.fitEnvelope(c)
	}
	r.out = append(r.out, "data: "...)
	from := len(r.out)
	r.out = r.edits.apply(r.out, c.data)
	if c.flat && last {
		r.out = append(r.out[:from], j.chosenFields(r.out[from:])...)
	}
	oneLine(r.out[from:])
	r.out = append(r.out, '\n', '\n')
}

// fitTimings cuts timings that only we asked for, and makes those of the whole
// answer of the rest.
func (j *Job) fitTimings(c *chunk, last bool) {
	r := &j.relay
	if !c.timings.ok() {
		return
	}
	if j.kind.api == apiChat && j.usage && len(c.parts) > 0 {
		last = false // with usage asked, they stand in its chunk
	}
	switch with, keep := j.timingsNow(c, last); {
	case !keep:
		r.edits.remove(c.timings)
	case len(with) > 0:
		r.edits.replace(c.timings.val, with)
	}
}

// timingsNow returns what stands for the timings of a chunk, nothing where they are right
// as they came; not keep: they go.
func (j *Job) timingsNow(c *chunk, last bool) (with []byte, keep bool) {
	r := &j.relay
	if c.progress.ok() && !j.progress { // they are of another request, or of nothing yet
		return nil, false
	}
	if !last && !j.timings {
		return nil, false
	}
	p := r.before()
	if p.nodes == 0 {
		return nil, true
	}
	at := len(r.scratch)
	r.scratch = p.appendTimings(r.scratch, r.cur)
	return r.scratch[at:], len(r.scratch) > at
}

// fitUsage makes the usage of the last node that of the answer.
func (j *Job) fitUsage(c *chunk) {
	r := &j.relay
	p := r.before()
	if !c.usage.ok() || p.nodes == 0 {
		return
	}
	at := len(r.scratch)
	r.scratch = appendUsage(r.scratch, r.total(), p.tokens+r.now.tokens)
	r.edits.replace(c.usage.val, r.scratch[at:])
}

// total returns the figures of the prompt. Where the first node was lost before it
// told them, the last one's are taken less what it was given to go on with.
func (r *relay) total() figures {
	f := r.first()
	if f.prompt == 0 {
		f.prompt = max(0, r.cur.prompt-fleet.Tokens(r.before().tokens))
		f.hasCached = false
	}
	return f
}

func (r *relay) fitEnvelope(c *chunk) {
	for k, m := range c.envelope {
		switch {
		case !m.ok():
		case len(r.envelope[k]) == 0:
			r.edits.remove(m)
		case !bytes.Equal(m.val.of(c.data), r.envelope[k]):
			r.edits.replace(m.val, r.envelope[k])
		}
	}
}
