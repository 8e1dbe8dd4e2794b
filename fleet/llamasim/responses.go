package llamasim

import (
	"encoding/json"
	"strings"
	"time"
)

// responses words answers as /v1/responses does (section 1.11, P55): the items of
// an output, each announced, filled and closed.
type responses struct {
	*chat
	response, message, thought string // ids
	created, thinking, texting bool
}

func newResponses(c *chat) dialect {
	return &responses{chat: c, response: "resp_" + randomID(), message: "msg_" + randomID(), thought: "rs_" + randomID()}
}

// send is an event whose name is its type.
func (r *responses) send(kind string, fields ...field) error {
	return r.rp.named(kind, append(fieldList{{"type", kind}}, fields...))
}

func (r *responses) inProgress() field {
	return field{"response", fieldList{{"id", r.response}, {"object", "response"}, {"status", "in_progress"}}}
}

func (r *responses) progress(p progress) error {
	if !r.created {
		r.created = true
		if err := r.send("response.created", r.inProgress()); err != nil {
			return err
		}
	}
	return r.send("response.in_progress", r.inProgress(), field{"prompt_progress", p})
}

func (r *responses) begin(*gen, *answer, step) error {
	if r.created {
		return nil
	}
	r.created = true
	if err := r.send("response.created", r.inProgress()); err != nil {
		return err
	}
	return r.send("response.in_progress", r.inProgress())
}

func (r *responses) delta(g *gen, a *answer, _ step, d delta) error {
	if d.reasoning != "" {
		if err := r.openThought(); err != nil {
			return err
		}
		more := append([]field{{"delta", d.reasoning}, {"item_id", r.thought}}, r.timingsIf(g)...)
		if err := r.send("response.reasoning_text.delta", more...); err != nil {
			return err
		}
	}
	if d.content != "" {
		if err := r.openText(); err != nil {
			return err
		}
		more := append([]field{{"item_id", r.message}, {"delta", d.content}}, r.timingsIf(g)...)
		if err := r.send("response.output_text.delta", more...); err != nil {
			return err
		}
	}
	if d.call == nil {
		return nil
	}
	if d.call.id != "" {
		if err := r.send("response.output_item.added", field{"item", fieldList{
			{"id", "fc_" + d.call.id},
			{"arguments", ""},
			{"call_id", "call_" + d.call.id},
			{"name", d.call.name},
			{"type", "function_call"},
			{"status", "in_progress"},
		}}); err != nil {
			return err
		}
	}
	more := append([]field{{"delta", d.call.arguments}, {"item_id", "fc_" + a.calls[len(a.calls)-1].id}}, r.timingsIf(g)...)
	return r.send("response.function_call_arguments.delta", more...)
}

func (r *responses) openThought() error {
	if r.thinking {
		return nil
	}
	r.thinking = true
	item := append(r.thoughtItem(nil), field{"status", "in_progress"})
	return r.send("response.output_item.added", field{"item", item})
}

func (r *responses) openText() error {
	if r.texting {
		return nil
	}
	r.texting = true
	if err := r.send("response.output_item.added", field{"item", fieldList{
		{"content", []any{}},
		{"id", r.message},
		{"role", "assistant"},
		{"status", "in_progress"},
		{"type", "message"},
	}}); err != nil {
		return err
	}
	return r.send("response.content_part.added",
		field{"item_id", r.message}, field{"part", fieldList{{"type", "output_text"}, {"text", ""}}})
}

func (r *responses) thoughtItem(content []fieldList) fieldList {
	if content == nil {
		content = []fieldList{}
	}
	return fieldList{
		{"id", r.thought},
		{"summary", []any{}},
		{"type", "reasoning"},
		{"content", content},
		{"encrypted_content", ""},
	}
}

func textPart(text string) fieldList {
	return fieldList{{"type", "output_text"}, {"annotations", []any{}}, {"logprobs", []any{}}, {"text", text}}
}

func thoughtPart(text string) []fieldList {
	return []fieldList{{{"text", text}, {"type", "reasoning_text"}}}
}

func callItem(c *callDelta) fieldList {
	return fieldList{
		{"id", "fc_" + c.id},
		{"type", "function_call"},
		{"status", "completed"},
		{"arguments", c.arguments},
		{"call_id", "call_" + c.id},
		{"name", c.name},
	}
}

// finish closes the items, whose texts hold what was continued, too.
func (r *responses) finish(g *gen, a *answer) error {
	output := []fieldList{}
	done := func(item fieldList) error {
		output = append(output, item)
		return r.send("response.output_item.done", field{"item", item})
	}
	if text := r.reasoning(a); text != "" {
		if err := done(r.thoughtItem(thoughtPart(text))); err != nil {
			return err
		}
	}
	if text := r.content(a); text != "" {
		part := textPart(text)
		if err := r.send("response.output_text.done", field{"item_id", r.message}, field{"text", text}); err != nil {
			return err
		}
		if err := r.send("response.content_part.done", field{"item_id", r.message}, field{"part", part}); err != nil {
			return err
		}
		if err := done(fieldList{
			{"type", "message"},
			{"status", "completed"},
			{"id", r.message},
			{"content", []fieldList{part}},
			{"role", "assistant"},
		}); err != nil {
			return err
		}
	}
	for _, call := range a.calls {
		if err := done(callItem(call)); err != nil {
			return err
		}
	}
	return r.send("response.completed", field{"response", fieldList{
		{"id", r.response},
		{"object", "response"},
		{"created_at", time.Now().Unix()},
		{"status", "completed"},
		{"model", r.in.model(r.j.q)},
		{"output", output},
		{"usage", responsesUsage(g)},
	}}, field{"timings", g.timings().object(g.can)})
}

func responsesUsage(g *gen) fieldList {
	return fieldList{
		{"input_tokens", len(g.job.ids)},
		{"output_tokens", len(g.ids)},
		{"total_tokens", len(g.job.ids) + len(g.ids)},
		{"input_tokens_details", fieldList{{"cached_tokens", g.cached}}},
	}
}

func (r *responses) end() error { return nil }

// failure has no name of an event (section 1.11).
func (r *responses) failure(err *apiError) []byte { return eventOf("", err.object()) }

func (r *responses) body() fieldList {
	g, a := r.j.gens[0], r.answers[0]
	output := []fieldList{}
	if text := r.reasoning(a); text != "" {
		output = append(output, append(r.thoughtItem(thoughtPart(text)), field{"status", "completed"}))
	}
	if text := r.content(a); text != "" {
		output = append(output, fieldList{
			{"content", []fieldList{textPart(text)}},
			{"id", r.message},
			{"role", "assistant"},
			{"status", "completed"},
			{"type", "message"},
		})
	}
	for _, call := range a.calls {
		output = append(output, callItem(call))
	}
	now := time.Now().Unix()
	return fieldList{
		{"completed_at", now},
		{"created_at", now},
		{"id", r.response},
		{"model", r.in.model(r.j.q)},
		{"object", "response"},
		{"output", output},
		{"status", "completed"},
		{"usage", responsesUsage(g)},
	}
}

// chatFromResponses makes a chat body of one for /v1/responses. Keys it does not
// know stay, so that those for continuing work here, too.
func chatFromResponses(fields object) (object, error) {
	input, ok := fields["input"]
	if !ok {
		return nil, badRequest("'input' is required")
	}
	if previous := textOf(fields["previous_response_id"]); previous != "" {
		return nil, badRequest("llama.cpp does not support 'previous_response_id'.")
	}
	out := object{}
	for name, raw := range fields {
		switch name {
		case "input", "instructions", "max_output_tokens", "tools", "text":
		default:
			out[name] = raw
		}
	}
	messages := []fieldList{}
	if raw, ok := fields["instructions"]; ok {
		messages = append(messages, fieldList{{"role", "system"}, {"content", raw}})
	}
	var items []object
	switch {
	case kindOf(input) == "string":
		messages = append(messages, fieldList{{"role", "user"}, {"content", input}})
	case json.Unmarshal(input, &items) == nil:
		for _, item := range items {
			m, err := messageOfItem(item)
			if err != nil {
				return nil, err
			}
			messages = joinItem(messages, m)
		}
	default:
		return nil, badRequest("'input' must be a string or array of objects")
	}
	out["messages"] = encode(messages)
	if raw, ok := fields["max_output_tokens"]; ok {
		out["max_tokens"] = raw
	}
	if tools := toolsOfResponses(fields["tools"]); tools != nil {
		out["tools"] = tools
	}
	var text struct {
		Format object `json:"format"`
	}
	if json.Unmarshal(fields["text"], &text) == nil && textOf(text.Format["type"]) == "json_schema" {
		out["response_format"] = encode(fieldList{{"type", "json_schema"}, {"json_schema", fieldList{{"schema", text.Format["schema"]}}}})
	}
	return out, nil
}

// messageOfItem is the message an input item stands for.
func messageOfItem(item object) (fieldList, error) {
	role := textOf(item["role"])
	switch kind := textOf(item["type"]); {
	case kind == "function_call":
		call := fieldList{
			{"id", textOf(item["call_id"])},
			{"type", "function"},
			{"function", fieldList{{"name", textOf(item["name"])}, {"arguments", textOf(item["arguments"])}}},
		}
		return fieldList{{"role", "assistant"}, {"content", ""}, {"tool_calls", []fieldList{call}}}, nil
	case kind == "function_call_output":
		content, err := partsOf(item["output"])
		return fieldList{{"role", "tool"}, {"tool_call_id", textOf(item["call_id"])}, {"content", content}}, err
	case kind == "reasoning":
		var parts []struct {
			Text string `json:"text"`
		}
		_ = json.Unmarshal(item["content"], &parts)
		var text strings.Builder
		for _, p := range parts {
			text.WriteString(p.Text)
		}
		return fieldList{{"role", "assistant"}, {"content", ""}, {"reasoning_content", text.String()}}, nil
	case role != "":
		content, err := partsOf(item["content"])
		return fieldList{{"role", role}, {"content", content}}, err
	}
	return nil, badRequest("Cannot determine type of 'item'")
}

// joinItem appends a message; reasoning, text and calls that follow each other are
// one message of the assistant.
func joinItem(messages []fieldList, m fieldList) []fieldList {
	if len(messages) == 0 || m.get("role") != "assistant" {
		return append(messages, m)
	}
	last := messages[len(messages)-1]
	if last.get("role") != "assistant" || last.get("tool_calls") != nil || last.get("content") != "" {
		return append(messages, m)
	}
	for _, f := range m {
		if f.name != "role" {
			last = last.with(f)
		}
	}
	messages[len(messages)-1] = last
	return messages
}

// partsOf turns the parts of an input item into those of a chat message. Text alone
// becomes a string: going on with the last message needs one.
func partsOf(raw json.RawMessage) (any, error) {
	if len(raw) == 0 || kindOf(raw) == "string" {
		return textOf(raw), nil
	}
	var parts []object
	if json.Unmarshal(raw, &parts) != nil {
		return nil, badRequest("item['content'] is not an array")
	}
	out, texts := []fieldList{}, []string{}
	for _, p := range parts {
		switch textOf(p["type"]) {
		case "input_text", "output_text", "text":
			texts = append(texts, textOf(p["text"]))
			out = append(out, fieldList{{"type", "text"}, {"text", textOf(p["text"])}})
		case "refusal":
			texts = append(texts, textOf(p["refusal"]))
			out = append(out, fieldList{{"type", "text"}, {"text", textOf(p["refusal"])}})
		case "input_image":
			out = append(out, fieldList{{"type", "image_url"}, {"image_url", fieldList{{"url", textOf(p["image_url"])}}}})
		case "input_file":
			return nil, badRequest("'input_file' is not supported by llamacpp at this moment")
		default:
			return nil, badRequest("'type' must be one of 'input_text', 'input_image', or 'input_file'")
		}
	}
	if len(texts) == len(out) {
		return strings.Join(texts, "\n"), nil
	}
	return out, nil
}

func toolsOfResponses(raw json.RawMessage) json.RawMessage {
	var tools []object
	if json.Unmarshal(raw, &tools) != nil {
		return nil
	}
	out := []fieldList{}
	for _, t := range tools {
		if textOf(t["type"]) != "function" {
			continue
		}
		f := fieldList{{"name", textOf(t["name"])}, {"description", textOf(t["description"])}}
		if p := t["parameters"]; p != nil {
			f = append(f, field{"parameters", p})
		}
		out = append(out, fieldList{{"type", "function"}, {"function", f}})
	}
	return encode(out)
}
