package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestPathsServed(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/chat/completions": true, "/chat/completions": true, "/v1/completions": true,
		"/completions": true, "/v1/completion": false, "/infill": true, "/v1/responses": true, "/v1/messages": true,
		"/v1/audio/transcriptions": true, "/v1/embeddings": false, "/v1/models": false, "/v1/chat/completions/": false, "": false,
	} {
		if isJob(path) != want {
			t.Errorf("isJob(%q) = %t", path, !want)
		}
	}
}

func TestWant(t *testing.T) {
	for _, x := range []struct {
		body string
		want fleet.Request
	}{
		{`{"messages":[],"mod\u0065l":"gpt\u002d4"}`, fleet.Request{Model: "served"}},
		{`{"messages":[{"role":"user","model":"inner","content":{"model":"x"}}],"model":"m"}`, fleet.Request{Model: "m"}},
		{`{"messages":[],"model":null,"max_tokens":7}`, fleet.Request{Out: 7}},
		{`{"max_tokens":7,"n_predict":-1}`, fleet.Request{}},
		{`{"max_tokens":7.0,"max_completion_tokens":1e2}`, fleet.Request{Out: 100}},
		{`{"max_tokens":0}`, fleet.Request{Out: 1}},
	} {
		j := mustParse(t, chatPath, x.body, Options{Aliases: map[string]string{"gpt-4": "served"}})
		x.want.Route, x.want.Bytes = chatPath, int64(len(x.body))
		x.want.Prompt, x.want.Counter = fleet.Tokens(len(x.body)+3)/4, j
		if got := j.Want(); !equalRequest(got, x.want) {
			t.Errorf("%s: Want = %+v, want %+v", x.body, got, x.want)
		}
	}
}

func equalRequest(a, b fleet.Request) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

func TestBodiesRefused(t *testing.T) {
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for _, x := range []struct{ body, param, says string }{
		{``, "", "JSON object"},
		{`[]`, "", "JSON object"},
		{"\ufeff{}", "", "byte order mark"},
		{`{"messages": [`, "", "at byte 14"},
		{`{} {}`, "", "at byte 3"},
		{`{"a":1,}`, "", "comma"},
		{`{"a" 1}`, "", "colon"},
		{`{"a":01}`, "", "at byte 6"},
		{"{\"a\":\"\x01\"}", "", "control character"},
		{`{"a":"\x"}`, "", "escape"},
		{`{"a":tru}`, "", "misspelt"},
		{`{"a":` + deep + `}`, "", "too deep"},
		{"{\"a\xff\":1}", "", "UTF-8"},
		{`{"model":"a","mod\u0065l":"b"}`, "model", "twice"},
		{`{"stream":true,"stream":true}`, "stream", "twice"},
		{`{"id_slot":1,"id_slot":2}`, "id_slot", "twice"},
		{`{"messages":[{"role":"user","role":"system"}]}`, "role", "twice"},
		{`{"model":["a"]}`, "model", "a string"},
		{`{"stream":"yes"}`, "stream", "true or false"},
		{`{"messages":{}}`, "messages", "an array"},
		{`{"max_tokens":"5"}`, "max_tokens", "a whole number"},
		{`{"max_tokens":1.5}`, "max_tokens", "a whole number"},
		{`{"n_predict":1e400}`, "n_predict", "a whole number"},
		{`{"stream_options":true}`, "stream_options", "an object"},
		{`{"messages":[{"content":1,"content":2},{"role":"user"}]}`, "content", "twice"},
		{`{"messages":[0` + strings.Repeat(",0", maxMessages) + `]}`, "messages", "more than 65536 messages"},
		{`{"model":"` + strings.Repeat("m", maxModel+1) + `"}`, "model", "longer than 1024 bytes"},
		{`{"max_tokens":1.` + strings.Repeat("0", 1<<20) + `}`, "max_tokens", "a whole number"},
	} {
		_, err := Parse(chatPath, []byte(x.body), Options{})
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != 400 || e.Type != "invalid_request_error" || e.Param != x.param || !strings.Contains(e.Message, x.says) {
			t.Errorf("%.40q: %v (param %q), want one that says %q", x.body, err, e.Param, x.says)
		}
	}
	for _, f := range []string{"n", "n_cmpl"} { // the events of several answers could not be told apart
		_, err := Parse("/v1/responses", []byte(`{"input":"x","`+f+`":2}`), Options{})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 || e.Param != f {
			t.Errorf("two answers of Responses by %s: %v", f, err)
		}
		mustParse(t, "/v1/responses", `{"input":"x","`+f+`":1}`, Options{})
		mustParse(t, "/v1/messages", `{"messages":[],"`+f+`":2}`, Options{}) // llama-server reads none there
	}
	if _, err := Parse("/nope", []byte("{}"), Options{}); ErrorFor(err).Status != 404 {
		t.Errorf("an unknown path: %v", err)
	}
}

func TestLongestOfEverythingIsTaken(t *testing.T) {
	name := strings.Repeat(`\u00e9`, maxModel/2) // 1 KiB, in more than that
	body := `{"model":"` + name + `","messages":[0` + strings.Repeat(",0", maxMessages-2) + `,{"role":"assistant","content":"last"}]}`
	j := mustParse(t, chatPath, body, Options{})
	if got := j.Want().Model; got != strings.Repeat("é", maxModel/2) {
		t.Errorf("the model is %q", got)
	}
	if string(j.prefill.content) != "last" {
		t.Errorf("the last message says %q", j.prefill.content)
	}
}

// TestHostileBodiesTakeMemoryOfTheirSize reads bodies of 120 KB that are made to cost.
// Their texts may be held decoded, a few times while they grow, and no more.
func TestHostileBodiesTakeMemoryOfTheirSize(t *testing.T) {
	const size = 120 << 10
	many := func(s string) string { return strings.TrimSuffix(strings.Repeat(s, size/len(s)), ",") }
	for name, x := range map[string]struct {
		body  string
		limit int
	}{
		"messages of nothing":     {`{"messages":[` + many("0,") + `]}`, 16 << 10},
		"empty messages":          {`{"messages":[` + many("{},") + `]}`, 16 << 10},
		"messages":                {`{"messages":[` + many(`{"role":"user","content":""},`) + `]}`, 16 << 10},
		"unknown fields":          {`{` + many(`"":0,`) + `}`, 16 << 10},
		"unknown, with escapes":   {`{` + many(`"\u0061":0,`) + `}`, 16 << 10},
		"a long key":              {`{"` + many(`\u0061`) + `":0}`, 16 << 10},
		"prompts":                 {`{"prompt":[` + many(`"",`) + `]}`, 16 << 10},
		"stops":                   {`{"stop":[` + many(`"",`) + `]}`, 16 << 10},
		"stream options":          {`{"stream_options":{` + many(`"":0,`) + `}}`, 16 << 10},
		"a long number":           {`{"max_tokens":` + many(`9`) + `}`, 16 << 10},
		"nested":                  {`{"a":[` + many(strings.Repeat("[", 100)+strings.Repeat("]", 100)+",") + `]}`, 16 << 10},
		"white space":             {`{` + many(" ") + `"id_slot"` + many(" ") + `:1}`, 16 << 10},
		"a last message to go on": {`{"messages":[{"role":"assistant","content":"` + many(`\n`) + `"}]}`, 6 * size},
		"a model":                 {`{"model":"` + many(`\n`) + `"}`, 6 * size},
		"a grammar":               {`{"grammar":"` + many(`\n`) + `"}`, 6 * size},
	} {
		got := allocated(func() { _, _ = Parse(chatPath, []byte(x.body), Options{}) }) - len(x.body)
		if got > x.limit {
			t.Errorf("%s: %d bytes allocated beside the body, want at most %d", name, got, x.limit)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

func TestUnknownFieldsPassByteForByte(t *testing.T) {
	const odd = ` "temp" : -0.0 ,"seed":18446744073709551615,"x":1e400,"s":"\u2028` + "\u2028" + ` \ud83d\ude00 \ud800","logit_bias":[[1,false]],` +
		"\n\t" + `"chat_template_kwargs":{"enable_thinking":false, "model":"z"},"dup":1,"dup":2 `
	const messages = `"messages" : [ {"role":"user","content":[{"type":"text","text":"a\/b"},{"type":"new"}]},{"role":"assistant","content":null,"tool_calls":[]} , {"content":"x","role":"tool"}]`
	for _, x := range []struct{ give, want string }{
		{
			`{` + odd + `,` + messages + `,"stream":true,"return_progress":true,"sse_ping_interval":1}`,
			`{` + odd + `,` + messages + `,"stream":true,"return_progress":true,"sse_ping_interval":1}`,
		},
		{
			`{"str\u0065am": true ,` + odd + `,"sse_ping_interval":30, "return_progress" : false,` + messages + `}`,
			`{"str\u0065am": true ,` + odd + `,"sse_ping_interval":5, "return_progress" : true,` + messages + `}`,
		},
		{
			`{"id_slot":2,"stream":true,` + odd + `,` + messages + `}`,
			`{"return_progress":true,"sse_ping_interval":5,"stream":true,` + odd + `,` + messages + `}`,
		},
		{
			`{"stream":true,` + odd + `, "id_slot": 2 }`,
			`{"return_progress":true,"sse_ping_interval":5,"stream":true,` + odd + ` }`,
		},
		{
			`{"stream":true,"model":"gpt-4","max_tokens":3}`,
			`{"return_progress":true,"timings_per_token":true,"sse_ping_interval":5,"stream":true,"model":"served","max_tokens":3}`,
		},
		{`{"id_slot":1}`, `{"stream":true,"return_progress":true,"timings_per_token":true,"stream_options":{"include_usage":true},"sse_ping_interval":5}`},
	} {
		j := mustParse(t, chatPath, x.give, Options{Aliases: map[string]string{"gpt-4": "served"}})
		a, err := j.Request(nodeA)
		if err != nil || a.Path != chatPath {
			t.Fatal(a.Path, err)
		}
		if string(a.Body) != x.want {
			t.Errorf("\n got %s\nwant %s", a.Body, x.want)
		}
		if string(j.doc.body) != x.give {
			t.Errorf("the client's body was changed: %s", j.doc.body)
		}
	}
}

func TestCutsLeaveCommasRight(t *testing.T) {
	for _, list := range [][]bool{
		{true, false, false},
		{false, true, false},
		{false, false, true},
		{true, true, false},
		{false, true, true},
		{true, false, true},
		{true, true, true},
		{false, false, false},
	} {
		for _, add := range []string{"", `"z":1`} {
			src := []byte(`{ "a" : 1 , "b":[1,2] ,"c":3 }`)
			s := scanner{b: src}
			var e edits
			s.enter('{')
			open, n := s.i, 0
			want := map[string]bool{}
			if add != "" {
				want["z"] = true
			}
			for s.more('}') {
				s.peek()
				m := member{key: s.i, ord: n}
				key := string(s.key().of(src))
				m.val = s.value()
				if list[n] {
					e.remove(m)
				} else {
					want[key] = true
				}
				n++
			}
			e.insert(open, n, []byte(add))
			got := e.apply(nil, src)
			var m map[string]any
			if err := json.Unmarshal(got, &m); err != nil || len(m) != len(want) {
				t.Errorf("%v %q: %s: %v", list, add, got, err)
			}
			for k := range want {
				if _, ok := m[k]; !ok {
					t.Errorf("%v: %s lacks %s", list, got, k)
				}
			}
		}
	}
}

func TestTextSurvives(t *testing.T) {
	for _, raw := range []string{
		``, `plain`, `\"\\\/\b\f\n\r\t`, `\u0000\u001f\u007f`, `\ud83d\ude00`, `😀é`, `\ud800`, `\udc00x`, `\ud800\ud800\udc00`, `\ud83dx`, `é\u00e9`,
	} {
		text := appendText(nil, []byte(raw))
		var a, b string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &a); err != nil {
			t.Fatal(err)
		}
		q := appendString(nil, text)
		if err := json.Unmarshal(q, &b); err != nil || a != b {
			t.Errorf("%s became %s: %v", raw, q, err)
		}
		if strings.Contains(raw, `\ud800`) != strings.Contains(string(q), `\ud800`) {
			if !strings.Contains(raw, `\ud800\udc00`) {
				t.Errorf("half a pair was lost: %s became %s", raw, q)
			}
		}
	}
	// The halves of a pair in two deltas.
	text := appendText(appendText(nil, []byte(`\ud83d`)), []byte(`\ude00`))
	if got := string(appendString(nil, text)); got != `"\ud83d\ude00"` {
		t.Errorf("got %s", got)
	}
	if got := string(appendString(nil, []byte("a\xffb"))); got != `"a\ufffdb"` {
		t.Errorf("got %s", got)
	}
}

// extraRule matches the refusals that encoding/json does not know.
var extraRule = regexp.MustCompile(`twice in one object|must be |too deep|key is not UTF-8|more than \d+ messages|longer than|not a JSON object|byte order mark`)

func FuzzParse(f *testing.F) {
	for _, e := range captures(f) {
		f.Add([]byte(e.Request.Body))
	}
	for _, s := range []string{
		`{"model":"a","messages":[{"role":"assistant","content":"x"}],"stream":true}`, `{"a":[1,{"b":null}],"id_slot":0,"echo":1}`,
		`{"\u006dodel":"\ud83d\ude00","stream_options":{"include_usage":true}}`, `{"prompt":["a",1],"max_tokens":-0.0}`, "{\"k\xff\":1}", `[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		j, err := Parse(chatPath, body, Options{})
		if err != nil {
			if json.Valid(body) && !extraRule.MatchString(err.Error()) {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(body, &m); err != nil {
			t.Fatalf("accepted: %v", err)
		}
		for k, name := range fieldNames {
			at := j.doc.field[k]
			if got, want := at.val.of(body), bytes.TrimSpace(m[name]); !bytes.Equal(got, want) {
				t.Fatalf("%s: got %q, want %q", name, got, want)
			}
		}
		var model string
		if err := json.Unmarshal(m["model"], &model); err == nil && utf8.Valid(m["model"]) {
			a, b := appendString(nil, []byte(j.Want().Model)), appendString(nil, []byte(model))
			var x, y string
			if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil || x != y {
				t.Fatalf("model: got %q, want %q", x, y)
			}
		}
		checkRequest(t, j, m)
	})
}

// checkRequest checks that the body for a node has all the client's other fields.
func checkRequest(t *testing.T, j *Job, orig map[string]json.RawMessage) {
	t.Helper()
	a, err := j.Request(nodeA)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(a.Body, &m); err != nil {
		t.Fatalf("the request is no JSON: %v: %s", err, a.Body)
	}
	for k, v := range orig {
		switch fieldOf([]byte(k)) {
		case fieldStream, fieldReturnProgress, fieldTimingsPerToken, fieldStreamOptions, fieldIDSlot, fieldPingInterval, fieldEcho:
		default:
			if !bytes.Equal(bytes.TrimSpace(m[k]), bytes.TrimSpace(v)) {
				t.Fatalf("%q was %s and is %s", k, v, m[k])
			}
		}
	}
	if string(m["stream"]) != "true" || m["id_slot"] != nil {
		t.Fatalf("stream %s, id_slot %s", m["stream"], m["id_slot"])
	}
}
