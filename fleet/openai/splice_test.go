package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/slotfleet/slotfleet/fleet"
)

// question is a request of a path whose answers the oracle knows.
func question(a api, streams bool, limit, choices int) (path, body string) {
	more := ""
	if choices > 1 {
		more = fmt.Sprintf(`,"n":%d`, choices)
	}
	switch a {
	case apiChat:
		return chatPath, fmt.Sprintf(`{"messages":[{"role":"user","content":"q"}],"stream":%t,"max_tokens":%d,"stream_options":{"include_usage":true}%s}`, streams, limit, more)
	case apiCompletion:
		return "/v1/completions", fmt.Sprintf(`{"prompt":"P","stream":%t,"max_tokens":%d%s}`, streams, limit, more)
	case apiNative:
		return "/completion", fmt.Sprintf(`{"prompt":"P","stream":%t,"n_predict":%d%s}`, streams, limit, more)
	case apiResponses:
		return "/v1/responses", fmt.Sprintf(`{"input":"q","stream":%t,"max_output_tokens":%d}`, streams, limit)
	}
	return "/v1/messages", fmt.Sprintf(`{"messages":[{"role":"user","content":"q"}],"stream":%t,"max_tokens":%d}`, streams, limit)
}

var modernNode = fleet.Instance{Node: "n", Model: "m", Fingerprint: "f", Features: ^fleet.Features(0)}

// wholeView reads a whole answer.
func wholeView(a api, answer map[string]any) (content, reasoning, tools string) {
	list := func(v any) []any { l, _ := v.([]any); return l }
	str := func(v any) string { s, _ := v.(string); return s }
	switch a {
	case apiNative:
		return str(answer["content"]), "", ""
	case apiCompletion:
		return str(answer["choices"].([]any)[0].(map[string]any)["text"]), "", ""
	case apiChat:
		m := answer["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)
		for _, c := range list(m["tool_calls"]) {
			f := c.(map[string]any)["function"].(map[string]any)
			tools += str(f["name"]) + str(f["arguments"])
		}
		return str(m["content"]), str(m["reasoning_content"]), tools
	case apiResponses:
		for _, x := range list(answer["output"]) {
			item := x.(map[string]any)
			text := ""
			for _, p := range list(item["content"]) {
				text += str(p.(map[string]any)["text"])
			}
			switch item["type"] {
			case "message":
				content += text
			case "reasoning":
				reasoning += text
			default:
				tools += str(item["name"]) + str(item["arguments"])
			}
		}
	case apiMessages:
		for _, x := range list(answer["content"]) {
			b := x.(map[string]any)
			content += str(b["text"])
			reasoning += str(b["thinking"])
			if b["type"] == "tool_use" {
				tools += str(b["name"]) + fmt.Sprint(b["input"])
			}
		}
	}
	return content, reasoning, tools
}

// TestRandomSchedulesOnEveryPath cuts a random answer at random places on every path,
// and asks that the client gets each letter once whatever happens.
func TestRandomSchedulesOnEveryPath(t *testing.T) {
	for a, name := range map[api]string{
		apiChat: "chat", apiCompletion: "completions", apiNative: "completion", apiResponses: "responses", apiMessages: "messages",
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { randomSchedule(rt, a) })
		})
	}
}

func FuzzSplice(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(rt *rapid.T) {
		randomSchedule(rt, rapid.SampledFrom([]api{apiChat, apiCompletion, apiNative, apiResponses, apiMessages}).Draw(rt, "api"))
	}))
}

// randomSchedule plays one answer, with as many nodes as it takes.
func randomSchedule(rt *rapid.T, a api) {
	letters := rapid.SliceOfN(rapid.SampledFrom(alphabet), 1, 25)
	o := &oracle{api: a, text: letters.Draw(rt, "text"), choices: 1}
	if a != apiCompletion && a != apiNative {
		if rapid.Bool().Draw(rt, "reasons") {
			o.reasons = letters.Draw(rt, "reasoning")
		}
		if rapid.Bool().Draw(rt, "calls") {
			o.tool = `{"a":1}`
		}
	} else if rapid.IntRange(0, 3).Draw(rt, "n") == 0 {
		o.choices = 2
	}
	o.pieces = func() int { return rapid.IntRange(1, 3).Draw(rt, "piece") }
	streams := rapid.Bool().Draw(rt, "streams")
	o.limit = weigh(o.reasons) + weigh(o.text) + 5
	path, body := question(a, streams, o.limit, o.choices)
	j, err := Parse(path, []byte(body), Options{})
	if err != nil {
		rt.Fatal(err)
	}
	var out strings.Builder
	cut := func(n int) bool { return o.node < 60 && rapid.IntRange(0, n).Draw(rt, "cut") == 0 }
	for done := false; !done; {
		needs, err := j.Needs()
		if err != nil {
			rt.Fatal(err)
		}
		if needs.Done {
			break
		}
		assignment, err := j.Request(modernNode)
		if err != nil {
			rt.Fatal(err)
		}
		for _, ev := range o.answer(assignment) {
			if cut(9) {
				break
			}
			b, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)})
			if err != nil {
				rt.Fatalf("Take(%s): %v\nafter %s", ev, err, out.String())
			}
			if len(b) > 0 && cut(20) {
				break // taken, but it did not get through
			}
			out.Write(b)
			if len(b) > 0 {
				j.Delivered()
			}
		}
		if o.fault != "" {
			rt.Fatalf("node %d: %s\nafter %s", o.node, o.fault, out.String())
		}
	}
	end := string(j.End(nil))
	tools := ""
	if o.tool != "" {
		tools = "f" + o.tool
	}
	if !streams {
		if o.choices > 1 {
			return // as chat's in the test of recordings
		}
		content, reasoning, calls := wholeView(a, decodeFor(rt, end))
		if a == apiMessages && o.tool != "" {
			tools = "fmap[a:1]"
		}
		if content != string(o.text) || reasoning != string(o.reasons) || calls != tools {
			rt.Fatalf("got %q, %q, %q, want %q, %q, %q: %s", content, reasoning, calls, string(o.text), string(o.reasons), tools, end)
		}
		return
	}
	got := hear(a, out.String()+end)
	checkView(rt, o, got, out.String()+end)
}

func decodeFor(rt *rapid.T, s string) map[string]any {
	m := map[string]any{}
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		rt.Fatalf("%v: %s", err, s)
	}
	return m
}

func checkView(rt *rapid.T, o *oracle, got *view, raw string) {
	if got.wrong != "" || got.Error != "" {
		rt.Fatalf("%s %s: %s", got.wrong, got.Error, raw)
	}
	for i := range o.choices {
		if got.Content[i] != string(o.text) || got.Reasoning[i] != string(o.reasons) || got.Finish[i] == "" {
			rt.Fatalf("choice %d: got %q, %q, %q, want %q, %q and a finish: %s", i, got.Reasoning[i], got.Content[i], got.Finish[i], string(o.reasons), string(o.text), raw)
		}
	}
	want := ""
	if o.tool != "" {
		want = o.tool
	}
	if !strings.Contains(got.Tools, "f") && want != "" {
		rt.Fatalf("the call is gone: %s", raw)
	}
	total := weigh(o.reasons) + weigh(o.text) + 1
	if o.tool != "" {
		total += 2
	}
	if o.api != apiMessages && o.choices == 1 && got.Output >= 0 && got.Output != total {
		rt.Fatalf("%d tokens are told, want %d: %s", got.Output, total, raw)
	}
}

// apiOf is the language of a recorded path.
func apiOf(path string) api {
	p, _ := PathOf(path)
	return p.kind.api
}

// payloads are the events of a recorded stream of any path.
func (e *exchange) payloads() (list []string) {
	for line := range strings.SplitSeq(e.Response.Body, "\n") {
		if p, ok := strings.CutPrefix(line, "data: "); ok && p != "[DONE]" && p != "null" {
			list = append(list, p)
		}
	}
	return list
}

// recordedIDs are the tokens of a recorded completion.
func recordedIDs(events []string) map[int]rune {
	m := map[int]rune{}
	for _, ev := range events {
		var c struct {
			Content string
			Tokens  []int
		}
		if json.Unmarshal([]byte(ev), &c) == nil && len(c.Tokens) == 1 {
			m[c.Tokens[0]] = []rune(c.Content)[0]
		}
	}
	return m
}

// keys is the shape of an answer: its keys, those of the first element of each list.
func keys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := map[string]any{}
		for k, x := range v {
			m[k] = keys(x)
		}
		return m
	case []any:
		if len(v) > 0 {
			return []any{keys(v[0])}
		}
	}
	return nil
}

func TestWholeAnswersHaveTheServersFields(t *testing.T) {
	for _, x := range []struct{ whole, stream string }{
		{"chat", "chat-stream-usage"},
		{"completions", "completions-stream"},
		{"completion-native-tokens", "completion-native-stream"},
		{"responses", "responses-stream"},
		{"anthropic-messages", "anthropic-messages-stream"},
	} {
		want, s := capture(t, x.whole), capture(t, x.stream)
		j := mustParse(t, want.Request.Path, want.Request.Body, Options{})
		request(t, j, modernNode)
		if out := feed(t, j, s.payloads()); out != "" {
			t.Fatalf("%s: a whole answer came in parts: %s", x.whole, out)
		}
		got := decode(t, string(j.End(nil)))
		if d := cmp.Diff(keys(decode(t, want.Response.Body)), keys(got)); d != "" {
			t.Errorf("%s (-server +got):\n%s", x.whole, d)
		}
		content, _, _ := wholeView(apiOf(want.Request.Path), got)
		if said := hear(apiOf(want.Request.Path), s.Response.Body); content != said.Content[0] {
			t.Errorf("%s: the text is %q, the stream's %q", x.whole, content, said.Content[0])
		}
	}
}

// TestEveryCutOfEveryRecordedStreamOfOtherPaths is the golden test of chat for the paths
// whose events have other forms: another server gives the rest.
func TestEveryCutOfEveryRecordedStreamOfOtherPaths(t *testing.T) {
	cuts := 0
	for _, e := range captures(t) {
		if !isJob(e.Request.Path) || strings.HasSuffix(e.Request.Path, "/completions") || !strings.Contains(e.Request.Body, `"stream":true`) {
			continue
		}
		a := apiOf(e.Request.Path)
		events := e.payloads()
		t.Run(e.File+"/"+e.Name, func(t *testing.T) {
			j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
			request(t, j, modernNode)
			whole := feed(t, j, events) + string(j.End(nil))
			if want := strings.TrimSpace(e.Response.Body); strings.TrimSpace(whole) != want {
				t.Fatalf("uncut it is not what the server sent:\n got %s\nwant %s", whole, want)
			}
			want := hear(a, whole)
			if want.wrong != "" || want.Error != "" || want.Content[0] == "" {
				t.Fatalf("%s %s: %s", want.wrong, want.Error, whole)
			}
			limit, _ := j.budget()
			for cut := range len(events) + 1 {
				j := mustParse(t, e.Request.Path, e.Request.Body, Options{})
				request(t, j, modernNode)
				out := feed(t, j, events[:cut])
				needs, err := j.Needs()
				if err != nil {
					t.Fatalf("cut %d: %v", cut, err)
				}
				if !needs.Done {
					assignment, err := j.Request(modernNode)
					if err != nil {
						t.Fatal(err)
					}
					assignment.Body = bytes.Replace(assignment.Body, []byte(`"Once upon a time"`), []byte(`"P"`), 1)
					o := &oracle{api: a, text: []rune(want.Content[0]), limit: int(limit), ids: recordedIDs(events), pieces: func() int { return 1 + cut%3 }}
					out += feed(t, j, o.answer(assignment))
					if o.fault != "" {
						t.Fatalf("cut %d: %s", cut, o.fault)
					}
				}
				got := hear(a, out+string(j.End(nil)))
				if got.wrong != "" || got.Error != "" || got.Content[0] != want.Content[0] || got.Finish[0] == "" {
					t.Fatalf("cut %d: %s %s, got %q, want %q: %s", cut, got.wrong, got.Error, got.Content[0], want.Content[0], out)
				}
				cuts++
			}
		})
	}
	t.Logf("%d cuts", cuts)
	if cuts < 60 {
		t.Errorf("%d cuts were tried, want more than 60: are the recordings there?", cuts)
	}
}
