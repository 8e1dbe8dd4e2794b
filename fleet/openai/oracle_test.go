package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/slotfleet/slotfleet/fleet"
)

// oracle is a llama-server whose answer is known: it reads a request as the server
// does, by encoding/json, finds how much of the answer it is given, and sends the rest
// in the server's form. What no server would understand is a fault of the request.
type oracle struct {
	api           api
	reasons, text []rune
	tool          string       // the arguments of a call that ends the answer; empty: none
	choices       int          // all the same
	limit         int          // what the client's limit is
	ids           map[int]rune // of its tokens, where they are not of its own making
	pieces        func() int

	node  int
	fault string
}

func (o *oracle) complain(format string, args ...any) {
	if o.fault == "" {
		o.fault = fmt.Sprintf(format, args...)
	}
}

// weight is of how many tokens a letter is: what is long has two.
func weight(r rune) int {
	if r > 0xffff {
		return 2
	}
	return 1
}

func weigh(s []rune) (n int) {
	for _, r := range s {
		n += weight(r)
	}
	return n
}

// wide is the id that is shown of a letter of two tokens: of the second one alone.
const wide = 900

type jsonMessage struct {
	Role, Type string
	Content    any
	Reasoning  string `json:"reasoning_content"`
}

// text of a content: a string, or parts.
func (m *jsonMessage) say(key string) (s string) {
	switch v := m.Content.(type) {
	case string:
		if key == "text" {
			return v
		}
	case []any:
		for _, p := range v {
			if t, ok := p.(map[string]any)[key].(string); ok {
				s += t
			}
		}
	}
	return s
}

type jsonRequest struct {
	Stream    bool
	Messages  []jsonMessage
	Input     any
	Prompt    any
	How       any   `json:"continue_final_message"`
	AddPrompt *bool `json:"add_generation_prompt"`
	MaxTokens *int  `json:"max_tokens"`
	MaxOutput *int  `json:"max_output_tokens"`
	NPredict  *int  `json:"n_predict"`
	PerToken  bool  `json:"timings_per_token"`
	Verbose   bool
	Seed      *int
	Options   struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Progress      bool `json:"return_progress"`
	PingInterval  int  `json:"sse_ping_interval"`
	ResponseField any  `json:"response_fields"`
}

// read finds what of the answer the request brings. echo: it is to come again.
func (o *oracle) read(body []byte) (req jsonRequest, reason, text string, echo bool) {
	if err := json.Unmarshal(body, &req); err != nil {
		o.complain("%v: %s", err, body)
	}
	if !req.Stream {
		o.complain("no stream is asked for: %s", body)
	}
	limit := req.MaxTokens
	switch o.api {
	case apiChat:
		if len(req.Messages) > 1 {
			reason, text = req.Messages[1].Reasoning, req.Messages[1].say("text")
			o.checkHow(req, reason, text)
		}
	case apiMessages:
		if len(req.Messages) > 1 {
			reason, text = req.Messages[1].say("thinking"), req.Messages[1].say("text")
			echo = true
		}
	case apiResponses:
		limit = req.MaxOutput
		list, _ := req.Input.([]any)
		for _, x := range list {
			b, _ := json.Marshal(x)
			var m jsonMessage
			_ = json.Unmarshal(b, &m)
			switch {
			case m.Type == "reasoning":
				reason = m.say("text")
			case m.Role == "assistant":
				text = m.say("text")
			}
		}
		if len(list) > 1 {
			o.checkHow(req, reason, text)
		}
	default:
		if o.api == apiNative {
			limit = req.NPredict
		}
		text = o.readPrompt(req.Prompt)
	}
	given := len([]rune(text))
	if limit == nil {
		o.complain("the limit is gone: %s", body)
	} else if want := o.limit - weigh([]rune(reason)) - weigh([]rune(text)); *limit != want && text+reason != "" && o.counted(reason) {
		o.complain("the limit is %d, want %d: %s", *limit, want, body)
	}
	if given > len(o.text) || string(o.text[:given]) != text {
		o.complain("it is to go on from %q, which is no beginning of %q", text, string(o.text))
	}
	return req, reason, text, echo
}

// counted reports whether the limit can be known to the token: not where the servers
// tell no count, nor where a newline was cut.
func (o *oracle) counted(reason string) bool {
	return o.api != apiMessages && (len(o.reasons) == 0 || len([]rune(reason)) == len(o.reasons))
}

func (o *oracle) checkHow(req jsonRequest, reason, text string) {
	want := "content"
	if text == "" {
		want = "reasoning_content"
	}
	if req.How != want || req.AddPrompt == nil || *req.AddPrompt {
		o.complain("continue_final_message %v, add_generation_prompt %v, want %s and false", req.How, req.AddPrompt, want)
	}
}

func (o *oracle) readPrompt(p any) string {
	var b strings.Builder
	switch v := p.(type) {
	case string:
		b.WriteString(v)
	case []any:
		for _, x := range v {
			switch x := x.(type) {
			case string:
				b.WriteString(x)
			case float64:
				r, ok := o.ids[int(x)]
				if !ok {
					r = rune(x) - 1000
				}
				if r < 0 {
					o.complain("token %v stands for half a letter", x)
				}
				b.WriteRune(r)
			}
		}
	}
	text, ok := strings.CutPrefix(b.String(), "P")
	if !ok {
		o.complain("the prompt is %q", b.String())
	}
	return text
}

// answer is the stream for a request, without the names of the events.
func (o *oracle) answer(a fleet.Assignment) []string {
	o.node++
	req, reason, text, echo := o.read(a.Body)
	atReason, atText := len([]rune(reason)), len([]rune(text))
	if text != "" {
		if want := strings.TrimSuffix(string(o.reasons), "\n"); reason != want {
			o.complain("the reasoning is %q, want %q", reason, want)
		}
		atReason = len(o.reasons)
	} else if reason != string(o.reasons[:min(atReason, len(o.reasons))]) {
		o.complain("it is to go on from %q, which is no beginning of %q", reason, string(o.reasons))
	}
	s := &stage{oracle: o, req: req}
	s.begin(reason, text)
	if echo {
		s.echo(reason, text)
	}
	for i := range max(1, o.choices) {
		s.index, s.predicted = i, 0
		s.say(o.reasons[atReason:], true)
		s.say(o.text[atText:], false)
		s.end()
	}
	return s.events
}

// stage is one stream in the making.
type stage struct {
	*oracle
	req       jsonRequest
	events    []string
	index     int
	predicted int
	prompt    int

	pending            [2]string // what is glued to the next piece: an echo
	started            [2]bool   // reasoning and text
	allReason, allText string
}

func (s *stage) id(what string) string { return fmt.Sprintf("%s_%d", what, s.node) }

func (s *stage) event(m map[string]any) {
	if s.req.PerToken && s.api != apiMessages {
		m["timings"] = map[string]any{"cache_n": 1, "prompt_n": s.prompt - 1, "prompt_ms": 1, "predicted_n": s.predicted, "predicted_ms": s.predicted}
	}
	b, _ := json.Marshal(m)
	s.events = append(s.events, string(b))
}

func (s *stage) begin(reason, text string) {
	s.prompt = 10 + weigh([]rune(reason)) + weigh([]rune(text))
	s.allReason, s.allText = reason, text
	answer := map[string]any{"id": s.id("resp"), "object": "response", "status": "in_progress"}
	switch s.api {
	case apiResponses:
		s.events = append(s.events, fmt.Sprintf(`{"type":"response.created","response":{"id":%q,"object":"response","status":"in_progress"}}`, s.id("resp")))
		b, _ := json.Marshal(map[string]any{"type": "response.in_progress", "response": answer, "prompt_progress": map[string]any{"total": s.prompt, "cache": 1}})
		s.events = append(s.events, string(b))
	case apiMessages:
		s.event(map[string]any{"type": "message_start", "message": map[string]any{
			"id": s.id("msg"), "role": "assistant", "content": []any{}, "model": "m",
			"usage": map[string]any{"cache_read_input_tokens": 1, "input_tokens": s.prompt - 1, "output_tokens": 0},
		}})
	case apiChat:
		s.chunk(map[string]any{"role": "assistant", "content": nil}, nil)
	}
}

func (s *stage) echo(reason, text string) { s.pending = [2]string{reason, text} }

// chunk is one of OpenAI's.
func (s *stage) chunk(delta map[string]any, finish any) {
	s.event(map[string]any{
		"id": s.id("chatcmpl"), "model": s.id("m"), "created": s.node, "object": "chat.completion.chunk", "system_fingerprint": "b1",
		"choices": []any{map[string]any{"index": s.index, "delta": delta, "finish_reason": finish}},
	})
}

// say streams letters in pieces.
func (s *stage) say(letters []rune, reasoning bool) {
	for len(letters) > 0 {
		n := min(len(letters), max(1, s.pieces()))
		s.piece(letters[:n], reasoning)
		letters = letters[n:]
	}
}

func (s *stage) piece(letters []rune, reasoning bool) {
	k := 1
	if reasoning {
		k = 0
	} else if s.pending[0] != "" {
		s.open(0)
		s.delta(0, s.pending[0])
		s.pending[0] = ""
	}
	text := s.pending[k] + string(letters)
	s.pending[k] = ""
	if k == 0 {
		s.allReason += string(letters)
	} else {
		s.allText += string(letters)
	}
	s.predicted += weigh(letters)
	s.open(k)
	if s.api == apiNative || s.api == apiCompletion {
		id := wide
		if r := letters[len(letters)-1]; weight(r) == 1 {
			id = int(r) + 1000
		}
		s.flat(text, []int{id}, len(letters) == 1)
		return
	}
	s.delta(k, text)
}

func (s *stage) flat(text string, ids []int, single bool) {
	m := map[string]any{"index": s.index, "content": text, "tokens": ids, "stop": false, "id_slot": -1, "tokens_predicted": s.predicted, "tokens_evaluated": s.prompt}
	if s.api == apiNative {
		s.event(m)
		return
	}
	c := map[string]any{
		"id": s.id("cmpl"), "model": s.id("m"), "created": s.node, "object": "text_completion", "system_fingerprint": "b1",
		"choices": []any{map[string]any{"index": s.index, "text": text, "finish_reason": nil, "logprobs": nil}},
	}
	if s.req.Verbose {
		c["__verbose"] = m
	}
	s.event(c)
}

// open says that a text begins.
func (s *stage) open(k int) {
	if s.started[k] {
		return
	}
	s.started[k] = true
	switch s.api {
	case apiResponses:
		item := map[string]any{"id": s.id("msg"), "type": "message", "role": "assistant", "content": []any{}, "status": "in_progress"}
		if k == 0 {
			item = map[string]any{"id": s.id("rs"), "type": "reasoning", "summary": []any{}, "content": []any{}}
		}
		s.event(map[string]any{"type": "response.output_item.added", "item": item})
		if k == 1 {
			s.event(map[string]any{"type": "response.content_part.added", "item_id": s.id("msg"), "part": map[string]any{"type": "output_text", "text": ""}})
		}
	case apiMessages:
		block := map[string]any{"type": "text", "text": ""}
		if k == 0 {
			block = map[string]any{"type": "thinking", "thinking": ""}
		}
		s.event(map[string]any{"type": "content_block_start", "index": s.block(k), "content_block": block})
	}
}

func (s *stage) block(k int) int {
	if k > 0 && s.started[0] {
		return 1
	}
	return 0
}

func (s *stage) delta(k int, text string) {
	switch s.api {
	case apiResponses:
		typ, id := "response.output_text.delta", s.id("msg")
		if k == 0 {
			typ, id = "response.reasoning_text.delta", s.id("rs")
		}
		s.event(map[string]any{"type": typ, "item_id": id, "delta": text})
	case apiMessages:
		d := map[string]any{"type": "text_delta", "text": text}
		if k == 0 {
			d = map[string]any{"type": "thinking_delta", "thinking": text}
		}
		s.event(map[string]any{"type": "content_block_delta", "index": s.block(k), "delta": d})
	case apiAudio:
		s.event(map[string]any{"type": "transcript.text.delta", "delta": text})
	default:
		key := "content"
		if k == 0 {
			key = "reasoning_content"
		}
		s.chunk(map[string]any{key: text}, nil)
	}
}

// end is what follows the text: a call, what closes, and the account.
func (s *stage) end() {
	for k, text := range s.pending { // what nothing new came to be glued to
		if text != "" && s.node%2 == 0 {
			s.open(k)
			s.delta(k, text)
		}
	}
	if s.tool != "" {
		s.call()
	}
	s.predicted++ // the end token
	switch s.api {
	case apiResponses:
		s.endResponse()
	case apiMessages:
		s.endMessage()
	case apiNative:
		s.event(map[string]any{
			"index": s.index, "content": "", "tokens": []int{}, "stop": true, "model": s.id("m"), "tokens_predicted": s.predicted, "tokens_evaluated": s.prompt,
			"generation_settings": map[string]any{"n_predict": s.req.NPredict, "max_tokens": s.req.NPredict, "stream": true},
			"prompt":              "<s>P" + s.allText[:len(s.allText)-len(string(s.text))+len(s.given())], "stop_type": "eos",
		})
	case apiCompletion:
		s.event(map[string]any{
			"id": s.id("cmpl"), "model": s.id("m"), "created": s.node, "object": "text_completion", "system_fingerprint": "b1",
			"choices": []any{map[string]any{"index": s.index, "text": "", "finish_reason": "stop", "logprobs": nil}},
			"usage":   map[string]any{"completion_tokens": s.predicted, "prompt_tokens": s.prompt, "total_tokens": s.prompt + s.predicted},
		})
	case apiAudio:
		s.event(map[string]any{"type": "transcript.text.done", "text": s.allText})
	default:
		finish := "stop"
		if s.tool != "" {
			finish = "tool_calls"
		}
		s.chunk(map[string]any{}, finish)
		if s.req.Options.IncludeUsage {
			s.event(map[string]any{
				"id": s.id("chatcmpl"), "model": s.id("m"), "created": s.node, "object": "chat.completion.chunk", "system_fingerprint": "b1", "choices": []any{},
				"usage": map[string]any{"completion_tokens": s.predicted, "prompt_tokens": s.prompt, "total_tokens": s.prompt + s.predicted},
			})
		}
	}
}

// given is what of the text came with the prompt.
func (s *stage) given() string {
	n := s.prompt - 10
	for i, r := range s.text {
		if n <= 0 {
			return string(s.text[:i])
		}
		n -= weight(r)
	}
	return string(s.text)
}

func (s *stage) call() {
	id := s.id("call")
	s.predicted += 2
	switch s.api {
	case apiResponses:
		s.event(map[string]any{"type": "response.output_item.added", "item": map[string]any{"id": id, "type": "function_call", "name": "f", "arguments": "", "status": "in_progress"}})
		for _, part := range []string{s.tool[:1], s.tool[1:]} {
			s.event(map[string]any{"type": "response.function_call_arguments.delta", "item_id": id, "delta": part})
		}
	case apiMessages:
		n := 0
		for _, is := range s.started {
			if is {
				n++
			}
		}
		s.event(map[string]any{"type": "content_block_start", "index": n, "content_block": map[string]any{"type": "tool_use", "id": id, "name": "f"}})
		for _, part := range []string{s.tool[:1], s.tool[1:]} {
			s.event(map[string]any{"type": "content_block_delta", "index": n, "delta": map[string]any{"type": "input_json_delta", "partial_json": part}})
		}
	default:
		s.chunk(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "x", "type": "function", "function": map[string]any{"name": "f", "arguments": s.tool[:1]}}}}, nil)
		s.chunk(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": s.tool[1:]}}}}, nil)
	}
}

func (s *stage) endResponse() {
	output := []any{}
	done := func(item map[string]any) {
		output = append(output, item)
		s.event(map[string]any{"type": "response.output_item.done", "item": item})
	}
	if s.allReason != "" {
		done(map[string]any{"id": s.id("rs"), "type": "reasoning", "summary": []any{}, "content": []any{map[string]any{"type": "reasoning_text", "text": s.allReason}}})
	}
	if s.allText != "" {
		part := map[string]any{"type": "output_text", "text": s.allText}
		s.event(map[string]any{"type": "response.output_text.done", "item_id": s.id("msg"), "text": s.allText})
		s.event(map[string]any{"type": "response.content_part.done", "item_id": s.id("msg"), "part": part})
		done(map[string]any{"id": s.id("msg"), "type": "message", "role": "assistant", "content": []any{part}})
	}
	if s.tool != "" {
		done(map[string]any{"id": s.id("call"), "type": "function_call", "name": "f", "arguments": s.tool})
	}
	s.event(map[string]any{"type": "response.completed", "response": map[string]any{
		"id": s.id("resp"), "object": "response", "created_at": s.node, "status": "completed", "model": s.id("m"), "output": output,
		"usage": map[string]any{"input_tokens": s.prompt, "output_tokens": s.predicted, "total_tokens": s.prompt + s.predicted},
	}})
}

func (s *stage) endMessage() {
	n := 0
	if s.started[0] {
		s.event(map[string]any{"type": "content_block_delta", "index": 0, "delta": map[string]any{"type": "signature_delta", "signature": ""}})
	}
	for _, is := range s.started {
		if is {
			s.event(map[string]any{"type": "content_block_stop", "index": n})
			n++
		}
	}
	reason := "end_turn"
	if s.tool != "" {
		reason = "tool_use"
		s.event(map[string]any{"type": "content_block_stop", "index": n})
	}
	s.event(map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": s.predicted}})
	s.event(map[string]any{"type": "message_stop"})
}
