package caddymodule

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// direct has the app in force answer a chat, with a writer of the test's own.
func direct(body string, w http.ResponseWriter) {
	h := &Handler{
		app:         currentState().apps.last(),
		MaxBody:     defaultMaxBody,
		ReadTimeout: caddy.Duration(defaultReadTimeout),
		logger:      slog.New(slog.DiscardHandler),
	}
	_ = h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body)), nil)
}

// brokenWriter is one that cannot write.
type brokenWriter struct {
	header http.Header
	panics bool
}

func (w *brokenWriter) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

func (w *brokenWriter) WriteHeader(int) {}

func (w *brokenWriter) Write([]byte) (int, error) {
	if w.panics {
		panic("the writer broke")
	}
	return 0, errors.New("the writer broke")
}

func TestWhatBecameOfRequests(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	// What ran before, in another test, may count here until it ends.
	await(t, "what ran before to end", func() bool { return lanesHeld(e) == "" })
	before := scrape(t, e)
	counts := func(series string, want float64) {
		t.Helper()
		if got := scrape(t, e)[series] - before[series]; got != want {
			t.Errorf("%s: got %v more, want %v", series, got, want)
		}
		if held := lanesHeld(e); held != "" {
			t.Error(held)
		}
	}
	direct(chatBody("m", "hi", 3, false), &brokenWriter{})
	counts(`slotfleet_requests_total{model="m",outcome="cancelled",reason="cancelled"}`, 1)
	counts(`slotfleet_requests_total{model="m",outcome="whole",reason=""}`, 0)

	for _, stream := range []bool{false, true} {
		func() {
			defer func() {
				if v := recover(); v != "the writer broke" {
					t.Errorf("got the panic %v, want that of the writer", v)
				}
			}()
			direct(chatBody("m", "hi", 3, stream), &brokenWriter{panics: true})
		}()
	}
	counts(`slotfleet_requests_total{model="m",outcome="broken",reason="internal"}`, 2)
	counts(`slotfleet_request_duration_seconds{model="m",outcome="broken"}`, 2)
}
