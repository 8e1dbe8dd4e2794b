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
	required bool   // the answer is a call; otherwise it begins with some content
	schema   object // of response_format; the answer is a value of it
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
		return follow(p.call(s.hMark), s, 0, markCallEnd)
	}
	header, ok := s.answering()
	switch {
	case !ok:
		return "", false
	case p.schema != nil:
		piece, end = follow(valueOf(p.schema, s.hMark), s, header, "")
		return piece, end
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

// follow is the next token of want, of which the context holds a part; after the
// whole of it comes then, or the end. Text that went another way is left alone.
func follow(want string, s *state, header int, then string) (piece string, end bool) {
	have := s.text[header:]
	if s.long || !strings.HasPrefix(want, have) {
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

// planOf reads tools, tool_choice and response_format. With tool_choice "auto" the
// model calls a tool when the last user message has the word "tool" in it, so that
// a test can have both kinds of answer from the same tools.
func planOf(q *request, messages []message) (*plan, error) {
	p := &plan{schema: q.schema()}
	if len(q.tools) == 0 || q.toolChoice == "none" {
		if p.schema == nil {
			return nil, nil
		}
		return p, nil
	}
	switch {
	case q.toolName != "":
		p.required = true
		for _, t := range q.tools {
			if t.Name == q.toolName {
				p.tools = []tool{t}
			}
		}
	case q.toolChoice == "required":
		p.required, p.tools = true, q.tools
	case q.toolChoice != "auto" && q.toolChoice != "":
		return nil, badRequest("Invalid tool_choice: " + q.toolChoice)
	default:
		for _, m := range slices.Backward(messages) {
			if m.role == "user" {
				if strings.Contains(strings.ToLower(m.content), "tool") {
					p.tools = q.tools
				}
				break
			}
		}
	}
	return p, nil
}
