package llamasim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

var faultBody = dict{"messages": user(question), "stream": true, "max_tokens": 50, "timings_per_token": true}

// broken streams a request that a fault hits at token 10.
func broken(t *testing.T, kind FaultKind) (st, whole *stream) {
	t.Helper()
	s := start(t, Options{})
	whole = ask(t, s, chatPath, faultBody)
	s.SetFault(Fault{Kind: kind, Token: 10, Times: 1})
	st = ask(t, s, chatPath, faultBody)
	if st.done || st.finish != "" {
		t.Fatalf("the stream came to its end: finish %q", st.finish)
	}
	if st.content == "" || !strings.HasPrefix(whole.content, st.content) {
		t.Fatalf("text %q is not the beginning of %q", st.content, whole.content)
	}
	if n := st.events[len(st.events)-1].Timings; kind != FaultError && kind != FaultKVFull && n.PredictedN > 10 {
		t.Fatalf("%d tokens came before the fault at 10", n.PredictedN)
	}
	if again := ask(t, s, chatPath, faultBody); again.content != whole.content {
		t.Errorf("the next request is hit, too: %q", again.content)
	}
	if active, _ := s.instance().load(); active != 0 {
		t.Errorf("%d slots are still taken", active)
	}
	return st, whole
}

func TestFaultResetResets(t *testing.T) {
	if st, _ := broken(t, FaultReset); !errors.Is(st.err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset connection", st.err)
	}
}

func TestFaultFinEndsWithoutTerminator(t *testing.T) {
	if st, _ := broken(t, FaultFin); !errors.Is(st.err, io.ErrUnexpectedEOF) || st.rest != "" {
		t.Errorf("got %v after %q, want an unexpected EOF between events", st.err, st.rest)
	}
}

func TestFaultCutEndsInsideAnEvent(t *testing.T) {
	st, _ := broken(t, FaultCut)
	if !errors.Is(st.err, io.ErrUnexpectedEOF) || !strings.HasPrefix(st.rest, "data: {") {
		t.Errorf("got %v after %q, want an unexpected EOF inside an event", st.err, st.rest)
	}
}

func TestFaultCleanEOFLooksLikeAnEnd(t *testing.T) {
	if st, _ := broken(t, FaultCleanEOF); st.err != nil || st.rest != "" {
		t.Errorf("got %v after %q, want a clean end", st.err, st.rest)
	}
}

func TestFaultGarbageIsNoEvent(t *testing.T) {
	if st, _ := broken(t, FaultGarbage); st.err != nil || st.rest != routerTail {
		t.Errorf("got %q, %v, want %q and a clean end", st.rest, st.err, routerTail)
	}
}

func TestFaultErrorIsAnEvent(t *testing.T) {
	for kind, want := range map[FaultKind]string{FaultError: "Compute error.", FaultKVFull: "Context size has been exceeded."} {
		st, _ := broken(t, kind)
		e := st.events[len(st.events)-1].Error
		if st.err != nil || e == nil || e.Code != 500 || e.Message != want {
			t.Errorf("%s: got %+v, %v, want the event and a clean end", kind, e, st.err)
		}
	}
}

func TestFaultBeforeTheFirstTokenIsAStatus(t *testing.T) {
	s := start(t, Options{})
	for kind, want := range map[FaultKind]string{
		FaultError: "Compute error.", FaultKVFull: "Context size has been exceeded.", FaultStatus: "server_error",
	} {
		s.SetFault(Fault{Kind: kind, Times: 1})
		resp := post(t.Context(), t, s.URL()+chatPath, js(t, faultBody))
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusInternalServerError || !strings.Contains(string(b), want) {
			t.Errorf("%s: got %d %s, want 500 %s", kind, resp.StatusCode, b, want)
		}
	}
}

func TestFaultsBreakOneBody(t *testing.T) {
	s := start(t, Options{})
	body := js(t, dict{"messages": user("hi")})
	for _, kind := range []FaultKind{FaultReset, FaultFin, FaultCut} {
		s.SetFault(Fault{Kind: kind, Token: 3, Times: 1})
		resp, err := client.Post(s.URL()+chatPath, "application/json", strings.NewReader(body))
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: a whole answer came", kind)
		}
	}
	for _, kind := range []FaultKind{FaultError, FaultGarbage} {
		s.SetFault(Fault{Kind: kind, Token: 3, Times: 1})
		if resp := post(t.Context(), t, s.URL()+chatPath, body); resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("%s: got %d, want 500", kind, resp.StatusCode)
		}
	}
}

func TestFaultHangLastsUntilTheClientGoes(t *testing.T) {
	log := newLines()
	s := start(t, Options{Log: log, Ping: time.Millisecond})
	s.SetFault(Fault{Kind: FaultHang, Token: 5, Times: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp := post(ctx, t, s.URL()+chatPath, js(t, faultBody))
	n := 0
	st := read(t, resp, func(event) bool {
		n++
		if n == 2 {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		return true
	})
	if !errors.Is(st.err, context.Canceled) || st.finish != "" || st.comments > 0 {
		t.Errorf("got %v, finish %q, %d pings, want silence until the cancel", st.err, st.finish, st.comments)
	}
	log.await(t, "cancel task")
	log.await(t, "stop processing")
	if got := s.Stats().Faults; got != 1 {
		t.Errorf("%d faults struck, want 1", got)
	}
	if got := s.Stats().Cancelled; got != 1 {
		t.Errorf("cancelled: got %d, want 1", got)
	}
}

func TestFaultLoadingHitsEveryRoute(t *testing.T) {
	s := start(t, Options{})
	s.SetFault(Fault{Kind: FaultLoading})
	for _, path := range []string{"/health", "/v1/models", "/slots"} {
		resp := get1(t, s.URL()+path)
		b, _ := io.ReadAll(resp.Body)
		want := `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`
		if resp.StatusCode != http.StatusServiceUnavailable || string(b) != want {
			t.Errorf("%s: got %d %s, want 503 %s", path, resp.StatusCode, b, want)
		}
	}
	s.SetFault(Fault{})
	if resp := get1(t, s.URL()+"/health"); resp.StatusCode != http.StatusOK {
		t.Errorf("after it: got %d, want 200", resp.StatusCode)
	}
}

func get1(t *testing.T, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestFaultRefuseSparesRunningStreams(t *testing.T) {
	s := start(t, Options{Decode: 500})
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, faultBody))
	refused := false
	st := read(t, resp, func(event) bool {
		if !refused {
			refused = true
			s.SetFault(Fault{Kind: FaultRefuse})
			_, err := net.Dial("tcp", s.Addr())
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial: got %v, want refused", err)
			}
		}
		return true
	})
	if !st.done {
		t.Errorf("the running stream was broken: %v", st.err)
	}
	s.SetFault(Fault{})
	ask(t, s, chatPath, faultBody)
}

func TestFaultSlowDelaysEachToken(t *testing.T) {
	s := start(t, Options{Ping: 5 * time.Millisecond})
	s.SetFault(Fault{Kind: FaultSlow, Delay: 20 * time.Millisecond, Times: 1})
	began := time.Now()
	st := ask(t, s, chatPath, dict{"messages": user("hi"), "max_tokens": 6})
	if spent := time.Since(began); spent < 120*time.Millisecond || st.comments == 0 || !st.done {
		t.Errorf("6 tokens took %v with %d pings, want 120ms or more, with some", spent, st.comments)
	}
}

func TestFaultsOverHTTP(t *testing.T) {
	s := start(t, Options{})
	resp := post(t.Context(), t, s.URL()+"/sim/fault", `{"kind":"clean_eof","token":5,"times":1}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d", resp.StatusCode)
	}
	if st := ask(t, s, chatPath, faultBody); st.done || st.finish != "" {
		t.Error("the fault did not come")
	}
	if resp := post(t.Context(), t, s.URL()+"/sim/fault", `{"kind":"nope"}`); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown kind: got %d, want 400", resp.StatusCode)
	}
	var stats Stats
	if err := json.NewDecoder(get1(t, s.URL()+"/sim/stats").Body).Decode(&stats); err != nil || stats.Requests != 1 {
		t.Errorf("stats: got %+v, %v, want 1 request", stats, err)
	}
	if resp := post(t.Context(), t, s.URL()+"/sim/kill", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("kill: got %d, want 200", resp.StatusCode)
	}
	<-s.instance().gone
	if _, err := net.Dial("tcp", s.Addr()); err == nil {
		t.Error("it still listens after the kill")
	}
}

func TestKillResetsAndRestartIsEmpty(t *testing.T) {
	s := start(t, Options{Decode: 200})
	body := dict{"messages": user(question), "stream": true}
	resp := post(t.Context(), t, s.URL()+chatPath, js(t, body))
	n := 0
	st := read(t, resp, func(event) bool {
		if n++; n == 4 {
			s.Kill()
			s.Kill()
		}
		return true
	})
	if !errors.Is(st.err, syscall.ECONNRESET) {
		t.Errorf("stream: got %v, want a reset", st.err)
	}
	addr := s.Addr()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr {
		t.Errorf("address: got %s, want %s", s.Addr(), addr)
	}
	if err := s.Restart(); err == nil {
		t.Error("a running server restarted")
	}
	again := ask(t, s, chatPath, dict{"messages": user(question), "max_tokens": 1})
	if got := again.events[len(again.events)-1].Timings.CacheN; got != 0 {
		t.Errorf("%d tokens survived the kill", got)
	}
}

func TestFaultsHitTheirPath(t *testing.T) {
	s := start(t, Options{Embeddings: true})
	s.SetFaults(
		Fault{Kind: FaultStatus, Path: "/v1/embeddings", Times: 1},
		Fault{Kind: FaultLoading, Path: "/health", Times: 1},
		Fault{Kind: FaultReset, Path: "/props", Times: 1},
		Fault{Kind: FaultCut, Path: "/tokenize", Times: 1},
		Fault{Kind: FaultGarbage, Path: "/v1/models", Times: 1},
		Fault{Kind: FaultFin, Path: "/v1/completions", Token: 3, Times: 1},
	)
	whole := ask(t, s, chatPath, faultBody)
	if !whole.done {
		t.Error("a path without a fault was hit")
	}
	if st := ask(t, s, "/v1/completions", dict{"prompt": "x"}); st.done {
		t.Error("/v1/completions was not hit")
	}
	for _, c := range []struct {
		method, path, body string
		status             int // 0: no whole answer
	}{
		{"POST", "/v1/embeddings", `{"input":"x"}`, 500},
		{"GET", "/health", "", 503},
		{"GET", "/props", "", 0},
		{"POST", "/tokenize", `{"content":"x"}`, 0},
		{"GET", "/v1/models", "", 500},
	} {
		for try, want := range []int{c.status, http.StatusOK} {
			req, _ := http.NewRequestWithContext(t.Context(), c.method, s.URL()+c.path, strings.NewReader(c.body))
			got := 0
			if resp, err := client.Do(req); err == nil {
				got = resp.StatusCode
				if _, err := io.ReadAll(resp.Body); err != nil {
					got = 0
				}
				_ = resp.Body.Close()
			}
			if got != want {
				t.Errorf("%s, time %d: got %d, want %d", c.path, try+1, got, want)
			}
		}
	}
}

func TestFaultHangOfOneRoute(t *testing.T) {
	s := start(t, Options{})
	s.SetFault(Fault{Kind: FaultHang, Path: "/slots"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/slots", nil)
		_, err := client.Do(req)
		hung <- err
	}()
	for range 20 {
		if got := get1(t, s.URL()+"/health").StatusCode; got != http.StatusOK {
			t.Fatalf("/health: got %d", got)
		}
	}
	select {
	case err := <-hung:
		t.Errorf("/slots answered: %v", err)
	default:
	}
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestFaultCrashBeginsANewLife: caches empty, the log from its start, at the same address.
func TestFaultCrashBeginsANewLife(t *testing.T) {
	log := &logBuffer{}
	s := start(t, Options{Log: log})
	whole := ask(t, s, chatPath, faultBody)
	s.SetFault(Fault{Kind: FaultCrash, Token: 10, Times: 1, Delay: 10 * time.Millisecond})
	st := ask(t, s, chatPath, faultBody)
	if !errors.Is(st.err, syscall.ECONNRESET) || !strings.HasPrefix(whole.content, st.content) {
		t.Errorf("got %v after %q, want a reset", st.err, st.content)
	}
	eventually(t, "it is back", func() bool {
		nc, err := net.Dial("tcp", s.Addr())
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	})
	again := ask(t, s, chatPath, faultBody)
	if got := again.events[len(again.events)-1].Timings.CacheN; again.content != whole.content || got != 0 {
		t.Errorf("got %q with %d tokens cached, want %q with none", again.content, got, whole.content)
	}
	_ = s.Close() // writes the log out
	if got := strings.Count(strings.Join(log.lines(), "\n"), "common_params_print_info"); got != 2 {
		t.Errorf("the log began %d times, want 2", got)
	}
}

func TestFaultCrashWithoutReturn(t *testing.T) {
	s := start(t, Options{})
	s.SetFault(Fault{Kind: FaultCrash, Path: "/health", Times: 1})
	if resp, err := client.Get(s.URL() + "/health"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("it answered: %s", resp.Status)
	}
	<-s.instance().gone
	if _, err := net.Dial("tcp", s.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: got %v, want refused", err)
	}
}

func TestFaultGarbleIsOneBadEvent(t *testing.T) {
	s := start(t, Options{})
	clean, _ := io.ReadAll(post(t.Context(), t, s.URL()+chatPath, js(t, faultBody)).Body)
	s.SetFault(Fault{Kind: FaultGarble, Token: 5})
	b, err := io.ReadAll(post(t.Context(), t, s.URL()+chatPath, js(t, faultBody)).Body)
	bad := 0
	for e := range strings.SplitSeq(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		if data := strings.TrimPrefix(e, "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
			bad++
		}
	}
	if err != nil || bad != 1 || strings.Count(string(b), "\n\n") != strings.Count(string(clean), "\n\n")+1 || !strings.HasSuffix(string(b), "[DONE]\n\n") {
		t.Errorf("got %d bad events, %v, in %s", bad, err, b)
	}
}
