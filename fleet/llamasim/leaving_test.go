package llamasim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// leaver sends a request that is no stream and leaves when left is called.
func leaver(t *testing.T, s *Server, body dict) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+chatPath, strings.NewReader(js(t, body)))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("an answer came")
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// busy sees to it that a server had results all the time, for longer than it takes
// for one without any to look after its clients.
type busy struct {
	began, last time.Time
	still       bool // the machine stood still meanwhile, so that it was not
}

func newBusy() *busy { return &busy{began: time.Now(), last: time.Now()} }

// result notes one; false: no more are needed.
func (b *busy) result() bool {
	now := time.Now()
	b.still = b.still || now.Sub(b.last) > unheard/2
	b.last = now
	return !b.still && now.Sub(b.began) < 3*unheard/2
}

// whileBusy has try run against a server of its own until one was busy all the time.
func whileBusy(t *testing.T, try func(t *testing.T, s *Server) *busy) {
	t.Helper()
	for range 20 {
		if !try(t, start(t, Options{Decode: 100, Context: 100_000})).still {
			return
		}
	}
	t.Fatal("the machine stood still in each of 20 tries: nothing can be said of a busy server")
}

// TestBusyServerWorksForNobody: while somebody gets results, the client of one body
// that left is not missed (section 3.5).
func TestBusyServerWorksForNobody(t *testing.T) { whileBusy(t, busyWorksForNobody) }

func busyWorksForNobody(t *testing.T, s *Server) *busy {
	hold, let := context.WithCancel(t.Context())
	defer let()
	endless := dict{"messages": user("hi"), "stream": true, "ignore_eos": true}
	resp := post(hold, t, s.URL()+chatPath, js(t, endless))
	leave := leaver(t, s, dict{"messages": user("yo"), "ignore_eos": true})
	eventually(t, "both run", func() bool { return s.Stats().Active == 2 })
	leave()
	busy := newBusy()
	read(t, resp, func(event) bool { return busy.result() })
	if busy.still {
		return busy
	}
	if got := s.Stats(); got.Active != 2 || got.Cancelled != 0 {
		t.Errorf("got %+v, want both at work", got)
	}
	// Left alone it looks.
	let()
	eventually(t, "nobody works", func() bool { return s.Stats().Active == 0 })
	if got := s.Stats().Cancelled; got != 2 {
		t.Errorf("cancelled: got %d, want 2", got)
	}
	return busy
}

// TestPollingHidesThatAClientLeft: /slots is a result like any other.
func TestPollingHidesThatAClientLeft(t *testing.T) { whileBusy(t, pollingHidesThatAClientLeft) }

func pollingHidesThatAClientLeft(t *testing.T, s *Server) *busy {
	leave := leaver(t, s, dict{"messages": user("yo"), "ignore_eos": true})
	eventually(t, "it runs", func() bool { return s.Stats().Active == 1 })
	leave()
	busy := newBusy()
	for busy.result() {
		get1(t, s.URL()+"/slots")
	}
	if busy.still {
		return busy
	}
	if got := s.Stats(); got.Active != 1 {
		t.Errorf("got %+v, want it at work", got)
	}
	eventually(t, "it is noticed", func() bool { return s.Stats().Active == 0 })
	return busy
}

// TestQuietServerEmptiesItsQueue: with no results for anybody one that left the
// queue is found out.
func TestQuietServerEmptiesItsQueue(t *testing.T) {
	s := start(t, Options{Slots: 1, Prefill: 1})
	stay := leaver(t, s, dict{"messages": user("a prompt that takes its time to read")})
	eventually(t, "one runs", func() bool { return s.Stats().Active == 1 })
	leave := leaver(t, s, dict{"messages": user("yo")})
	queued(t, s, 1)
	leave()
	eventually(t, "the queue is empty", func() bool { return s.Stats().Queued == 0 })
	if got := s.Stats().Active; got != 1 {
		t.Errorf("active: got %d, want 1", got)
	}
	stay()
	eventually(t, "nobody works", func() bool { return s.Stats().Active == 0 })
}

// TestTerminatedServerFallsSilentFirst (P41).
func TestTerminatedServerFallsSilentFirst(t *testing.T) {
	s := start(t, Options{Decode: 200})
	body := dict{"messages": user(question), "stream": true, "ignore_eos": true, "sse_ping_interval": 1}
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, body))
	var wg sync.WaitGroup
	defer wg.Wait()
	var last time.Time
	ended := false
	st := read(t, resp, func(event) bool {
		last = time.Now()
		if !ended {
			ended = true
			wg.Go(s.Terminate)
		}
		return true
	})
	if silent := time.Since(last); !errors.Is(st.err, io.ErrUnexpectedEOF) || st.comments > 0 || silent < 500*time.Millisecond {
		t.Errorf("got %v after %v of silence with %d pings, want an end without terminator when a ping is due", st.err, silent, st.comments)
	}
	if _, err := net.Dial("tcp", s.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: got %v, want refused", err)
	}
	wg.Wait()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	ask(t, s, chatPath, dict{"messages": user("hi"), "max_tokens": 2})
}
