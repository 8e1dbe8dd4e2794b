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
	fieldInput
	fieldSystem
	fieldInstructions
	fieldTools
	fieldPrompt
	fieldInputPrefix
	fieldInputSuffix
	fieldInputExtra

	fieldNCmpl
	fieldN

	fieldNPredict
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldMaxTokens

	fieldStream
	fieldStreamOptions
	fieldReturnProgress
	fieldTimingsPerToken
	fieldPingInterval
	fieldVerbose
	fieldResponseFields
	fieldReturnTokens
	fieldIDSlot
	fieldSeed

	fieldContinue
	fieldAddPrompt
	fieldEcho

	fieldStop
	fieldGrammar
	fieldGrammarType
	fieldJSONSchema
	fieldResponseFormat
	fieldGenerationPrompt
	fieldReasoningFormat

	fieldPromptCacheKey
	fieldConversation
	fieldPreviousResponse
	fieldMetadata
	fieldUser

	fields  // how many there are
	noField = fields
)

var fieldNames = [fields]string{
	"model", "messages", "input", "system", "instructions", "tools",
	"prompt", "input_prefix", "input_suffix", "input_extra",
	"n_cmpl", "n",
	"n_predict", "max_completion_tokens", "max_output_tokens", "max_tokens",
	"stream", "stream_options", "return_progress", "timings_per_token", "sse_ping_interval", "verbose",
	"response_fields", "return_tokens", "id_slot", "seed",
	"continue_final_message", "add_generation_prompt", "echo",
	"stop", "grammar", "grammar_type", "json_schema", "response_format", "generation_prompt", "reasoning_format",
	"prompt_cache_key", "conversation", "previous_response_id", "metadata", "user",
}

var fieldsByName = func() map[string]field {
	m := make(map[string]field, fields)
	for f, name := range fieldNames {
		m[name] = field(f)
	}
	return m
}()

func fieldOf(key []byte) field {
	if f, ok := fieldsByName[string(key)]; ok {
		return f
	}
	return noField
}

// document is what one scan found in a body.
type document struct {
	turns    field // the list of messages; set before the scan
	body     []byte
	open     int // right after the opening brace
	members  int // of the whole object
	field    [fields]member
	messages int     // how many turns there are
	last     message // the last of them: nobody asks for the others
}

// maxMessages bounds a conversation; no model remembers so many.
const maxMessages = 1 << 16

// message is one element of messages.
type message struct {
	open int // right after its opening brace; 0: no object

	role, content, reasoning, tools, kind member
}

// is reports whether the message is this role's.
func (m *message) is(body []byte, role string) bool {
	if !m.role.ok() || body[m.role.val.from] != '"' {
		return false
	}
	var buf [64]byte
	return string(name(inside(m.role.val).of(body), &buf)) == role
}

// kindIs reports whether the message's type is this.
func (m *message) kindIs(body []byte, kind string) bool {
	if !m.kind.ok() || body[m.kind.val.from] != '"' {
		return false
	}
	var buf [64]byte
	return string(name(inside(m.kind.val).of(body), &buf)) == kind
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
	if f == d.turns && s.peek() == '[' {
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
	case "type":
		return &m.kind
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
		{[]field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxOutputTokens, fieldMaxTokens, fieldNCmpl, fieldN}, isWhole, "a whole number"},
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

// guess is about how many tokens the prompt has, before a server says it.
func (d *document) guess() fleet.Tokens { return fleet.Tokens(len(d.body)+3) / 4 }

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

// budget returns how many tokens may be generated, and the field that says so, or
// noField where none does. As in llama-server, below 0 is no limit and 0 is one token.
func (j *Job) budget() (n fleet.Tokens, f field) {
	for _, f := range j.kind.budget {
		if n, ok := j.doc.number(f); ok {
			if n < 0 {
				return 0, noField
			}
			return fleet.Tokens(max(1, n)), f
		}
	}
	return fleet.Tokens(j.kind.usual), noField
}

// seeded reports whether the client's seed makes an answer one that can be repeated:
// -1 in any size is none.
func (d *document) seeded() bool {
	n, ok := d.number(fieldSeed)
	return ok && n >= 0 && n != 1<<32-1
}

// wantsUsage reports whether stream_options asks for the usage chunk.
func (d *document) wantsUsage() bool {
	yes := false
	for key, v := range members(d.body, d.field[fieldStreamOptions].val) {
		if string(key) == "include_usage" {
			yes = d.body[v.from] == 't'
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

// onePrompt reports whether the prompt is one sequence that can be lengthened: a
// string, or an array of tokens and strings. An array of one string is one as well.
func (d *document) onePrompt() bool {
	if !d.given(fieldPrompt) || d.value(fieldPrompt)[0] == '"' {
		return true
	}
	if d.value(fieldPrompt)[0] != '[' {
		return false
	}
	strings, tokens := 0, 0
	s := scanner{b: d.value(fieldPrompt)}
	for s.enter('['); s.more(']'); s.value() {
		switch c := s.peek(); {
		case c == '"':
			strings++
		case '0' <= c && c <= '9':
			tokens++
		default:
			return false
		}
	}
	return tokens > 0 || strings == 1
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
