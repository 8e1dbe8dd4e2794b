package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestWhatTheClientDidNotAskForIsCut(t *testing.T) {
	progress := strings.TrimSuffix(delta(role), "}") + `,"prompt_progress":{"total":20,"cache":1,"processed":1,"time_ms":0},` + timings(3, 9) + `}`
	text := strings.TrimSuffix(counted(content("a"), 20, 1), "}") + `,"__verbose":{"prompt":"x"}}`
	events := []string{progress, delta(role), "null", text, counted(finishChunk("stop"), 20, 2), usageChunk(20, 2)}

	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	got := feed(t, j, events)
	want := ""
	for _, ev := range []string{delta(role), content("a"), counted(finishChunk("stop"), 20, 2)} {
		want += "data: " + ev + "\n\n"
	}
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}

	j = mustParse(t, chatPath, stream(`,"return_progress":true,"timings_per_token":true,"verbose":true,"stream_options":{"include_usage":true}`), Options{})
	request(t, j, nodeA)
	got = feed(t, j, events)
	want = ""
	for _, ev := range events {
		if ev != "null" {
			want += "data: " + ev + "\n\n"
		}
	}
	if got != want {
		t.Errorf("all asked for:\n got %s\nwant %s", got, want)
	}
}

// llama-server puts the figures of the slot's last request beside its progress, which only
// we asked for.
func TestTimingsBesideProgressAreNotTheClients(t *testing.T) {
	const event = `{"type":"response.in_progress","response":{"id":"r","object":"response","status":"in_progress"}%s}`
	const stale = `,"timings":{"cache_n":0,"prompt_n":0,"predicted_n":60}`
	const progress = `,"prompt_progress":{"total":9,"cache":0,"processed":9,"time_ms":1}`
	for asked, want := range map[string]string{"": "", `,"return_progress":true`: stale + progress} {
		j := mustParse(t, "/v1/responses", `{"input":"q","stream":true,"timings_per_token":true`+asked+`}`, Options{})
		request(t, j, nodeA)
		got := feed(t, j, []string{fmt.Sprintf(event, stale+progress)})
		if want := "event: response.in_progress\ndata: " + fmt.Sprintf(event, want) + "\n\n"; got != want {
			t.Errorf("asked %q:\n got %s\nwant %s", asked, got, want)
		}
	}
}

// With verbose the server repeats the request, in which we asked for more.
func TestVerboseTellsTheClientsOwnSettings(t *testing.T) {
	const told = `,"__verbose":{"content":"","generation_settings":{"stream":true,"timings_per_token":%t,"n_predict":9}}}`
	finish := strings.TrimSuffix(finishChunk("length"), "}")
	for asked, want := range map[string]bool{"": false, `,"timings_per_token":true`: true} {
		j := mustParse(t, chatPath, stream(`,"max_tokens":9,"verbose":true`+asked), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{delta(role), content("a")})
		got := feed(t, j, []string{finish + fmt.Sprintf(told, true)})
		if want := "data: " + finish + fmt.Sprintf(told, want) + "\n\n"; got != want {
			t.Errorf("asked %q: got %s, want %s", asked, got, want)
		}
	}
}

// The account that verbose tells with a piece of text has timings only because we asked
// for them.
func TestVerboseHasNoTimingsThatOnlyWeAskedFor(t *testing.T) {
	const figures = `"timings":{"prompt_n":1,"predicted_n":1}`
	const chunk = `{"choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}],"id":"a","__verbose":{"content":"a","tokens":[5],"tokens_predicted":1%s}%s}`
	for asked, want := range map[string]string{"": "", `,"timings_per_token":true`: "," + figures} {
		j := mustParse(t, "/v1/completions", `{"prompt":"P","max_tokens":9,"stream":true,"verbose":true`+asked+`}`, Options{})
		request(t, j, nodeA)
		got := feed(t, j, []string{fmt.Sprintf(chunk, ","+figures, ","+figures)})
		if want := "data: " + fmt.Sprintf(chunk, want, want) + "\n\n"; got != want {
			t.Errorf("asked %q:\n got %s\nwant %s", asked, got, want)
		}
	}
}

// The account at the end of a stream, which a node alone cuts down to what
// response_fields names: where it stands by itself, and inside of verbose.
func TestStreamsEndWithTheFieldsThatWereChosen(t *testing.T) {
	const account = `{"index":0,"content":"","tokens":[],"stop":true,"tokens_predicted":3,"timings":{"prompt_n":1,"predicted_n":3}}`
	const chosen = `{"tokens_predicted":3,"timings/predicted_n":3}`
	const openAI = `{"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"id":"a","__verbose":%s}`
	const fields = `"prompt":"P","stream":true,"response_fields":["tokens_predicted","timings/predicted_n"]`
	for path, x := range map[string]struct{ body, piece, came, want string }{
		"/completion": {`{` + fields + `}`, `{"index":0,"content":"a","tokens":[5],"stop":false}`, account, chosen},
		"/v1/completions": {
			`{` + fields + `,"verbose":true}`, withIDs(text("a"), "[5]", 1),
			fmt.Sprintf(openAI, account), fmt.Sprintf(openAI, chosen),
		},
	} {
		j := mustParse(t, path, x.body, Options{})
		if body, _ := request(t, j, nodeA); strings.Contains(body, "response_fields") {
			t.Errorf("%s: the node is to choose: %s", path, body)
		}
		got := feed(t, j, []string{x.piece, x.came})
		if want := "data: " + x.piece + "\n\ndata: " + x.want + "\n\n"; got != want {
			t.Errorf("%s:\n got %s\nwant %s", path, got, want)
		}
	}
	// So does one whose end is derived.
	j := mustParse(t, "/completion", `{"n_predict":1,"prompt":"P","stream":true,"response_fields":["content","stop_type"]}`, Options{})
	request(t, j, nodeA)
	feed(t, j, []string{`{"index":0,"content":"a","tokens":[5],"stop":false,"tokens_predicted":1}`})
	if got, want := string(j.End(nil)), "data: {\"content\":\"\",\"stop_type\":\"limit\"}\n\n"; got != want {
		t.Errorf("derived: got %s, want %s", got, want)
	}
}

// Progress is told again and again, in Responses by an event that also opens the answer.
func TestProgressOfResponsesGoesOn(t *testing.T) {
	const event = `{"type":"response.in_progress","response":{"id":"r","object":"response","status":"in_progress"},"prompt_progress":{"total":9,"cache":0,"processed":%d,"time_ms":1}}`
	for asked, want := range map[string]int{"": 0, `,"return_progress":true`: 3} {
		j := mustParse(t, "/v1/responses", `{"input":"q","stream":true`+asked+`}`, Options{})
		request(t, j, nodeA)
		got := feed(t, j, []string{fmt.Sprintf(event, 0), fmt.Sprintf(event, 4), fmt.Sprintf(event, 9)})
		if n := strings.Count(got, `"prompt_progress"`); n != want {
			t.Errorf("asked %q: progress was told %d times, want %d: %s", asked, n, want, got)
		}
		if n := strings.Count(got, "event: response.in_progress"); n != max(1, want) {
			t.Errorf("asked %q: got %d events: %s", asked, n, got)
		}
	}
}

func TestStaleTimingsOfProgressAreIgnored(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"max_tokens":9`), Options{})
	request(t, j, nodeA)
	feed(t, j, []string{
		strings.TrimSuffix(delta(role), "}") + `,"prompt_progress":{"total":20,"cache":1,"processed":1,"time_ms":0},"timings":{"predicted_n":8,"prompt_ms":null}}`,
		content("a"),
	})
	if n, err := j.Needs(); err != nil || n.Left != 8 || n.Prompt != 21 {
		t.Errorf("Needs = %+v, %v", n, err)
	}
}

func TestRubbishIsBrokenOutput(t *testing.T) {
	for _, ev := range []string{`[]`, `"x"`, `{`, `{"choices":[1]}`, `{"choices":[{"index":-1,"delta":{}}]}`, `{"choices":[{"index":999999,"delta":{}}]}`, `{"choices":[{"index":128,"delta":{}}]}`, `hello`} {
		j := mustParse(t, chatPath, stream(""), Options{})
		request(t, j, nodeA)
		_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)})
		if r, ok := errors.AsType[*fleet.RequestError](err); !ok || r.Reason != fleet.ReasonBroken || !r.Again {
			t.Errorf("%s: got %v, want broken output that another server is asked for", ev, err)
		}
	}
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(`{"error":{"code":503,"message":"busy"}}`)})
	if e := ErrorFor(err); err == nil || e.Status != 503 || e.Message != "busy" {
		t.Errorf("an error event became %v", err)
	}
}

func TestRubbishLeavesTheAnswerAsItWas(t *testing.T) {
	for _, ev := range []string{`{"choices":[{"index":-1,"delta":{"content":"x"}}]}`, `{"choices":[{"index":0,"delta":{"content":"x"}},{"index":-1}]}`} {
		j := mustParse(t, chatPath, stream(""), Options{})
		request(t, j, nodeA)
		out := feed(t, j, []string{delta(role), content("a")})
		if _, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)}); err == nil {
			t.Errorf("%s was taken", ev)
		}
		if _, m := request(t, j, nodeB); lastMessage(t, m)["content"] != "a" {
			t.Errorf("%s: went on from %v", ev, lastMessage(t, m))
		}
		out += feed(t, j, []string{content("b"), finishChunk("stop")}) + string(j.End(nil))
		if h := listen(t, out); h.content[0] != "ab" || h.done != 1 {
			t.Errorf("%s: got %s", ev, out)
		}
	}
}

func TestNothingFollowsTheFinish(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	feed(t, j, []string{delta(role), content("a"), finishChunk("stop")})
	if out := feed(t, j, []string{content("b"), finishChunk("stop"), delta(role)}); out != "" {
		t.Errorf("got %s", out)
	}
}

func TestNothingFollowsTheFinishOfOneOfTwo(t *testing.T) {
	for _, x := range []struct{ path, end, both, want string }{
		{
			chatPath,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":"again"},"finish_reason":"stop"}, {"index":1,"delta":{"content":"x"}}]}`,
			`{"choices":[{"finish_reason":null,"index":0,"delta":{}}, {"index":1,"delta":{"content":"x"}}]}`,
		},
		{
			"/v1/completions",
			`{"choices":[{"index":1,"text":"","finish_reason":"stop"}]}`,
			`{"choices":[{"index":0,"text":"x"},{"index":1,"text":"again"}]}`,
			`{"choices":[{"index":0,"text":"x"},{"finish_reason":null,"index":1,"logprobs":null,"text":""}]}`,
		},
	} {
		j := mustParse(t, x.path, stream(`,"n":2,"prompt":"p"`), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{x.end})
		if got, want := feed(t, j, []string{x.both}), "data: "+x.want+"\n\n"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
}

func TestChunkOfTwoComesBehindWhatWaits(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"n":2`), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{delta(role), toolCall("{}")})
	out += feed(t, j, []string{`{"choices":[{"index":0,"delta":{"content":"late"}},{"index":1,"delta":{"content":"x"}}]}`})
	if call, late := strings.Index(out, "tool_calls"), strings.Index(out, "late"); call < 0 || late < call {
		t.Errorf("got %s, want the tool call and then what came after it", out)
	}
}

func TestAnswerUnderAnotherNumberIsNotTakenForWhole(t *testing.T) {
	for _, streams := range []bool{false, true} {
		j := mustParse(t, chatPath, fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"stream":%t}`, streams), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{
			`{"id":"a","choices":[{"index":1,"delta":{"role":"assistant","content":"hello"}}]}`,
			`{"id":"a","choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}`,
		})
		if n, _ := j.Needs(); n.Done {
			t.Errorf("stream %t: Needs = %+v, want that the answer is not done", streams, n)
		}
		if end := string(j.End(nil)); !strings.Contains(end, `"error"`) {
			t.Errorf("stream %t: got %s, want an error end", streams, end)
		}
	}
}

func TestChunksOfSeveralLinesBecomeOne(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{"{\n\"choices\": [\r\n{\"index\":0,\"delta\":{\"content\":\"a\"}}]}"})
	if h := listen(t, out); h.content[0] != "a" {
		t.Errorf("got %q", out)
	}
}

// The work must be of one order with the chunk: at a step of all that is left for each
// line end, 8 MiB of them would not come to an end.
func TestChunkOfLineEndsIsOnePass(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	out := feed(t, j, []string{`{"choices":[{"index":0,"delta":{"content":"a"}}]` + strings.Repeat("\n\r", 4<<20) + `}`})
	if want := 8 << 20; strings.Count(out, " ") < want || strings.Count(out, "\n") != 2 {
		t.Errorf("got %d spaces and %d line ends", strings.Count(out, " "), strings.Count(out, "\n"))
	}
}

func TestChoicesInAChunkAreBounded(t *testing.T) {
	j := mustParse(t, chatPath, stream(`,"n":128`), Options{})
	request(t, j, nodeA)
	take := func(n int) error {
		ev := `{"choices":[` + strings.TrimSuffix(strings.Repeat(`{"delta":{"content":"a"}},`, n), ",") + `]}`
		_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)})
		return err
	}
	if err := take(maxChoices); err != nil {
		t.Errorf("%d: %v", maxChoices, err)
	}
	r, ok := errors.AsType[*fleet.RequestError](take(1 << 16))
	if !ok || r.Reason != fleet.ReasonBroken || !r.Again {
		t.Errorf("got %v, want broken output", r)
	}
	if n := cap(j.relay.chunk.parts); n > 2*maxChoices {
		t.Errorf("room for %d parts is kept, want %d at most", n, 2*maxChoices)
	}
}

// script is a server that gives one text, however it was cut, in a random form.
type script struct {
	t *rapid.T
	n int
}

// members writes an object with its members in random order.
func (s *script) members(list ...string) string {
	list = rapid.Permutation(list).Draw(s.t, "order")
	sep := rapid.SampledFrom([]string{",", " , ", ",\t"}).Draw(s.t, "sep")
	return "{" + strings.Join(list, sep) + "}"
}

func (s *script) chunk(delta, finish string, predicted int) string {
	list := []string{
		`"id":"n` + fmt.Sprint(s.n) + `"`, `"model":"m` + fmt.Sprint(s.n) + `"`, `"created":` + fmt.Sprint(s.n),
		`"object":"chat.completion.chunk"`, `"x":{"choices":[{"delta":{"content":"no"}}]}`,
		`"choices":[` + s.members(`"index":0`, `"finish_reason":`+finish, `"delta":`+delta, `"logprobs":null`) + `]`,
	}
	if predicted > 0 {
		list = append(list, timings(10, predicted))
	}
	return s.members(list...)
}

var alphabet = []rune{'a', ' ', '\n', '"', '\\', '\x01', 'é', '😀', '日', '<'}

// TestRandomSchedules cuts a random answer at random places, and asks that the
// client gets each letter once whatever happens.
func TestRandomSchedules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		letters := rapid.SliceOfN(rapid.SampledFrom(alphabet), 1, 30)
		reasons := letters.Draw(rt, "reasoning")
		if rapid.Bool().Draw(rt, "no reasoning") {
			reasons = nil
		}
		text := letters.Draw(rt, "content")
		total := len(reasons) + len(text)
		wholeAnswer := rapid.Bool().Draw(rt, "whole")
		body := `{"messages":[{"role":"user","content":"q"}],"stream":` + fmt.Sprint(!wholeAnswer) + `,"max_tokens":` + fmt.Sprint(total+5) + `}`
		j, err := Parse(chatPath, []byte(body), Options{})
		if err != nil {
			rt.Fatal(err)
		}
		s := &script{t: rt}
		var out strings.Builder
		lost := false
		take := func(ev string) {
			b, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)})
			if err != nil {
				rt.Fatalf("Take(%s): %v", ev, err)
			}
			if len(b) == 0 {
				return
			}
			if rapid.IntRange(0, 20).Draw(rt, "write fails") == 0 {
				lost = true // taken, but it did not get through
				return
			}
			out.Write(b)
			j.Delivered()
		}
		for s.n = 1; s.n < 200; s.n++ {
			needs, err := j.Needs()
			if err != nil {
				rt.Fatal(err)
			}
			if needs.Done {
				break
			}
			a, err := j.Request(fleet.Instance{Node: fmt.Sprint(s.n), Fingerprint: "f", Features: goesOn})
			if err != nil {
				rt.Fatal(err)
			}
			lost = false
			s.play(a.Body, reasons, text, total, take, &lost)
		}
		end := string(j.End(nil))
		if wholeAnswer {
			m := decode(t, end)["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)
			if m["content"] != string(text) || fmt.Sprint(m["reasoning_content"]) != fmt.Sprint(orNil(string(reasons))) {
				rt.Fatalf("got %v, want %q and %q", m, string(reasons), string(text))
			}
			return
		}
		h := listen(t, out.String()+end)
		if h.content[0] != string(text) || h.reasoning[0] != string(reasons) || h.roles[0] > 1 || h.finishes[0] != 1 ||
			h.finish[0] != "stop" || h.done != 1 || len(h.envelopes) != 1 {
			rt.Fatalf("want %q and %q, got %s", string(reasons), string(text), h.raw)
		}
	})
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// play reads a request as a server would, and streams the rest of the answer until
// it is lost.
func (s *script) play(body []byte, reasons, text []rune, total int, take func(string), lost *bool) {
	var req struct {
		Messages []struct {
			Content   string
			Reasoning string `json:"reasoning_content"`
		}
		MaxTokens int    `json:"max_tokens"`
		How       string `json:"continue_final_message"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		s.t.Fatalf("%v: %s", err, body)
	}
	atReason, atText := 0, 0
	if len(req.Messages) > 1 {
		m := req.Messages[1]
		atReason, atText = len([]rune(m.Reasoning)), len([]rune(m.Content))
		if req.How == "content" {
			if want := strings.TrimSuffix(string(reasons), "\n"); m.Reasoning != want {
				s.t.Fatalf("reasoning %q, want %q", m.Reasoning, want)
			}
			atReason = len(reasons)
		} else if m.Reasoning != string(reasons[:atReason]) || req.How != "reasoning_content" {
			s.t.Fatalf("%s: reasoning %q", req.How, m.Reasoning)
		}
		if m.Content != string(text[:atText]) {
			s.t.Fatalf("content %q, want a prefix of %q", m.Content, string(text))
		}
	}
	if want := total + 5 - atReason - atText; req.MaxTokens != want {
		s.t.Fatalf("max_tokens %d, want %d", req.MaxTokens, want)
	}
	cut := func() bool {
		return *lost || s.n < 150 && rapid.IntRange(0, 9).Draw(s.t, "cut") == 0
	}
	send := func(delta, finish string, n int) bool {
		if cut() {
			*lost = true
			return false
		}
		take(s.chunk(delta, finish, n))
		return !*lost
	}
	if !send(s.members(`"role":"assistant"`, `"content":null`), "null", 0) {
		return
	}
	n := 0
	for ; atReason < len(reasons); atReason++ {
		n++
		b, _ := json.Marshal(string(reasons[atReason]))
		if !send(`{"reasoning_content":`+string(b)+`}`, "null", n) {
			return
		}
	}
	for ; atText < len(text); atText++ {
		n++
		b, _ := json.Marshal(string(text[atText]))
		if !send(`{"content":`+string(b)+`}`, "null", n) {
			return
		}
	}
	send("{}", `"stop"`, n+1)
}

func FuzzTake(f *testing.F) {
	seen := map[string]int{}
	for _, e := range captures(f) {
		for _, ev := range e.payloads() {
			if seen[e.Request.Path]++; seen[e.Request.Path] < 40 {
				f.Add([]byte(ev), []byte(e.payloads()[len(e.payloads())-1]))
			}
		}
	}
	f.Add([]byte(toolCall("x")), []byte(usageChunk(3, 4)))
	f.Add([]byte(`{"choices":[{"delta":{"role":"a","content":"b"},"index":1}]}`), []byte(`{"usage":1,"timings":2,"choices":null}`))
	f.Add([]byte(`{"type":"content_block_stop","index":9}`), []byte(`{"type":"message_delta","delta":{"stop_reason":"}"},"usage":{}}`))
	f.Add([]byte(`{"type":"response.output_item.done","item":{"type":"x"}}`), []byte(`{"type":"response.completed","response":{"output":[1,{"type":"y"}],"usage":{}}}`))
	f.Add([]byte(`{"index":0,"content":"a","tokens":[1],"stop":false,"tokens_predicted":1}`), []byte(`{"index":0,"stop":true,"generation_settings":{"stream":true},"prompt":"P","timings":{}}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, q := range fuzzed {
			path, body := q[0], q[1]
			j := mustParse(t, path, body, Options{})
			for range 2 {
				if _, err := j.Request(modernNode); err != nil {
					break
				}
				for _, ev := range [][]byte{a, b, a} {
					keep := bytes.Clone(ev)
					out, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: ev})
					if !bytes.Equal(keep, ev) {
						t.Fatal("the event was changed")
					}
					if err != nil {
						continue
					}
					checkEvents(t, out)
					j.Delivered()
				}
			}
			_, _ = j.Needs()
			if end := j.End(nil); j.Streams() {
				checkEvents(t, end)
			} else if !json.Valid(end) {
				t.Fatalf("%s %s: not JSON: %s", path, body, end)
			}
		}
	})
}

// fuzzed are requests of every language, for streams and for whole answers.
var fuzzed = [][2]string{
	{chatPath, stream(`,"max_tokens":9`)},
	{chatPath, stream(`,"timings_per_token":true,"stream_options":{"include_usage":true}`)},
	{chatPath, stream(`,"n":2`)},
	{chatPath, `{"messages":[]}`},
	{"/v1/completions", `{"prompt":"P","stream":true,"max_tokens":9}`},
	{"/v1/completions", `{"prompt":"P","verbose":true}`},
	{"/completion", `{"prompt":"P","stream":true,"n_predict":9}`},
	{"/completion", `{"prompt":"P","return_tokens":true,"response_fields":["content","timings/predicted_n"]}`},
	{"/v1/responses", `{"input":"q","stream":true,"max_output_tokens":9}`},
	{"/v1/responses", `{"input":"q"}`},
	{"/v1/messages", `{"messages":[{"role":"user","content":"q"}],"stream":true}`},
	{"/v1/messages", `{"messages":[{"role":"user","content":"q"}]}`},
}

// checkEvents reads what goes out as a client does.
func checkEvents(t *testing.T, out []byte) {
	t.Helper()
	for ev := range strings.SplitSeq(string(out), "\n\n") {
		if ev == "" || ev == "data: [DONE]" {
			continue
		}
		if line, rest, ok := strings.Cut(ev, "\n"); ok && strings.HasPrefix(line, "event: ") {
			ev = rest
		}
		p, ok := strings.CutPrefix(ev, "data: ")
		if !ok || strings.ContainsAny(p, "\r\n") || !json.Valid([]byte(p)) {
			t.Fatalf("not an event: %q", ev)
		}
	}
}

func TestProgressOnAChunkWithTextIsCutToo(t *testing.T) {
	const said = `{"choices":[{"index":0,"delta":{"content":"I think so"}}],"id":"a","prompt_progress":{"total":9,"cache":0,"processed":9,"time_ms":1}}`
	for asked, want := range map[string]bool{"": false, `,"return_progress":true`: true} {
		j := mustParse(t, chatPath, stream(asked), Options{})
		request(t, j, nodeA)
		out := feed(t, j, []string{said})
		if got := strings.Contains(out, "prompt_progress"); got != want || !strings.Contains(out, "I think so") {
			t.Errorf("%q: got %s", asked, out)
		}
	}
}
