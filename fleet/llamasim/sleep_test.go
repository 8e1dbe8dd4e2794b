package llamasim

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func asleep(t *testing.T, s *Server) bool {
	t.Helper()
	var props struct {
		Asleep bool `json:"is_sleeping"`
	}
	decode(t, get1(t, s.URL()+"/props"), &props)
	return props.Asleep
}

func cachedOf(st *stream) int { return st.events[len(st.events)-1].Timings.CacheN }

func TestSleeperForgetsAndWakes(t *testing.T) {
	log := newLines()
	s := start(t, Options{SleepIdle: 50 * time.Millisecond, Log: log})
	body := dict{"messages": user(question), "max_tokens": 4}
	ask(t, s, chatPath, body)
	if got := cachedOf(ask(t, s, chatPath, body)); got == 0 {
		t.Fatal("nothing was cached before the sleep")
	}
	log.await(t, "que    start_loop: entering sleeping state")
	log.await(t, "srv  handle_sleep: server is entering sleeping state")
	// These do not wake it.
	for _, path := range []string{"/health", "/v1/models", "/metrics"} {
		if got := get1(t, s.URL()+path).StatusCode; got != http.StatusOK {
			t.Errorf("%s of a sleeper: got %d", path, got)
		}
	}
	if !asleep(t, s) {
		t.Error("it woke for nothing")
	}
	if got := cachedOf(ask(t, s, chatPath, body)); got != 0 {
		t.Errorf("%d tokens survived the sleep", got)
	}
	log.await(t, "srv  handle_sleep: server is exiting sleeping state")
	log.await(t, "load_model: initializing")
	log.await(t, "processing task")
}

func TestEveryUseOfTheModelWakesIt(t *testing.T) {
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/slots", ""},
		{"POST", "/tokenize", `{"content":"x"}`},
		{"POST", "/apply-template", `{"messages":[]}`},
		{"POST", "/v1/completions", `{"prompt":"x","max_tokens":1}`},
	} {
		log := newLines()
		s := start(t, Options{SleepIdle: 20 * time.Millisecond, LoadTime: time.Millisecond, Log: log})
		log.await(t, "entering sleeping state")
		req, _ := http.NewRequestWithContext(t.Context(), c.method, s.URL()+c.path, strings.NewReader(c.body))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d", c.path, resp.StatusCode)
		}
		log.await(t, "exiting sleeping state")
	}
}

func TestLoadingServerAnswersThatItLoads(t *testing.T) {
	s := start(t, Options{LoadTime: time.Hour})
	for _, path := range []string{"/health", "/v1/models", "/slots"} {
		if got := get1(t, s.URL()+path).StatusCode; got != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d, want 503", path, got)
		}
	}
	ready := start(t, Options{LoadTime: 10 * time.Millisecond})
	eventually(t, "it is loaded", func() bool { return get1(t, ready.URL()+"/health").StatusCode == http.StatusOK })
}
