package llamasim

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// named is one event of an API whose events have names.
type named struct {
	name string
	data dict
}

// askNamed streams a request whose events have names.
func askNamed(t *testing.T, s *Server, path string, body dict) []named {
	t.Helper()
	full := dict{"stream": true}
	maps.Copy(full, body)
	resp := post(t.Context(), t, s.URL()+path, js(t, full))
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: status %d: %s", path, resp.StatusCode, b)
	}
	var out []named
	name := ""
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = text
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			e := named{name: name}
			if err := json.Unmarshal([]byte(text), &e.data); err != nil {
				t.Fatalf("event %q: %v", text, err)
			}
			out = append(out, e)
			name = ""
		}
	}
	return out
}

// said joins the deltas of a stream: its reasoning, its text and the arguments of its call.
func said(events []named) (thought, text, arguments string) {
	for _, e := range events {
		delta, _ := e.data["delta"].(string)
		inner, _ := e.data["delta"].(dict)
		get := func(key string) string { s, _ := inner[key].(string); return s }
		switch e.name {
		case "response.reasoning_text.delta":
			thought += delta
		case "response.output_text.delta":
			text += delta
		case "response.function_call_arguments.delta":
			arguments += delta
		case "content_block_delta":
			thought += get("thinking")
			text += get("text")
			arguments += get("partial_json")
		}
	}
	return thought, text, arguments
}

func TestEveryAPISaysTheSame(t *testing.T) {
	for name, o := range map[string]Options{"plain": {}, "thinking": {Thinking: true}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, o)
			want := ask(t, s, chatPath, dict{"messages": user(question), "max_tokens": 4096})
			responses := dict{"input": question}
			messages := dict{"messages": user(question)}
			for path, body := range map[string]dict{"/v1/responses": responses, "/v1/messages": messages} {
				thought, text, _ := said(askNamed(t, s, path, body))
				if thought != want.thought || text != want.content {
					t.Errorf("%s: got %q, %q, want %q, %q", path, thought, text, want.thought, want.content)
				}
			}
			var whole struct {
				Output []struct {
					Type    string
					Content []struct{ Text string }
				}
			}
			decode(t, post(t.Context(), t, s.URL()+"/v1/responses", js(t, responses)), &whole)
			if last := whole.Output[len(whole.Output)-1]; last.Type != "message" || last.Content[0].Text != want.content {
				t.Errorf("responses, whole: got %+v, want %q", whole, want.content)
			}
			var message struct {
				Content []struct{ Type, Text, Thinking string }
				Reason  string `json:"stop_reason"`
			}
			decode(t, post(t.Context(), t, s.URL()+"/v1/messages", js(t, messages)), &message)
			if last := message.Content[len(message.Content)-1]; last.Text != want.content || message.Reason != "end_turn" {
				t.Errorf("messages, whole: got %+v, want %q", message, want.content)
			}
			if o.Thinking && (whole.Output[0].Content[0].Text != want.thought || message.Content[0].Thinking != want.thought) {
				t.Errorf("reasoning: got %+v and %+v, want %q", whole.Output[0], message.Content[0], want.thought)
			}
		})
	}
}

func TestEveryAPICallsTools(t *testing.T) {
	s := start(t, Options{})
	_, want := callOf(ask(t, s, chatPath, toolBody("required")))
	function := toolBody("required")["tools"].([]dict)[0]["function"].(dict)
	responses := dict{
		"input": toolBody("")["messages"], "tool_choice": "required",
		"tools": []dict{{"type": "function", "name": function["name"], "parameters": function["parameters"]}},
	}
	messages := dict{
		"messages": toolBody("")["messages"], "tool_choice": dict{"type": "any"},
		"tools": []dict{{"name": function["name"], "input_schema": function["parameters"]}},
	}
	for path, body := range map[string]dict{"/v1/responses": responses, "/v1/messages": messages} {
		events := askNamed(t, s, path, body)
		if _, _, got := said(events); got != want || want == "" {
			t.Errorf("%s: got arguments %q, want %q", path, got, want)
		}
		resp := post(t.Context(), t, s.URL()+path, js(t, body))
		b, _ := io.ReadAll(resp.Body)
		if !strings.Contains(string(b), `"name":"get_weather"`) {
			t.Errorf("%s, whole: no call in %s", path, b)
		}
	}
}

// TestVerboseStandsWhereTheServerPutsIt: on the first chunk of the end of a stream, in
// whole answers of all OpenAI routes.
func TestVerboseStandsWhereTheServerPutsIt(t *testing.T) {
	s := start(t, Options{})
	ask := func(path string, body dict) string {
		body["verbose"], body["max_tokens"] = true, 2
		b, err := io.ReadAll(post(t.Context(), t, s.URL()+path, js(t, body)).Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const chat = "/v1/chat/completions"
	user := []dict{{"role": "user", "content": "hi"}}
	for line := range strings.Lines(ask(chat, dict{"messages": user, "stream": true, "stream_options": dict{"include_usage": true}})) {
		finish, verbose := strings.Contains(line, `"finish_reason":"length"`), strings.Contains(line, `"__verbose"`)
		if finish != verbose {
			t.Errorf("verbose: %t in %s", verbose, line)
		}
	}
	for path, body := range map[string]dict{chat: {"messages": user}, "/v1/completions": {"prompt": "hi"}} {
		if got := ask(path, body); !strings.Contains(got, `"__verbose"`) {
			t.Errorf("%s: got %s without what verbose tells", path, got)
		}
	}
}

// TestConversationsReadAlike puts the same history into the form of each API: the
// prompts have the same number of tokens, hence the same text.
func TestConversationsReadAlike(t *testing.T) {
	s := start(t, Options{Thinking: true})
	call := dict{"name": "get_weather", "arguments": `{"city":"Oslo"}`}
	bodies := map[string]dict{
		"/v1/chat/completions/input_tokens": {"messages": []dict{
			{"role": "system", "content": "be short"},
			{"role": "user", "content": "hi"},
			{"role": "assistant", "content": "", "tool_calls": []dict{{"id": "c", "type": "function", "function": call}}},
			{"role": "tool", "tool_call_id": "c", "content": "rain"},
			{"role": "user", "content": "so?"},
		}},
		"/v1/responses/input_tokens": {"instructions": "be short", "input": []dict{
			{"role": "user", "content": []dict{{"type": "input_text", "text": "hi"}}},
			{"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": `{"city":"Oslo"}`},
			{"type": "function_call_output", "call_id": "c", "output": "rain"},
			{"type": "message", "role": "user", "content": "so?"},
		}},
		"/v1/messages/count_tokens": {"system": []dict{{"type": "text", "text": "be short"}}, "messages": []dict{
			{"role": "user", "content": "hi"},
			{"role": "assistant", "content": []dict{{"type": "tool_use", "id": "c", "name": "get_weather", "input": json.RawMessage(`{"city":"Oslo"}`)}}},
			{"role": "user", "content": []dict{{"type": "tool_result", "tool_use_id": "c", "content": "rain"}}},
			{"role": "user", "content": []dict{{"type": "text", "text": "so?"}}},
		}},
	}
	for _, path := range []string{"/chat/completions/input_tokens", "/responses/input_tokens"} {
		bodies[path] = bodies["/v1"+path]
	}
	seen := map[float64][]string{}
	for path, body := range bodies {
		var got dict
		decode(t, post(t.Context(), t, s.URL()+path, js(t, body)), &got)
		n, _ := got["input_tokens"].(float64)
		seen[n] = append(seen[n], path)
	}
	if len(seen) != 1 {
		t.Errorf("numbers of tokens: %v, want one for all", seen)
	}
}

// TestResponsesContinue is the only other API that goes on when it is told to; what is
// complete in it holds what was continued, too (section 1.11).
func TestResponsesContinue(t *testing.T) {
	s := start(t, Options{})
	_, whole, _ := said(askNamed(t, s, "/v1/responses", dict{"input": question}))
	cut := strings.LastIndex(whole[:len(whole)/2], " ")
	events := askNamed(t, s, "/v1/responses", dict{
		"input": []dict{
			{"role": "user", "content": question},
			{"type": "message", "role": "assistant", "content": []dict{{"type": "output_text", "text": whole[:cut]}}},
		},
		"continue_final_message": "content", "add_generation_prompt": false,
	})
	if _, rest, _ := said(events); whole[:cut]+rest != whole {
		t.Errorf("got %q, want the rest of %q", rest, whole)
	}
	for _, e := range events {
		if text, ok := e.data["text"].(string); ok && text != whole {
			t.Errorf("%s: got %q, want the whole text", e.name, text)
		}
	}
}

// TestMessagesEchoWhatTheyContinue: the keys for going on are dropped, and the
// trailing message goes on all the same (section 1.12).
func TestMessagesEchoWhatTheyContinue(t *testing.T) {
	s := start(t, Options{})
	_, whole, _ := said(askNamed(t, s, "/v1/messages", dict{"messages": user(question)}))
	cut := strings.LastIndex(whole[:len(whole)/2], " ")
	body := continuation(dict{"messages": user(question)}, "", whole[:cut])
	if _, got, _ := said(askNamed(t, s, "/v1/messages", body)); got != whole {
		t.Errorf("got %q, want %q", got, whole)
	}
}

func TestEachAPIFailsInItsOwnWay(t *testing.T) {
	s := start(t, Options{})
	for path, c := range map[string]struct {
		body dict
		want named
	}{
		"/v1/responses": {dict{"input": question}, named{"", dict{"error": dict{"code": 500.0, "message": "Compute error.", "type": "server_error"}}}},
		"/v1/messages":  {dict{"messages": user(question)}, named{"error", dict{"code": 500.0, "message": "Compute error.", "type": "server_error"}}},
	} {
		s.SetFault(Fault{Kind: FaultError, Token: 5, Times: 1})
		events := askNamed(t, s, path, c.body)
		last := events[len(events)-1]
		if last.name != c.want.name || js(t, last.data) != js(t, c.want.data) {
			t.Errorf("%s: got %q %v, want %q %v", path, last.name, last.data, c.want.name, c.want.data)
		}
	}
	for path, status := range map[string]int{"/v1/messages": 500, "/v1/responses": 400, chatPath: 400} {
		if got := post(t.Context(), t, s.URL()+path, "{}").StatusCode; got != status {
			t.Errorf("%s of nothing: got %d, want %d", path, got, status)
		}
	}
}

func TestParallelCallsAreTwo(t *testing.T) {
	s := start(t, Options{})
	body := toolBody("required")
	body["parallel_tool_calls"] = true
	indices := map[int]string{}
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, dict{
		"messages": body["messages"], "tools": body["tools"], "tool_choice": "required", "parallel_tool_calls": true, "stream": true,
	}))
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var e struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						Index    int
						Function struct{ Arguments string }
					} `json:"tool_calls"`
				}
			}
		}
		_ = json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &e)
		for _, c := range e.Choices {
			for _, call := range c.Delta.Calls {
				indices[call.Index] += call.Function.Arguments
			}
		}
	}
	if len(indices) != 2 || !json.Valid([]byte(indices[0])) || !json.Valid([]byte(indices[1])) {
		t.Errorf("got %v, want the arguments of two calls", indices)
	}
	var whole struct {
		Content []struct {
			Type  string
			Input json.RawMessage
		}
	}
	function := body["tools"].([]dict)[0]["function"].(dict)
	input := dict{"messages": body["messages"], "tools": []dict{{"name": "get_weather", "input_schema": function["parameters"]}}, "tool_choice": dict{"type": "any"}}
	decode(t, post(t.Context(), t, s.URL()+"/v1/messages", js(t, input)), &whole)
	if len(whole.Content) != 1 || string(whole.Content[0].Input) != js(t, json.RawMessage(indices[0])) {
		t.Errorf("without the word for it: got %+v, want one call of %s", whole, indices[0])
	}
}
