package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// What the tests of this package share: a real Caddy in this process, stand-in
// servers behind it, and clients that read as real ones do. There is one Caddy in a
// process, so none of these tests is parallel.

// edge is a running Caddy with one site. Tests change its configuration with load.
type edge struct {
	t testing.TB

	URL   string // of the site
	Admin string // of the admin API

	Client *http.Client
}

// startEdge runs Caddy with these global options and this content of its site until
// the test ends. It does not wait until nodes were found; see (*edge).ready.
func startEdge(t testing.TB, global, site string) *edge {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	e := &edge{
		t:      t,
		URL:    "http://" + freeAddr(t),
		Admin:  "http://" + freeAddr(t),
		Client: &http.Client{Transport: transport, Timeout: 30 * time.Second},
	}
	if err := e.load(global, site); err != nil {
		t.Fatalf("starting Caddy: %v", err)
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := caddy.Stop(); err != nil {
			t.Errorf("stopping Caddy: %v", err)
		}
	})
	return e
}

// load replaces the configuration, as `caddy reload --force` does. It returns when
// the site's old listener is gone: connections in its queue are reset, by Caddy's
// design, and would be no finding of ours.
func (e *edge) load(global, site string) error {
	e.t.Helper()
	config, err := adapt(e.caddyfile(global, site))
	if err != nil {
		return err
	}
	if err := caddy.Load(config, true); err != nil {
		return err
	}
	await(e.t, "the old listener to go", func() bool { return listeners(e.t, e.URL) <= 1 })
	// The old server closes its idle connections, and no client sends a POST again that
	// met one just then.
	e.Client.CloseIdleConnections()
	return nil
}

// listeners counts the sockets that listen on the port of a URL; 0 where the system
// does not tell.
func listeners(t testing.TB, url string) int {
	t.Helper()
	_, addr, _ := strings.Cut(url, "://")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	table, _ := os.ReadFile("/proc/net/tcp")
	const listening = " 00000000:0000 0A "
	return strings.Count(string(table), fmt.Sprintf(":%04X%s", n, listening))
}

// caddyfile writes the whole configuration.
func (e *edge) caddyfile(global, site string) string {
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https off
	log {
		output discard
	}
	%s
}
%s {
	%s
}
`, strings.TrimPrefix(e.Admin, "http://"), global, e.URL, site)
}

// adapt makes JSON of a Caddyfile.
func adapt(caddyfile string) ([]byte, error) {
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	return config, err
}

// ready waits until a model is served.
func (e *edge) ready() {
	e.t.Helper()
	var health, nodes answer
	e.t.Cleanup(func() {
		if health.Status != http.StatusOK {
			e.t.Logf("not ready: health %+v, nodes %s", health, nodes.Body)
		}
	})
	await(e.t, "a model to be ready", func() bool {
		health, nodes = e.get(e.URL+"/health"), e.get(e.Admin+"/fleet/nodes")
		return health.Status == http.StatusOK
	})
}

// answer is a response, read to its end.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Err    error // what cut the body off; nil: it is whole
}

// get asks with GET, again if nobody answers: the admin listener is replaced with
// each configuration, too.
func (e *edge) get(url string) answer {
	e.t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	a := e.do(r)
	for try := 1; try < 3 && a.Status == 0; try++ {
		a = e.do(r)
	}
	return a
}

// post sends a body to a path of the site.
func (e *edge) post(path, body string) answer {
	e.t.Helper()
	return e.do(e.request(context.Background(), path, strings.NewReader(body)))
}

// request makes a POST to a path of the site.
func (e *edge) request(ctx context.Context, path string, body io.Reader) *http.Request {
	e.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+path, body)
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

// do sends a request and reads the answer. A request that has no answer at all has
// status 0 and the error.
func (e *edge) do(r *http.Request) answer {
	resp, err := e.Client.Do(r)
	if err != nil {
		return answer{Err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), err}
}

// chatBody is a request for a chat answer of so many tokens.
func chatBody(model, prompt string, tokens int, stream bool) string {
	body, _ := json.Marshal(map[string]any{
		"model":       model,
		"messages":    []any{map[string]string{"role": "user", "content": prompt}},
		"max_tokens":  tokens,
		"stream":      stream,
		"temperature": 0,
	})
	return string(body)
}

// streamed is what a client read of a stream.
type streamed struct {
	Text   string   // content and reasoning
	IDs    []string // the different ids of its chunks
	Chunks int
	Done   int    // how many [DONE] came
	Finish string // the finish reason
	Error  string // the error event
	Err    error  // what cut the stream off
}

// readStream reads the events of an answer. each, if not nil, is called after each
// chunk with the number of those so far.
func readStream(r io.Reader, each func(chunks int)) streamed {
	var s streamed
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			s.Done++
			continue
		}
		s.take(data)
		if each != nil {
			each(s.Chunks)
		}
	}
	s.Err = lines.Err()
	return s
}

func (s *streamed) take(data string) {
	var c struct {
		ID      string `json:"id"`
		Choices []struct {
			Delta struct {
				Content   string `json:"content"`
				Reasoning string `json:"reasoning_content"`
			} `json:"delta"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		s.Error = "not JSON: " + data
		return
	}
	if c.Error != nil {
		s.Error = string(c.Error)
		return
	}
	s.Chunks++
	if len(s.IDs) == 0 || s.IDs[len(s.IDs)-1] != c.ID {
		s.IDs = append(s.IDs, c.ID)
	}
	for _, choice := range c.Choices {
		s.Text += choice.Delta.Reasoning + choice.Delta.Content
		if choice.Finish != "" {
			s.Finish = choice.Finish
		}
	}
}

// whole says what is wrong with a stream that should have come to its end; empty:
// nothing.
func (s streamed) whole() string {
	switch {
	case s.Err != nil:
		return "cut off: " + s.Err.Error()
	case s.Error != "":
		return "error event: " + s.Error
	case s.Done != 1:
		return fmt.Sprintf("got %d [DONE], want 1", s.Done)
	case s.Finish == "":
		return "no finish reason"
	case len(s.IDs) != 1:
		return fmt.Sprintf("got ids %q, want one", s.IDs)
	}
	return ""
}

// startSim runs a stand-in server until the test ends.
func startSim(t testing.TB, o llamasim.Options) *llamasim.Server {
	t.Helper()
	s, err := llamasim.Start(o)
	if err != nil {
		t.Fatalf("starting a stand-in: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// nodes writes the global option for these servers, named a, b, c and so on. more is
// put into the block.
func nodes(more string, sims ...*llamasim.Server) string {
	var b strings.Builder
	b.WriteString("fleet {\n")
	for i, s := range sims {
		fmt.Fprintf(&b, "\t\tnode %c %s\n", 'a'+i, s.URL())
	}
	fmt.Fprintf(&b, "\t\t%s\n\t}", more)
	return b.String()
}

// freeAddr finds a port of the loopback that nothing listens on. It is below those
// that systems give away by themselves: Caddy shares a port with whoever has it.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no free port in 100 tries")
	return ""
}

// await waits until ok holds.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-deadline.C:
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

// openLog makes a log file for a stand-in.
func openLog(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// decode reads JSON into v.
func decode(t testing.TB, body string, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(body)))
	if err := d.Decode(v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}
