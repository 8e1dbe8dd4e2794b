package llamasim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUsageAddsUp(t *testing.T) {
	s := start(t, Options{})
	st := ask(t, s, chatPath, dict{
		"messages": user(question), "stream_options": dict{"include_usage": true}, "timings_per_token": true,
	})
	last := st.events[len(st.events)-1]
	u, tm := last.Usage, last.Timings
	if u == nil || u.Total != u.Prompt+u.Completion || u.Prompt != tm.CacheN+tm.PromptN || u.Completion != tm.PredictedN {
		t.Fatalf("usage %+v, timings %+v do not add up", u, tm)
	}
	before := 0
	for _, e := range st.events {
		if e.Timings != nil && e.Progress == nil {
			if e.Timings.PredictedN < before {
				t.Errorf("predicted_n went from %d to %d", before, e.Timings.PredictedN)
			}
			before = e.Timings.PredictedN
		}
	}
	if st.finish == "stop" && len(st.content) > 0 && u.Completion < 12 {
		t.Errorf("the answer ended after %d tokens", u.Completion)
	}
	if got := s.Stats(); got.Generated != u.Completion || got.Requests != 1 || len(s.LastBodies()) != 1 {
		t.Errorf("stats %+v, %d bodies, want %d tokens of 1 request", got, len(s.LastBodies()), u.Completion)
	}
}

func TestCacheGrowsWithTheConversation(t *testing.T) {
	s := start(t, Options{})
	messages := user(strings.Repeat("The quick brown fox. ", 20))
	cached := 0
	for turn := range 4 {
		st := ask(t, s, chatPath, dict{"messages": messages, "max_tokens": 10})
		tm := st.events[len(st.events)-1].Timings
		if turn > 0 && tm.CacheN <= cached {
			t.Errorf("turn %d: %d tokens cached, the turn before %d", turn, tm.CacheN, cached)
		}
		cached = tm.CacheN
		messages = append(messages, dict{"role": "assistant", "content": st.content}, dict{"role": "user", "content": "And then?"})
	}
	// Someone else's prompt takes the other slot.
	other := ask(t, s, chatPath, dict{"messages": []dict{{"role": "system", "content": "x"}}, "max_tokens": 3})
	if got := other.events[len(other.events)-1].Timings.CacheN; got > 3 {
		t.Errorf("another prompt found %d tokens cached", got)
	}
}

func TestProgressComesInBatches(t *testing.T) {
	s := start(t, Options{Context: 10000, Prefill: 100000})
	st := ask(t, s, chatPath, dict{
		"messages": user(strings.Repeat(" fox", 5000)), "max_tokens": 2, "return_progress": true,
	})
	var got []int
	for _, e := range st.events {
		if e.Progress != nil {
			got = append(got, e.Progress.Processed)
		}
	}
	total := st.events[0].Progress.Total
	if want := fmt.Sprint([]int{0, 2048, 4096, total}); fmt.Sprint(got) != want {
		t.Errorf("processed: got %v, want %v", got, want)
	}
}

// TestQueueIsFirstComeFirstServed starts requests one after another behind a slot
// that is held.
func TestQueueIsFirstComeFirstServed(t *testing.T) {
	s := start(t, Options{Slots: 1, Decode: 400})
	hold, let := context.WithCancel(t.Context())
	defer let()
	resp := post(hold, t, s.URL()+chatPath, js(t, dict{"messages": user("hold"), "stream": true, "ignore_eos": true}))
	read(t, resp, func(event) bool { return false })

	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			resp, err := client.Post(s.URL()+chatPath, "application/json",
				strings.NewReader(fmt.Sprintf(`{"messages":[{"role":"user","content":"q%d"}],"max_tokens":3,"stream":true}`, i)))
			if err != nil {
				t.Error(err)
				return
			}
			// Headers come when the slot starts, not before.
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			_, _ = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		})
		queued(t, s, i+1)
	}
	mu.Lock()
	if len(order) != 0 {
		t.Errorf("%v got headers with the slot held", order)
	}
	mu.Unlock()
	let()
	wg.Wait()
	if got := fmt.Sprint(order); got != "[0 1 2 3]" {
		t.Errorf("order: got %s", got)
	}
}

// queued waits until n requests wait for a slot.
func queued(t *testing.T, s *Server, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 20000 {
		if s.Stats().Queued == n {
			return
		}
		<-tick.C
	}
	t.Fatalf("queued: got %d, want %d", s.Stats().Queued, n)
}

func TestClientThatLeftTheQueueKeepsItsTurn(t *testing.T) {
	log := newLines()
	s := start(t, Options{Slots: 1, Decode: 400, Log: log})
	hold, let := context.WithCancel(t.Context())
	defer let()
	body := dict{"messages": user("hold"), "stream": true, "ignore_eos": true}
	read(t, post(hold, t, s.URL()+chatPath, js(t, body)), func(event) bool { return false })

	waiting, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		req, err := http.NewRequestWithContext(waiting, http.MethodPost, s.URL()+chatPath, strings.NewReader(js(t, body)))
		if err != nil {
			t.Error(err)
			return
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Error("the queued request was answered")
		}
	})
	queued(t, s, 1)
	leave()
	wg.Wait()
	if got := s.Stats().Queued; got != 1 {
		t.Errorf("queued after the client left: got %d, want 1", got)
	}
	let()
	log.await(t, "task 1 | processing task")
	log.await(t, "cancel task, id_task = 1")
	log.await(t, "task 1 | stop processing")
}

func TestCancelFreesTheSlot(t *testing.T) {
	log := newLines()
	s := start(t, Options{Slots: 1, Decode: 50, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	body := dict{"messages": user("hold"), "stream": true, "ignore_eos": true}
	read(t, post(ctx, t, s.URL()+chatPath, js(t, body)), func(e event) bool { return e.Choices[0].Delta.Content == "" })
	if resp := get1(t, s.URL()+"/slots?fail_on_no_slot=1"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("no slot: got %d, want 503", resp.StatusCode)
	}
	began := time.Now()
	cancel()
	log.await(t, "W srv          stop: cancel task, id_task = 0")
	log.await(t, "stop processing")
	if spent := time.Since(began); spent > 2*time.Second {
		t.Errorf("it took %v", spent)
	}
	ask(t, s, chatPath, dict{"messages": user("next"), "max_tokens": 2})
	if st := s.Stats(); st.Cancelled != 1 || st.Active != 0 {
		t.Errorf("stats: got %+v", st)
	}
}

func TestContextFullTruncates(t *testing.T) {
	s := start(t, Options{Context: 64})
	resp := post(t.Context(), t, s.URL()+"/completion", js(t, dict{"prompt": "Once", "ignore_eos": true}))
	var got struct {
		Truncated bool   `json:"truncated"`
		StopType  string `json:"stop_type"`
		Predicted int    `json:"tokens_predicted"`
		Evaluated int    `json:"tokens_evaluated"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if !got.Truncated || got.StopType != "limit" || got.Predicted+got.Evaluated != 64 {
		t.Errorf("got %+v, want 64 tokens in all, truncated", got)
	}
}

func TestContextShiftGoesOn(t *testing.T) {
	log := newLines()
	s := start(t, Options{Context: 64, ContextShift: true, Log: log})
	st := ask(t, s, "/completion", dict{"prompt": "Once", "ignore_eos": true, "n_predict": 200})
	if last := st.events[len(st.events)-1]; last.Timings.PredictedN != 200 {
		t.Errorf("got %d tokens, want 200", last.Timings.PredictedN)
	}
	log.await(t, "W slot   operator(): id  1 | task 0 | slot context shift, n_keep = 1, n_left = ")
	if line := log.await(t, "stop processing: n_tokens = "); !strings.HasSuffix(line, "truncated = 1\n") {
		t.Errorf("got %q, want it truncated", line)
	}
	// What it holds now is no longer what was asked.
	again := ask(t, s, "/completion", dict{"prompt": "Once", "ignore_eos": true, "n_predict": 200})
	if again.content != st.content {
		t.Error("the same prompt has another answer")
	}
}

func TestLimitsHaveAnOrder(t *testing.T) {
	s := start(t, Options{})
	st := ask(t, s, chatPath, dict{
		"messages": user("hi"), "max_tokens": 3, "max_completion_tokens": 5, "n_predict": 7,
		"stream_options": dict{"include_usage": true},
	})
	if got := st.events[len(st.events)-1].Usage.Completion; got != 7 || st.finish != "length" {
		t.Errorf("got %d tokens, finish %q, want the 7 of n_predict", got, st.finish)
	}
}

// TestStopStringIsNeverShown takes every piece of an answer as the stop string.
func TestStopStringIsNeverShown(t *testing.T) {
	s := start(t, Options{})
	whole := ask(t, s, "/v1/completions", dict{"prompt": "Once", "max_tokens": 80}).content
	for i := 4; i+3 < len(whole); i++ {
		stop := strings.ToValidUTF8(whole[i:i+3], "")
		if len(stop) != 3 {
			continue
		}
		want, _, _ := strings.Cut(whole, stop)
		got := ask(t, s, "/v1/completions", dict{"prompt": "Once", "max_tokens": 80, "stop": []string{"QQQ", stop}})
		if got.content != want || got.finish != "stop" {
			t.Fatalf("stop %q: got %q, finish %q, want %q", stop, got.content, got.finish, want)
		}
	}
}

// TestIdleConnectionIsDropped waits the five seconds that it takes.
func TestIdleConnectionIsDropped(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: an idle connection is dropped after five seconds")
	}
	t.Parallel()
	s := start(t, Options{})
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	_ = nc.SetDeadline(time.Now().Add(patience))
	began := time.Now()
	fmt.Fprint(nc, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	all, err := io.ReadAll(nc)
	if spent := time.Since(began); err != nil || !strings.HasSuffix(string(all), `{"status":"ok"}`) || spent < 4*time.Second {
		t.Errorf("got %q, %v after %v, want an answer and the end after 5s", all, err, spent)
	}
}

func TestStreamEndsItsConnection(t *testing.T) {
	s := start(t, Options{})
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	_ = nc.SetDeadline(time.Now().Add(patience))
	body := `{"prompt":"x","n_predict":2,"stream":true}`
	fmt.Fprintf(nc, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	all, err := io.ReadAll(nc)
	if err != nil || !strings.HasSuffix(string(all), "data: [DONE]\n\n\r\n0\r\n\r\n") || strings.Contains(string(all), "Connection: close") {
		t.Errorf("got %q, %v, want a stream, its end and the connection's, unannounced", all, err)
	}
}

func TestKeyIsAsked(t *testing.T) {
	s := start(t, Options{APIKey: "k"})
	for path, want := range map[string]int{"/health": 200, "/v1/models": 401, "/nope": 401} {
		if got := get1(t, s.URL()+path).StatusCode; got != want {
			t.Errorf("%s: got %d, want %d", path, got, want)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/v1/models", nil)
	req.Header.Set("Authorization", "Bearer k")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("with the key: got %d", resp.StatusCode)
	}
}

func TestCompressedBodyIsRefused(t *testing.T) {
	s := start(t, Options{})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+chatPath, strings.NewReader("x"))
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusUnsupportedMediaType || len(b) > 0 {
		t.Errorf("got %d %q, want 415 and nothing", resp.StatusCode, b)
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "192.0.2.1:80", "example.com:80"} {
		if s, err := Start(Options{Addr: addr}); err == nil {
			_ = s.Close()
			t.Errorf("it listened on %s", addr)
		}
	}
}
