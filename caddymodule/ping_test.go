package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// pinged is a stream with its comments.
type pinged struct {
	streamed
	Raw    string
	Before int // comments before the first event
	Pings  int
}

// readPings reads a stream. each is called after each comment.
func readPings(r io.Reader, each func(pings int)) (p pinged) {
	var raw strings.Builder
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		raw.WriteString(line)
		switch {
		case line == ":\n":
			p.Pings++
			if !strings.Contains(raw.String(), "data: ") {
				p.Before++
			}
			if each != nil {
				each(p.Pings)
			}
		case err != nil:
			p.Raw = raw.String()
			p.streamed = readStream(strings.NewReader(p.Raw), nil)
			if !errors.Is(err, io.EOF) {
				p.Err = err
			}
			return p
		}
	}
}

// takeLane starts a stream that runs until the returned function is called.
func takeLane(t *testing.T, e *edge, sim *llamasim.Server) (free func()) {
	t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	t.Cleanup(leave)
	resp, err := e.Client.Do(e.request(ctx, "/v1/chat/completions", strings.NewReader(chatBody("m", "busy", 3000, true))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	await(t, "the lane to be taken", func() bool { return sim.Stats().Active == 1 })
	return leave
}

func TestStreamThatWaitsIsPinged(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 50})
	e := startEdge(t, nodes("queue {\n\t\t\tping 50ms\n\t\t}", sim), "fleet")
	e.ready()
	free := takeLane(t, e, sim)
	resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 10, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
		if got := resp.Header.Get(name); got != want || resp.StatusCode != http.StatusOK {
			t.Errorf("%d, %s: got %q, want %q", resp.StatusCode, name, got, want)
		}
	}
	if n := sim.Stats().Requests; n != 1 {
		t.Errorf("the server got %d requests, want one: the other one waits", n)
	}
	got := readPings(resp.Body, func(n int) {
		if n == 3 {
			free()
		}
	})
	if wrong := got.whole(); wrong != "" {
		t.Fatalf("%s in\n%s", wrong, got.Raw)
	}
	if got.Before < 3 || !strings.HasPrefix(got.Raw, ":\n\n:\n\n:\n\n") || !strings.HasSuffix(got.Raw, "data: [DONE]\n\n") {
		t.Errorf("got\n%s\nwant three comments at the beginning and [DONE] at the end", got.Raw)
	}
}

// TestErrorAfterAPingIsAnErrorEnd: the client has a status already.
func TestErrorAfterAPingIsAnErrorEnd(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 50})
	e := startEdge(t, nodes("queue {\n\t\t\ttimeout 1s\n\t\t\tping 50ms\n\t\t}", sim), "fleet")
	e.ready()
	takeLane(t, e, sim)
	resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 10, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := readPings(resp.Body, nil)
	if resp.StatusCode != http.StatusOK || got.Pings == 0 || !errors.Is(got.Err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d, %d comments, %v; want 200, some, and an unexpected end", resp.StatusCode, got.Pings, got.Err)
	}
	if got.Done != 0 || !strings.Contains(got.Error, `"code":"timeout"`) || !strings.HasSuffix(got.Raw, "}}\n\n") {
		t.Errorf("got\n%s\nwant an error event and no [DONE]", got.Raw)
	}
	const series = `slotfleet_requests_total{model="m",outcome="broken",reason="expired"}`
	if n := scrape(t, e)[series]; n != 1 {
		t.Errorf("%s: got %v, want 1", series, n)
	}
}

func TestHeldToolCallIsPinged(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "sim", Decode: 50})
	e := startEdge(t, nodes("queue {\n\t\t\tping 20ms\n\t\t}", sim), "fleet")
	e.ready()
	resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(toolAsking("tools", true).json(200))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := readPings(resp.Body, nil)
	before, _, _ := strings.Cut(got.Raw, "tool_calls")
	if wrong := got.whole(); wrong != "" || strings.Count(before, pingText) == 0 {
		t.Errorf("%s; want comments before the call in\n%s", wrong, got.Raw)
	}
}

func TestWholeAnswersAreNotPinged(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 50})
	e := startEdge(t, nodes("queue {\n\t\t\tping 5ms\n\t\t}", sim), "fleet")
	e.ready()
	a := e.post("/v1/chat/completions", chatBody("m", "hi", 20, false))
	if a.Status != http.StatusOK || !strings.HasPrefix(a.Body, "{") || a.Header.Get("Content-Length") == "" {
		t.Errorf("got %+v", a)
	}
}

func TestPingIsConfigured(t *testing.T) {
	for ping, want := range map[string]time.Duration{"": 15 * time.Second, "ping 3s": 3 * time.Second, "ping off": 0} {
		startEdge(t, "fleet {\n\t\tqueue {\n\t\t\t"+ping+"\n\t\t}\n\t}", "fleet")
		if got := currentState().apps.last().run.ping; got != want {
			t.Errorf("%q: got %s, want %s", ping, got, want)
		}
	}
}

// keptWriter keeps what is written; from closed on, nothing may be.
type keptWriter struct {
	t *testing.T
	*httptest.ResponseRecorder

	mu     sync.Mutex
	err    error
	closed bool
}

func (w *keptWriter) Write(b []byte) (int, error) {
	if !w.mu.TryLock() {
		w.t.Errorf("%q was written while something else was", b)
		return len(b), nil
	}
	defer w.mu.Unlock()
	runtime.Gosched() // let who does not wait come in between
	if w.closed {
		w.t.Errorf("%q was written after the end", b)
	}
	if w.err != nil {
		return 0, w.err
	}
	return w.ResponseRecorder.Write(b)
}

func (w *keptWriter) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Body.String()
}

func (w *keptWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

func newKeptReply(t *testing.T) (*keptWriter, *reply) {
	w := &keptWriter{t: t, ResponseRecorder: httptest.NewRecorder()}
	return w, newReply(w, httptest.NewRequest(http.MethodPost, "/", nil))
}

// TestPingsComeWhenNothingElseDid goes by a clock of its own.
func TestPingsComeWhenNothingElseDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newKeptReply(t)
		end := p.ping(10*time.Second, func() { t.Error("the client was taken for lost") })
		for _, step := range []struct {
			pass time.Duration
			say  string
			want string
		}{
			{9 * time.Second, "", ""},
			{1 * time.Second, "", ":\n\n"},
			{9 * time.Second, "a", ":\n\na"},
			{9 * time.Second, "", ":\n\na"},
			{1 * time.Second, "", ":\n\na:\n\n"},
			{30 * time.Second, "b", ":\n\na:\n\n:\n\n:\n\n:\n\nb"},
		} {
			time.Sleep(step.pass)
			synctest.Wait()
			if step.say != "" {
				if err := p.stream([]byte(step.say)); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.text(); got != step.want {
				t.Errorf("got %q, want %q", got, step.want)
			}
		}
		endOf(t, p)
		w.close()
		time.Sleep(time.Minute)
		synctest.Wait()
		end()
	})
}

// endOf has a job say its last words.
func endOf(t *testing.T, p *reply) {
	t.Helper()
	job, err := openai.Parse("/v1/chat/completions", []byte(`{"stream":true,"messages":[]}`), openai.Options{})
	if err != nil {
		t.Fatal(err)
	}
	(&clientJob{Job: job, ends: p.ends}).End(nil)
}

func TestPingEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newKeptReply(t)
		w.err = errors.New("broken pipe")
		lost := 0
		end := p.ping(time.Second, func() { lost++ })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		end()
		if lost != 1 {
			t.Errorf("the client was lost %d times, want once", lost)
		}
	})
}

// TestPanicOfAPingIsTheHandlers: in a goroutine of ours it would end the process.
func TestPanicOfAPingIsTheHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newReply(&brokenWriter{panics: true}, httptest.NewRequest(http.MethodPost, "/", nil))
		lost := 0
		end := p.ping(time.Second, func() { lost++ })
		time.Sleep(2 * time.Second)
		defer func() {
			if v := recover(); v != "the writer broke" || lost != 1 {
				t.Errorf("got the panic %v and %d losses, want that of the writer and one", v, lost)
			}
		}()
		end()
	})
}

// TestPingsDoNotFallIntoWrites: comments stand between what is written, and none comes
// after the end.
func TestPingsDoNotFallIntoWrites(t *testing.T) {
	for range 50 {
		w, p := newKeptReply(t)
		end := p.ping(time.Nanosecond, func() {})
		for range 100 {
			if err := p.stream([]byte("data: {}\n\n")); err != nil {
				t.Fatal(err)
			}
		}
		endOf(t, p)
		if err := p.stream([]byte("data: [DONE]\n\n")); err != nil {
			t.Fatal(err)
		}
		w.close()
		end()
		got := w.Body.Bytes()
		if !bytes.HasSuffix(got, []byte("data: {}\n\ndata: [DONE]\n\n")) && !bytes.HasSuffix(got, []byte(":\n\ndata: [DONE]\n\n")) {
			t.Fatalf("got %q at the end", got[max(0, len(got)-40):])
		}
		rest := bytes.ReplaceAll(bytes.ReplaceAll(got, []byte("data: {}\n\n"), nil), []byte(pingText), nil)
		if string(rest) != "data: [DONE]\n\n" {
			t.Fatalf("got %q besides comments and events", rest)
		}
	}
}
