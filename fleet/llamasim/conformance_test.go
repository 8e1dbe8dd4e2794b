package llamasim

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exchange is one recorded request and its answer.
type exchange struct {
	Name    string `json:"name"`
	Request struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	} `json:"response"`
}

// relaxed are exchanges whose shape hangs on the text of the recorded model.
var relaxed = map[string]string{
	"chat-tools-required":        "the random model broke off with no call made; only status and headers compared",
	"chat-tools-required-stream": "the random model broke off with no call made; only status and headers compared",
}

// otherReuse are those whose choice of a slot hangs on how many tokens a word has.
var otherReuse = map[string]string{
	"chat-content-parts": "its two markers are more than a tenth of our prompt, and less of one with a token a character",
}

// unthought are exchanges that are replayed with thinking off: with it on, the first
// of the few tokens they ask for is the think marker, which has no delta, or none is
// left for the text that the APIs with an item or a block for each word it in.
var unthought = map[string]bool{
	"chat-max0": true, "chat-n2-stream": true,
	"responses": true, "responses-stream": true, "anthropic-messages": true, "anthropic-messages-stream": true,
}

// TestConformsToCaptures sends every request of the recordings to a stand-in of the
// same kind and compares status, headers and shape of the answers.
func TestConformsToCaptures(t *testing.T) {
	for _, c := range []struct {
		file string
		want int
		o    Options
	}{
		{"http-0.4.0", 57, Options{Model: "char-model"}},
		{"http-0.4.0-thinking-template", 57, Options{Model: "think-model", Thinking: true}},
		{"http-0.4.0-router", 58, Options{Models: []Model{{Name: "alpha"}, {Name: "beta"}}, Context: 8192}},
	} {
		t.Run(c.file, func(t *testing.T) {
			s := start(t, c.o)
			all := readCapture(t, "testdata/"+c.file+".jsonl.gz")
			matched, inFull := 0, 0
			for _, x := range all {
				if reason := relaxed[x.Name]; reason != "" {
					t.Logf("relaxed %s: %s", x.Name, reason)
				}
				if t.Run(x.Name, func(t *testing.T) { replay(t, s, x, c.o.Thinking) }) {
					matched++
					if relaxed[x.Name] == "" {
						inFull++
					}
				}
			}
			t.Logf("%s: %d of %d exchanges match, %d of them in full", c.file, matched, len(all), inFull)
			if len(all) != c.want {
				t.Errorf("the recording has %d exchanges, want %d", len(all), c.want)
			}
		})
	}
}

func readCapture(t *testing.T, path string) []exchange {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []exchange
	for d := json.NewDecoder(bufio.NewReader(z)); ; {
		var x exchange
		if err := d.Decode(&x); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
}

func replay(t *testing.T, s *Server, x exchange, thinking bool) {
	body := x.Request.Body
	if head, tail, cut := strings.Cut(body, "…["); cut {
		// Shortened in the recording: as many words as make it too long again.
		_, tail, _ = strings.Cut(tail, "chars]…")
		body = head + strings.Repeat(" x", 20000) + tail
	}
	if thinking && unthought[x.Name] {
		body = `{"chat_template_kwargs":{"enable_thinking":false},` + body[1:]
	}
	req, err := http.NewRequestWithContext(t.Context(), x.Request.Method, s.URL()+x.Request.Path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range x.Request.Headers {
		req.Header.Set(k, v)
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	if resp.StatusCode != x.Response.Status {
		t.Fatalf("status: got %d %s, want %d", resp.StatusCode, got, x.Response.Status)
	}
	if diff := cmp.Diff(wantHeaders(x), gotHeaders(resp)); diff != "" && x.Response.Headers != nil {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if relaxed[x.Name] != "" {
		return
	}
	kind := resp.Header.Get("Content-Type")
	if diff := cmp.Diff(shapes(t, kind, x.Response.Body, thinking), shapes(t, kind, string(got), thinking)); diff != "" {
		t.Errorf("body (-want +got):\n%s\ngot %s", diff, got)
	}
	if reason := otherReuse[x.Name]; reason != "" {
		t.Logf("cached tokens not compared: %s", reason)
	} else if got, want := reuse(string(got)), reuse(x.Response.Body); got != want && (!thinking || !unthought[x.Name]) {
		t.Errorf("of the prompt %s was cached, want %s", got, want)
	}
	if resp.StatusCode >= 400 {
		if diff := cmp.Diff(errorText(x.Response.Body), errorText(string(got))); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
	}
}

var (
	cacheN  = regexp.MustCompile(`"cache_n":(\d+),"prompt_n":(\d+)`)
	cachedN = regexp.MustCompile(`"cache_read_input_tokens":(\d+),"input_tokens":(\d+)`)
)

// reuse is how much of a prompt a slot held, in words: how many tokens a text has is
// up to the tokenizer, but that a prompt begins like another is not.
func reuse(body string) string {
	list := append(cacheN.FindAllStringSubmatch(body, -1), cachedN.FindAllStringSubmatch(body, -1)...)
	if len(list) == 0 {
		return "unknown"
	}
	last := list[len(list)-1]
	switch cached, fresh := last[1], last[2]; {
	case cached == "0":
		return "nothing"
	case cached == "1":
		return "the start marker"
	case fresh == "1":
		return "all but the last token"
	}
	return "a part"
}

// errorText is the error of a body, its numbers left out: how many tokens a text has
// is up to the tokenizer.
func errorText(body string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, body)
}

// headerNames are those compared. Go moves some of them out of the header.
var headerNames = []string{
	"content-type", "server", "keep-alive", "x-accel-buffering", "access-control-allow-origin",
	"access-control-allow-credentials", "access-control-allow-methods", "access-control-allow-headers", "date",
}

func wantHeaders(x exchange) map[string]string {
	out := map[string]string{}
	for _, name := range headerNames {
		if v, ok := x.Response.Headers[name]; ok {
			out[name] = v
		}
	}
	out["chunked"] = fmt.Sprint(x.Response.Headers["transfer-encoding"] == "chunked")
	// A router's own word stands beside that of the server it asked.
	out["close"] = fmt.Sprint(strings.HasPrefix(x.Response.Headers["connection"], "close"))
	return out
}

func gotHeaders(resp *http.Response) map[string]string {
	out := map[string]string{}
	for _, name := range headerNames {
		if v := resp.Header.Values(name); len(v) > 0 {
			out[name] = v[0]
		}
	}
	out["chunked"] = fmt.Sprint(slices.Contains(resp.TransferEncoding, "chunked"))
	out["close"] = fmt.Sprint(resp.Close)
	return out
}

// shapes is the shape of a body, or of each event with runs of equal ones collapsed.
func shapes(t *testing.T, contentType, body string, thinking bool) []string {
	t.Helper()
	switch {
	case strings.HasPrefix(contentType, "text/plain"):
		return metricNames(body)
	case contentType != "text/event-stream" && body == "":
		return nil
	case contentType != "text/event-stream":
		return []string{shapeOf(t, body, thinking)}
	}
	var out []string
	for e := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(e, "data: ")
		if !ok || name != "" && !strings.HasPrefix(name, "event: ") {
			t.Fatalf("not an event: %q", e)
		}
		if data != "[DONE]" {
			data = shapeOf(t, data, thinking)
		}
		out = append(out, name+data)
	}
	return slices.Compact(out)
}

// metricNames are the lines of an exposition, their values left out.
func metricNames(body string) []string {
	var out []string
	for line := range strings.SplitSeq(body, "\n") {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, " ")
		}
		out = append(out, line)
	}
	return out
}

func shapeOf(t *testing.T, text string, thinking bool) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if thinking {
		forgetReasoning(v)
	}
	return shape(v)
}

// forgetReasoning makes reasoning content: the random model never thought, though
// its template let it, and ours always does.
func forgetReasoning(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			forgetReasoning(e)
		}
	case map[string]any:
		if r, ok := v["reasoning_content"]; ok {
			delete(v, "reasoning_content")
			v["content"] = r
		}
		for _, e := range v {
			forgetReasoning(e)
		}
	}
}

// shape is the keys and kinds of a value, all the way down; of a list the different
// shapes of its elements.
func shape(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case float64:
		return "number"
	case string:
		return "string"
	case []any:
		var kinds []string
		for _, e := range v {
			kinds = append(kinds, shape(e))
		}
		slices.Sort(kinds)
		return "[" + strings.Join(slices.Compact(kinds), "|") + "]"
	case map[string]any:
		var fields []string
		for k, e := range v {
			fields = append(fields, k+":"+shape(e))
		}
		slices.Sort(fields)
		return "{" + strings.Join(fields, ",") + "}"
	}
	return "?"
}
