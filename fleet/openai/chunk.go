package openai

import "bytes"

// chunk is what one scan found in an SSE payload. It is reused: scanning in the
// steady state allocates nothing.
type chunk struct {
	data    []byte
	open    int // right after the opening brace
	members int

	envelope [envelopes]member
	usage    member
	timings  member
	progress member
	verbose  member
	fault    member // "error": the server's own error end

	// What one of llama-server's own completions tells, there or inside of verbose.
	flat      bool // the chunk is one of them itself
	predicted int64
	evaluated int64
	tokens    span

	event // where events bear names

	parts []part

	// Of timings, once they were looked for.
	numbers []span
	told    [timingKinds]int // which of them, counted from 1; 0: it is not told

	alike alike
	stale bool // the places are not those of the payload that was compared last
}

// The members that say whose answer a chunk belongs to; one answer keeps those of
// its first node.
const (
	envID = iota
	envCreated
	envModel
	envFingerprint
	envObject
	envelopes
)

var envelopeNames = [envelopes]string{"id", "created", "model", "system_fingerprint", "object"}

// part is what a chunk brings for one choice.
type part struct {
	at     span // the whole of it
	index  int64
	finish span // a value that is not null

	role      member // in the delta, not null
	content   span   // a string, of a delta or of a completion's text
	reasoning span   // a string
	tools     span   // an array
	logprobs  span   // an object
	opaque    bool   // something else was delivered that we could not send on

	opens  opening // what it opens, if it does nothing else
	closes bool    // it only says that what came before is complete
	shuts  opening // and that is of these, which we know as well as the server does
	stop   bool    // it closes the block of an index
}

// scan reads a payload and reports whether it is a JSON object.
func (c *chunk) scan(a api, data []byte) bool {
	if c.follow(data) {
		return true
	}
	*c = chunk{
		data: data, parts: c.parts[:0], numbers: c.numbers[:0],
		alike: alike{rest: c.alike.rest[:0], gaps: c.alike.gaps[:0], growing: c.alike.growing[:0]},
	}
	s := scanner{b: data}
	switch a {
	case apiNative:
		return c.scanNative(&s)
	case apiResponses, apiMessages, apiAudio:
		return c.scanEvent(&s, a)
	}
	s.enter('{')
	c.open = s.i
	var buf [64]byte
	for s.more('}') {
		s.peek()
		m := member{key: s.i, ord: c.members}
		key := name(s.key().of(s.b), &buf)
		if string(key) == "choices" && s.peek() == '[' {
			c.scanParts(&s)
		} else {
			to := c.find(key)
			if m.val = s.value(); to != nil && m.given(data) {
				*to = m
			}
		}
		c.members++
	}
	s.end()
	if s.fault != "" {
		return false
	}
	if c.verbose.ok() {
		c.scanVerbose()
	}
	c.remember()
	return true
}

func (c *chunk) find(key []byte) *member {
	switch string(key) {
	case "id":
		return &c.envelope[envID]
	case "created":
		return &c.envelope[envCreated]
	case "model":
		return &c.envelope[envModel]
	case "system_fingerprint":
		return &c.envelope[envFingerprint]
	case "object":
		return &c.envelope[envObject]
	case "usage":
		return &c.usage
	case "timings":
		return &c.timings
	case "prompt_progress":
		return &c.progress
	case "__verbose":
		return &c.verbose
	case "error":
		return &c.fault
	}
	return nil
}

func (c *chunk) scanParts(s *scanner) {
	for s.enter('['); s.more(']'); {
		if len(c.parts) == maxChoices {
			s.fail("there are too many choices")
			return
		}
		if s.peek() != '{' {
			s.fail("a choice is not an object")
			return
		}
		p := part{}
		from := s.i
		c.scanPart(s, &p)
		p.at = span{from, s.i}
		c.parts = append(c.parts, p)
	}
}

func (c *chunk) scanPart(s *scanner, p *part) {
	var buf [64]byte
	for s.enter('{'); s.more('}'); {
		key := name(s.key().of(s.b), &buf)
		switch string(key) {
		case "delta":
			if s.peek() == '{' {
				p.scanDelta(s)
				continue
			}
			s.value()
		case "text":
			p.text(s.b, s.value(), &p.content)
		case "index":
			if p.index = figure(s.value().of(s.b)); p.index < 0 || p.index >= maxChoices {
				s.fail("a choice has a wrong index")
			}
		case "finish_reason":
			p.finish = unlessNull(s.b, s.value())
		case "logprobs":
			p.logprobs = unlessNull(s.b, s.value())
		default:
			s.value()
		}
	}
}

func (p *part) scanDelta(s *scanner) {
	var buf [64]byte
	n := 0
	for s.enter('{'); s.more('}'); n++ {
		s.peek()
		m := member{key: s.i, ord: n}
		key := name(s.key().of(s.b), &buf)
		role, content := string(key) == "role", string(key) == "content"
		reasoning, tools := string(key) == "reasoning_content", string(key) == "tool_calls"
		m.val = s.value()
		switch {
		case role && m.given(s.b):
			p.role = m
		case role:
		case content:
			p.text(s.b, m.val, &p.content)
		case reasoning:
			p.text(s.b, m.val, &p.reasoning)
		case tools && m.given(s.b) && s.b[m.val.from] == '[':
			p.tools = m.val
		case m.given(s.b):
			p.opaque = true
		}
	}
}

// text takes a value where text is expected.
func (p *part) text(b []byte, v span, to *span) {
	switch {
	case !v.ok():
	case b[v.from] == '"':
		*to = v
	case b[v.from] != 'n':
		p.opaque = true
	}
}

// says reports whether the part brings something that a client shows or keeps.
func (p *part) says() bool { return hasText(p.content) || hasText(p.reasoning) }

// hasText reports whether a string is not empty.
func hasText(s span) bool { return s.to-s.from > 2 }

func unlessNull(b []byte, v span) span {
	if v.ok() && b[v.from] == 'n' {
		return span{}
	}
	return v
}

// figure reads a whole number that a server wrote; whatever else stands there is 0.
func figure(v []byte) (n int64) {
	if len(v) > 18 {
		return 0
	}
	for i, c := range v {
		if i == 0 && c == '-' {
			continue
		}
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int64(c-'0')
	}
	if len(v) > 0 && v[0] == '-' {
		return -n
	}
	return n
}

// oneLine makes the payload that dst ends with fit one line of an event. A newline
// can only be white space between JSON tokens.
func oneLine(payload []byte) {
	for _, c := range []byte{'\n', '\r'} {
		rest := payload
		for i := bytes.IndexByte(rest, c); i >= 0; i = bytes.IndexByte(rest, c) {
			rest[i] = ' '
			rest = rest[i+1:]
		}
	}
}
