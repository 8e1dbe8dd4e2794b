package openai

import (
	"bytes"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// Responses, Messages and transcriptions stream events that bear a name, which stands
// in the payload too, as its type. Each is one of these: it opens something (once, by
// the first node), brings text, is part of a tool call (and waits for the finish), says
// that something is complete (and waits, because another node may have more of it), or
// is the finish.

// opening is a set of things that a stream opens before it brings text.
type opening uint8

const (
	openAnswer   opening = 1 << iota // response.created, message_start
	openProgress                     // response.in_progress
	openReasoning
	openText
	openPart // of the text

	allOpen = openReasoning | openText | openPart // what has an end of its own
)

// event is what one scan found in the payload of such an event.
type event struct {
	kind span // the name, between its quotes

	answer, item, itemID, block   span // values
	answerID, output, answerUsage span // inside of answer
	itemType, itemOwnID           span // inside of item or block, between quotes; with quotes
	index                         span
	stop                          span // the delta that says how it ended
}

// scanEvent reads the payload of an event.
func (c *chunk) scanEvent(s *scanner, a api) bool {
	p := part{at: span{0, len(c.data)}}
	var text, reasoning span
	var loose int // of the members of an error that is not wrapped
	var buf [64]byte
	for s.enter('{'); s.more('}'); c.members++ {
		s.peek()
		m := member{key: s.i, ord: c.members}
		key := string(name(s.key().of(s.b), &buf))
		at := s.peek()
		m.val = s.value()
		switch {
		case !m.given(s.b):
		case key == "type" && at == '"':
			c.kind = inside(m.val)
		case key == "response" && a == apiResponses, key == "message" && a == apiMessages:
			c.answer = m.val
			if at == '"' {
				loose++
			}
		case key == "message" && at == '"', key == "code":
			loose++
		case key == "item", key == "content_block":
			c.item = m.val
		case key == "item_id":
			c.itemID = m.val
		case key == "index":
			c.index = m.val
		case key == "delta" && at == '"':
			text = m.val
		case key == "delta" && at == '{':
			c.block = m.val
			c.scanBlockDelta(m.val, &text, &reasoning)
		case key == "usage":
			c.usage = m
		case key == "timings":
			c.timings = m
		case key == "prompt_progress":
			c.progress = m
		case key == "error":
			c.fault = m
		}
	}
	if s.end(); s.fault != "" {
		return false
	}
	if loose == 2 && len(c.itemID.of(c.data)) == 0 && !c.fault.ok() {
		c.fault = member{val: span{0, len(c.data)}} // Messages give it bare
	}
	if c.fault.ok() {
		return true
	}
	c.scanInner()
	switch a {
	case apiResponses:
		c.readResponses(&p, text)
	case apiMessages:
		c.readMessages(&p, text, reasoning)
	default:
		c.readAudio(&p, text)
	}
	c.parts = append(c.parts, p)
	return true
}

// scanInner finds the ids and figures inside of the objects that an event carries.
func (c *chunk) scanInner() {
	for key, v := range members(c.data, c.answer) {
		if v = unlessNull(c.data, v); !v.ok() {
			continue
		}
		switch string(key) {
		case "id":
			c.answerID = v
		case "output":
			c.output = v
		case "usage":
			c.answerUsage = v
		case "model":
			c.envelope[envModel] = member{val: v}
		case "created_at":
			c.envelope[envCreated] = member{val: v}
		}
	}
	for key, v := range members(c.data, c.item) {
		switch {
		case string(key) == "type" && c.data[v.from] == '"':
			c.itemType = inside(v)
		case string(key) == "id":
			c.itemOwnID = unlessNull(c.data, v)
		}
	}
}

// scanBlockDelta reads the delta of an event of Messages.
func (c *chunk) scanBlockDelta(at span, text, reasoning *span) {
	var buf [64]byte
	s := scanner{b: c.data[:at.to], i: at.from}
	for s.enter('{'); s.more('}'); {
		key := string(name(s.key().of(s.b), &buf))
		isText := s.peek() == '"'
		switch v := s.value(); {
		case key == "type" && isText:
			c.itemType = inside(v)
		case key == "text" && isText:
			*text = v
		case key == "thinking" && isText:
			*reasoning = v
		case key == "stop_reason" && isText:
			c.stop = at
		}
	}
}

func (c *chunk) readAudio(p *part, text span) {
	switch string(c.kind.of(c.data)) {
	case "transcript.text.delta":
		p.content = text
	case "transcript.text.done":
		p.finish = span{0, len(c.data)}
	default:
		p.opaque = true
	}
}

// appendName begins an event that bears a name.
func appendName(b, name []byte) []byte {
	return append(append(append(b, "event: "...), name...), '\n')
}

// appendNamed appends an event of our own.
func appendNamed(b []byte, name, payload string) []byte {
	b = appendName(b, []byte(name))
	return append(append(append(b, "data: "...), payload...), "\n\n"...)
}

// opens reports whether the part opens something that is not open, and opens it.
func (ch *choice) opens(p *part) bool {
	if ch.now.opened&p.opens != 0 {
		return false
	}
	ch.now.opened |= p.opens
	return true
}

// noteEventUsage takes the figures that came with the finish, or right before it.
func (j *Job) noteEventUsage(c *chunk) {
	r := &j.relay
	at := c.answerUsage
	if c.usage.ok() {
		at = c.usage.val
	}
	if n, ok := r.cur.noteUsage(at.of(c.data)); ok {
		r.blocks.output = n
	}
	if r.blocks.output > 0 {
		r.now.tokens, r.now.told = r.blocks.output, true
	}
}

// noteMessageStart reads the prompt's length, of which Messages count the cached part
// apart.
func (f *figures) noteMessageStart(v []byte) {
	f.prompt = 0
	for key, at := range members(v, allOf(v)) {
		n := fleet.Tokens(figure(at.of(v)))
		switch string(key) {
		case "input_tokens":
			f.prompt += n
		case "cache_read_input_tokens":
			f.prompt += n
			f.cached, f.hasCached = n, true
		}
	}
}

// appendEventUsage appends the usage of an answer of Responses.
func appendEventUsage(b []byte, f figures, output int64) []byte {
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), int64(f.prompt), 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), output, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), output+int64(f.prompt), 10)
	b = strconv.AppendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int64(f.cached), 10)
	return append(b, "}}"...)
}

// fitEvent makes an event of a later node one of the answer that the client has.
func (j *Job) fitEvent(c *chunk) {
	if len(c.parts) == 0 || !j.moved() {
		return
	}
	if j.kind.api == apiMessages {
		j.fitMessages(c)
	} else {
		j.fitResponses(c)
	}
}

// replaceWith replaces what stands at a place unless it is the same.
func (r *relay) replaceWith(at span, with []byte) {
	if at.ok() && len(with) > 0 && !bytes.Equal(at.of(r.chunk.data), with) {
		r.edits.replace(at, with)
	}
}
