package llamasim

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// question is full of what needs escapes.
const question = "Tell me of rivers & \"bridges\" \\ <here>, 日本 🦊"

// continuation is the recipe for an answer that broke off (section 2.4): the body
// with what arrived as its last message.
func continuation(body dict, thought, content string) dict {
	last := dict{"role": "assistant", "content": content}
	out := dict{"add_generation_prompt": false}
	maps.Copy(out, body)
	if content == "" {
		last["reasoning_content"] = thought
		out["continue_final_message"] = "reasoning_content"
	} else {
		out["continue_final_message"] = "content"
		if thought != "" {
			// The template puts the newline before the marker again.
			last["reasoning_content"] = strings.TrimSuffix(thought, "\n")
		}
	}
	out["messages"] = append(append([]dict{}, body["messages"].([]dict)...), last)
	return out
}

// TestChatContinuesAtEveryCut cuts an answer after each of its events and lets
// another server go on: the whole is always the same text.
func TestChatContinuesAtEveryCut(t *testing.T) {
	for name, o := range map[string]Options{"plain": {}, "thinking": {Thinking: true}} {
		t.Run(name, func(t *testing.T) {
			first, second := start(t, o), start(t, o)
			body := dict{"messages": user("hi there")}
			whole := ask(t, first, chatPath, body)
			if n := len(whole.events); n < 60 || n > 800 || o.Thinking && (whole.thought == "" || whole.content == "") {
				t.Fatalf("the answer is no good for this test: %d events, %q, %q", n, whole.thought, whole.content)
			}
			thought, content := "", ""
			for i, e := range whole.events {
				for _, c := range e.Choices {
					thought += c.Delta.Reasoning
					content += c.Delta.Content
				}
				if thought == "" && content == "" {
					continue
				}
				rest := ask(t, second, chatPath, continuation(body, thought, content))
				if got := thought + rest.thought; content == "" && got != whole.thought {
					t.Fatalf("reasoning cut after event %d (%q): got %q, want %q", i, thought, got, whole.thought)
				}
				if got := content + rest.content; got != whole.content {
					t.Fatalf("cut after event %d (%q): got %q, want %q", i, content, got, whole.content)
				}
				if rest.finish != whole.finish {
					t.Fatalf("cut after event %d: finish %q, want %q", i, rest.finish, whole.finish)
				}
			}
		})
	}
}

// TestCompletionContinuesAtEveryCharacter cuts inside words, too. The text being a
// function of the context, a few tokens that are right show that all are; now and
// then the rest is read to its end.
func TestCompletionContinuesAtEveryCharacter(t *testing.T) {
	s := start(t, Options{})
	for _, path := range []string{"/v1/completions", "/completion"} {
		whole := ask(t, s, path, dict{"prompt": question})
		for i := range whole.content {
			if i == 0 {
				continue
			}
			if i > 700 && i%11 != 0 {
				continue
			}
			body := dict{"prompt": question + whole.content[:i], "max_tokens": 12}
			if i%110 == 0 {
				delete(body, "max_tokens")
			}
			rest := ask(t, s, path, body)
			got := whole.content[:i] + rest.content
			if i%110 == 0 && got != whole.content || !strings.HasPrefix(whole.content, got) {
				t.Fatalf("%s cut at %d (%q): got %q, want %q", path, i, whole.content[:i], got, whole.content)
			}
		}
	}
}

// TestCompletionContinuesFromTokens cuts between any two tokens, the halves of a
// character among them, which only ids can do.
func TestCompletionContinuesFromTokens(t *testing.T) {
	s := start(t, Options{})
	whole := ask(t, s, "/completion", dict{"prompt": "Once", "max_tokens": 150}).content
	if !strings.ContainsFunc(whole, func(r rune) bool { return r > 0xFFFF }) {
		t.Fatalf("%q has no character of two tokens", whole)
	}
	generated := tokenize(whole)
	ids := []any{"Once"}
	text := ""
	for _, tok := range generated[:len(generated)-30] {
		ids = append(ids, tok.id)
		text += tok.text
		rest := ask(t, s, "/completion", dict{"prompt": ids, "max_tokens": 20}).content
		want := strings.TrimPrefix(whole, text)
		if partial(text) {
			// The other half alone is no text.
			want = "\uFFFD" + whole[len(text)+2:]
		}
		if rest == "" || !strings.HasPrefix(want, rest) {
			t.Fatalf("after %q: got %q, want the beginning of %q", text, rest, want)
		}
	}
}

// TestWrongSeamShows changes, loses and repeats one character at the seam.
func TestWrongSeamShows(t *testing.T) {
	s := start(t, Options{})
	whole := ask(t, s, "/completion", dict{"prompt": "Once"}).content
	cut := len(whole) / 2
	for !strings.HasPrefix(whole[cut:], " ") {
		cut++
	}
	head := whole[:cut]
	for name, wrong := range map[string]string{
		"changed":  head[:len(head)/2] + "Q" + head[len(head)/2+1:],
		"repeated": head + head[len(head)-1:],
		"added":    head + ".",
	} {
		rest := ask(t, s, "/completion", dict{"prompt": "Once" + wrong}).content
		if strings.HasSuffix(whole, rest) && len(rest) > 20 {
			t.Errorf("%s character: the answer went on as if nothing were wrong", name)
		}
	}
}

func TestToolCallContinuesInside(t *testing.T) {
	s := start(t, Options{Thinking: true})
	body := toolBody("required")
	whole := ask(t, s, chatPath, body)
	name, arguments := callOf(whole)
	if name != "get_weather" || !json.Valid([]byte(arguments)) || whole.finish != "tool_calls" {
		t.Fatalf("call: %s(%s), finish %q", name, arguments, whole.finish)
	}
	raw := "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
	for cut := 1; cut < len(arguments)-1; cut++ {
		if arguments[cut]&0xC0 == 0x80 {
			continue
		}
		rest := ask(t, s, chatPath, continuation(body, whole.thought, raw+arguments[:cut]))
		again, tail := callOf(rest)
		if again != name || arguments[:cut]+tail != arguments {
			t.Fatalf("cut at %d: got %s(%s), want the rest of %s", cut, again, tail, arguments)
		}
	}
}

func toolBody(choice string) dict {
	return dict{
		"messages":    user("Which tool knows the weather in Oslo?"),
		"tool_choice": choice,
		"tools": []dict{{"type": "function", "function": dict{
			"name": "get_weather",
			"parameters": dict{"type": "object", "properties": dict{
				"city": dict{"type": "string"}, "days": dict{"type": "integer"},
			}},
		}}},
	}
}

func callOf(st *stream) (name, arguments string) {
	for _, e := range st.events {
		for _, c := range e.Choices {
			for _, call := range c.Delta.ToolCalls {
				name += call.Function.Name
				arguments += call.Function.Arguments
			}
		}
	}
	return name, arguments
}

func TestAutoToolCallFollowsContent(t *testing.T) {
	st := ask(t, start(t, Options{}), chatPath, toolBody("auto"))
	name, arguments := callOf(st)
	if st.content == "" || name != "get_weather" || !json.Valid([]byte(arguments)) || st.finish != "tool_calls" {
		t.Errorf("content %q, call %s(%s), finish %q", st.content, name, arguments, st.finish)
	}
	body := toolBody("auto")
	body["messages"] = user("hello")
	if name, _ := callOf(ask(t, start(t, Options{}), chatPath, body)); name != "" {
		t.Errorf("called %s without being asked to", name)
	}
}

// TestAutomaticPrefillEchoes is what a proxy must not rely on (section 0.2).
func TestAutomaticPrefillEchoes(t *testing.T) {
	s := start(t, Options{})
	explicit := continuation(dict{"messages": user("hello"), "max_tokens": 20}, "", "The fox")
	want := ask(t, s, chatPath, explicit).content
	auto := dict{"messages": explicit["messages"], "max_tokens": 20}
	st := ask(t, s, chatPath, auto)
	if st.content != "The fox"+want {
		t.Errorf("echo: got %q, want %q", st.content, "The fox"+want)
	}
	if first := st.events[1].Choices[0].Delta.Content; !strings.HasPrefix(first, "The fox") || first == "The fox" {
		t.Errorf("first delta %q has not the prefill glued to new text", first)
	}
	// The end brings it where nothing new comes.
	auto["stop"] = []string{want[:1]}
	if st := ask(t, s, chatPath, auto); st.content != "The fox" || st.finish != "stop" {
		t.Errorf("with nothing new: got %q, finish %s, want the prefill alone", st.content, st.finish)
	}
	delete(auto, "stop")
	for _, body := range []dict{explicit, auto} {
		resp := post(t.Context(), t, s.URL()+chatPath, js(t, body))
		var e event
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			t.Fatal(err)
		}
		if got := e.Choices[0].Message.Content; got != "The fox"+want {
			t.Errorf("one body: got %q, want %q", got, "The fox"+want)
		}
	}
}

func TestRefusesWrongContinuations(t *testing.T) {
	s := start(t, Options{})
	assistant := func(more dict) dict {
		m := dict{"role": "assistant", "content": "x"}
		maps.Copy(m, more)
		return m
	}
	for _, c := range []struct {
		body dict
		want string
	}{
		{dict{"continue_final_message": true, "messages": append(user("a"), assistant(nil))}, "Cannot set both add_generation_prompt and continue_final_message to true."},
		{dict{"messages": append(user("a"), assistant(nil), assistant(nil))}, "Cannot have 2 or more assistant messages at the end of the list."},
		{dict{"messages": append(user("a"), assistant(dict{"tool_calls": []dict{{"id": "a"}}}))}, "Cannot continue an assistant message that contains tool calls."},
		{dict{"messages": append(user("a"), dict{"role": "assistant"})}, "without 'content'"},
		{dict{"messages": "x"}, "Expected 'messages' to be an array"},
		{dict{"messages": user("a"), "n": 5}, "Field 'n': Value must be between 1 <= value <= 2, but got 5"},
		{dict{"messages": user("a"), "max_tokens": "x"}, "Field 'max_tokens': [json.exception.type_error.302]"},
	} {
		resp := post(t.Context(), t, s.URL()+chatPath, js(t, c.body))
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), c.want) {
			t.Errorf("got %d %s, want 400 %s", resp.StatusCode, b, c.want)
		}
	}
}

func TestTemplateRendersContinuations(t *testing.T) {
	s := start(t, Options{Thinking: true})
	for _, c := range []struct {
		last dict
		mode any
		want string
	}{
		{dict{"content": "It is", "reasoning_content": "Okay, so"}, "content", "<think>\nOkay, so\n</think>\n\nIt is"},
		{dict{"content": "", "reasoning_content": "Okay,"}, true, "<think>\nOkay,"},
		{dict{"content": "dropped", "reasoning_content": "Okay,"}, "reasoning_content", "<think>\nOkay,"},
		{dict{"content": "It is"}, true, "<think>\n\n</think>\n\nIt is"},
	} {
		c.last["role"] = "assistant"
		resp := post(t.Context(), t, s.URL()+"/apply-template", js(t, dict{
			"messages": append(user("hi"), c.last), "continue_final_message": c.mode, "add_generation_prompt": false,
		}))
		var got struct{ Prompt string }
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if want := "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" + c.want; got.Prompt != want {
			t.Errorf("got %q, want %q", got.Prompt, want)
		}
	}
}
