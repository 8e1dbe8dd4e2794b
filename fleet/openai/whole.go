package openai

import (
	"bytes"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// call is a tool call of a whole answer.
type call struct {
	index          int64
	id, name, kind []byte
	arguments      []byte
}

// assemble keeps what a part brings for a whole answer, besides logprobs and the
// text that does not wait. It returns how many bytes that is.
func (j *Job) assemble(c *chunk, ch *choice, p *part) (size int, err error) {
	switch {
	case j.kind.api == apiMessages && c.stop.ok():
		ch.stop = append(ch.stop[:0], c.stop.of(c.data)...)
	case !p.tools.ok() || j.kind.api == apiResponses: // its finish has all items once more
	case j.kind.api == apiMessages:
		size, err = ch.takeBlock(c)
	default:
		size, err = ch.takeCalls(p.tools.of(c.data))
	}
	if err != nil {
		return 0, err
	}
	if at := c.tokens; (c.flat || j.verbose) && at.to-at.from > 2 {
		if len(ch.tokens) > 0 {
			ch.tokens = append(ch.tokens, ',')
		}
		ch.tokens = append(ch.tokens, inside(at).of(c.data)...)
		j.relay.size += at.to - at.from
	}
	if c.verbose.ok() && j.verbose && p.index == 0 {
		j.relay.rawVerbose = append(j.relay.rawVerbose[:0], c.verbose.val.of(c.data)...)
	}
	if w := &ch.wait; (w.on || p.tools.ok()) && !p.finish.ok() {
		before := len(w.content) + len(w.reasoning)
		if hasText(p.content) {
			w.content = appendText(w.content, inside(p.content).of(c.data))
		}
		if hasText(p.reasoning) {
			w.reasoning = appendText(w.reasoning, inside(p.reasoning).of(c.data))
		}
		size += len(w.content) + len(w.reasoning) - before
	}
	return size, nil
}

// takeLogprobs keeps those of a part for a whole answer, and returns how many bytes
// they are.
func (ch *choice) takeLogprobs(c *chunk, p *part) (size int) {
	if !p.logprobs.ok() {
		return 0
	}
	list := contentOf(p.logprobs.of(c.data))
	if len(list) == 0 {
		return 0
	}
	before := len(ch.logprobs)
	if before > 0 {
		ch.logprobs = append(ch.logprobs, ',')
	}
	ch.logprobs = append(ch.logprobs, list...)
	ch.now.logprobs = len(ch.logprobs)
	return len(ch.logprobs) - before
}

// takeWaiting adds the text that waited to that of the choice. The calls stay where
// they are.
func (ch *choice) takeWaiting() {
	w := &ch.wait
	ch.content = append(ch.content, w.content...)
	ch.reasoning = append(ch.reasoning, w.reasoning...)
	ch.now.content, ch.now.reasoning = len(ch.content), len(ch.reasoning)
	w.content, w.reasoning = nil, nil
}

// contentOf returns the elements of logprobs.content without its brackets. In
// llama-server's own completions they are a list without an object around it.
func contentOf(v []byte) []byte {
	if v[0] == '[' {
		return bytes.TrimSpace(v[1 : len(v)-1])
	}
	var list []byte
	for key, at := range members(v, allOf(v)) {
		if string(key) == "content" && v[at.from] == '[' {
			list = bytes.TrimSpace(inside(at).of(v))
		}
	}
	return list
}

// takeCalls adds a list of tool-call deltas and returns how many bytes they hold.
func (ch *choice) takeCalls(list []byte) (size int, err error) {
	s := scanner{b: list}
	for s.enter('['); s.more(']'); {
		if s.peek() != '{' {
			s.value()
			continue
		}
		n, ok := ch.takeCall(&s)
		if !ok {
			return 0, broken("the server sent too many tool calls; try again")
		}
		size += n
	}
	return size, nil
}

// takeCall adds one delta. Its index says which call it is of; without one it is
// of the last, or of a new one if it has an id. It returns how many bytes it holds;
// not ok: there are too many calls already.
func (ch *choice) takeCall(s *scanner) (size int, ok bool) {
	from := s.i
	d := call{index: -1}
	var buf [64]byte
	for s.enter('{'); s.more('}'); {
		key := name(s.key().of(s.b), &buf)
		switch string(key) {
		case "index":
			d.index = figure(s.value().of(s.b))
		case "id":
			d.id = textOf(s.value().of(s.b))
		case "type":
			d.kind = textOf(s.value().of(s.b))
		case "function":
			if s.peek() == '{' {
				d.takeFunction(s)
				continue
			}
			s.value()
		default:
			s.value()
		}
	}
	to := ch.call(d.index, len(d.id) > 0)
	if to == nil {
		return 0, false
	}
	to.id = append(to.id, d.id...)
	to.name = append(to.name, d.name...)
	to.arguments = append(to.arguments, d.arguments...)
	if len(d.kind) > 0 {
		to.kind = d.kind
	}
	return s.i - from, true
}

func (d *call) takeFunction(s *scanner) {
	var buf [64]byte
	for s.enter('{'); s.more('}'); {
		key := name(s.key().of(s.b), &buf)
		isName, isArguments := string(key) == "name", string(key) == "arguments"
		switch v := s.value().of(s.b); {
		case isName:
			d.name = textOf(v)
		case isArguments:
			d.arguments = textOf(v)
		}
	}
}

func textOf(v []byte) []byte {
	if len(v) < 2 || v[0] != '"' {
		return nil
	}
	return appendText(nil, v[1:len(v)-1])
}

// call returns the call of an index, which below 0 is not known; nil: it would be one
// too many.
func (ch *choice) call(index int64, isNew bool) *call {
	n := len(ch.wait.calls)
	if index < 0 {
		if n > 0 && !isNew {
			return &ch.wait.calls[n-1]
		}
		index = int64(n)
	}
	for k := n - 1; k >= 0; k-- { // most are of the last
		if ch.wait.calls[k].index == index {
			return &ch.wait.calls[k]
		}
	}
	if n == maxCalls {
		return nil
	}
	ch.wait.calls = append(ch.wait.calls, call{index: index})
	return &ch.wait.calls[n]
}

// checkSize bounds what a whole answer holds. Another server's would be as long.
func (j *Job) checkSize() error {
	if j.relay.size > maxText {
		return &fleet.RequestError{
			Reason:  fleet.ReasonBroken,
			Message: "the answer grew beyond 16 MiB; ask for a stream, or for fewer tokens",
		}
	}
	return nil
}

// openAIAnswer returns the body that llama-server gives for stream:false, its keys
// in the same order.
func (j *Job) openAIAnswer() []byte {
	r := &j.relay
	b := []byte(`{"choices":[`)
	for k := range r.choices {
		if k > 0 {
			b = append(b, ',')
		}
		b = j.appendChoice(b, k)
	}
	b = append(b, ']')
	b = r.appendEnvelope(b, envCreated, envModel, envFingerprint)
	b = append(append(append(b, `,"object":"`...), j.kind.object...), '"')
	if u := j.wholeUsage(); len(u) > 0 {
		b = append(append(b, `,"usage":`...), u...)
	}
	b = r.appendEnvelope(b, envID)
	if len(r.rawVerbose) > 0 {
		b = append(append(b, `,"__verbose":`...), j.wholeVerbose()...)
	}
	if t := r.wholeTimings(); len(t) > 0 {
		b = append(append(b, `,"timings":`...), t...)
	}
	return append(b, '}')
}

// wholeVerbose is what the server told with verbose, as it would of a whole answer.
func (j *Job) wholeVerbose() []byte {
	r := &j.relay
	r.edits, r.scratch = r.edits[:0], r.scratch[:0]
	c := &r.chunk
	if !c.scan(apiNative, r.rawVerbose) {
		return r.rawVerbose
	}
	ch := &r.choices[0]
	text := ch.content
	if len(text) == 0 {
		text = ch.reasoning
	}
	return j.wholeAccount(c, ch, text)
}

// appendEnvelope appends members of the envelope that are known.
func (r *relay) appendEnvelope(b []byte, which ...int) []byte {
	for _, k := range which {
		if len(r.envelope[k]) > 0 {
			b = append(append(append(b, `,"`...), envelopeNames[k]...), `":`...)
			b = append(b, r.envelope[k]...)
		}
	}
	return b
}

func (j *Job) appendChoice(b []byte, index int) []byte {
	ch := &j.relay.choices[index]
	finish := ch.finish
	if len(finish) == 0 {
		finish = []byte(`"length"`)
	}
	if j.kind.api != apiChat {
		b = appendString(append(b, `{"text":`...), ch.content)
		b = strconv.AppendInt(append(b, `,"index":`...), int64(index), 10)
		b = append(b, `,"logprobs":`...)
		if len(ch.logprobs) > 0 {
			b = ch.appendLogprobs(b)
		} else {
			b = append(b, "null"...)
		}
		b = append(append(b, `,"finish_reason":`...), finish...)
		return append(b, '}')
	}
	b = append(append(b, `{"finish_reason":`...), finish...)
	b = strconv.AppendInt(append(b, `,"index":`...), int64(index), 10)
	b = appendString(append(b, `,"message":{"role":"assistant","content":`...), ch.content)
	if len(ch.reasoning) > 0 {
		b = appendString(append(b, `,"reasoning_content":`...), ch.reasoning)
	}
	if len(ch.wait.calls) > 0 {
		b = ch.appendCalls(b)
	}
	b = append(b, '}')
	if len(ch.logprobs) > 0 {
		b = ch.appendLogprobs(append(b, `,"logprobs":`...))
	}
	return append(b, '}')
}

func (ch *choice) appendLogprobs(b []byte) []byte {
	return append(append(append(b, `{"content":[`...), ch.logprobs...), "]}"...)
}

func (ch *choice) appendCalls(b []byte) []byte {
	b = append(b, `,"tool_calls":[`...)
	for k := range ch.wait.calls {
		c := &ch.wait.calls[k]
		if k > 0 {
			b = append(b, ',')
		}
		kind := c.kind
		if len(kind) == 0 {
			kind = []byte("function")
		}
		b = appendString(append(b, `{"type":`...), kind)
		b = appendString(append(b, `,"function":{"name":`...), c.name)
		b = appendString(append(b, `,"arguments":`...), c.arguments)
		b = append(b, '}')
		if len(c.id) > 0 {
			b = appendString(append(b, `,"id":`...), c.id)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func (j *Job) wholeUsage() []byte {
	r := &j.relay
	if r.before().nodes == 0 && len(r.rawUsage) > 0 {
		return r.rawUsage
	}
	f := r.total()
	if f.prompt == 0 {
		return nil
	}
	return appendUsage(nil, f, r.tokens())
}

func (r *relay) wholeTimings() []byte {
	if r.before().nodes == 0 {
		return r.rawTiming
	}
	if len(r.rawTiming) == 0 {
		return nil
	}
	p := r.before()
	return p.appendTimings(nil, r.cur)
}
