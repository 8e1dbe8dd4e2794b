package openai

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// field is a top-level field of a request that we read or set.
type field uint8

// The fields. Those of one group stand in the order in which llama-server prefers
// them.
const (
	fieldModel field = iota
	fieldMessages
	fieldPrompt
	fieldN

	fieldNPredict
	fieldMaxCompletionTokens
	fieldMaxTokens

	fieldStream
	fieldStreamOptions
	fieldReturnProgress
	fieldTimingsPerToken
	fieldPingInterval
	fieldVerbose
	fieldIDSlot

	fieldContinue
	fieldAddPrompt
	fieldEcho

	fieldStop
	fieldGrammar
	fieldJSONSchema
	fieldGenerationPrompt
	fieldReasoningFormat

	fields  // how many there are
	noField = fields
)

var fieldNames = [fields]string{
	"model", "messages", "prompt", "n",
	"n_predict", "max_completion_tokens", "max_tokens",
	"stream", "stream_options", "return_progress", "timings_per_token", "sse_ping_interval", "verbose", "id_slot",
	"continue_final_message", "add_generation_prompt", "echo",
	"stop", "grammar", "json_schema", "generation_prompt", "reasoning_format",
}

func fieldOf(key []byte) field {
	for f, name := range fieldNames {
		if string(key) == name {
			return field(f)
		}
	}
	return noField
}

// document is what one scan found in a body.
type document struct {
	body     []byte
	open     int // right after the opening brace
	members  int // of the whole object
	field    [fields]member
	messages int     // how many there are
	last     message // the last of them: nobody asks for the others
}

// maxMessages bounds a conversation; no model remembers so many.
const maxMessages = 1 << 16

// message is one element of messages.
type message struct {
	open int // right after its opening brace; 0: no object

	role, content, reasoning, tools member
}

// is reports whether the message is this role's.
func (m *message) is(body []byte, role string) bool {
	if !m.role.ok() || body[m.role.val.from] != '"' {
		return false
	}
	var buf [64]byte
	return string(name(inside(m.role.val).of(body), &buf)) == role
}

// inside is what stands between the quotes of a string.
func inside(s span) span { return span{s.from + 1, s.to - 1} }

// read scans the body and checks the fields that we read.
func (d *document) read(body []byte) *Error {
	if bytes.HasPrefix(body, []byte("\ufeff")) {
		return invalid("", "invalid_json", "the body begins with a byte order mark; send UTF-8 without one")
	}
	d.body = body
	s := scanner{b: body}
	if s.peek() != '{' {
		return invalid("", "invalid_json", "the body is not a JSON object")
	}
	s.enter('{')
	d.open = s.i
	for s.more('}') {
		if err := d.member(&s); err != nil {
			return err
		}
		d.members++
	}
	s.end()
	if s.fault != "" {
		return invalid("", "invalid_json", fmt.Sprintf("the body is not valid JSON: %s, at byte %d", s.fault, s.at))
	}
	return d.check()
}

// twice refuses a field that came a second time: two readers of it may disagree.
func twice(name string) *Error {
	return invalid(name, "duplicate_field", fmt.Sprintf("the field %q stands twice in one object", name))
}

// member reads one member of the body.
func (d *document) member(s *scanner) *Error {
	var buf [64]byte
	s.peek()
	m := member{key: s.i, ord: d.members}
	f := fieldOf(name(s.key().of(s.b), &buf))
	if f == noField {
		s.value()
		return nil
	}
	if d.field[f].ok() {
		return twice(fieldNames[f])
	}
	if f == fieldMessages && s.peek() == '[' {
		m.val.from = s.i
		for s.enter('['); s.more(']'); {
			if err := d.message(s); err != nil {
				return err
			}
		}
		m.val.to = s.i
	} else {
		m.val = s.value()
	}
	d.field[f] = m
	return nil
}

// message reads the next element of messages into last.
func (d *document) message(s *scanner) *Error {
	if d.messages++; d.messages > maxMessages {
		return invalid("messages", "too_many_messages", fmt.Sprintf("there are more than %d messages", maxMessages))
	}
	d.last = message{}
	if s.peek() != '{' {
		s.value()
		return nil
	}
	s.enter('{')
	d.last.open = s.i
	var buf [64]byte
	for s.more('}') {
		key := name(s.key().of(s.b), &buf)
		to := d.last.find(key)
		if to != nil && to.ok() {
			return twice(string(key))
		}
		if v := s.value(); to != nil {
			to.val = v
		}
	}
	return nil
}

func (m *message) find(key []byte) *member {
	switch string(key) {
	case "role":
		return &m.role
	case "content":
		return &m.content
	case "reasoning_content":
		return &m.reasoning
	case "tool_calls":
		return &m.tools
	}
	return nil
}

// check refuses fields of the wrong type. null is as good as absent.
func (d *document) check() *Error {
	for _, w := range []struct {
		fields []field
		is     func(val []byte) bool
		what   string
	}{
		{[]field{fieldModel}, isString, "a string"},
		{[]field{fieldMessages}, isArray, "an array"},
		{[]field{fieldStream, fieldReturnProgress, fieldTimingsPerToken}, isBool, "true or false"},
		{[]field{fieldStreamOptions}, isObject, "an object"},
		{[]field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxTokens, fieldN}, isWhole, "a whole number"},
	} {
		for _, f := range w.fields {
			if d.given(f) && !w.is(d.value(f)) {
				return invalid(fieldNames[f], "invalid_type", fmt.Sprintf("the field %q must be %s", fieldNames[f], w.what))
			}
		}
	}
	return nil
}

func isString(v []byte) bool { return v[0] == '"' }
func isArray(v []byte) bool  { return v[0] == '[' }
func isObject(v []byte) bool { return v[0] == '{' }
func isBool(v []byte) bool   { return v[0] == 't' || v[0] == 'f' }
func isWhole(v []byte) bool  { _, ok := whole(v); return ok }

// longestNumber is more than anybody needs to write a number of tokens.
const longestNumber = 64

// whole reads a number that has no fraction, however it is written.
func whole(v []byte) (int64, bool) {
	if len(v) > longestNumber {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// given reports whether the field is there and not null.
func (d *document) given(f field) bool { return d.field[f].given(d.body) }

// value returns the bytes of a field that is there.
func (d *document) value(f field) []byte { return d.field[f].val.of(d.body) }

func (d *document) isTrue(f field) bool  { return d.given(f) && d.value(f)[0] == 't' }
func (d *document) isFalse(f field) bool { return d.given(f) && d.value(f)[0] == 'f' }

// text returns what a field says that is a string.
func (d *document) text(f field) (string, bool) {
	if !d.given(f) || d.value(f)[0] != '"' {
		return "", false
	}
	return string(appendText(nil, inside(d.field[f].val).of(d.body))), true
}

// number returns a field that is a whole number.
func (d *document) number(f field) (int64, bool) {
	if !d.given(f) {
		return 0, false
	}
	return whole(d.value(f))
}

// budget returns how many tokens may be generated, and the field that says so.
// As in llama-server, below 0 is no limit and 0 is one token.
func (d *document) budget() (n fleet.Tokens, f field) {
	for _, f := range []field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxTokens} {
		if n, ok := d.number(f); ok {
			if n < 0 {
				return 0, noField
			}
			return fleet.Tokens(max(1, n)), f
		}
	}
	return 0, noField
}

// wantsUsage reports whether stream_options asks for the usage chunk.
func (d *document) wantsUsage() bool {
	if !d.given(fieldStreamOptions) {
		return false
	}
	var buf [64]byte
	yes := false
	s := scanner{b: d.value(fieldStreamOptions)}
	for s.enter('{'); s.more('}'); {
		is := string(name(s.key().of(s.b), &buf)) == "include_usage"
		if v := s.value(); is {
			yes = v.ok() && s.b[v.from] == 't'
		}
	}
	return yes
}

// stops reports whether the client gave strings that end the answer.
func (d *document) stops() bool {
	if !d.given(fieldStop) {
		return false
	}
	s := scanner{b: d.value(fieldStop)}
	if s.peek() != '[' {
		return string(s.b) != `""`
	}
	s.enter('[')
	return s.more(']')
}

// prompts returns how many sequences the prompt of a completion asks for. Numbers
// in an array are tokens of one sequence.
func (d *document) prompts() int {
	if !d.given(fieldPrompt) || d.value(fieldPrompt)[0] != '[' {
		return 1
	}
	n, tokens := 0, false
	s := scanner{b: d.value(fieldPrompt)}
	for s.enter('['); s.more(']'); {
		c := s.peek()
		tokens = tokens || c == '-' || '0' <= c && c <= '9'
		s.value()
		n++
	}
	if tokens {
		return 1
	}
	return max(1, n)
}
