package caddymodule

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// A client that leaves while its prompt is read, while it waits for a lane, and one
// whose answer is whole: the lane and the slot are free again, and nothing is held.
func TestClientThatLeavesInAnyPhaseHoldsNothing(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Prefill: 200, Decode: 50})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	sims := []*llamasim.Server{sim}
	ask := func(ctx context.Context, body string) (ended chan struct{}) {
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			e.do(e.request(ctx, "/v1/chat/completions", strings.NewReader(body)))
		}()
		return ended
	}
	long := strings.Repeat("word ", 2000) // 10 s of prefill
	for name, c := range map[string]struct {
		body  string
		waits bool
	}{
		"reading a prompt":        {body: chatBody("m", long, 10, true)},
		"reading a prompt, whole": {body: chatBody("m", long, 10, false)},
		"writing":                 {body: chatBody("m", "hi", 3000, true)},
		"writing, whole":          {body: chatBody("m", "hi", 3000, false)},
		"waiting":                 {body: chatBody("m", "hello", 10, true), waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			cancelled := sim.Stats().Cancelled
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			first, goFirst := context.WithCancel(t.Context())
			defer goFirst()
			var running chan struct{}
			if c.waits {
				running = ask(first, chatBody("m", "hi", 3000, true))
				await(t, "the lane to be taken", func() bool { return sim.Stats().Active == 1 })
			}
			ended := ask(ctx, c.body)
			if c.waits {
				await(t, "the request to wait", func() bool { return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, `"waiting":1`) })
			} else {
				await(t, "the request to be at the node", func() bool { return sim.Stats().Active == 1 })
			}
			leave()
			<-ended
			if c.waits {
				await(t, "its place to be free", func() bool { return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, `"waiting":0`) })
				goFirst()
				<-running
			}
			e.quiet(sims)
			e.wantFree()
			if got := sim.Stats().Cancelled - cancelled; got != 1 {
				t.Errorf("the server saw %d clients leave, want 1", got)
			}
		})
	}
}

// slowReader is a client that reads nothing after the first bytes: a write stands until
// the deadline that was set for it, which is at once.
type slowReader struct {
	header http.Header
	mu     sync.Mutex
	writes int
	until  time.Time // the deadline that the stuck write had
	limit  time.Time
}

func (w *slowReader) Header() http.Header { return w.header }
func (w *slowReader) WriteHeader(int)     {}
func (w *slowReader) FlushError() error   { return nil }

func (w *slowReader) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = t
	return nil
}

func (w *slowReader) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes++; w.writes < 5 {
		return len(b), nil
	}
	if w.until.IsZero() {
		w.until = w.limit
	}
	return 0, os.ErrDeadlineExceeded
}

// A client that does not read holds its lane for as long as one write may take, and no
// longer.
func TestClientThatDoesNotReadIsGivenUp(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 100})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	w := &slowReader{header: make(http.Header)}
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler {
				t.Errorf("the handler ended with %v, want that it breaks the connection", v)
			}
		}()
		direct(chatBody("m", "hi", 3000, true), w)
	}()
	if left := time.Until(w.until); left <= 0 || left > stuckLimit {
		t.Errorf("the write that stood had until %v, which is in %s; want at most %s", w.until, left, stuckLimit)
	}
	e.quiet([]*llamasim.Server{sim})
	e.wantFree()
	if got := scrape(t, e)[`slotfleet_requests_total{model="m",outcome="cancelled",reason="cancelled"}`]; got != 1 {
		t.Errorf("%v requests are counted as cancelled, want 1", got)
	}
}

// testKilled: an edge that is killed leaves its nodes free.
func (b *binary) testKilled(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 2, Decode: 50, Prefill: 200})
	e := &edge{
		t: t, URL: "http://" + freeAddr(t), Admin: "http://" + freeAddr(t),
		Client: &http.Client{Transport: new(http.Transport), Timeout: 30 * time.Second},
	}
	defer e.Client.CloseIdleConnections()
	config := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(config, []byte(e.caddyfile(nodes("", sim), "fleet")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := b.start(t, nil, "run", "--config", config, "--adapter", "caddyfile")
	e.ready()
	var asked sync.WaitGroup
	for _, body := range []string{
		chatBody("m", "hi", 3000, true),                            // streaming
		chatBody("m", strings.Repeat("word ", 2000), 3000, false),  // reading a prompt
		chatBody("m", strings.Repeat("other ", 2000), 3000, false), // waiting in the edge
	} {
		asked.Go(func() { e.post("/v1/chat/completions", body) })
	}
	await(t, "both slots to be taken", func() bool { return sim.Stats().Active == 2 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	asked.Wait()
	await(t, "the server to be free", func() bool { s := sim.Stats(); return s.Active+s.Queued == 0 })
	if got := sim.Stats(); got.Cancelled != 2 || got.Requests != 2 {
		t.Errorf("the server got %d requests and saw %d clients leave, want 2 and 2", got.Requests, got.Cancelled)
	}
}
