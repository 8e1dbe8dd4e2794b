package openai

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

// exchange is one recorded request with its answer.
type exchange struct {
	File, Name string
	Request    struct{ Path, Body string }
	Response   struct {
		Status int
		Body   string
	}
}

func (e *exchange) streams() bool {
	return e.Response.Status == 200 && strings.HasPrefix(e.Response.Body, "data: ")
}

// events returns the payloads of a recorded stream, without [DONE].
func (e *exchange) events() []string {
	var list []string
	for ev := range strings.SplitSeq(strings.TrimSpace(e.Response.Body), "\n\n") {
		if p := strings.TrimPrefix(ev, "data: "); p != "[DONE]" {
			list = append(list, p)
		}
	}
	return list
}

func captures(t testing.TB) []exchange {
	t.Helper()
	var list []exchange
	for _, file := range []string{"http-0.4.0", "http-0.4.0-thinking-template", "http-0.4.0-router"} {
		f, err := os.Open("testdata/" + file + ".jsonl.gz")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		s := bufio.NewScanner(z)
		s.Buffer(nil, 1<<24)
		for s.Scan() {
			e := exchange{File: file}
			if err := json.Unmarshal(s.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
	}
	return list
}

func capture(t testing.TB, name string) exchange {
	t.Helper()
	for _, e := range captures(t) {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("no capture is named %s", name)
	panic("unreachable")
}

// heard is what a client understands of a stream, by encoding/json.
type heard struct {
	content, reasoning map[int]string
	roles, finishes    map[int]int
	finish             map[int]string
	tools              []string
	usage              []map[string]any
	timings            []map[string]any
	progress           int
	done, faults       int
	textChunks         int
	envelopes          map[string]bool
	raw                string
}

func listen(t testing.TB, stream string) heard {
	t.Helper()
	h := heard{
		content: map[int]string{}, reasoning: map[int]string{}, roles: map[int]int{}, finishes: map[int]int{},
		finish: map[int]string{}, envelopes: map[string]bool{}, raw: stream,
	}
	if stream != "" && !strings.HasSuffix(stream, "\n\n") {
		t.Fatalf("the stream does not end with an empty line: %q", stream)
	}
	for ev := range strings.SplitSeq(stream, "\n\n") {
		if ev == "" {
			continue
		}
		p, ok := strings.CutPrefix(ev, "data: ")
		if !ok || strings.Contains(p, "\n") {
			t.Fatalf("not an event of one data line: %q", ev)
		}
		if h.done > 0 {
			t.Fatalf("an event after [DONE]: %q", ev)
		}
		if p == "[DONE]" {
			h.done++
			continue
		}
		h.chunk(t, p)
	}
	return h
}

type jsonChunk struct {
	ID, Model, Object string
	Created           int64
	Fingerprint       string `json:"system_fingerprint"`
	Choices           []struct {
		Index  int
		Finish *string `json:"finish_reason"`
		Text   string
		Delta  struct {
			Role      string
			Content   *string
			Reasoning *string           `json:"reasoning_content"`
			Tools     []json.RawMessage `json:"tool_calls"`
		}
	}
	Usage    map[string]any
	Timings  map[string]any
	Progress map[string]any `json:"prompt_progress"`
	Error    map[string]any
}

func (h *heard) chunk(t testing.TB, p string) {
	t.Helper()
	var c jsonChunk
	if err := json.Unmarshal([]byte(p), &c); err != nil {
		t.Fatalf("a chunk is no JSON: %v: %s", err, p)
	}
	if c.Error != nil {
		h.faults++
		return
	}
	h.envelopes[c.ID+"|"+c.Model+"|"+c.Fingerprint+"|"+c.Object] = true
	if c.Usage != nil {
		h.usage = append(h.usage, c.Usage)
	}
	if c.Timings != nil {
		h.timings = append(h.timings, c.Timings)
	}
	if c.Progress != nil {
		h.progress++
		return
	}
	for _, x := range c.Choices {
		before := len(h.content[x.Index]) + len(h.reasoning[x.Index])
		h.content[x.Index] += x.Text
		if x.Delta.Content != nil {
			h.content[x.Index] += *x.Delta.Content
		}
		if x.Delta.Reasoning != nil {
			h.reasoning[x.Index] += *x.Delta.Reasoning
		}
		if len(h.content[x.Index])+len(h.reasoning[x.Index]) > before {
			h.textChunks++
		}
		for _, tc := range x.Delta.Tools {
			h.tools = append(h.tools, string(tc))
		}
		if x.Delta.Role != "" {
			h.roles[x.Index]++
		}
		if x.Finish != nil {
			h.finishes[x.Index]++
			h.finish[x.Index] = *x.Finish
		}
	}
}

func mustParse(t testing.TB, path, body string, o Options) *Job {
	t.Helper()
	j, err := Parse(path, []byte(body), o)
	if err != nil {
		t.Fatalf("Parse(%s): %v", body, err)
	}
	return j
}

// request asks for a body and decodes it.
func request(t testing.TB, j *Job, i fleet.Instance) (string, map[string]any) {
	t.Helper()
	a, err := j.Request(i)
	if err != nil {
		t.Fatalf("Request: %v", err)
	}
	return string(a.Body), decode(t, string(a.Body))
}

func decode(t testing.TB, s string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		t.Fatalf("not a JSON object: %v: %s", err, s)
	}
	return m
}

// feed gives events to a job and returns what the client got of them.
func feed(t testing.TB, j *Job, events []string) string {
	t.Helper()
	var out strings.Builder
	for _, ev := range events {
		b, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(ev)})
		if err != nil {
			t.Fatalf("Take(%s): %v", ev, err)
		}
		if len(b) > 0 {
			out.Write(b)
			j.Delivered()
		}
	}
	return out.String()
}
