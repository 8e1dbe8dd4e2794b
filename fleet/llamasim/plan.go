package llamasim

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// plan makes the model call a tool, or answer in the shape of a schema. Like all
// text, the call is a function of the context, so it too can be continued inside.
type plan struct {
	tools    []tool
	parallel bool   // the answer has two calls
	required bool   // the answer is a call; otherwise it begins with some content
	schema   object // of response_format; the answer is a value of it
	grammar  grammarRules

	// With a grammar of its own, or where it does not read what it continues, the
	// constrained text begins at a byte of the prompt and not with the answer.
	anchored bool
	anchor   int
}

// value is the text that schema or grammar make of h.
func (p *plan) value(h uint64) string {
	if p.grammar != nil {
		return p.grammar.write(h)
	}
	return valueOf(p.schema, h)
}

// tool is one entry of the request's tools.
type tool struct {
	Name       string
	Parameters map[string]json.RawMessage
}

// next is the piece the plan prescribes after s, or that the answer ends.
func (p *plan) next(s *state) (piece string, end bool) {
	if p == nil {
		return "", false
	}
	if s.mark == markCall && len(p.tools) > 0 {
		return s.follow(p.call(s.hMark), 0, markCallEnd)
	}
	header, ok := s.answering()
	switch {
	case !ok:
		return "", false
	case p.schema != nil:
		return s.follow(p.value(s.hMark), header, "")
	case len(p.tools) == 0:
		return "", false
	case p.required, s.since >= 8 && mix(s.h^saltPlan)%8 == 0:
		return markCall, false
	}
	return "", false
}

// answering reports whether s stands in the content of an answer, and how many
// bytes of the text since the marker belong to the template.
func (s *state) answering() (header int, ok bool) {
	switch {
	case s.mark == markThinkEnd && strings.HasPrefix(s.text, "\n\n"):
		return 2, true
	case s.mark == markStart && strings.HasPrefix(s.text, assistantHeader):
		return len(assistantHeader), true
	}
	return 0, false
}

// follow is the next token of want, of which the text since the marker holds a part.
func (s *state) follow(want string, header int, then string) (piece string, end bool) {
	if s.long {
		return "", false
	}
	return follow(want, s.text[header:], then)
}

// follow is the next token of want behind have; after the whole of it comes then, or
// the end. Text that went another way is left alone.
func follow(want, have, then string) (piece string, end bool) {
	if !strings.HasPrefix(want, have) {
		return "", false
	}
	if rest := want[len(have):]; rest != "" {
		return rest[:tokenLen(rest)], false
	}
	return then, then == ""
}

// call is the raw text of a call between its markers (section 2.6).
func (p *plan) call(h uint64) string {
	t := p.tools[mix(h)%uint64(len(p.tools))]
	return "\n{\"name\": " + quoted(t.Name) + ", \"arguments\": " + valueOf(t.Parameters, mix(h^saltPlan)) + "}\n"
}

// object is a JSON schema, or a part of one, one level decoded.
type object = map[string]json.RawMessage

// valueOf writes a value of a schema, chosen by h.
func valueOf(schema object, h uint64) string {
	var kind string
	_ = json.Unmarshal(schema["type"], &kind)
	var enum []json.RawMessage
	if json.Unmarshal(schema["enum"], &enum) == nil && len(enum) > 0 {
		return string(enum[h%uint64(len(enum))])
	}
	switch kind {
	case "integer":
		return strconv.Itoa(int(h % 1000))
	case "number":
		return strconv.FormatFloat(float64(h%100000)/100, 'f', 2, 64)
	case "boolean":
		return strconv.FormatBool(h%2 == 0)
	case "array":
		var items object
		_ = json.Unmarshal(schema["items"], &items)
		return "[" + valueOf(items, mix(h)) + ", " + valueOf(items, mix(h+1)) + "]"
	case "string":
		return stringOf(schema, h)
	}
	var properties map[string]object
	_ = json.Unmarshal(schema["properties"], &properties)
	names := make([]string, 0, len(properties))
	for name := range properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = quoted(name) + ": " + valueOf(properties[name], mix(h+uint64(i)))
	}
	return "{" + strings.Join(names, ", ") + "}"
}

func stringOf(schema object, h uint64) string {
	limit := 40
	_ = json.Unmarshal(schema["maxLength"], &limit)
	text := titles[h%uint64(len(titles))] + " " + words[h>>16%uint64(len(words))] + " " + rare[h>>32%uint64(len(rare))]
	if r := []rune(text); len(r) > limit {
		text = string(r[:max(limit, 0)])
	}
	return quoted(text)
}

// quoted is s as JSON, HTML characters as they are.
func quoted(s string) string {
	return strings.TrimSuffix(string(encode(s)), "\n")
}

// planOf reads tools, tool_choice, response_format and grammar of a conversation.
// With tool_choice "auto" the model calls a tool when the last user message has the
// word "tool" in it, so that a test can have both kinds of answer from the same tools.
func (in *instance) planOf(q *request, messages []message, p prompt) (*plan, error) {
	plan := &plan{schema: q.schema()}
	if raw := textOf(q.fields["grammar"]); raw != "" {
		if len(q.tools) > 0 {
			return nil, badRequest("Cannot use custom grammar constraints with tools.")
		}
		if err := plan.read(raw); err != nil {
			return nil, err
		}
	}
	if plan.grammar != nil || plan.schema != nil && !in.can.schemaFollows {
		// It does not know of what the answer holds already (section 2.6).
		plan.anchored, plan.anchor = true, promptBytes(p.tokens())
	}
	_ = json.Unmarshal(q.fields["parallel_tool_calls"], &plan.parallel)
	if len(q.tools) == 0 || q.toolChoice == "none" {
		if plan.schema == nil && plan.grammar == nil {
			return nil, nil
		}
		return plan, nil
	}
	switch {
	case q.toolName != "":
		plan.required = true
		for _, t := range q.tools {
			if t.Name == q.toolName {
				plan.tools = []tool{t}
			}
		}
	case q.toolChoice == "required":
		plan.required, plan.tools = true, q.tools
	case q.toolChoice != "auto" && q.toolChoice != "":
		return nil, badRequest("Invalid tool_choice: " + q.toolChoice)
	default:
		for _, m := range slices.Backward(messages) {
			if m.role == "user" {
				if strings.Contains(strings.ToLower(m.content), "tool") {
					plan.tools = q.tools
				}
				break
			}
		}
	}
	return plan, nil
}

func (p *plan) read(grammar string) error {
	rules, ok := parseGrammar(grammar)
	if !ok {
		return badRequest("Failed to initialize samplers: failed to parse grammar")
	}
	p.grammar = rules
	return nil
}

func promptBytes(tokens []token) int {
	n := 0
	for _, t := range tokens {
		n += len(t.text)
	}
	return n
}

// planOfText is that of a plain completion, whose schema or grammar begins behind the
// prompt, but for the end of it that generation_prompt says was generated; a grammar
// minds that only if it is said to be one for tool calls (section 2.6).
func (in *instance) planOfText(q *request, tokens []token) (*plan, error) {
	p := &plan{schema: q.schema(), anchored: true, anchor: promptBytes(tokens)}
	if raw := textOf(q.fields["grammar"]); raw != "" {
		if err := p.read(raw); err != nil {
			return nil, err
		}
	}
	if p.schema == nil && p.grammar == nil {
		return nil, nil
	}
	generated := textOf(q.fields["generation_prompt"])
	follows := in.can.schemaFollows && (p.grammar == nil || textOf(q.fields["grammar_type"]) == "tool_calls")
	if follows && len(generated) <= p.anchor {
		p.anchor -= len(generated)
	}
	return p, nil
}
