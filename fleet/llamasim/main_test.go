package llamasim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience ends a test that waits for something that does not come.
const patience = 20 * time.Second

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(o)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// client keeps no connection, so that none outlives its test.
var client = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	Timeout:   patience,
}

func post(ctx context.Context, t *testing.T, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// js is v as JSON.
func js(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type dict = map[string]any

// event is one event of any of the streams.
type event struct {
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Text         string  `json:"text"`
		Delta        struct {
			Role      string `json:"role"`
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				ID       string `json:"id"`
				Function struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				} `json:"function"`
			} `json:"tool_calls"`
		} `json:"delta"`
		Message struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
		} `json:"message"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Timings *timings `json:"timings"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Progress *progress `json:"prompt_progress"`
	Content  string    `json:"content"`
	Tokens   []int32   `json:"tokens"`
	Stop     bool      `json:"stop"`
}

// stream is what came of one event stream.
type stream struct {
	events   []event
	comments int
	done     bool   // [DONE]
	rest     string // bytes that are no whole event
	err      error  // how the body ended, nil: cleanly
	content  string
	thought  string
	finish   string
}

// read takes a stream in to its end; each, if not nil, sees every event and may stop
// the reading.
func read(t *testing.T, resp *http.Response, each func(event) bool) *stream {
	t.Helper()
	st := &stream{}
	r := bufio.NewReader(resp.Body)
	var block bytes.Buffer
	for {
		line, err := r.ReadBytes('\n')
		block.Write(line)
		if err != nil {
			st.rest = block.String()
			if err != io.EOF {
				st.err = err
			}
			return st
		}
		if !bytes.HasSuffix(block.Bytes(), []byte("\n\n")) {
			continue
		}
		text := strings.TrimSpace(block.String())
		block.Reset()
		if !st.take(t, text) {
			continue
		}
		if each != nil && !each(st.events[len(st.events)-1]) {
			return st
		}
	}
}

func (st *stream) take(t *testing.T, text string) bool {
	t.Helper()
	data, ok := strings.CutPrefix(text, "data: ")
	switch {
	case text == ":":
		st.comments++
		return false
	case !ok:
		t.Fatalf("not an event: %q", text)
	case data == "[DONE]":
		st.done = true
		return false
	}
	var e event
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		t.Fatalf("event %q: %v", data, err)
	}
	st.events = append(st.events, e)
	st.content += e.Content
	for _, c := range e.Choices {
		st.content += c.Delta.Content + c.Text
		st.thought += c.Delta.Reasoning
		if c.FinishReason != nil {
			st.finish = *c.FinishReason
		}
	}
	return true
}

const chatPath = "/v1/chat/completions"

// ask streams a request and reads all of it.
func ask(t *testing.T, s *Server, path string, body dict) *stream {
	t.Helper()
	full := dict{"stream": true}
	maps.Copy(full, body)
	resp := post(t.Context(), t, s.URL()+path, js(t, full))
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: status %d: %s", path, resp.StatusCode, b)
	}
	return read(t, resp, nil)
}

func user(text string) []dict { return []dict{{"role": "user", "content": text}} }

// lines is a log that hands its lines on.
type lines chan string

func newLines() lines { return make(lines, 10000) }

// Write implements io.Writer.
func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// await reads the log until a line has the text.
func (l lines) await(t *testing.T, text string) string {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return line
			}
		case <-late.C:
			t.Fatalf("no line of the log has %q", text)
		}
	}
}

// logBuffer keeps a whole log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.b.String(), "\n"), "\n")
}
