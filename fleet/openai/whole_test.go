package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

var figuresOf = regexp.MustCompile(`"(id|created|timings|prompt_tokens_details)":("[^"]*"|\d+|\{[^}]*\})`)

// sameButFigures blanks what differs between two runs of one request.
func sameButFigures(s string) string { return figuresOf.ReplaceAllString(s, `"$1":_`) }

func TestWholeAnswerIsWhatTheServerGives(t *testing.T) {
	for _, file := range []string{"http-0.4.0", "http-0.4.0-thinking-template"} {
		for _, x := range []struct{ whole, stream string }{
			{"chat", "chat-stream-usage"},
			{"completions", "completions-stream"},
		} {
			byName := map[string]exchange{}
			for _, e := range captures(t) {
				if e.File == file {
					byName[e.Name] = e
				}
			}
			e, s := byName[x.whole], byName[x.stream]
			j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
			request(t, j, nodeA)
			if out := feed(t, j, s.events()); out != "" {
				t.Fatalf("a whole answer came in parts: %s", out)
			}
			got := sameButFigures(string(j.End(nil)))
			want := sameButFigures(e.Response.Body)
			if x.whole == "completions" { // the two recordings are of different texts
				text := regexp.MustCompile(`"text":"[^"]*"`)
				got, want = text.ReplaceAllString(got, ""), text.ReplaceAllString(want, "")
			}
			if got != want {
				t.Errorf("%s/%s:\n got %s\nwant %s", file, x.whole, got, want)
			}
		}
	}
}

func TestWholeAnswerSurvivesEveryCut(t *testing.T) {
	for _, name := range []string{"chat-stream-usage", "completions-stream", "chat-stop"} {
		e := capture(t, name)
		events := withTimings(e.events())
		body := strings.Replace(e.Request.Body, `,"stream":true`, "", 1)
		body = strings.Replace(body, `,"stream_options":{"include_usage":true}`, "", 1)
		orig := decode(t, body)
		uncut := mustParse(t, e.Request.Path, body, Options{})
		request(t, uncut, nodeA)
		feed(t, uncut, events)
		want := decode(t, string(uncut.End(nil)))
		for cut := range len(events) + 1 {
			j := mustParse(t, e.Request.Path, body, Options{})
			_, first := request(t, j, nodeA)
			if d := cmp.Diff(wantFirst(orig), first); d != "" {
				t.Fatalf("first request (-want +got):\n%s", d)
			}
			feed(t, j, events[:cut])
			needs, err := j.Needs()
			if err != nil {
				t.Fatal(err)
			}
			if !needs.Done {
				h := listenTo(t, events[:cut])
				_, rest := request(t, j, nodeB)
				if h.textChunks > 0 {
					if d := cmp.Diff(wantRest(orig, h.content[0], "", h.textChunks), rest); d != "" {
						t.Fatalf("%s, cut %d: rest (-want +got):\n%s", name, cut, d)
					}
				}
				feed(t, j, continued(t, events[cut:], "b", orig["messages"] != nil))
			}
			got := decode(t, string(j.End(nil)))
			for _, m := range []map[string]any{got, want} {
				for _, k := range []string{"id", "created", "model", "system_fingerprint", "timings"} {
					delete(m, k)
				}
				if u, ok := m["usage"].(map[string]any); ok {
					delete(u, "prompt_tokens_details")
					delete(u, "prompt_tokens")
					delete(u, "total_tokens")
				}
			}
			if name == "chat-stop" { // its end token counts, and the second node's is not in the recording
				delete(got, "usage")
				delete(want, "usage")
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("%s, cut %d (-want +got):\n%s", name, cut, d)
			}
		}
	}
}

// listenTo is listen for bare payloads.
func listenTo(t testing.TB, events []string) heard {
	t.Helper()
	var s strings.Builder
	for _, ev := range events {
		s.WriteString("data: " + ev + "\n\n")
	}
	return listen(t, s.String())
}

const env = `"created":1,"id":"chatcmpl-a","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}`

func delta(d string) string {
	return `{"choices":[{"finish_reason":null,"index":0,"delta":` + d + `}],` + env
}

func finishChunk(reason string) string {
	return `{"choices":[{"finish_reason":"` + reason + `","index":0,"delta":{}}],` + env
}

func content(s string) string {
	b, _ := json.Marshal(s)
	return delta(`{"content":` + string(b) + `}`)
}

func reasoning(s string) string {
	b, _ := json.Marshal(s)
	return delta(`{"reasoning_content":` + string(b) + `}`)
}

const role = `{"role":"assistant","content":null}`

const chatPath = "/v1/chat/completions"

func TestWholeToolCallsAndReasoningAreAssembled(t *testing.T) {
	j := mustParse(t, chatPath, `{"messages":[{"role":"user","content":"x"}]}`, Options{})
	request(t, j, nodeA)
	feed(t, j, []string{
		delta(role), reasoning("hm"), content("I call."),
		delta(`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{"}}]}`),
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"\"a\":1}"}}]}`),
		delta(`{"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}]}`),
		finishChunk("tool_calls"),
		`{"choices":[],` + strings.TrimSuffix(env, "}") + `,"usage":{"completion_tokens":9,"prompt_tokens":3,"total_tokens":12}}`,
	})
	want := `{"choices":[{"finish_reason":"tool_calls","index":0,"message":{"role":"assistant","content":"I call.","reasoning_content":"hm",` +
		`"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"a\":1}"},"id":"c1"},` +
		`{"type":"function","function":{"name":"g","arguments":"{}"},"id":"c2"}]}}],"created":1,"model":"m","system_fingerprint":"b1",` +
		`"object":"chat.completion","usage":{"completion_tokens":9,"prompt_tokens":3,"total_tokens":12},"id":"chatcmpl-a"}`
	if got := string(j.End(nil)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestWholeAnswerBeginsAnewWhereNobodyCanGoOn(t *testing.T) {
	for name, other := range map[string]fleet.Instance{
		"another model's fingerprint": {Node: "b", Fingerprint: "other", Features: goesOn},
		"cannot continue":             {Node: "b", Fingerprint: "same"},
	} {
		j := mustParse(t, chatPath, `{"messages":[{"role":"user","content":"x"}]}`, Options{})
		request(t, j, nodeA)
		feed(t, j, []string{delta(role), content("lost ")})
		if n, err := j.Needs(); err != nil || !n.Anew || n.Fingerprint != "same" || n.Features != fleet.ContinueContent {
			t.Fatalf("%s: needs %+v, %v: want an equal, or else anybody anew", name, n, err)
		}
		_, rest := request(t, j, other)
		if n := len(rest["messages"].([]any)); n != 1 {
			t.Fatalf("%s: got %d messages, want the client's request as it was", name, n)
		}
		feed(t, j, []string{delta(role), content("whole"), finishChunk("stop")})
		m := decode(t, string(j.End(nil)))["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)
		if m["content"] != "whole" {
			t.Errorf("%s: content = %q, want %q", name, m["content"], "whole")
		}
	}
}

func TestWholeToolCallLostGoesOnFromBeforeIt(t *testing.T) {
	j := mustParse(t, chatPath, `{"messages":[{"role":"user","content":"x"}]}`, Options{})
	request(t, j, nodeA)
	call := delta(`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{"}}]}`)
	feed(t, j, []string{delta(role), content("Now:"), call, content("late")})
	_, rest := request(t, j, nodeB)
	last := rest["messages"].([]any)[1].(map[string]any)
	if last["content"] != "Now:" || len(last) != 2 {
		t.Fatalf("goes on from %v", last)
	}
	feed(t, j, []string{delta(role), content(" no call"), finishChunk("stop")})
	m := decode(t, string(j.End(nil)))["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)
	if m["content"] != "Now: no call" || m["tool_calls"] != nil {
		t.Errorf("message = %v", m)
	}
}

func TestWholeAnswersWithSeveralChoices(t *testing.T) {
	e := capture(t, "chat-n2")
	s := capture(t, "chat-n2-stream")
	j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
	request(t, j, nodeA)
	feed(t, j, s.events()[:5])
	needs, err := j.Needs() // the client has nothing: it is simply asked again
	if err != nil || needs != (fleet.Needs{}) {
		t.Fatalf("Needs = %+v, %v", needs, err)
	}
	request(t, j, nodeB)
	feed(t, j, s.events())
	got := string(j.End(nil))
	// The recorded stream has no usage and stops earlier: only the form is compared.
	keys := regexp.MustCompile(`"[a-z_]+":`)
	want, _, _ := strings.Cut(e.Response.Body, `,"usage"`)
	have, _, _ := strings.Cut(got, `,"usage"`)
	if d := cmp.Diff(keys.FindAllString(want, -1), keys.FindAllString(have, -1)); d != "" {
		t.Errorf("keys (-want +got):\n%s", d)
	}
	if _, text, _ := strings.Cut(got, `"content":`); strings.HasPrefix(text, `""`) {
		t.Errorf("no text: %s", got)
	}
}

func TestWholeAnswerIsBounded(t *testing.T) {
	j := mustParse(t, chatPath, `{"messages":[]}`, Options{})
	request(t, j, nodeA)
	big := content(strings.Repeat("x", 1<<20))
	var err error
	n := 0
	for ; n < 20 && err == nil; n++ {
		_, err = j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(big)})
	}
	if e := ErrorFor(err); err == nil || e.Status != 502 || n != 17 {
		t.Errorf("after %d MiB: %v", n, err)
	}
	if r, ok := errors.AsType[*fleet.RequestError](err); !ok || r.Again {
		t.Errorf("got %v, want that no other server is asked for as much", err)
	}
}

func TestWholeAnswerIsBoundedWithinAChunk(t *testing.T) {
	const parts = 40
	j := mustParse(t, chatPath, fmt.Sprintf(`{"messages":[],"n":%d}`, parts), Options{})
	request(t, j, nodeA)
	text := strings.Repeat("x", 1<<20)
	list := make([]string, parts)
	for k := range list {
		list[k] = fmt.Sprintf(`{"index":%d,"delta":{"content":"%s"}}`, k, text)
	}
	_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(`{"choices":[` + strings.Join(list, ",") + `]}`)})
	if n := len(j.relay.choices); err == nil || n > 17 {
		t.Errorf("%d of %d parts of 1 MiB were taken: %v", n, parts, err)
	}
}

func TestWholeToolCallsAreBounded(t *testing.T) {
	for _, calls := range []int{maxCalls, maxCalls + 1, 80000} {
		j := mustParse(t, chatPath, `{"messages":[{"role":"user","content":"x"}]}`, Options{})
		request(t, j, nodeA)
		list := make([]string, calls)
		for k := range list {
			list[k] = fmt.Sprintf(`{"index":%d}`, k)
		}
		data := delta(`{"tool_calls":[` + strings.Join(list, ",") + `]}`)
		_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(data)})
		if n := len(j.relay.choices[0].wait.calls); n > maxCalls || n < min(calls, maxCalls) {
			t.Errorf("of %d calls %d are kept, want at most %d", calls, n, maxCalls)
		}
		r, ok := errors.AsType[*fleet.RequestError](err)
		if broke := ok && r.Reason == fleet.ReasonBroken && r.Again; broke != (calls > maxCalls) {
			t.Errorf("%d calls: %v", calls, err)
		}
	}
}

func TestBrokenChunkLeavesNothingInAWholeAnswer(t *testing.T) {
	j := mustParse(t, chatPath, `{"messages":[],"n":2,"logprobs":true}`, Options{})
	request(t, j, nodeA)
	const probs = `"logprobs":{"content":[{"token":"a"}]}`
	calls := strings.Repeat(`{"id":"c"},`, maxCalls) + `{"id":"c"}`
	bad := `{"choices":[{"index":0,"delta":{"content":"a"},` + probs + `},{"index":1,"delta":{"tool_calls":[` + calls + `]}}]}`
	if _, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(bad)}); err == nil {
		t.Fatal("too many calls were taken")
	}
	request(t, j, nodeB)
	feed(t, j, []string{
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop",` + probs + `}]}`,
		`{"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":"stop"}]}`,
	})
	want := `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"a"},"logprobs":{"content":[{"token":"a"}]}},` +
		`{"finish_reason":"stop","index":1,"message":{"role":"assistant","content":"b"}}],"object":"chat.completion"}`
	if got := string(j.End(nil)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestResponseFieldsChooseWhatANativeAnswerHas(t *testing.T) {
	const last = `{"index":0,"content":"","tokens":[],"stop":true,"timings":{"predicted_n":2}}`
	for fields, want := range map[string]string{
		`["content","timings/predicted_n"]`: `{"content":"ab","timings/predicted_n":2}`,
		`[""]`:                              `{}`,
		`["nothing"]`:                       `{}`,
		`[]`:                                `{"index":0,"content":"ab","tokens":[],"stop":true,"timings":{"predicted_n":2}}`,
	} {
		j := mustParse(t, "/completion", `{"prompt":"P","response_fields":`+fields+`}`, Options{})
		request(t, j, nodeA)
		feed(t, j, []string{`{"index":0,"content":"a","tokens":[1],"stop":false}`, `{"index":0,"content":"b","tokens":[2],"stop":false}`, last})
		if got := string(j.End(nil)); got != want {
			t.Errorf("%s: got %s, want %s", fields, got, want)
		}
	}
}

// What verbose adds to a whole answer is cut down to what response_fields names, has the
// tokens where they are asked for, and counts what every node did.
func TestWholeAnswerTellsAllThatVerboseWould(t *testing.T) {
	const body = `{"prompt":"P","max_tokens":9,"verbose":true%s}`
	last := func(n int) string {
		return fmt.Sprintf(`{"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}],"id":"a",`+
			`"__verbose":{"content":"","tokens":[],"stop":true,"tokens_predicted":%d,%s},%[2]s}`, n, timings(20, n))
	}
	for fields, want := range map[string]string{
		`,"response_fields":["tokens_predicted","timings/predicted_n"]`: `{"timings/predicted_n":3,"tokens_predicted":3}`,
		`,"response_fields":["nothing"]`:                                `{}`,
		`,"response_fields":["content","tokens"]`:                       `{"content":"ab","tokens":[]}`,
		`,"return_tokens":true,"response_fields":["content","tokens"]`:  `{"content":"ab","tokens":[5,6]}`,
	} {
		j := mustParse(t, "/v1/completions", fmt.Sprintf(body, fields), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{counted(withIDs(text("a"), "[5]", 1), 20, 1)})
		request(t, j, nodeG)
		feed(t, j, []string{counted(withIDs(text("b"), "[6]", 1), 21, 1), last(2)})
		got, _ := json.Marshal(decode(t, string(j.End(nil)))["__verbose"])
		if string(got) != want {
			t.Errorf("%s: got %s, want %s", fields, got, want)
		}
	}
}

func TestWholeAnswerKeepsLogprobs(t *testing.T) {
	e := capture(t, "chat-logprobs")
	j := mustParse(t, e.Request.Path, strings.Replace(e.Request.Body, `,"stream":true`, "", 1), Options{})
	request(t, j, nodeA)
	feed(t, j, e.events())
	list := decode(t, string(j.End(nil)))["choices"].([]any)[0].(map[string]any)["logprobs"].(map[string]any)["content"].([]any)
	if len(list) != 3 || list[2].(map[string]any)["logprob"] == nil {
		t.Errorf("logprobs = %v", list)
	}
}

// Told to, llama-server goes on with the last message whoever says it.
func TestAMessageOfTheUserCanBeGoneOnWith(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"The fox"}],"continue_final_message":true,"add_generation_prompt":false%s}`
	j := mustParse(t, chatPath, fmt.Sprintf(body, ""), Options{})
	if _, m := request(t, j, nodeA); m["echo"] != true {
		t.Errorf("a whole answer: echo = %v, want true", m["echo"])
	}
	j = mustParse(t, chatPath, fmt.Sprintf(body, `,"stream":true`), Options{})
	if _, m := request(t, j, nodeA); m["echo"] != nil {
		t.Errorf("a stream: echo = %v, want none", m["echo"])
	}
	feed(t, j, []string{delta(role), content(" jumps")})
	_, m := request(t, j, nodeB)
	want := []any{map[string]any{"role": "user", "content": "The fox jumps"}}
	if d := cmp.Diff(want, m["messages"]); d != "" || m["continue_final_message"] != "content" {
		t.Errorf("how %v (-want +got):\n%s", m["continue_final_message"], d)
	}
	j = mustParse(t, chatPath, `{"messages":[],"continue_final_message":true,"add_generation_prompt":false,"stream":true}`, Options{})
	request(t, j, nodeA)
	feed(t, j, []string{delta(role), content("a")})
	if _, m := request(t, j, nodeB); len(m["messages"].([]any)) != 0 || m["seed"] == nil {
		t.Errorf("of no message: got %v, want it all again", m)
	}
}

func TestWholePrefillIsRepeatedAsTheServerDoes(t *testing.T) {
	body := `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"The fox"}],"continue_final_message":true,"add_generation_prompt":false}`
	j := mustParse(t, chatPath, body, Options{})
	if _, m := request(t, j, nodeA); m["echo"] != true {
		t.Fatalf("echo = %v, want true", m["echo"])
	}
	feed(t, j, []string{delta(role), content("The fox runs")})
	_, m := request(t, j, nodeB)
	last := m["messages"].([]any)[1]
	if d := cmp.Diff(map[string]any{"role": "assistant", "content": "The fox runs"}, last); d != "" || m["echo"] != nil {
		t.Fatalf("rest: echo %v, last message (-want +got):\n%s", m["echo"], d)
	}
	feed(t, j, []string{delta(role), content("."), finishChunk("stop")})
	if got := fmt.Sprint(decode(t, string(j.End(nil)))["choices"]); !strings.Contains(got, "The fox runs.") {
		t.Errorf("got %s", got)
	}
}
