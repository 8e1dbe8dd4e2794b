package openai

import (
	"bytes"
	"strconv"
)

// blocks is what the present node numbered how, in a stream of Messages.
type blocks struct {
	thinking, text int64 // its number and 1; 0: there is none
	output         int64 // tokens that it said it generated
}

// note takes a block's beginning, and finds what its end is of.
func (b *blocks) note(c *chunk, p *part) {
	n := figure(c.index.of(c.data)) + 1
	switch {
	case p.opens == openReasoning:
		b.thinking = n
	case p.opens == openText:
		b.text = n
	case p.stop && n == b.thinking:
		p.closes, p.shuts = true, openReasoning
	case p.stop && n == b.text:
		p.closes, p.shuts = true, openText
	case p.stop:
		p.tools = span{0, len(c.data)}
	}
	if p.closes && c.usage.ok() {
		var f figures
		b.output, _ = f.noteUsage(c.usage.val.of(c.data))
	}
}

func (c *chunk) readMessages(p *part, text, reasoning span) {
	all := span{0, len(c.data)}
	switch string(c.kind.of(c.data)) {
	case "message_start":
		p.opens = openAnswer
	case "content_block_start":
		switch string(c.itemType.of(c.data)) {
		case "thinking":
			p.opens = openReasoning
		case "text":
			p.opens = openText
		case "tool_use":
			p.tools = all
		default:
			p.opaque = true
		}
	case "content_block_delta":
		switch string(c.itemType.of(c.data)) {
		case "text_delta":
			p.content = text
		case "thinking_delta":
			p.reasoning = reasoning
		case "signature_delta":
			p.closes, p.shuts = true, openReasoning
		case "input_json_delta":
			p.tools = all
		default:
			p.opaque = true
		}
	case "content_block_stop":
		p.stop = true
	case "message_delta":
		p.closes = true
	case "message_stop":
		p.finish = all
	case "ping":
	default:
		p.opaque = true
	}
}

// number is what the client knows a block of the present node as. Thinking is first,
// then the text, then the tools.
func (j *Job) number(n int64) int64 {
	r := &j.relay
	opened := r.choices[0].now.opened
	ours := func(what opening) int64 {
		if opened&what != 0 {
			return 1
		}
		return 0
	}
	var before int64 // blocks of text that the node has
	for _, of := range []int64{r.blocks.thinking, r.blocks.text} {
		if of > 0 {
			before++
		}
	}
	switch n + 1 {
	case r.blocks.thinking:
		return 0
	case r.blocks.text:
		return ours(openReasoning)
	}
	return ours(openReasoning) + ours(openText) + max(0, n-before)
}

// fitMessages gives the blocks of a later node the numbers that the client knows, and
// counts all of the answer.
func (j *Job) fitMessages(c *chunk) {
	r := &j.relay
	if c.index.ok() {
		at := len(r.scratch)
		r.scratch = strconv.AppendInt(r.scratch, j.number(figure(c.index.of(c.data))), 10)
		r.replaceWith(c.index, r.scratch[at:])
	}
	for key, v := range members(c.data, c.usage.val) {
		if string(key) == "output_tokens" {
			r.edits.replace(v, strconv.AppendInt(nil, r.before().tokens+figure(v.of(c.data)), 10))
		}
	}
}

// appendStops closes blocks of text.
func (ch *choice) appendStops(b []byte, open opening) []byte {
	if open&openReasoning != 0 {
		b = appendNamed(b, "content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":""}}`)
		b = appendNamed(b, "content_block_stop", `{"type":"content_block_stop","index":0}`)
	}
	if open&openText != 0 {
		n := "0"
		if ch.now.opened&openReasoning != 0 {
			n = "1"
		}
		b = appendNamed(b, "content_block_stop", `{"type":"content_block_stop","index":`+n+`}`)
	}
	return b
}

// writeBlocks appends what was delivered as the last message, or joins it to the
// client's. The server gives it back before it goes on.
func (j *Job) writeBlocks(w *writer, content, reasoning []byte) {
	if j.prefill.how != prefillNone {
		content = j.prefill.join(j.prefill.content, content)
	}
	if len(content) > 0 {
		reasoning = beforeThinkEnd(reasoning)
	}
	j.relay.sent = sent{content: content, reasoning: reasoning}
	j.relay.choices[0].again = again{content: content, reasoning: reasoning, noReasoning: len(content) > 0}
	v := appendBlocks(nil, content, reasoning)
	if j.prefill.how != prefillNone {
		w.edits.replace(j.doc.last.content.val, v)
		return
	}
	var m []byte
	if j.doc.messages > 0 {
		m = append(m, ',')
	}
	m = append(append(append(m, `{"role":"assistant","content":`...), v...), '}')
	end := j.doc.field[fieldMessages].val.to - 1
	w.edits.replace(span{end, end}, m)
}

// appendBlocks appends the content of a message. A single text is a plain string.
func appendBlocks(b, content, reasoning []byte) []byte {
	if len(reasoning) == 0 {
		return appendString(b, content)
	}
	b = appendString(append(b, `[{"type":"thinking","thinking":`...), reasoning)
	b = append(b, `,"signature":""}`...)
	if len(content) > 0 {
		b = append(appendString(append(b, `,{"type":"text","text":`...), content), '}')
	}
	return append(b, ']')
}

// appendMessageEnd ends an answer at the client's limit.
func (j *Job) appendMessageEnd(b []byte) []byte {
	r := &j.relay
	ch := &r.choices[0]
	b = ch.appendStops(b, ch.now.opened&^ch.now.closed)
	b = appendNamed(b, "message_delta", `{"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":{"output_tokens":`+
		strconv.FormatInt(r.tokens(), 10)+`}}`)
	return appendNamed(b, "message_stop", `{"type":"message_stop"}`)
}

// messageAnswer returns the body that llama-server gives for stream:false.
func (j *Job) messageAnswer() []byte {
	r := &j.relay
	ch := &r.choices[0]
	b := append([]byte(`{"id":`), r.ids.or(r.ids.answer)...)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	sep := func() {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
	}
	if len(ch.reasoning) > 0 {
		b = appendString(append(b, `{"type":"thinking","thinking":`...), ch.reasoning)
		b = append(b, `,"signature":""}`...)
	}
	if len(ch.content) > 0 {
		sep()
		b = append(appendString(append(b, `{"type":"text","text":`...), ch.content), '}')
	}
	for k := range ch.wait.calls {
		sep()
		b = ch.wait.calls[k].appendUse(b)
	}
	b = append(b, ']')
	if m := r.envelope[envModel]; len(m) > 0 {
		b = append(append(b, `,"model":`...), m...)
	}
	stop := ch.stop
	if len(stop) == 0 {
		stop = []byte(`{"stop_reason":"max_tokens","stop_sequence":null}`)
	}
	b = append(append(b, ','), bytes.Trim(stop, "{} ")...)
	f := r.total()
	b = strconv.AppendInt(append(b, `,"usage":{"cache_read_input_tokens":`...), int64(f.cached), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens":`...), int64(f.prompt-f.cached), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), r.tokens(), 10)
	return append(b, "}}"...)
}

// appendUse appends a call as a block. Arguments that are no JSON are none, as the
// server has it.
func (c *call) appendUse(b []byte) []byte {
	b = appendString(append(b, `{"type":"tool_use","id":`...), c.id)
	b = appendString(append(b, `,"name":`...), c.name)
	input := c.arguments
	s := scanner{b: input}
	if s.value(); len(input) == 0 || s.fault != "" {
		input = []byte("{}")
	}
	return append(append(append(b, `,"input":`...), input...), '}')
}

// takeBlock adds a part of a tool call of Messages.
func (ch *choice) takeBlock(c *chunk) (size int, err error) {
	index := figure(c.index.of(c.data))
	to := ch.call(index, c.item.ok())
	if to == nil {
		return 0, broken("the server sent too many tool calls; try again")
	}
	for key, v := range members(c.data, c.item) {
		switch string(key) {
		case "id":
			to.id = textOf(v.of(c.data))
		case "name":
			to.name = textOf(v.of(c.data))
		}
	}
	for key, v := range members(c.data, c.block) {
		if string(key) == "partial_json" {
			to.arguments = append(to.arguments, textOf(v.of(c.data))...)
		}
	}
	return len(c.data), nil
}
