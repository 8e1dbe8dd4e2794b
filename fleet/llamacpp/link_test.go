package llamacpp

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is one exchange with a real server; see testdata/README.md.
type recorded struct {
	Name    string `json:"name"`
	Request struct {
		Method string `json:"method"`
		Path   string `json:"path"`
		Body   string `json:"body"`
	} `json:"request"`
	Response struct {
		Status  int               `json:"status"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	} `json:"response"`
}

func recordings(t testing.TB) []recorded {
	t.Helper()
	f, err := os.Open("testdata/http-0.4.0.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for d := json.NewDecoder(z); ; {
		var r recorded
		if err := d.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// streams are the recorded bodies of streams, by name.
func streams(t testing.TB) map[string]string {
	t.Helper()
	m := make(map[string]string)
	for _, r := range recordings(t) {
		if strings.HasPrefix(r.Response.Headers["content-type"], "text/event-stream") {
			m[r.Name] = r.Response.Body
		}
	}
	if len(m) < 10 {
		t.Fatalf("%d recorded streams, want at least 10", len(m))
	}
	return m
}

func newLink(t testing.TB, o Options) *Link {
	t.Helper()
	if o.Name == "" {
		o.Name = "n1"
	}
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close("the test ended") })
	return l
}

// serve is a server of the given handler that the test's end closes.
func serve(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// rawServer calls handle for each connection, counted from 0, with a reader of its
// requests. handle's return closes the connection.
type rawServer struct {
	addr string
	ln   net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func serveRaw(t testing.TB, handle func(n int, c net.Conn, r *bufio.Reader)) *rawServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{addr: ln.Addr().String(), ln: ln}
	s.wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.wg.Go(func() {
				defer c.Close()
				handle(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(s.close)
	return s
}

func (s *rawServer) url() string { return "http://" + s.addr }

func (s *rawServer) close() {
	_ = s.ln.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// request reads one request whole.
func request(r *bufio.Reader) (*http.Request, []byte, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(req.Body)
	return req, body, err
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

const lastChunk = "0\r\n\r\n"

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// heard collects what take got, copied.
type heard struct {
	mu     sync.Mutex
	events []fleet.Event
}

func (h *heard) take(e fleet.Event) error {
	e.Data = bytes.Clone(e.Data)
	if e.Timings != nil {
		t := *e.Timings
		e.Timings = &t
	}
	if e.Progress != nil {
		p := *e.Progress
		e.Progress = &p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
	return nil
}

func (h *heard) data() (all []string) {
	for _, e := range h.events {
		if e.Kind == fleet.EventData {
			all = append(all, string(e.Data))
		}
	}
	return all
}

func (h *heard) kinds() (all []fleet.EventKind) {
	for _, e := range h.events {
		all = append(all, e.Kind)
	}
	return all
}

var chat = fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(`{"stream":true}`)}

func wantLost(t *testing.T, err error, want fleet.Cause) *fleet.NodeLost {
	t.Helper()
	var lost *fleet.NodeLost
	if !errors.As(err, &lost) || lost.Cause != want {
		t.Fatalf("got error %v, want node lost: %s", err, want)
	}
	if lost.Node != "n1" {
		t.Errorf("got node %q in the error, want n1", lost.Node)
	}
	return lost
}

func wantRequestError(t *testing.T, err error, want fleet.Reason) *fleet.RequestError {
	t.Helper()
	var e *fleet.RequestError
	if !errors.As(err, &e) || e.Reason != want {
		t.Fatalf("got error %v, want request error %s", err, want)
	}
	return e
}

func TestNewSaysWhatIsWrongWithAURL(t *testing.T) {
	for _, tt := range []struct{ url, want string }{
		{"", "want http://"},
		{"localhost:8080", "want http://"},
		{"ftp://h", "want http://"},
		{"http://", "names no host"},
		{"http://h:80/?a=b", "only a path"},
		{"http://h/#x", "only a path"},
		{"http://u:secret@h", "set the key instead"},
		{"http://h:secret:1/%zz", "cannot be read"},
		{"unix/relative.sock", "whole path"},
		{"unix//", "whole path"},
	} {
		_, err := New(Options{Name: "gpu7", URL: tt.url})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "gpu7") {
			t.Errorf("New(%q): got %v, want an error of gpu7 with %q", tt.url, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): the error %v tells the password", tt.url, err)
		}
	}
	if _, err := New(Options{Name: "gpu7", URL: "http://h", Key: "k\n"}); err == nil {
		t.Error("a key with a line end was accepted")
	}
}

func TestHealthOnlyAsksHealth(t *testing.T) {
	var paths []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		fmt.Fprint(w, `{"status":"ok"}`)
	})
	l := newLink(t, Options{URL: s.URL + "/llama/"})
	r, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpHealth})
	if err != nil || r.Status != 200 {
		t.Fatalf("got %v, %v, want 200", r, err)
	}
	if !slices.Equal(paths, []string{"/llama/health"}) {
		t.Fatalf("asked %q, want the health path under the prefix only", paths)
	}
}

func TestHealthTellsHowANodeIsDown(t *testing.T) {
	t.Run("loading", func(t *testing.T) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`)
		})
		_, err := newLink(t, Options{URL: s.URL}).Call(t.Context(), fleet.Call{Op: fleet.OpHealth})
		wantLost(t, err, fleet.CauseLoading)
	})
	t.Run("refused", func(t *testing.T) {
		s := serveRaw(t, func(int, net.Conn, *bufio.Reader) {})
		s.close()
		_, err := newLink(t, Options{URL: s.url()}).Call(t.Context(), fleet.Call{Op: fleet.OpHealth})
		wantLost(t, err, fleet.CauseRefused)
	})
	t.Run("caller left", func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		_, err := newLink(t, Options{URL: "http://127.0.0.1:1"}).Call(ctx, fleet.Call{Op: fleet.OpHealth})
		if !errors.Is(err, gone) {
			t.Fatalf("got %v, want the cause of the context", err)
		}
	})
}

func TestUnknownOperationIsAnError(t *testing.T) {
	if _, err := newLink(t, Options{URL: "http://127.0.0.1:1"}).Call(t.Context(), fleet.Call{Op: 99}); err == nil {
		t.Fatal("got no error")
	}
}

func TestCloseEndsGenerationsAsLost(t *testing.T) {
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, streamHead)
		_, _ = r.ReadByte() // until the client goes
	})
	l := newLink(t, Options{URL: s.url()})
	err := l.Run(t.Context(), chat, func(fleet.Event) error { return l.Close("reload") })
	lost := wantLost(t, err, fleet.CauseClosed)
	if !strings.Contains(lost.Error(), "reload") {
		t.Errorf("got %v, want the reason in it", lost)
	}
	wantLost(t, l.Run(t.Context(), chat, func(fleet.Event) error { return nil }), fleet.CauseClosed)
}

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not happen within 10 s", what)
	}
}
