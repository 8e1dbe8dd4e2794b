package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// view is what a client makes of a whole stream, by encoding/json and the rules of the
// API. Where the stream breaks a rule, wrong says which.
type view struct {
	Reasoning, Content map[int]string
	Tools              string
	Finish             map[int]string
	Output             int // tokens; -1: not said
	Error              string
	wrong              string
}

func (v *view) complain(format string, args ...any) {
	if v.wrong == "" {
		v.wrong = fmt.Sprintf(format, args...)
	}
}

// hear reads a stream as a client of the API does.
func hear(a api, stream string) *view {
	v := &view{Reasoning: map[int]string{}, Content: map[int]string{}, Finish: map[int]string{}, Output: -1}
	if stream != "" && !strings.HasSuffix(stream, "\n\n") {
		v.complain("it does not end with an empty line: %q", stream)
	}
	c := client{view: v, api: a, items: map[string]string{}}
	for ev := range strings.SplitSeq(stream, "\n\n") {
		if ev == "" {
			continue
		}
		name, data := "", ev
		if first, rest, ok := strings.Cut(ev, "\n"); ok {
			name, data = strings.TrimPrefix(first, "event: "), rest
		}
		data, ok := strings.CutPrefix(data, "data: ")
		if !ok || strings.Contains(data, "\n") {
			v.complain("not an event: %q", ev)
			continue
		}
		c.event(name, data)
	}
	return v
}

// client is a stream half read.
type client struct {
	*view
	api    api
	ended  bool
	blocks []string          // Messages: the type of each, "" once closed
	items  map[string]string // Responses: the type of each by its id
	answer string            // Responses: its id
	opened []string          // events that come once
}

func (c *client) once(what string) {
	if slices.Contains(c.opened, what) {
		c.complain("%s came twice", what)
	}
	c.opened = append(c.opened, what)
}

func (c *client) event(name, data string) {
	if c.ended {
		c.complain("after the end came %s %s", name, data)
	}
	if data == "[DONE]" {
		if c.api != apiChat && c.api != apiCompletion && c.api != apiAudio {
			c.complain("[DONE] does not belong here")
		}
		c.ended = true
		return
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		c.complain("%v: %s", err, data)
		return
	}
	typ, _ := m["type"].(string)
	if named := c.api == apiResponses || c.api == apiMessages; named && typ != name || !named && name != "" {
		c.complain("an event called %q has type %q", name, typ)
	}
	if e, ok := m["error"].(map[string]any); ok || typ == "error" {
		c.Error, c.ended = "error", true
		if code, ok := e["code"].(string); ok {
			c.Error = code
		} else if code, ok := m["code"].(string); ok {
			c.Error = code
		}
		return
	}
	switch c.api {
	case apiNative:
		c.native(m)
	case apiResponses:
		c.response(typ, m)
	case apiMessages:
		c.message(typ, m)
	case apiAudio:
		c.transcript(typ, m)
	default:
		c.chunk(data)
	}
}

func (c *client) chunk(data string) {
	var m jsonChunk
	_ = json.Unmarshal([]byte(data), &m)
	if m.Progress != nil {
		c.complain("progress that nobody asked for")
	}
	for _, x := range m.Choices {
		if c.Finish[x.Index] != "" {
			c.complain("choice %d goes on after its finish", x.Index)
		}
		c.Content[x.Index] += x.Text
		if x.Delta.Content != nil {
			c.Content[x.Index] += *x.Delta.Content
		}
		if x.Delta.Reasoning != nil {
			c.Reasoning[x.Index] += *x.Delta.Reasoning
		}
		for _, t := range x.Delta.Tools {
			c.Tools += string(t)
		}
		if x.Finish != nil {
			c.Finish[x.Index] = *x.Finish
		}
	}
	if n, ok := m.Usage["completion_tokens"].(float64); ok {
		c.Output = int(n)
	}
}

func (c *client) native(m map[string]any) {
	i := int(m["index"].(float64))
	if c.Finish[i] != "" {
		c.complain("choice %d goes on after its finish", i)
	}
	c.Content[i] += m["content"].(string)
	if m["stop"] == true {
		c.Finish[i] = m["stop_type"].(string)
		c.Output = int(m["tokens_predicted"].(float64))
	}
}

func (c *client) transcript(typ string, m map[string]any) {
	switch typ {
	case "transcript.text.delta":
		c.Content[0] += m["delta"].(string)
	case "transcript.text.done":
		c.Finish[0] = "done"
		if m["text"] != c.Content[0] {
			c.complain("the whole text is %q, the parts %q", m["text"], c.Content[0])
		}
	}
}

func (c *client) response(typ string, m map[string]any) {
	str := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	item, _ := m["item"].(map[string]any)
	answer, _ := m["response"].(map[string]any)
	known := func(id, what string) {
		if c.items[id] != what {
			c.complain("%s is of item %q, which is a %q, want a %s", typ, id, c.items[id], what)
		}
	}
	switch typ {
	case "response.created":
		c.once(typ)
		c.answer = str(answer, "id")
	case "response.in_progress":
		c.once(typ)
		if str(answer, "id") != c.answer {
			c.complain("%s has another id", typ)
		}
		if m["prompt_progress"] != nil {
			c.complain("progress that nobody asked for")
		}
	case "response.output_item.added":
		if t := str(item, "type"); t != "function_call" {
			c.once(typ + " " + t)
		}
		c.items[str(item, "id")] = str(item, "type")
		if str(item, "type") == "function_call" {
			c.Tools += str(item, "name")
		}
	case "response.content_part.added":
		c.once(typ)
		known(str(m, "item_id"), "message")
	case "response.output_text.delta":
		known(str(m, "item_id"), "message")
		c.Content[0] += str(m, "delta")
	case "response.reasoning_text.delta":
		known(str(m, "item_id"), "reasoning")
		c.Reasoning[0] += str(m, "delta")
	case "response.function_call_arguments.delta":
		known(str(m, "item_id"), "function_call")
		c.Tools += str(m, "delta")
	case "response.output_text.done":
		c.once(typ)
		known(str(m, "item_id"), "message")
		if str(m, "text") != c.Content[0] {
			c.complain("done says %q, the parts %q", str(m, "text"), c.Content[0])
		}
	case "response.content_part.done":
		c.once(typ)
	case "response.output_item.done":
		c.once(typ + " " + str(item, "id"))
		known(str(item, "id"), str(item, "type"))
		c.item(item)
	case "response.completed":
		c.once(typ)
		if str(answer, "id") != c.answer {
			c.complain("%s has another id", typ)
		}
		want := 0
		for id, t := range c.items {
			if (t != "message" || c.Content[0] != "") && (t != "reasoning" || c.Reasoning[0] != "") {
				want++
				if !slices.Contains(c.opened, "response.output_item.done "+id) {
					c.complain("item %s was not completed", id)
				}
			}
		}
		list, _ := answer["output"].([]any)
		if len(list) != want {
			c.complain("the output has %d items, want %d", len(list), want)
		}
		for _, x := range list {
			known(str(x.(map[string]any), "id"), str(x.(map[string]any), "type"))
			c.item(x.(map[string]any))
		}
		c.Finish[0] = str(answer, "status")
		if u, ok := answer["usage"].(map[string]any); ok {
			c.Output = int(u["output_tokens"].(float64))
		}
		c.ended = true
	default:
		c.complain("an event %q", typ)
	}
}

// item compares a complete item with its parts.
func (c *client) item(m map[string]any) {
	list, _ := m["content"].([]any)
	text := ""
	for _, p := range list {
		text += p.(map[string]any)["text"].(string)
	}
	switch m["type"] {
	case "message":
		if text != c.Content[0] {
			c.complain("the item says %q, its parts %q", text, c.Content[0])
		}
	case "reasoning":
		if text != c.Reasoning[0] {
			c.complain("the item says %q, its parts %q", text, c.Reasoning[0])
		}
	}
}

func (c *client) message(typ string, m map[string]any) {
	delta, _ := m["delta"].(map[string]any)
	n := -1
	if x, ok := m["index"].(float64); ok {
		n = int(x)
	}
	open := func(kind string) {
		if n < 0 || n >= len(c.blocks) || c.blocks[n] != kind {
			c.complain("%s of block %d, which is no open %s: %v", typ, n, kind, c.blocks)
		}
	}
	switch typ {
	case "message_start":
		c.once(typ)
	case "content_block_start":
		b := m["content_block"].(map[string]any)
		if n != len(c.blocks) {
			c.complain("block %d comes after %v", n, c.blocks)
		}
		c.blocks = append(c.blocks, b["type"].(string))
		if s, ok := b["name"].(string); ok {
			c.Tools += s
		}
	case "content_block_delta":
		switch delta["type"] {
		case "text_delta":
			open("text")
			c.Content[0] += delta["text"].(string)
		case "thinking_delta":
			open("thinking")
			c.Reasoning[0] += delta["thinking"].(string)
		case "signature_delta":
			open("thinking")
			c.once("signature")
		case "input_json_delta":
			open("tool_use")
			c.Tools += delta["partial_json"].(string)
		}
	case "content_block_stop":
		if n < 0 || n >= len(c.blocks) || c.blocks[n] == "" {
			c.complain("block %d ends and was not open: %v", n, c.blocks)
			return
		}
		c.blocks[n] = ""
	case "message_delta":
		c.once(typ)
		c.Finish[0] = delta["stop_reason"].(string)
		c.Output = int(m["usage"].(map[string]any)["output_tokens"].(float64))
		if s := strings.Join(c.blocks, ""); s != "" {
			c.complain("blocks are still open: %v", c.blocks)
		}
	case "message_stop":
		c.once(typ)
		if c.Finish[0] == "" {
			c.complain("no message_delta came")
		}
		c.ended = true
	default:
		c.complain("an event %q", typ)
	}
}
