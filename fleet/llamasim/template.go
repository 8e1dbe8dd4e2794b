package llamasim

import (
	"encoding/json"
	"strings"
)

// assistantHeader is what the generation prompt puts behind the start marker.
const assistantHeader = "assistant\n"

// chatTemplate is what /props shows. The rendering is done by hand below.
const (
	chatTemplate = `{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`
	thinkTemplate = `{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{%- if enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}`
)

// message is one of the request's messages, its parts joined.
type message struct {
	role      string
	content   string
	reasoning string
	calls     []json.RawMessage
	hasKey    bool // content was there, if only as null
}

func parseMessages(raw json.RawMessage) ([]message, error) {
	var list []map[string]json.RawMessage
	if raw == nil {
		return nil, badRequest("'messages' is required")
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil, badRequest("Expected 'messages' to be an array")
	}
	out := make([]message, 0, len(list))
	for _, fields := range list {
		m := message{}
		_ = json.Unmarshal(fields["role"], &m.role)
		if m.role == "developer" {
			m.role = "system"
		}
		_ = json.Unmarshal(fields["reasoning_content"], &m.reasoning)
		_ = json.Unmarshal(fields["tool_calls"], &m.calls)
		content, ok := fields["content"]
		m.hasKey = ok
		if !ok && m.role != "assistant" {
			return nil, badRequest("All non-assistant messages must contain 'content'")
		}
		text, err := joinContent(content)
		if err != nil {
			return nil, err
		}
		m.content = text
		out = append(out, m)
	}
	return out, nil
}

// joinContent takes a string, null, or an array of text parts; parts are joined
// with newlines (section 2.1).
func joinContent(raw json.RawMessage) (string, error) {
	var text *string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		if text == nil {
			return "", nil
		}
		return *text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", serverError("Failed to parse messages: Invalid 'content' type: expected string or array")
	}
	texts := make([]string, 0, len(parts))
	for _, p := range parts {
		switch p.Type {
		case "text":
			texts = append(texts, p.Text)
		case "image_url", "input_audio", "input_video":
			name, _, _ := strings.Cut(strings.TrimPrefix(p.Type, "input_"), "_")
			return "", serverError(name + " input is not supported - hint: if this is unexpected, you may need to provide the mmproj")
		default:
			return "", serverError("Failed to parse messages: unsupported content[].type")
		}
	}
	return strings.Join(texts, "\n"), nil
}

// prompt is a rendered chat: the text, and the part of the answer that is in it.
type prompt struct {
	text     string
	prefill  message // what the continued message already says
	echo     bool    // repeat the prefill in the first delta
	thinking bool    // the text ends inside the think block
}

// render makes the prompt of a chat request (section 2.1).
func render(q *request, messages []message, thinkTemplate bool) (prompt, error) {
	last := message{}
	if len(messages) > 0 {
		last = messages[len(messages)-1]
	}
	mode := q.continueMode
	if mode != "" && q.addGenerationPrompt {
		return prompt{}, badRequest("Cannot set both add_generation_prompt and continue_final_message to true.")
	}
	auto := mode == "" && last.role == "assistant"
	if last.role != "assistant" || mode == "" && !auto {
		p := prompt{text: history(q, messages, thinkTemplate)}
		if q.addGenerationPrompt {
			p.text += markStart + assistantHeader
			if thinkTemplate && q.noThinking {
				p.text += markThink + "\n\n" + markThinkEnd + "\n\n"
			}
		}
		return p, nil
	}
	if len(last.calls) > 0 {
		return prompt{}, badRequest("Cannot continue an assistant message that contains tool calls.")
	}
	if !last.hasKey {
		return prompt{}, badRequest("Cannot continue an assistant message without 'content'.")
	}
	if auto && len(messages) > 1 && messages[len(messages)-2].role == "assistant" {
		return prompt{}, badRequest("Cannot have 2 or more assistant messages at the end of the list.")
	}
	return continued(q, messages, last, mode, auto, thinkTemplate), nil
}

// continued renders a chat whose last message goes on: nothing of it is trimmed.
func continued(q *request, messages []message, last message, mode string, auto, thinkTemplate bool) prompt {
	p := prompt{text: history(q, messages[:len(messages)-1], thinkTemplate), echo: auto || q.echo}
	if last.content == "" && last.reasoning == "" {
		// An empty message loses its header (section 2.1).
		return p
	}
	p.text += markStart + assistantHeader
	inReasoning := mode == "reasoning_content" || mode != "content" && last.content == "" && last.reasoning != ""
	switch {
	case !thinkTemplate && inReasoning:
		// The template has no place for it (see chat-continue-reasoning in testdata).
	case !thinkTemplate:
		p.text += last.content
		p.prefill.content = last.content
	case inReasoning:
		p.text += markThink + "\n" + last.reasoning
		p.prefill.reasoning, p.thinking = last.reasoning, true
	default:
		p.text += markThink + "\n" + last.reasoning + "\n" + markThinkEnd + "\n\n" + last.content
		p.prefill.reasoning, p.prefill.content = last.reasoning, last.content
	}
	return p
}

// history renders finished turns. Only the thinking template knows tools.
func history(q *request, messages []message, thinkTemplate bool) string {
	var b strings.Builder
	if thinkTemplate && len(q.tools) > 0 {
		b.WriteString(markStart + "system\nFunctions, one per line:\n")
		for _, t := range q.rawTools {
			b.Write(t)
			b.WriteByte('\n')
		}
		b.WriteString(markEnd + "\n")
	}
	for _, m := range messages {
		role, content := m.role, m.content
		if role == "tool" && thinkTemplate {
			role, content = "user", "<tool_response>\n"+content+"\n</tool_response>"
		}
		b.WriteString(markStart + role + "\n" + content)
		if thinkTemplate {
			for _, c := range m.calls {
				b.WriteString(callText(c))
			}
		}
		b.WriteString(markEnd + "\n")
	}
	return b.String()
}

// callText renders a finished call the way the model writes one.
func callText(raw json.RawMessage) string {
	var c struct {
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	}
	_ = json.Unmarshal(raw, &c)
	arguments := string(c.Function.Arguments)
	var text string
	if json.Unmarshal(c.Function.Arguments, &text) == nil {
		arguments = text
	}
	return markCall + "\n{\"name\": " + quoted(c.Function.Name) + ", \"arguments\": " + arguments + "}\n" + markCallEnd
}
