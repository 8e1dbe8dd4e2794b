package openai

// itemIDs are, as JSON, what the client knows the parts of a named answer as: the ids
// of the nodes that began them.
type itemIDs struct{ answer, reasoning, text []byte }

// note keeps the id of what is opened.
func (i *itemIDs) note(c *chunk, what opening) {
	keep := func(to *[]byte, at span) { *to = append((*to)[:0], at.of(c.data)...) }
	switch what {
	case openAnswer:
		keep(&i.answer, c.answerID)
	case openReasoning:
		keep(&i.reasoning, c.itemOwnID)
	case openText:
		keep(&i.text, c.itemOwnID)
	}
}

// or is an id as JSON, null where there is none.
func (i *itemIDs) or(id []byte) []byte {
	if len(id) == 0 {
		return []byte("null")
	}
	return id
}

func (c *chunk) readResponses(p *part, text span) {
	all := span{0, len(c.data)}
	item := string(c.itemType.of(c.data))
	switch string(c.kind.of(c.data)) {
	case "response.created":
		p.opens = openAnswer
	case "response.in_progress":
		p.opens = openProgress
	case "response.output_item.added":
		switch item {
		case "reasoning":
			p.opens = openReasoning
		case "message":
			p.opens = openText
		default:
			p.tools = all
		}
	case "response.content_part.added":
		p.opens = openPart
	case "response.output_text.delta":
		p.content = text
	case "response.reasoning_text.delta":
		p.reasoning = text
	case "response.output_text.done", "response.content_part.done":
		p.closes, p.shuts = true, openText|openPart
	case "response.reasoning_text.done":
		p.closes, p.shuts = true, openReasoning
	case "response.output_item.done":
		switch item {
		case "reasoning":
			p.closes, p.shuts = true, openReasoning
		case "message":
			p.closes, p.shuts = true, openText|openPart
		default:
			p.tools = all
		}
	case "response.function_call_arguments.delta", "response.function_call_arguments.done":
		p.tools = all
	case "response.completed", "response.incomplete":
		p.finish = all
	default:
		p.opaque = true
	}
}

// fitResponses gives an event of a later node the ids that the client knows, and the
// last one all of the answer.
func (j *Job) fitResponses(c *chunk) {
	r := &j.relay
	r.replaceWith(c.answerID, r.ids.answer)
	switch string(c.kind.of(c.data)) {
	case "response.output_item.added":
		switch c.parts[0].opens {
		case openReasoning:
			r.replaceWith(c.itemOwnID, r.ids.reasoning)
		case openText:
			r.replaceWith(c.itemOwnID, r.ids.text)
		}
	case "response.content_part.added", "response.output_text.delta":
		r.replaceWith(c.itemID, r.ids.text)
	case "response.reasoning_text.delta":
		r.replaceWith(c.itemID, r.ids.reasoning)
	}
	if !c.parts[0].finish.ok() {
		return
	}
	if c.output.ok() {
		r.edits.replace(c.output, r.appendOutput(nil, c.output.of(c.data), false))
	}
	if c.answerUsage.ok() {
		r.edits.replace(c.answerUsage, appendEventUsage(nil, r.total(), r.before().tokens+r.now.tokens))
	}
}

// appendDones says that the texts of several nodes are complete.
func (r *relay) appendDones(b []byte, ch *choice, open opening) []byte {
	if open&openReasoning != 0 {
		item := string(r.appendReasoningItem(nil, ch, false))
		b = appendNamed(b, "response.output_item.done", `{"type":"response.output_item.done","item":`+item+`}`)
	}
	if open&openText == 0 {
		return b
	}
	id, text := string(r.ids.or(r.ids.text)), string(appendString(nil, ch.content))
	b = appendNamed(b, "response.output_text.done", `{"type":"response.output_text.done","item_id":`+id+`,"text":`+text+`}`)
	if ch.now.opened&openPart != 0 {
		b = appendNamed(b, "response.content_part.done", `{"type":"response.content_part.done","item_id":`+id+`,"part":`+
			string(appendTextPart(nil, ch.content))+`}`)
	}
	return appendNamed(b, "response.output_item.done", `{"type":"response.output_item.done","item":`+string(r.appendTextItem(nil, ch))+`}`)
}

func appendTextPart(b, text []byte) []byte {
	b = appendString(append(b, `{"type":"output_text","annotations":[],"logprobs":[],"text":`...), text)
	return append(b, '}')
}

// appendReasoningItem appends the reasoning as an item of the output; llama-server
// gives it a status in whole answers only.
func (r *relay) appendReasoningItem(b []byte, ch *choice, whole bool) []byte {
	b = append(append(b, `{"id":`...), r.ids.or(r.ids.reasoning)...)
	b = appendString(append(b, `,"summary":[],"type":"reasoning","content":[{"text":`...), ch.reasoning)
	b = append(b, `,"type":"reasoning_text"}],"encrypted_content":""`...)
	if whole {
		b = append(b, `,"status":"completed"`...)
	}
	return append(b, '}')
}

// appendTextItem appends the text as an item of the output. The order of its members
// is that of streams.
func (r *relay) appendTextItem(b []byte, ch *choice) []byte {
	b = append(append(b, `{"type":"message","status":"completed","id":`...), r.ids.or(r.ids.text)...)
	b = appendTextPart(append(b, `,"content":[`...), ch.content)
	return append(b, `],"role":"assistant"}`...)
}

// appendOutput appends the list of items: the texts, which we know, and what else the
// last node has in its own.
func (r *relay) appendOutput(b, own []byte, whole bool) []byte {
	ch := &r.choices[0]
	b = append(b, '[')
	sep := func() {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
	}
	if len(ch.reasoning) > 0 {
		b = r.appendReasoningItem(b, ch, whole)
	}
	if len(ch.content) > 0 {
		sep()
		b = r.appendTextItem(b, ch)
	}
	if len(own) > 0 && own[0] == '[' {
		s := scanner{b: own}
		for s.enter('['); s.more(']'); {
			v := s.value()
			item := v.of(own)
			if t := typeOf(item); t != "reasoning" && t != "message" {
				sep()
				b = append(b, item...)
			}
		}
	}
	return append(b, ']')
}

// typeOf returns the type of an item.
func typeOf(item []byte) (t string) {
	for key, v := range members(item, allOf(item)) {
		if string(key) == "type" {
			t = string(textOf(v.of(item)))
		}
	}
	return t
}

// writeItems appends what was delivered to the input, as the items it came in.
func (j *Job) writeItems(w *writer, content, reasoning []byte) {
	if len(content) > 0 {
		reasoning = beforeThinkEnd(reasoning)
	}
	j.relay.sent = sent{content: content, reasoning: reasoning}
	var items []byte
	if len(reasoning) > 0 {
		items = appendString(append(items, `,{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":`...), reasoning)
		items = append(items, `}]}`...)
	}
	if len(content) > 0 {
		items = appendString(append(items, `,{"type":"message","role":"assistant","content":[{"type":"output_text","text":`...), content)
		items = append(items, `}]}`...)
	}
	at := j.doc.field[fieldInput].val
	if j.doc.body[at.from] == '"' {
		v := append([]byte(`[{"role":"user","content":`), at.of(j.doc.body)...)
		w.edits.replace(at, append(append(append(v, '}'), items...), ']'))
		return
	}
	if j.doc.messages == 0 {
		items = items[1:]
	}
	w.edits.replace(span{at.to - 1, at.to - 1}, items)
}

// appendResponseEnd ends an answer at the client's limit. llama-server calls that
// completed.
func (j *Job) appendResponseEnd(b []byte) []byte {
	r := &j.relay
	ch := &r.choices[0]
	b = r.appendDones(b, ch, ch.now.opened&^ch.now.closed)
	p := append([]byte(`{"type":"response.completed","response":{"id":`), r.ids.or(r.ids.answer)...)
	p = append(p, `,"object":"response","status":"completed","output":`...)
	p = r.appendOutput(p, nil, false)
	p = appendEventUsage(append(p, `,"usage":`...), r.total(), r.tokens())
	return appendNamed(b, "response.completed", string(append(p, "}}"...)))
}

// responseAnswer returns the body that llama-server gives for stream:false.
func (j *Job) responseAnswer() []byte {
	r := &j.relay
	var c chunk
	c.scan(apiResponses, r.choices[0].last)
	b := []byte{'{'}
	if at := c.envelope[envCreated].val; at.ok() {
		b = append(append(b, `"completed_at":`...), at.of(c.data)...)
		b = append(append(append(b, `,"created_at":`...), at.of(c.data)...), ',')
	}
	b = append(append(b, `"id":`...), r.ids.or(r.ids.answer)...)
	if at := c.envelope[envModel].val; at.ok() {
		b = append(append(b, `,"model":`...), at.of(c.data)...)
	}
	b = append(b, `,"object":"response","output":`...)
	b = r.appendOutput(b, c.output.of(c.data), true)
	b = append(b, `,"status":"completed","usage":`...)
	if r.before().nodes == 0 && c.answerUsage.ok() {
		b = append(b, c.answerUsage.of(c.data)...)
	} else {
		b = appendEventUsage(b, r.total(), r.tokens())
	}
	return append(b, '}')
}
