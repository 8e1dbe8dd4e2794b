package llamasim

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// wholeOf asks for an answer as one body.
func wholeOf(t *testing.T, s *Server, body dict) (e event, raw string, status int) {
	t.Helper()
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, body))
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(b, &e)
	return e, string(b), resp.StatusCode
}

// TestFeb26ContinuesContentOnly is section 2.2's row of May 2025 to May 2026.
func TestFeb26ContinuesContentOnly(t *testing.T) {
	s := start(t, Options{Version: VFeb26})
	body := dict{"messages": user(question)}
	whole := ask(t, s, chatPath, body)
	cut := strings.LastIndex(whole.content[:len(whole.content)/2], " ")
	head, tail := whole.content[:cut], whole.content[cut:]
	withFields := continuation(body, "", head)
	without := dict{"messages": withFields["messages"]}
	for name, b := range map[string]dict{"with the fields": withFields, "without": without} {
		if got := ask(t, s, chatPath, b).content; got != tail {
			t.Errorf("%s: got %q, want %q, no echo", name, got, tail)
		}
		if e, raw, _ := wholeOf(t, s, b); e.Choices[0].Message.Content != tail {
			t.Errorf("%s, whole: got %s, want the new text only", name, raw)
		}
	}
	both := continuation(body, "", head)
	both["add_generation_prompt"] = true
	if _, raw, status := wholeOf(t, s, both); status != http.StatusOK {
		t.Errorf("both fields: got %d %s; the probe shall not find support", status, raw)
	}

	thinking := start(t, Options{Version: VFeb26, Thinking: true})
	if _, raw, status := wholeOf(t, thinking, withFields); status != 400 || !strings.Contains(raw, "Assistant response prefill is incompatible with enable_thinking.") {
		t.Errorf("thinking: got %d %s", status, raw)
	}
	off := dict{"enable_thinking": false}
	plain := ask(t, thinking, chatPath, dict{"messages": user(question), "chat_template_kwargs": off}).content
	if got := ask(t, thinking, chatPath, dict{"messages": append(user(question), dict{"role": "assistant", "content": plain[:20]}), "chat_template_kwargs": off}).content; plain[:20]+got != plain {
		t.Errorf("with thinking off: got %q, want the rest of %q", got, plain)
	}
}

// TestSchemaFollowsWhatIsThere, but restarts where it does not know of it.
func TestSchemaFollowsWhatIsThere(t *testing.T) {
	schema := dict{"type": "json_schema", "json_schema": dict{"schema": dict{
		"type": "object", "properties": dict{"a": dict{"type": "string"}, "b": dict{"type": "integer"}},
	}}}
	body := dict{"messages": user("hello"), "response_format": schema}
	for version, follows := range map[Version]bool{V040: true, VFeb26: false} {
		s := start(t, Options{Version: version})
		whole := ask(t, s, chatPath, body).content
		if !json.Valid([]byte(whole)) {
			t.Fatalf("%s: %q is no JSON", version, whole)
		}
		for cut := range whole {
			if cut == 0 {
				continue
			}
			rest := ask(t, s, chatPath, continuation(body, "", whole[:cut])).content
			if got := whole[:cut]+rest == whole; got != follows {
				t.Fatalf("%s: cut at %d: %q and %q", version, cut, whole[:cut], rest)
			}
			if !follows && !json.Valid([]byte(rest)) {
				t.Fatalf("%s: cut at %d: %q is no object of its own", version, cut, rest)
			}
		}
	}
}

// TestFeb25 is what a client meets on a server that is that old.
func TestFeb25(t *testing.T) {
	s := start(t, Options{Version: VFeb25, Context: 100})
	body := dict{"messages": user("hi"), "max_tokens": 12, "timings_per_token": true, "model": "whatever"}
	whole := ask(t, s, chatPath, body)
	finish := whole.events[len(whole.events)-1]
	if finish.Usage == nil || finish.Choices[0].FinishReason == nil || !whole.done {
		t.Errorf("last event: got %+v, want usage with the finish", finish)
	}
	_, raw, _ := wholeOf(t, s, body)
	if strings.Contains(raw, "cache_n") || strings.Contains(raw, "cached_tokens") || !strings.Contains(raw, `"model":"whatever"`) {
		t.Errorf("got %s, want no cache figures and the model that was asked for", raw)
	}
	// A trailing assistant message is a turn that is over.
	if got := ask(t, s, chatPath, continuation(body, "", whole.content[:5])).content; whole.content[:5]+got == whole.content {
		t.Errorf("it went on: %q", got)
	}
	long := dict{"messages": user(strings.Repeat(" x", 200)), "stream": true}
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, long))
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(b), "error: {\"code\":400,") || !strings.HasSuffix(string(b), "\n\ndata: [DONE]\n\n") {
		t.Errorf("the first error: got %d %q, want a line in a stream", resp.StatusCode, b)
	}
	for path, want := range map[string]int{"/slots": 501, "/v1/messages": 404, "/v1/responses": 404, "/v1/stream?conv_id=x": 404} {
		method := http.MethodPost
		if path == "/slots" || strings.HasPrefix(path, "/v1/stream?") {
			method = http.MethodGet
		}
		req, _ := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader("{}"))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestNoPrefillGoesOnOnDemandOnly(t *testing.T) {
	s := start(t, Options{NoPrefill: true})
	body := dict{"messages": user(question)}
	whole := ask(t, s, chatPath, body).content
	cut := strings.LastIndex(whole[:len(whole)/2], " ")
	explicit := continuation(body, "", whole[:cut])
	if got := ask(t, s, chatPath, explicit).content; whole[:cut]+got != whole {
		t.Errorf("on demand: got %q", got)
	}
	if got := ask(t, s, chatPath, dict{"messages": explicit["messages"]}).content; strings.HasPrefix(got, whole[:cut]) || strings.HasSuffix(whole, got) {
		t.Errorf("by itself: got %q, want a new turn", got)
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"version":          {Version: "v9"},
		"no name":          {Models: []Model{{}}},
		"one name twice":   {Models: []Model{{Name: "a"}, {Name: "b", Aliases: []string{"a"}}}},
		"too old a router": {Version: VFeb25, Models: []Model{{Name: "a"}}},
	} {
		if s, err := Start(o); err == nil {
			_ = s.Close()
			t.Errorf("%s: it started", name)
		}
	}
}
