package llamasim

import (
	"encoding/json"
	"maps"
	"strings"
)

// messagesAPI words answers as Anthropic's /v1/messages does (section 1.12, P54).
type messagesAPI struct {
	*chat
	thinking, texting bool // which blocks are open
	calls             int  // and how many of calls
}

func newMessages(c *chat) dialect { return &messagesAPI{chat: c} }

func (m *messagesAPI) send(kind string, fields ...field) error {
	return m.rp.named(kind, append(fieldList{{"type", kind}}, fields...))
}

// progress has no event here: return_progress is not among the keys let through.
func (m *messagesAPI) progress(progress) error { return nil }

func (m *messagesAPI) begin(g *gen, _ *answer, _ step) error {
	return m.send("message_start", field{"message", fieldList{
		{"id", m.id},
		{"type", "message"},
		{"role", "assistant"},
		{"content", []any{}},
		{"model", m.in.model(m.j.q)},
		{"stop_reason", nil},
		{"stop_sequence", nil},
		{"usage", messagesUsage(g, 0)},
	}})
}

func messagesUsage(g *gen, output int) fieldList {
	return fieldList{
		{"cache_read_input_tokens", g.cached},
		{"input_tokens", len(g.job.ids) - g.cached},
		{"output_tokens", output},
	}
}

// block is the index of a content block: reasoning, text and call, those there are.
func (m *messagesAPI) block(kind string) int {
	i := 0
	if m.thinking && kind != "thinking" {
		i++
	}
	if m.texting && kind == "tool_use" {
		i++
	}
	if kind == "tool_use" {
		i += m.calls - 1
	}
	return i
}

func (m *messagesAPI) open(open *bool, kind string, fields ...field) error {
	if *open {
		return nil
	}
	*open = true
	return m.send("content_block_start",
		field{"index", m.block(kind)}, field{"content_block", append(fieldList{{"type", kind}}, fields...)})
}

func (m *messagesAPI) blockDelta(kind, deltaKind, key, text string) error {
	return m.send("content_block_delta",
		field{"index", m.block(kind)}, field{"delta", fieldList{{"type", deltaKind}, {key, text}}})
}

func (m *messagesAPI) delta(_ *gen, _ *answer, _ step, d delta) error {
	if d.reasoning != "" {
		if err := m.open(&m.thinking, "thinking", field{"thinking", ""}); err != nil {
			return err
		}
		if err := m.blockDelta("thinking", "thinking_delta", "thinking", d.reasoning); err != nil {
			return err
		}
	}
	if d.content != "" {
		if err := m.open(&m.texting, "text", field{"text", ""}); err != nil {
			return err
		}
		if err := m.blockDelta("text", "text_delta", "text", d.content); err != nil {
			return err
		}
	}
	if d.call == nil {
		return nil
	}
	if d.call.id != "" {
		m.calls++
		if err := m.open(new(bool), "tool_use", field{"id", d.call.id}, field{"name", d.call.name}); err != nil {
			return err
		}
	}
	return m.blockDelta("tool_use", "input_json_delta", "partial_json", d.call.arguments)
}

func (m *messagesAPI) finish(g *gen, a *answer) error {
	if m.thinking {
		// Clients want a signature; a local model has none to give.
		if err := m.blockDelta("thinking", "signature_delta", "signature", ""); err != nil {
			return err
		}
	}
	blocks := m.calls
	for _, open := range []bool{m.thinking, m.texting} {
		if open {
			blocks++
		}
	}
	for i := range blocks {
		if err := m.send("content_block_stop", field{"index", i}); err != nil {
			return err
		}
	}
	reason, word := g.stopReason(len(a.calls) > 0)
	return m.send("message_delta",
		field{"delta", fieldList{{"stop_reason", reason}, {"stop_sequence", word}}},
		field{"usage", fieldList{{"output_tokens", len(g.ids)}}})
}

// stopReason is why an answer ended, in Anthropic's words.
func (g *gen) stopReason(called bool) (reason string, word any) {
	if g.stopWord != "" {
		word = g.stopWord
	}
	switch {
	case g.stopType == "limit":
		return "max_tokens", word
	case called:
		return "tool_use", word
	}
	return "end_turn", word
}

func (m *messagesAPI) end() error { return m.send("message_stop") }

// failure is not wrapped in "error" as it is everywhere else.
func (m *messagesAPI) failure(err *apiError) []byte {
	return eventOf("error", fieldList{{"code", err.status}, {"message", err.message}, {"type", err.kind}})
}

func (m *messagesAPI) body() fieldList {
	g, a := m.j.gens[0], m.answers[0]
	content := []fieldList{}
	if text := m.reasoning(a); text != "" {
		content = append(content, fieldList{{"type", "thinking"}, {"thinking", text}, {"signature", ""}})
	}
	if text := m.content(a); text != "" {
		content = append(content, fieldList{{"type", "text"}, {"text", text}})
	}
	for _, call := range a.calls {
		input := json.RawMessage(call.arguments)
		if !json.Valid(input) {
			input = json.RawMessage("{}")
		}
		content = append(content, fieldList{{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", input}})
	}
	reason, word := g.stopReason(len(a.calls) > 0)
	return fieldList{
		{"id", m.id},
		{"type", "message"},
		{"role", "assistant"},
		{"content", content},
		{"model", m.in.model(m.j.q)},
		{"stop_reason", reason},
		{"stop_sequence", word},
		{"usage", messagesUsage(g, len(g.ids))},
	}
}

// chatFromMessages makes a chat body of one for /v1/messages. Only the keys named
// here pass: those for continuing, timings and pings are dropped.
func chatFromMessages(fields object) (object, error) {
	if fields["messages"] == nil {
		// A 500, where the other routes have 400 (P46).
		return nil, serverError("'messages' is required")
	}
	out := object{"max_tokens": json.RawMessage("4096")}
	for _, name := range []string{"temperature", "top_p", "top_k", "stream", "chat_template_kwargs", "max_tokens"} {
		if raw, ok := fields[name]; ok {
			out[name] = raw
		}
	}
	if raw, ok := fields["stop_sequences"]; ok {
		out["stop"] = raw
	}
	messages := []fieldList{}
	if raw, ok := fields["system"]; ok {
		messages = append(messages, fieldList{{"role", "system"}, {"content", systemText(raw)}})
	}
	var list []object
	_ = json.Unmarshal(fields["messages"], &list)
	for _, m := range list {
		messages = append(messages, messagesOfBlocks(m)...)
	}
	out["messages"] = encode(messages)
	maps.Copy(out, toolsOfMessages(fields))
	return out, nil
}

// systemText joins the blocks of a system prompt.
func systemText(raw json.RawMessage) string {
	var blocks []object
	if json.Unmarshal(raw, &blocks) != nil {
		return textOf(raw)
	}
	var text strings.Builder
	for _, b := range blocks {
		text.WriteString(textOf(b["text"]))
	}
	return text.String()
}

// messagesOfBlocks is what one message comes to: itself if its content is a string,
// else one of its texts, images, reasoning and calls, and one for each tool's result.
func messagesOfBlocks(m object) []fieldList {
	role := textOf(m["role"])
	var blocks []object
	if json.Unmarshal(m["content"], &blocks) != nil {
		plain := fieldList{{"role", role}}
		if raw, ok := m["content"]; ok {
			plain = append(plain, field{"content", raw})
		}
		return []fieldList{plain}
	}
	var parts, calls, results []fieldList
	var reasoning strings.Builder
	for _, b := range blocks {
		switch textOf(b["type"]) {
		case "text":
			parts = append(parts, fieldList{{"type", "text"}, {"text", textOf(b["text"])}})
		case "thinking":
			reasoning.WriteString(textOf(b["thinking"]))
		case "image":
			parts = append(parts, imageOf(b))
		case "tool_use":
			input := b["input"]
			if input == nil {
				input = json.RawMessage("{}")
			}
			calls = append(calls, fieldList{
				{"id", textOf(b["id"])},
				{"type", "function"},
				{"function", fieldList{{"name", textOf(b["name"])}, {"arguments", string(input)}}},
			})
		case "tool_result":
			results = append(results, fieldList{
				{"role", "tool"}, {"tool_call_id", textOf(b["tool_use_id"])}, {"content", systemText(b["content"])},
			})
		}
	}
	if parts == nil && calls == nil && reasoning.Len() == 0 {
		return results
	}
	one := fieldList{{"role", role}}
	if parts != nil {
		one = append(one, field{"content", parts})
	} else {
		one = append(one, field{"content", ""})
	}
	if calls != nil {
		one = append(one, field{"tool_calls", calls})
	}
	if reasoning.Len() > 0 {
		one = append(one, field{"reasoning_content", reasoning.String()})
	}
	return append([]fieldList{one}, results...)
}

func imageOf(b object) fieldList {
	var source struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	}
	_ = json.Unmarshal(b["source"], &source)
	url := source.URL
	if source.Type == "base64" {
		url = "data:" + source.MediaType + ";base64," + source.Data
	}
	return fieldList{{"type", "image_url"}, {"image_url", fieldList{{"url", url}}}}
}

// toolsOfMessages are the fields for tools. "tool" means any of them, not the one
// it names.
func toolsOfMessages(fields object) object {
	out := object{}
	var tools []object
	if json.Unmarshal(fields["tools"], &tools) == nil {
		list := []fieldList{}
		for _, t := range tools {
			schema := t["input_schema"]
			if schema == nil {
				schema = json.RawMessage("{}")
			}
			list = append(list, fieldList{{"type", "function"}, {"function", fieldList{
				{"name", textOf(t["name"])}, {"description", textOf(t["description"])}, {"parameters", schema},
			}}})
		}
		out["tools"] = encode(list)
	}
	var choice object
	_ = json.Unmarshal(fields["tool_choice"], &choice)
	switch textOf(choice["type"]) {
	case "auto":
		out["tool_choice"] = json.RawMessage(`"auto"`)
	case "any", "tool":
		out["tool_choice"] = json.RawMessage(`"required"`)
	}
	return out
}
