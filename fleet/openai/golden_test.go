package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

const goesOn = fleet.ContinueContent | fleet.ContinueReasoning

var (
	nodeA = fleet.Instance{Node: "a", Model: "m", Fingerprint: "same", Features: goesOn}
	nodeB = fleet.Instance{Node: "b", Model: "m", Fingerprint: "same", Features: goesOn}
)

// withTimings gives every text chunk the figures that timings_per_token adds.
func withTimings(events []string) []string {
	n := 0
	list := make([]string, len(events))
	for i, ev := range events {
		list[i] = ev
		var c jsonChunk
		_ = json.Unmarshal([]byte(ev), &c)
		if len(c.Choices) == 1 && c.Choices[0].Finish == nil && c.Choices[0].Delta.Role == "" && c.Timings == nil {
			n++
			list[i] = strings.TrimSuffix(ev, "}") + fmt.Sprintf(`,"timings":{"cache_n":20,"prompt_n":5,"prompt_ms":1.5,"prompt_per_token_ms":0.3,`+
				`"prompt_per_second":3333.3,"predicted_n":%d,"predicted_ms":%d,"predicted_per_token_ms":1,"predicted_per_second":1000}}`, n, n)
		}
	}
	return list
}

// continued is what another node sends for the rest: its own ids, a progress and a
// role chunk, and figures that count only its own work.
func continued(t testing.TB, rest []string, node string, chat bool) []string {
	t.Helper()
	var list []string
	if chat {
		for _, extra := range []string{`,"prompt_progress":{"total":90,"cache":80,"processed":90,"time_ms":1}`, ""} {
			list = append(list, `{"object":"chat.completion.chunk","id":"chatcmpl-`+node+`","choices":[{"delta":{"content":null,"role":"assistant"},`+
				`"index":0,"finish_reason":null}],"model":"other","created":5,"system_fingerprint":"b9"`+extra+`}`)
		}
	}
	n := 0
	for _, ev := range rest {
		var m map[string]any
		if err := json.Unmarshal([]byte(ev), &m); err != nil {
			t.Fatal(err)
		}
		m["id"], m["model"], m["created"], m["system_fingerprint"] = "chatcmpl-"+node, "other", 5, "b9"
		choices, _ := m["choices"].([]any)
		if m["prompt_progress"] != nil {
			continue
		}
		if len(choices) > 0 {
			if d, ok := choices[0].(map[string]any)["delta"].(map[string]any); ok && d["role"] != nil {
				continue
			}
			if choices[0].(map[string]any)["finish_reason"] == nil {
				n++
			}
		}
		if ti, ok := m["timings"].(map[string]any); ok {
			ti["predicted_n"], ti["predicted_ms"] = n, float64(n)
		}
		if u, ok := m["usage"].(map[string]any); ok {
			u["completion_tokens"], u["prompt_tokens"], u["total_tokens"] = n, 90, 90+n
			u["prompt_tokens_details"] = map[string]any{"cached_tokens": 80}
		}
		b, err := json.Marshal(m) // keys sorted: another order than the recording's
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(b))
	}
	return list
}

// reissued is what another node sends that was asked for all of it.
func reissued(t testing.TB, events []string) []string {
	t.Helper()
	list := make([]string, len(events))
	for i, ev := range events {
		m := decode(t, ev)
		m["id"], m["model"], m["created"], m["system_fingerprint"] = "chatcmpl-b", "other", 5, "b9"
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		list[i] = string(b)
	}
	return list
}

// wantFirst is what the first attempt must ask for, by an independent model.
func wantFirst(orig map[string]any) map[string]any {
	m := maps.Clone(orig)
	wholeAnswer := m["stream"] != true
	m["stream"], m["return_progress"], m["sse_ping_interval"] = true, true, 5.0
	n, _ := m["n"].(float64)
	_, prompts := m["prompt"].([]any)
	if n <= 1 && !prompts && (wholeAnswer || m["max_tokens"] != nil || m["stream_options"] != nil) {
		m["timings_per_token"] = true
	}
	if m["prompt"] != nil && n <= 1 && !prompts {
		m["verbose"] = true
	}
	if wholeAnswer {
		m["stream_options"] = map[string]any{"include_usage": true}
		if m["continue_final_message"] != nil {
			m["echo"] = true
		}
	}
	return m
}

// wantRest is what must be asked for after content and reasoning reached the
// client, which took so many tokens.
func wantRest(orig map[string]any, content, reasoning string, used int) map[string]any {
	m := wantFirst(orig)
	delete(m, "echo")
	if limit, ok := m["max_tokens"].(float64); ok {
		m["max_tokens"] = max(1, limit) - float64(used)
	}
	if p, ok := m["prompt"].(string); ok {
		m["prompt"] = p + content
		return m
	}
	list, _ := m["messages"].([]any)
	list = append([]any{}, list...)
	last, _ := list[len(list)-1].(map[string]any)
	msg := map[string]any{"role": "assistant"}
	if last["role"] == "assistant" {
		msg = maps.Clone(last)
		list = list[:len(list)-1]
		if r, ok := last["reasoning_content"].(string); ok {
			reasoning = r + reasoning
		} else if c := last["content"].(string); !strings.HasPrefix(content, c) {
			content = c + content
		}
	}
	m["continue_final_message"] = "content"
	if content == "" {
		m["continue_final_message"] = "reasoning_content"
	} else {
		reasoning = strings.TrimSuffix(reasoning, "\n")
	}
	msg["content"] = content
	if reasoning != "" {
		msg["reasoning_content"] = reasoning
	}
	m["messages"] = append(list, msg)
	m["add_generation_prompt"] = false
	return m
}

func TestEveryCutOfEveryRecordedStream(t *testing.T) {
	cuts := 0
	for _, e := range captures(t) {
		if !e.streams() || !strings.HasSuffix(e.Request.Path, "/completions") {
			continue
		}
		for _, timings := range []bool{false, true} {
			events := e.events()
			if timings && !strings.Contains(e.Name, "n2") {
				events = withTimings(events)
			}
			name := fmt.Sprintf("%s/%s/timings=%t", e.File, e.Name, timings)
			t.Run(name, func(t *testing.T) {
				want := uncut(t, &e, events)
				for cut := range len(events) + 1 {
					cutOnce(t, &e, events, cut, want)
					cuts++
				}
			})
		}
	}
	t.Logf("%d cuts", cuts)
	if cuts < 700 {
		t.Errorf("%d cuts were tried, want more than 700: are the recordings there?", cuts)
	}
}

func uncut(t *testing.T, e *exchange, events []string) heard {
	t.Helper()
	j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
	request(t, j, nodeA)
	want := listen(t, feed(t, j, events)+string(j.End(nil)))
	if want.done != 1 || want.faults != 0 {
		t.Fatalf("the uncut answer has %d [DONE] and %d errors: %s", want.done, want.faults, want.raw)
	}
	return want
}

func cutOnce(t *testing.T, e *exchange, events []string, cut int, want heard) {
	t.Helper()
	orig := decode(t, e.Request.Body)
	j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
	_, first := request(t, j, nodeA)
	if d := cmp.Diff(wantFirst(orig), first); d != "" {
		t.Fatalf("first request (-want +got):\n%s", d)
	}
	got := feed(t, j, events[:cut])
	h := listen(t, got)
	needs, err := j.Needs()
	switch {
	case len(want.finishes) == len(h.finishes):
		if !needs.Done {
			t.Fatalf("cut %d: the finish was delivered, Needs = %+v", cut, needs)
		}
		got += string(j.End(nil))
	case h.textChunks == 0:
		if err != nil || needs != (fleet.Needs{}) {
			t.Fatalf("cut %d: nothing was delivered, Needs = %+v, %v", cut, needs, err)
		}
		_, again := request(t, j, nodeB)
		if d := cmp.Diff(first, again); d != "" {
			t.Fatalf("cut %d: sent again (-want +got):\n%s", cut, d)
		}
		rest := feed(t, j, reissued(t, events))
		got += rest + string(j.End(nil))
	case len(want.content) > 1: // said again by another node, and not sent again
		if err != nil || needs != (fleet.Needs{Fingerprint: "same"}) {
			t.Fatalf("cut %d: Needs = %+v, %v, want any instance of the same model", cut, needs, err)
		}
		_, again := request(t, j, nodeB)
		if d := cmp.Diff(first, again); d != "" {
			t.Fatalf("cut %d: asked again (-want +got):\n%s", cut, d)
		}
		got += feed(t, j, reissued(t, events)) + string(j.End(nil))
	case needs.Done: // the client's limit is filled
		if n := int(orig["max_tokens"].(float64)); h.textChunks < max(1, n) {
			t.Fatalf("cut %d: done after %d tokens of %d", cut, h.textChunks, n)
		}
		got += string(j.End(nil))
	default:
		if err != nil {
			t.Fatalf("cut %d: Needs: %v", cut, err)
		}
		got += goOn(t, j, orig, h, needs, events, cut)
	}
	compare(t, cut, e, want, listen(t, got), orig)
}

// goOn checks the request for the rest, and plays the node that answers it.
func goOn(t *testing.T, j *Job, orig map[string]any, h heard, needs fleet.Needs, events []string, cut int) string {
	t.Helper()
	features := fleet.ContinueContent
	if orig["prompt"] != nil {
		features = 0
	} else if h.content[0] == "" {
		features = fleet.ContinueReasoning
	}
	if needs.Fingerprint != "same" || needs.Features != features {
		t.Fatalf("cut %d: Needs = %+v, want fingerprint same, features %b", cut, needs, features)
	}
	_, got := request(t, j, nodeB)
	if d := cmp.Diff(wantRest(orig, h.content[0], h.reasoning[0], h.textChunks), got); d != "" {
		t.Fatalf("cut %d: request for the rest (-want +got):\n%s", cut, d)
	}
	return feed(t, j, continued(t, events[cut:], "b", orig["messages"] != nil)) + string(j.End(nil))
}

func compare(t *testing.T, cut int, e *exchange, want, got heard, orig map[string]any) {
	t.Helper()
	fail := func(what string, want, got any) {
		t.Fatalf("%s, cut %d: %s: want %v, got %v\n%s", e.Name, cut, what, want, got, got)
	}
	if d := cmp.Diff(want.content, got.content); d != "" {
		fail("content", want.content, got.content)
	}
	if d := cmp.Diff(want.reasoning, got.reasoning); d != "" {
		fail("reasoning", want.reasoning, got.reasoning)
	}
	if d := cmp.Diff(want.finishes, got.finishes); d != "" {
		fail("finishes", want.finishes, got.finishes)
	}
	if d := cmp.Diff(want.finish, got.finish); d != "" {
		fail("finish reason", want.finish, got.finish)
	}
	if d := cmp.Diff(want.roles, got.roles); d != "" {
		fail("roles", want.roles, got.roles)
	}
	if got.done != 1 || got.faults != 0 {
		fail("[DONE] and errors", "1 0", fmt.Sprint(got.done, got.faults))
	}
	if len(got.envelopes) != 1 {
		fail("envelopes", 1, got.envelopes)
	}
	// Without timings and progress nobody knows how long the prompt was; then there
	// is no usage rather than a wrong one.
	if len(want.usage) != len(got.usage) && (len(got.usage) > 0 || len(want.timings) > 0 && len(got.timings) > 0) {
		fail("usage", want.usage, got.usage)
	}
	if len(got.usage) == 1 {
		u := got.usage[0]
		if u["completion_tokens"] != want.usage[0]["completion_tokens"] ||
			u["total_tokens"] != u["completion_tokens"].(float64)+u["prompt_tokens"].(float64) {
			fail("usage", want.usage, got.usage)
		}
	}
	if orig["timings_per_token"] == nil && len(got.timings) > len(got.finishes) {
		fail("timings that nobody asked for", 1, got.timings)
	}
}
