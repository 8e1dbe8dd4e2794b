package llamasim

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
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
	hasKey    bool     // content was there, if only as null
	media     []string // images and sounds, where content has the marker
}

func (in *instance) parseMessages(raw json.RawMessage) ([]message, error) {
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
		if err := in.readContent(&m, content); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// readContent takes a string, null, or an array of parts; texts are joined with
// newlines (section 2.1).
func (in *instance) readContent(m *message, raw json.RawMessage) error {
	var text *string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		if text != nil {
			m.content = *text
		}
		return nil
	}
	var parts []object
	if json.Unmarshal(raw, &parts) != nil {
		return serverError("Failed to parse messages: Invalid 'content' type: expected string or array")
	}
	texts := make([]string, 0, len(parts))
	for _, p := range parts {
		kind := textOf(p["type"])
		name, _, _ := strings.Cut(strings.TrimPrefix(kind, "input_"), "_")
		switch {
		case kind == "text":
			texts = append(texts, textOf(p["text"]))
		case kind == "image_url" && in.o.Vision, kind == "input_audio" && in.o.Audio:
			m.media = append(m.media, string(p[kind]))
			texts = append(texts, in.mediaMarker)
		case kind == "image_url", kind == "input_audio", kind == "input_video":
			return serverError(name + " input is not supported - hint: if this is unexpected, you may need to provide the mmproj")
		default:
			return serverError("Failed to parse messages: unsupported content[].type")
		}
	}
	m.content = strings.Join(texts, "\n")
	return nil
}

// prompt is a rendered chat: the text, and the part of the answer that is in it.
type prompt struct {
	text     string
	prefill  message // what the continued message already says
	echo     bool    // repeat the prefill in the first delta
	thinking bool    // the text ends inside the think block

	marker string   // stands in text for each of
	media  []string // images and sounds
}

// mediaTokens is what one image or sound takes of the context.
const mediaTokens = 64

// tokens is the prompt behind its start marker. Media take tokens that hold their
// hash, so that another image makes another answer.
func (p prompt) tokens() []token {
	rest := markBOS + p.text
	var out []token
	for _, m := range p.media {
		before, after, ok := strings.Cut(rest, p.marker)
		if !ok {
			break
		}
		out = append(out, tokenize(before)...)
		h := fnv.New32a()
		_, _ = h.Write([]byte(m))
		for i := range mediaTokens {
			text := fmt.Sprintf("[media %08x %d]", h.Sum32(), i)
			out = append(out, token{id: idMedia + int32(mix(uint64(h.Sum32())+uint64(i)<<32)>>40), text: text})
		}
		rest = after
	}
	return append(out, tokenize(rest)...)
}

// render makes the prompt of a chat request (section 2.1).
func (in *instance) render(q *request, messages []message) (prompt, error) {
	p, err := in.renderText(q, messages)
	if err != nil {
		return prompt{}, err
	}
	p.marker = in.mediaMarker
	for _, m := range messages {
		p.media = append(p.media, m.media...)
	}
	return p, nil
}

func (in *instance) renderText(q *request, messages []message) (prompt, error) {
	last := message{}
	if len(messages) > 0 {
		last = messages[len(messages)-1]
	}
	mode := q.continueMode
	switch {
	case !in.can.explicitContinue:
		mode = ""
	case mode != "" && q.addGenerationPrompt:
		return prompt{}, badRequest("Cannot set both add_generation_prompt and continue_final_message to true.")
	}
	auto := mode == "" && last.role == "assistant" && in.can.prefill && !in.o.NoPrefill
	switch {
	case len(messages) == 0 || mode == "" && !auto: // told to, it goes on with anybody's message
		return in.asked(q, messages), nil
	case !in.can.explicitContinue:
		return in.prefilled26(q, messages, last)
	case len(last.calls) > 0:
		return prompt{}, badRequest("Cannot continue an assistant message that contains tool calls.")
	case !last.hasKey:
		return prompt{}, badRequest("Cannot continue an assistant message without 'content'.")
	case auto && len(messages) > 1 && messages[len(messages)-2].role == "assistant":
		return prompt{}, badRequest("Cannot have 2 or more assistant messages at the end of the list.")
	}
	return continued(q, messages, last, mode, auto, in.o.Thinking), nil
}

// asked renders a chat whose answer begins anew.
func (in *instance) asked(q *request, messages []message) prompt {
	p := prompt{text: history(q, messages, in.o.Thinking)}
	if q.addGenerationPrompt || !in.can.explicitContinue {
		p.text += markStart + assistantHeader
		if in.o.Thinking && q.noThinking {
			p.text += markThink + "\n\n" + markThinkEnd + "\n\n"
		}
	}
	return p
}

// prefilled26 renders a trailing assistant message as servers between May 2025 and
// May 2026 do: its content behind the generation prompt, and nothing else of it
// (section 2.2).
func (in *instance) prefilled26(q *request, messages []message, last message) (prompt, error) {
	if in.o.Thinking && !q.noThinking {
		return prompt{}, badRequest("Assistant response prefill is incompatible with enable_thinking.")
	}
	if len(messages) > 1 && messages[len(messages)-2].role == "assistant" {
		return prompt{}, badRequest("Cannot have 2 or more assistant messages at the end of the list.")
	}
	p := in.asked(q, messages[:len(messages)-1])
	p.text += last.content
	p.prefill.content = last.content
	return p, nil
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
