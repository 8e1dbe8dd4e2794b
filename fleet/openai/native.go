package openai

import (
	"bytes"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// llama-server's own completions: each chunk is flat, the last has "stop":true and
// the account of everything, and no [DONE] follows. A whole answer is that last chunk
// with all of the text in it.

// nativePart is where the things stand in a flat chunk that we read or change.
type nativePart struct {
	index, content, tokens, stop       member
	predicted, evaluated               member
	model, prompt, settings, probs     member
	timings, progress, fault, stopType member
	other                              member
}

func (n *nativePart) find(key []byte) *member {
	switch string(key) {
	case "index":
		return &n.index
	case "content":
		return &n.content
	case "tokens":
		return &n.tokens
	case "stop":
		return &n.stop
	case "stop_type":
		return &n.stopType
	case "tokens_predicted":
		return &n.predicted
	case "tokens_evaluated":
		return &n.evaluated
	case "model":
		return &n.model
	case "prompt":
		return &n.prompt
	case "generation_settings":
		return &n.settings
	case "completion_probabilities":
		return &n.probs
	case "timings":
		return &n.timings
	case "prompt_progress":
		return &n.progress
	case "error":
		return &n.fault
	}
	return &n.other
}

// read goes over a flat object and returns how many members it has.
func (n *nativePart) read(s *scanner) (members int) {
	var buf [64]byte
	for s.enter('{'); s.more('}'); members++ {
		s.peek()
		m := member{key: s.i, ord: members}
		key := name(s.key().of(s.b), &buf)
		if m.val = s.value(); m.given(s.b) {
			*n.find(key) = m
		}
	}
	return members
}

func (c *chunk) scanNative(s *scanner) bool {
	var n nativePart
	c.members = n.read(s)
	if s.end(); s.fault != "" {
		return false
	}
	c.flat, c.tokens = true, n.tokens.val
	c.timings, c.progress, c.fault = n.timings, n.progress, n.fault
	c.envelope[envModel] = n.model
	c.predicted, c.evaluated = figure(n.predicted.val.of(c.data)), figure(n.evaluated.val.of(c.data))
	if c.fault.ok() || !n.content.ok() && !n.stop.ok() {
		return true
	}
	p := part{at: span{0, len(c.data)}, logprobs: n.probs.val}
	p.text(c.data, n.content.val, &p.content)
	if n.index.ok() {
		p.index = figure(n.index.val.of(c.data))
	}
	if n.stop.ok() && c.data[n.stop.val.from] == 't' {
		p.finish = n.stop.val
	}
	c.parts = append(c.parts, p)
	return 0 <= p.index && p.index < maxChoices
}

// scanVerbose reads the flat chunk that stands inside of one of OpenAI's.
func (c *chunk) scanVerbose() {
	if c.data[c.verbose.val.from] != '{' {
		return
	}
	var n nativePart
	n.read(&scanner{b: c.data[:c.verbose.val.to], i: c.verbose.val.from})
	c.tokens, c.predicted = n.tokens.val, figure(n.predicted.val.of(c.data))
}

// notePrompt reads how long the prompt was.
func (f *figures) notePrompt(c *chunk) {
	if c.evaluated > 0 {
		f.prompt = fleet.Tokens(c.evaluated)
	}
}

// fitNative makes the account of the last node one of all nodes. last: it is that of the
// end, which tells the settings.
func (j *Job) fitNative(c *chunk, last bool) {
	if !last && j.relay.before().nodes == 0 {
		return
	}
	var n nativePart
	n.read(&scanner{b: c.data})
	j.fitAccount(c, &n)
	if last {
		j.ownSettings(n.settings.val)
	}
}

// fitAccount is fitNative for the account that n is, which may stand inside of a chunk.
func (j *Job) fitAccount(c *chunk, n *nativePart) {
	r := &j.relay
	p := r.before()
	if p.nodes == 0 {
		return
	}
	number := func(m member, v int64) {
		if m.ok() {
			at := len(r.scratch)
			r.scratch = strconv.AppendInt(r.scratch, v, 10)
			r.edits.replace(m.val, r.scratch[at:])
		}
	}
	number(n.predicted, p.tokens+c.predicted)
	if total := r.total(); total.prompt > 0 {
		number(n.evaluated, int64(total.prompt))
	}
	if n.prompt.ok() && c.data[n.prompt.val.from] == '"' {
		text := appendText(nil, inside(n.prompt.val).of(c.data))
		if before, found := bytes.CutSuffix(text, r.sent.content); found {
			r.edits.replace(n.prompt.val, appendString(nil, before))
		}
	}
	j.fitSettings(n.settings.val)
}

// fitSettings puts back what the request for the rest changed.
func (j *Job) fitSettings(at span) {
	r := &j.relay
	limit, _ := j.budget()
	for name, v := range members(r.chunk.data, at) {
		switch key := string(name); {
		case limit > 0 && (key == "max_tokens" || key == "n_predict"):
			r.edits.replace(v, strconv.AppendInt(nil, int64(limit), 10))
		case key == "generation_prompt":
			own, _ := j.doc.text(fieldGenerationPrompt)
			r.edits.replace(v, appendString(nil, []byte(own)))
		}
	}
}

// nativeAnswer returns the body that llama-server gives for stream:false: of several
// choices, a list.
func (j *Job) nativeAnswer() []byte {
	r := &j.relay
	if len(r.choices) == 1 {
		return j.appendNative(nil, &r.choices[0])
	}
	b := []byte{'['}
	for k := range r.choices {
		if k > 0 {
			b = append(b, ',')
		}
		b = j.appendNative(b, &r.choices[k])
	}
	return append(b, ']')
}

// appendNative appends the answer of one choice: what ended it, with all of its text.
func (j *Job) appendNative(b []byte, ch *choice) []byte {
	r := &j.relay
	if len(ch.last) == 0 {
		return append(b, j.chosenFields(j.appendDerived(nil, ch.content, ch.tokens))...)
	}
	r.edits, r.scratch = r.edits[:0], r.scratch[:0]
	c := &r.chunk
	if !c.scan(apiNative, ch.last) {
		return append(b, ch.last...)
	}
	return append(b, j.wholeAccount(c, ch, ch.content)...)
}

// wholeAccount makes the last node's account, which c is, that of a whole answer with this
// text.
func (j *Job) wholeAccount(c *chunk, ch *choice, text []byte) []byte {
	r := &j.relay
	var n nativePart
	n.read(&scanner{b: c.data})
	j.fitAccount(c, &n)
	r.fitWholeTimings(c)
	r.edits.replace(n.content.val, appendString(nil, text))
	j.returnTokens(&n, ch)
	j.ownSettings(n.settings.val)
	return j.chosenFields(ch.appendProbs(r.edits.apply(nil, c.data)))
}

// returnTokens puts the tokens of all of the text into a whole answer's account.
func (j *Job) returnTokens(n *nativePart, ch *choice) {
	if n.tokens.ok() && j.doc.isTrue(fieldReturnTokens) {
		j.relay.edits.replace(n.tokens.val, append(append([]byte{'['}, ch.tokens...), ']'))
	}
}

// fitWholeTimings makes the timings in the last node's account those of all nodes.
func (r *relay) fitWholeTimings(c *chunk) {
	p := r.before()
	if p.nodes == 0 || !c.timings.ok() {
		return
	}
	if t := p.appendTimings(nil, r.cur); len(t) > 0 {
		r.edits.replace(c.timings.val, t)
	} else {
		r.edits.remove(c.timings)
	}
}

// appendProbs puts the probabilities at the end of an account.
func (ch *choice) appendProbs(b []byte) []byte {
	if len(ch.logprobs) == 0 {
		return b
	}
	b = append(b[:bytes.LastIndexByte(b, '}')], `,"completion_probabilities":[`...)
	return append(append(b, ch.logprobs...), "]}"...)
}

// fitVerbose makes what verbose tells an account of the whole answer, without what only
// we asked for. last: it is that of the end, of which response_fields chooses.
func (j *Job) fitVerbose(c *chunk, last bool) {
	at := c.verbose.val
	if c.data[at.from] != '{' {
		return
	}
	r := &j.relay
	outer := r.edits
	r.edits = nil
	var n nativePart
	n.read(&scanner{b: c.data[:at.to], i: at.from})
	j.fitAccount(c, &n)
	j.ownSettings(n.settings.val)
	if n.progress.ok() && !j.progress {
		r.edits.removeInner(c.data, n.progress)
	}
	if n.timings.ok() {
		switch with, keep := j.timingsNow(c, last); {
		case !keep:
			r.edits.removeInner(c.data, n.timings)
		case len(with) > 0:
			r.edits.replace(n.timings.val, with)
		}
	}
	inner := r.edits
	r.edits = outer
	if !last || !j.doc.given(fieldResponseFields) {
		r.edits = append(r.edits, inner...)
		return
	}
	r.edits.replace(at, j.chosenFields(inner.apply(nil, c.data[:at.to])[at.from:]))
}

// ownSettings corrects the settings, which tell of our own request.
func (j *Job) ownSettings(at span) {
	r := &j.relay
	for name, v := range members(r.chunk.data, at) {
		if key := string(name); key == "stream" && !j.streams || key == "timings_per_token" && !j.timings {
			r.edits.replace(v, no)
		}
	}
}

// appendDerived is the end at the client's limit of an answer that no node ended: what
// is known of it. A whole answer has its text and tokens there.
func (j *Job) appendDerived(b, text, tokens []byte) []byte {
	b = appendString(append(b, `{"index":0,"content":`...), text)
	b = append(b, `,"tokens":[`...)
	if j.doc.isTrue(fieldReturnTokens) {
		b = append(b, tokens...)
	}
	b = append(b, `],"stop":true`...)
	if m := j.relay.envelope[envModel]; len(m) > 0 {
		b = append(append(b, `,"model":`...), m...)
	}
	b = strconv.AppendInt(append(b, `,"tokens_predicted":`...), j.relay.tokens(), 10)
	b = strconv.AppendInt(append(b, `,"tokens_evaluated":`...), int64(j.relay.total().prompt), 10)
	return append(b, `,"truncated":false,"stop_type":"limit","stopping_word":""}`...)
}

// chosenFields keeps of the account of an end what response_fields names, as the server
// would: a path is a chain of keys with slashes, and the key of what it leads to. An
// empty list names all.
func (j *Job) chosenFields(answer []byte) []byte {
	if !j.doc.given(fieldResponseFields) {
		return answer
	}
	b, named := []byte{'{'}, false
	s := scanner{b: j.doc.value(fieldResponseFields)}
	if s.peek() != '[' {
		return answer
	}
	for s.enter('['); s.more(']'); {
		v := s.value()
		if !v.ok() || s.b[v.from] != '"' {
			continue
		}
		named = true
		path := appendText(nil, inside(v).of(s.b))
		val := follow(answer, path)
		if len(val) == 0 {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(appendString(b, path), ':'), val...)
	}
	if !named {
		return answer
	}
	return append(b, '}')
}

// follow returns what a path of keys leads to; empty: nothing.
func follow(object, path []byte) []byte {
	for key := range bytes.SplitSeq(path, []byte{'/'}) {
		var val span
		for name, v := range members(object, allOf(object)) {
			if bytes.Equal(name, key) {
				val = v
			}
		}
		object = val.of(object)
	}
	return object
}
