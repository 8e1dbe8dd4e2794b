package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

func stream(fields string) string {
	return `{"messages":[{"role":"user","content":"x"}],"stream":true` + fields + `}`
}

func usageChunk(prompt, completion int) string {
	return `{"choices":[],` + strings.TrimSuffix(env, "}") +
		fmt.Sprintf(`,"usage":{"completion_tokens":%d,"prompt_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":1}},`, completion, prompt, prompt+completion) +
		timings(prompt, completion) + `}`
}

func timings(prompt, n int) string {
	return fmt.Sprintf(`"timings":{"cache_n":1,"prompt_n":%d,"prompt_ms":10,"prompt_per_token_ms":1,"prompt_per_second":1,`+
		`"predicted_n":%d,"predicted_ms":%d,"predicted_per_token_ms":1,"predicted_per_second":1}`, prompt-1, n, 10*n)
}

// counted adds timings to a chunk.
func counted(chunk string, prompt, n int) string {
	return strings.TrimSuffix(chunk, "}") + "," + timings(prompt, n) + "}"
}

func lastMessage(t *testing.T, m map[string]any) map[string]any {
	t.Helper()
	list := m["messages"].([]any)
	return list[len(list)-1].(map[string]any)
}

func TestReasoningCutInsideAtTheSeamAndAfter(t *testing.T) {
	for _, x := range []struct {
		name     string
		got      []string
		want     map[string]any
		how      string
		features fleet.Features
	}{
		{
			"inside",
			[]string{reasoning("Let"), reasoning(" me")},
			map[string]any{"role": "assistant", "content": "", "reasoning_content": "Let me"},
			"reasoning_content", fleet.ContinueReasoning,
		},
		{
			"seam",
			[]string{reasoning("Done"), reasoning("\n")},
			map[string]any{"role": "assistant", "content": "", "reasoning_content": "Done\n"},
			"reasoning_content", fleet.ContinueReasoning,
		},
		{
			"content",
			[]string{reasoning("Done"), reasoning("\n"), content("It")},
			map[string]any{"role": "assistant", "content": "It", "reasoning_content": "Done"},
			"content", fleet.ContinueContent,
		},
		{
			"only a newline",
			[]string{reasoning("\n"), content("\n It")},
			map[string]any{"role": "assistant", "content": "\n It"},
			"content", fleet.ContinueContent,
		},
	} {
		j := mustParse(t, chatPath, stream(""), Options{})
		request(t, j, nodeA)
		out := feed(t, j, append([]string{delta(role)}, x.got...))
		n, err := j.Needs()
		if err != nil || n.Features != x.features {
			t.Errorf("%s: Needs = %+v, %v", x.name, n, err)
		}
		_, m := request(t, j, nodeB)
		if d := cmp.Diff(x.want, lastMessage(t, m)); d != "" || m["continue_final_message"] != x.how || m["add_generation_prompt"] != false {
			t.Errorf("%s: how %v (-want +got):\n%s", x.name, m["continue_final_message"], d)
		}
		out += feed(t, j, []string{delta(role), content(" is."), finishChunk("stop")}) + string(j.End(nil))
		if h := listen(t, out); h.roles[0] != 1 || h.done != 1 || !strings.HasSuffix(h.content[0], " is.") {
			t.Errorf("%s: %s", x.name, out)
		}
	}
}

func TestThreeNodesGiveOneAnswer(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":10,"timings_per_token":true,"stream_options":{"include_usage":true}`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("a"), 20, 1), counted(content("b"), 20, 3)})
	_, m := request(t, j, nodeB)
	if m["max_tokens"] != 7.0 || lastMessage(t, m)["content"] != "ab" {
		t.Fatalf("second request: %v", m)
	}
	other := func(s string) string { return strings.Replace(s, "chatcmpl-a", "chatcmpl-b", 1) }
	out += feed(t, j, []string{other(delta(role)), other(counted(content("c"), 23, 1))})
	_, m = request(t, j, fleet.Instance{Node: "c", Fingerprint: "same", Features: goesOn})
	if m["max_tokens"] != 6.0 || lastMessage(t, m)["content"] != "abc" {
		t.Fatalf("third request: %v", m)
	}
	// The third sends nothing before it is lost, so that the fourth is asked the same.
	_, again := request(t, j, nodeB)
	if d := cmp.Diff(m, again); d != "" {
		t.Fatalf("fourth request (-third +fourth):\n%s", d)
	}
	out += feed(t, j, []string{other(delta(role)), other(counted(content("d"), 24, 2)), other(finishChunk("stop")), other(usageChunk(24, 3))})
	out += string(j.End(nil))
	h := listen(t, out)
	if h.content[0] != "abcd" || h.roles[0] != 1 || h.finishes[0] != 1 || h.done != 1 || len(h.envelopes) != 1 {
		t.Errorf("got %s", out)
	}
	want := map[string]any{
		"prompt_tokens": 20.0, "completion_tokens": 7.0, "total_tokens": 27.0,
		"prompt_tokens_details": map[string]any{"cached_tokens": 1.0},
	}
	if d := cmp.Diff([]map[string]any{want}, h.usage); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
	last := h.timings[len(h.timings)-1]
	if last["prompt_n"] != 19.0 || last["predicted_n"] != 7.0 || last["predicted_ms"] != 70.0 || last["predicted_per_token_ms"] != 17.5 {
		t.Errorf("timings = %v", last)
	}
}

func TestTimesOfLlamaServersOwnCompletionsAfterALoss(t *testing.T) {
	token := func(text string, n int) string {
		return fmt.Sprintf(`{"index":0,"content":%q,"tokens":[%d],"stop":false,"id_slot":-1,"tokens_predicted":%d,"tokens_evaluated":20}`, text, n, n)
	}
	path, body := question(apiNative, true, 100, 1)
	j := mustParse(t, path, body, Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{counted(token("a", 1), 20, 1), counted(token("b", 2), 20, 3)})
	if strings.Contains(out, "timings") {
		t.Errorf("times that nobody asked for: %s", out)
	}
	request(t, j, nodeB)
	out = feed(t, j, []string{counted(token("c", 3), 22, 1), counted(`{"index":0,"content":"","stop":true,"tokens_predicted":2,"tokens_evaluated":22,"stop_type":"eos"}`, 22, 2)})
	end := decode(t, strings.TrimPrefix(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:], "data: "))
	times, _ := end["timings"].(map[string]any)
	if end["tokens_predicted"] != 5.0 || times["prompt_n"] != 19.0 || times["predicted_n"] != 5.0 || times["predicted_ms"] != 50.0 {
		t.Errorf("got %s, want the times of both nodes", out)
	}
}

func TestBudgetKeepsOneField(t *testing.T) {
	for _, x := range []struct{ give, want string }{
		{`,"max_tokens":9`, "max_tokens"},
		{`,"max_tokens":5,"max_completion_tokens":9`, "max_completion_tokens"},
		{`,"max_completion_tokens":5,"n_predict":9,"max_tokens":1`, "n_predict"},
		{`,"max_completion_tokens":9,"n_predict":null`, "max_completion_tokens"},
	} {
		j := mustParse(t, chatPath, stream(x.give), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{counted(content("a"), 5, 4)})
		if n, err := j.Needs(); n.Left != 5 || err != nil {
			t.Errorf("%s: Needs = %+v, %v", x.give, n, err)
		}
		body, m := request(t, j, nodeB)
		n := 0
		for _, f := range []string{"max_tokens", "max_completion_tokens", "n_predict"} {
			if _, ok := m[f]; ok {
				n++
			}
		}
		if n != 1 || m[x.want] != 5.0 {
			t.Errorf("%s: %s", x.give, body)
		}
	}
	j := mustParse(t, chatPath, stream(`,"max_tokens":-1`), Options{})
	request(t, j, nodeA)
	feed(t, j, []string{content("a")})
	if _, m := request(t, j, nodeB); m["max_tokens"] != -1.0 {
		t.Errorf("no limit became %v", m["max_tokens"])
	}
}

func TestFullBudgetEndsWithLength(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":3,"stream_options":{"include_usage":true}`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("a"), 5, 3)})
	if n, err := j.Needs(); !n.Done || err != nil {
		t.Fatalf("Needs = %+v, %v", n, err)
	}
	h := listen(t, out+string(j.End(nil)))
	if h.finish[0] != "length" || h.done != 1 || len(h.usage) != 1 || h.usage[0]["completion_tokens"] != 3.0 || len(h.envelopes) != 1 {
		t.Errorf("got %s", h.raw)
	}
}

// A node may die between the finish and the usage chunk, whose figure counts the
// end token too.
func TestEndTokenIsCountedWithoutTheUsageChunk(t *testing.T) {
	for _, x := range []struct {
		name, fields, finish string
		last                 string // of the text
		want                 float64
	}{
		{"stop", ``, "stop", counted(content("b"), 5, 2), 3},
		{"no stop strings", `,"stop":[]`, "stop", counted(content("b"), 5, 2), 3},
		{"an empty stop string", `,"stop":""`, "stop", counted(content("b"), 5, 2), 3},
		{"no stop string", `,"stop":null`, "stop", counted(content("b"), 5, 2), 3},
		{"length", ``, "length", counted(content("b"), 5, 2), 2},
		{"maybe a stop string", `,"stop":["."]`, "stop", counted(content("b"), 5, 2), 2},
		{"maybe the stop string", `,"stop":"."`, "stop", counted(content("b"), 5, 2), 2},
		{"text without figures", ``, "stop", content("b"), 2},
	} {
		for _, streams := range []bool{true, false} {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"stream":%t,"stream_options":{"include_usage":true}%s}`, streams, x.fields)
			j := mustParse(t, chatPath, body, Options{})
			request(t, j, nodeA)
			out := feed(t, j, []string{delta(role), counted(content("a"), 5, 1), x.last, finishChunk(x.finish)})
			if n, err := j.Needs(); !n.Done || err != nil {
				t.Fatalf("%s: Needs = %+v, %v", x.name, n, err)
			}
			out += string(j.End(nil))
			var got any
			if streams {
				got = listen(t, out).usage[0]["completion_tokens"]
			} else {
				got = decode(t, out)["usage"].(map[string]any)["completion_tokens"]
			}
			if got != x.want {
				t.Errorf("%s, stream %t: completion_tokens %v, want %v", x.name, streams, got, x.want)
			}
		}
	}
	j := mustParse(t, chatPath, stream(`,"stream_options":{"include_usage":true}`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("a"), 5, 1), finishChunk("stop"), usageChunk(5, 2)}) + string(j.End(nil))
	if h := listen(t, out); len(h.usage) != 1 || h.usage[0]["completion_tokens"] != 2.0 || j.relay.tokens() != 2 {
		t.Errorf("with the usage chunk %d tokens were counted, want 2: %s", j.relay.tokens(), out)
	}
}

func TestFinishIsNeverInvented(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":30`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("a"), 5, 3)})
	h := listen(t, out+string(j.End(nil)))
	if h.done != 0 || h.faults != 1 || h.finishes[0] != 0 {
		t.Errorf("got %s", h.raw)
	}
}

func TestUndeliveredTextDoesNotCount(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":10`), Options{})
	request(t, j, nodeA)
	feed(t, j, []string{delta(role), counted(content("a"), 5, 1)})
	if _, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(counted(content("b"), 5, 2))}); err != nil {
		t.Fatal(err)
	}
	if _, m := request(t, j, nodeB); lastMessage(t, m)["content"] != "a" || m["max_tokens"] != 9.0 {
		t.Errorf("went on from %v with %v", lastMessage(t, m), m["max_tokens"])
	}
}

func TestPrefillBecomesOneMessage(t *testing.T) {
	for _, x := range []struct{ name, fields, message, first, content, reasoning string }{
		{"echoed", "", `{"role":"assistant","content":"The fox"}`, content("The fox:"), "The fox:", ""},
		{"not echoed", "", `{"role":"assistant","content":"The fox"}`, content(":"), "The fox:", ""},
		{"explicit", `,"continue_final_message":"content","add_generation_prompt":false`, `{"content":"ha","role":"assistant"}`, content("ha!"), "haha!", ""},
		{"explicit, echo", `,"continue_final_message":true,"echo":true,"add_generation_prompt":false`, `{"content":"ha","role":"assistant"}`, content("ha!"), "ha!", ""},
		{"reasoning kept", "", `{"role":"assistant","reasoning_content":"R\n","content":"C"}`, content("C."), "C.", "R\n"},
		{
			"reasoning", `,"continue_final_message":"reasoning_content","add_generation_prompt":false`,
			`{"role":"assistant","reasoning_content":"Let","content":""}`, reasoning(" me"), "", "Let me",
		},
		{"null content", `,"continue_final_message":true,"add_generation_prompt":false`, `{"role":"assistant","content":null}`, content("x"), "x", ""},
		{"no content", `,"continue_final_message":true,"add_generation_prompt":false`, `{"role":"assistant","name":"n"}`, content("x"), "x", ""},
	} {
		body := `{"stream":true,"messages":[{"role":"user","content":"q"},` + x.message + `]` + x.fields + `}`
		j := mustParse(t, chatPath, body, Options{})
		request(t, j, nodeA)
		feed(t, j, []string{delta(role), x.first})
		got, m := request(t, j, nodeB)
		last := lastMessage(t, m)
		r, _ := last["reasoning_content"].(string)
		if last["content"] != x.content || r != x.reasoning || len(m["messages"].([]any)) != 2 || m["echo"] != nil || m["add_generation_prompt"] != false {
			t.Errorf("%s: %s", x.name, got)
		}
	}
}

func TestEchoOfWhatWasSentIsCut(t *testing.T) {
	long := strings.Repeat("Hello wor", 50)
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), content(long), content("l")})
	request(t, j, nodeB)
	out += feed(t, j, []string{delta(role), content(long + "ld, it's"), content(" me"), finishChunk("stop")}) + string(j.End(nil))
	if h := listen(t, out); h.content[0] != long+"ld, it's me" {
		t.Errorf("got %q", h.content[0])
	}
	// Only the first that a node sends is one.
	j = mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out = feed(t, j, []string{delta(role), content(long)})
	request(t, j, nodeB)
	out += feed(t, j, []string{delta(role), content("."), content(long), finishChunk("stop")}) + string(j.End(nil))
	if h := listen(t, out); h.content[0] != long+"."+long {
		t.Errorf("got %q", h.content[0])
	}
	// Of two parts in one chunk, the one that is nothing else is emptied.
	j = mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out = feed(t, j, []string{delta(role), content(long)})
	request(t, j, nodeB)
	out += feed(t, j, []string{`{"choices":[{"delta":{"role":"assistant","content":"` + long + `"}},{"delta":{"content":"ld"}}],` + env})
	out += feed(t, j, []string{finishChunk("stop")}) + string(j.End(nil))
	if h := listen(t, out); h.content[0] != long+"ld" || h.roles[0] != 1 {
		t.Errorf("got %s", out)
	}
	// A model that repeats itself is not an echo, in however few tokens.
	for _, once := range []string{"ha", "          ", strings.Repeat("-", 100)} {
		j = mustParse(t, chatPath, stream(""), Options{})
		request(t, j, nodeA)
		out = feed(t, j, []string{delta(role), reasoning("I think"), content(once[:1]), content(once[1:])})
		request(t, j, nodeB)
		out += feed(t, j, []string{delta(role), content(once), finishChunk("stop")}) + string(j.End(nil))
		if h := listen(t, out); h.content[0] != once+once {
			t.Errorf("got %q, want it twice", h.content[0])
		}
	}
}

func text(s string) string {
	b, _ := json.Marshal(s)
	return `{"choices":[{"text":` + string(b) + `,"index":0,"logprobs":null,"finish_reason":null}],"id":"a"}`
}

// withIDs adds what verbose tells of a piece of text.
func withIDs(chunk, ids string, predicted int) string {
	return strings.TrimSuffix(chunk, "}") + fmt.Sprintf(`,"__verbose":{"content":"x","tokens":%s,"tokens_predicted":%d}}`, ids, predicted)
}

var nodeG = fleet.Instance{Node: "g", Model: "m", Fingerprint: "same", Features: goesOn | fleet.GenerationPrompt}

func TestCompletionsGoOnByTheirPrompt(t *testing.T) {
	for _, x := range []struct {
		name, fields string
		took         []string
		prompt       string
		more         []string // besides the prompt
		features     fleet.Features
	}{
		{"text", `"prompt":"On\u0063e \ud800"`, []string{text(" \"up\n"), text("on")}, `"On\u0063e \ud800 \"up\non"`, nil, 0},
		{
			"ids", `"prompt":"On\u0063e"`,
			[]string{withIDs(text(" up"), "[705]", 1), withIDs(text("on"), "[ 263 ]", 2)},
			`["On\u0063e",705,263]`, nil, 0,
		},
		{ // the first token of the character is not told
			"a character of two tokens", `"prompt":"a"`,
			[]string{withIDs(text("b"), "[5]", 1), withIDs(text("é"), "[102]", 3), withIDs(text("c"), "[6]", 4)},
			`["a",5,"é",6]`, nil, 0,
		},
		{"ids only later", `"prompt":"a"`, []string{text("b"), withIDs(text("c"), "[6]", 1)}, `["a","b",6]`, nil, 0},
		{"tokens", `"prompt":[1, 2 ]`, []string{withIDs(text("b"), "[5]", 1)}, `[1, 2,5]`, nil, 0},
		{"tokens, no ids", `"prompt":[1,"x"]`, []string{text("b")}, `[1,"x","b"]`, nil, 0},
		{"a list of one", `"prompt":[ "x" ]`, []string{text("b")}, `"xb"`, nil, 0},
		{"a list of one, ids", `"prompt":["x"]`, []string{withIDs(text("b"), "[5]", 1)}, `["x",5]`, nil, 0},
		{
			"schema", `"prompt":"p","json_schema":{},"generation_prompt":"g"`,
			[]string{text("{"), text("\n")},
			`"p{\n"`,
			[]string{`"generation_prompt":"g{\n"`},
			fleet.GenerationPrompt,
		},
		{
			"grammar", `"prompt":"p","grammar":"root ::= x"`,
			[]string{withIDs(text("x"), "[5]", 1)},
			`["p",5]`,
			[]string{`"generation_prompt":"x"`, `"grammar_type":"tool_calls"`},
			fleet.GenerationPrompt,
		},
	} {
		j := mustParse(t, "/v1/completions", `{`+x.fields+`,"stream":true,"echo":true,"stop":["x"]}`, Options{})
		request(t, j, nodeA)
		out := feed(t, j, x.took)
		if strings.Contains(out, "__verbose") {
			t.Errorf("%s: the client got what only we asked for: %s", x.name, out)
		}
		if n, err := j.Needs(); err != nil || n != (fleet.Needs{Fingerprint: "same", Features: x.features, Repeat: x.features != 0, Prompt: n.Prompt}) {
			t.Errorf("%s: Needs = %+v, %v", x.name, n, err)
		}
		body, _ := request(t, j, nodeG)
		for _, want := range append([]string{`"prompt":` + x.prompt + `,`, `"echo":true`, `"stop":["x"]`}, x.more...) {
			if !strings.Contains(body, want) {
				t.Errorf("%s: no %s in %s", x.name, want, body)
			}
		}
	}
}

// chunkOf is a piece of one of several answers.
func chunkOf(index int, s string) string {
	return strings.Replace(content(s), `"index":0`, fmt.Sprintf(`"index":%d`, index), 1)
}

func TestAnswerThatCannotBeContinuedIsRepeated(t *testing.T) {
	for _, x := range []struct{ name, path, body string }{
		{"n", chatPath, stream(`,"n":2`)},
		{"grammar", chatPath, stream(`,"grammar":"root ::= \"a\""`)},
		{"raw reasoning", chatPath, stream(`,"reasoning_format":"none"`)},
		{"no generation prompt", chatPath, stream(`,"add_generation_prompt":false`)},
		{"odd prefill", chatPath, `{"stream":true,"messages":[{"role":"assistant","content":[{"type":"text","text":"x"}]}]}`},
		{"schema on an old server", chatPath, stream(`,"response_format":{"type":"json_object"}`)},
	} {
		j := mustParse(t, x.path, x.body, Options{})
		_, first := request(t, j, nodeA)
		seed, ok := first["seed"].(float64)
		if !ok || seed < 0 || seed >= 1<<31 {
			t.Errorf("%s: the first request has seed %v", x.name, first["seed"])
		}
		out := feed(t, j, []string{delta(role), counted(content("It "), 9, 1), counted(content("is"), 9, 2)})
		n, err := j.Needs()
		if err != nil || n.Fingerprint != "same" || n.Features != 0 && !n.Repeat {
			t.Errorf("%s: Needs = %+v, %v", x.name, n, err)
		}
		_, again := request(t, j, nodeB)
		if d := cmp.Diff(first, again); d != "" {
			t.Errorf("%s: repeated (-first +second):\n%s", x.name, d)
		}
		// The same text in other pieces; what is new of one that straddles goes out.
		out += feed(t, j, []string{delta(role), counted(content("I"), 9, 1), counted(content("t i"), 9, 2), counted(content("s so"), 9, 4), counted(content("."), 9, 5)})
		if strings.Contains(x.name, "n") && j.expect == 2 {
			out += feed(t, j, []string{chunkOf(1, "b"), strings.Replace(finishChunk("stop"), `"index":0`, `"index":1`, 1)})
		}
		out += feed(t, j, []string{finishChunk("stop")}) + string(j.End(nil))
		if h := listen(t, out); h.content[0] != "It is so." || h.done != 1 || h.roles[0] != 1 || h.finishes[0] != 1 {
			t.Errorf("%s: got %s", x.name, out)
		}
		if want := int64(6); j.expect == 1 && j.relay.tokens() != want {
			t.Errorf("%s: %d tokens were counted, want %d: the repeated ones once, and the end token", x.name, j.relay.tokens(), want)
		}
	}
}

func TestSeedOfTheClientStays(t *testing.T) {
	for give, want := range map[string]any{`,"seed":7`: 7.0, `,"seed":0`: 0.0} {
		j := mustParse(t, chatPath, stream(`,"n":2`+give), Options{})
		if _, m := request(t, j, nodeA); m["seed"] != want {
			t.Errorf("%s became %v", give, m["seed"])
		}
	}
	for _, give := range []string{`,"seed":-1`, `,"seed":4294967295`, `,"seed":null`} {
		j := mustParse(t, chatPath, stream(`,"n":2`+give), Options{})
		if _, m := request(t, j, nodeA); m["seed"] == nil || m["seed"] == -1.0 || m["seed"] == 4294967295.0 {
			t.Errorf("%s became %v, want one that can be repeated", give, m["seed"])
		}
	}
	j := mustParse(t, chatPath, stream(``), Options{})
	if _, m := request(t, j, nodeA); m["seed"] != nil {
		t.Errorf("a request that can be continued got seed %v", m["seed"])
	}
}

func TestRepeatThatDiffersIsTheErrorEnd(t *testing.T) {
	for name, second := range map[string][]string{
		"other text":        {content("It was")},
		"shorter":           {content("It"), finishChunk("stop")},
		"reasoning instead": {reasoning("It is")},
		"new reasoning":     {reasoning("x"), content("It is")},
	} {
		j := mustParse(t, chatPath, stream(`,"grammar":"root ::= x"`), Options{})
		request(t, j, nodeA)
		out := feed(t, j, []string{delta(role), content("It is")})
		request(t, j, nodeB)
		var err error
		for _, ev := range second {
			var b []byte
			if b, err = j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)}); err != nil {
				break
			}
			out += string(b)
			j.Delivered()
		}
		r, ok := errors.AsType[*fleet.RequestError](err)
		if !ok || r.Reason != fleet.ReasonLost || r.Again {
			t.Errorf("%s: got %v, want that it is lost", name, err)
			continue
		}
		h := listen(t, out+string(j.End(err)))
		if h.content[0] != "It is" || h.faults != 1 || h.done != 0 || !strings.Contains(h.raw, "node_lost_unresumable") {
			t.Errorf("%s: got %s", name, h.raw)
		}
	}
}

// A node that repeats the answer and is lost too leaves things as they were.
func TestLostRepeatIsRepeated(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"response_format":{"type":"json_object"},"max_tokens":20`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("{ab"), 9, 3)})
	request(t, j, nodeB)
	out += feed(t, j, []string{delta(role), counted(content("{"), 9, 1)})
	if n, err := j.Needs(); err != nil || n.Left != 17 {
		t.Errorf("Needs = %+v, %v, want 17 left", n, err)
	}
	request(t, j, nodeB)
	out += feed(t, j, []string{delta(role), counted(content("{abc"), 9, 4), counted(content("d"), 9, 5)})
	modern := nodeB
	modern.Features |= fleet.ContinueGrammar
	_, m := request(t, j, modern)
	if lastMessage(t, m)["content"] != "{abcd" || m["max_tokens"] != 15.0 {
		t.Errorf("the fourth was asked %v", m)
	}
	out += feed(t, j, []string{delta(role), counted(content("}"), 14, 1), counted(finishChunk("stop"), 14, 2)}) + string(j.End(nil))
	if h := listen(t, out); h.content[0] != "{abcd}" || h.done != 1 || j.relay.tokens() != 7 {
		t.Errorf("%d tokens, want 7: %s", j.relay.tokens(), out)
	}
}

func TestWhatCannotGoOn(t *testing.T) {
	for _, x := range []struct {
		name, fields, chunk string
		o                   Options
	}{
		{"off", ``, content("a"), Options{Resume: ResumeOff}},
		{"before first byte", ``, content("a"), Options{Resume: ResumeBeforeFirstByte}},
		{"n, before first byte", `,"n":2`, content("a"), Options{Resume: ResumeBeforeFirstByte}},
		{"unknown delta", ``, delta(`{"refusal":"no"}`), Options{}},
		{"a tool call that is passed on", ``, toolCall("{"), Options{StreamTools: true}},
	} {
		j := mustParse(t, chatPath, stream(x.fields), x.o)
		request(t, j, nodeA)
		out := feed(t, j, []string{delta(role)})
		if n, err := j.Needs(); err != nil || n != (fleet.Needs{}) {
			t.Errorf("%s: before the first byte: %+v, %v", x.name, n, err)
		}
		out += feed(t, j, []string{x.chunk})
		_, err := j.Needs()
		r, ok := errors.AsType[*fleet.RequestError](err)
		if !ok || r.Reason != fleet.ReasonLost || r.Message == "" {
			t.Errorf("%s: Needs: %v", x.name, err)
			continue
		}
		if _, err := j.Request(nodeB); err == nil {
			t.Errorf("%s: Request gave a body", x.name)
		}
		h := listen(t, out+string(j.End(err)))
		if h.done != 0 || h.faults != 1 || !strings.Contains(h.raw, "node_lost_unresumable") {
			t.Errorf("%s: %s", x.name, h.raw)
		}
	}
}

func TestUnknownFingerprintHasNoEqual(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, fleet.Instance{Node: "a"})
	feed(t, j, []string{content("x")})
	if n, err := j.Needs(); err != nil || n.Fingerprint == "" {
		t.Errorf("Needs = %+v, %v", n, err)
	}
}

func toolCall(s string) string {
	b, _ := json.Marshal(s)
	return delta(`{"tool_calls":[{"index":0,"function":{"arguments":` + string(b) + `}}]}`)
}

func TestToolCallsWaitForTheFinish(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":50`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), counted(content("I"), 5, 1)})
	if held := feed(t, j, []string{counted(toolCall("{"), 5, 7), counted(toolCall("}"), 5, 8), content("x")}); held != "" {
		t.Fatalf("not held: %s", held)
	}
	if n, err := j.Needs(); err != nil || n.Left != 49 {
		t.Errorf("Needs = %+v, %v", n, err)
	}
	_, m := request(t, j, nodeB) // lost: they are dropped
	if lastMessage(t, m)["content"] != "I" || m["max_tokens"] != 49.0 {
		t.Errorf("went on from %v", m)
	}
	out += feed(t, j, []string{delta(role), counted(toolCall("[]"), 6, 2), counted(toolCall("!"), 6, 3), finishChunk("tool_calls")})
	out += string(j.End(nil))
	h := listen(t, out)
	want := []string{`{"index":0,"function":{"arguments":"[]"}}`, `{"index":0,"function":{"arguments":"!"}}`}
	if d := cmp.Diff(want, h.tools); d != "" || h.done != 1 || h.roles[0] != 1 || h.content[0] != "I" {
		t.Errorf("%s\n(-want +got):\n%s", out, d)
	}
	if strings.Index(out, "finish_reason\":\"tool_calls") < strings.Index(out, `"!"`) {
		t.Errorf("the finish came first: %s", out)
	}
}

func TestRoleInALostToolCallIsSaidAgain(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	first := delta(`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"x"}]}`)
	out := feed(t, j, []string{first})
	if n, err := j.Needs(); err != nil || n != (fleet.Needs{}) {
		t.Errorf("Needs = %+v, %v", n, err)
	}
	request(t, j, nodeB)
	out += feed(t, j, []string{first, finishChunk("tool_calls")}) + string(j.End(nil))
	if h := listen(t, out); h.roles[0] != 1 || len(h.tools) != 1 || h.done != 1 {
		t.Errorf("got %s", out)
	}
}

func TestHugeToolCallsAreStreamedOn(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role)})
	for range 9 {
		out += feed(t, j, []string{toolCall(strings.Repeat("x", 1<<20))})
	}
	if h := listen(t, out); len(h.tools) != 9 {
		t.Fatalf("%d of 9 came", len(h.tools))
	}
	if _, err := j.Needs(); err == nil {
		t.Error("it can still be continued")
	}
}
