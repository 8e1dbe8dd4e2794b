package llamasim

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestFullPoolFailsEveryGeneration runs two that together need more than there is.
func TestFullPoolFailsEveryGeneration(t *testing.T) {
	log := &logBuffer{}
	s := start(t, Options{KVUnified: true, Context: 300, Decode: 2000, Log: log})
	var wg sync.WaitGroup
	for _, text := range []string{"one", "two"} {
		wg.Go(func() {
			st := ask(t, s, chatPath, dict{"messages": user(text), "ignore_eos": true})
			last := st.events[len(st.events)-1]
			if last.Error == nil || last.Error.Message != "Context size has been exceeded." || st.done || st.err != nil {
				t.Errorf("%s: got %+v, done %v, %v, want the error and a clean end", text, last, st.done, st.err)
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Active != 0 {
		t.Errorf("%d slots are taken", st.Active)
	}
	if st := ask(t, s, chatPath, dict{"messages": user("alone"), "max_tokens": 100}); !st.done {
		t.Error("one alone has no room")
	}
	_ = s.Close() // writes the log out
	if got := strings.Count(strings.Join(log.lines(), "\n"), "error: Context size has been exceeded."); got != 2 {
		t.Errorf("%d tasks failed, want 2", got)
	}
}

// TestOneAloneHasTheWholePool: idle slots make room.
func TestOneAloneHasTheWholePool(t *testing.T) {
	for name, ram := range map[string]int{"kept in memory": 0, "purged": -1} {
		t.Run(name, func(t *testing.T) {
			log := &logBuffer{}
			s := start(t, Options{KVUnified: true, Context: 300, CacheRAM: ram, Log: log})
			for range 2 {
				ask(t, s, "/completion", dict{"prompt": "Once" + name, "n_predict": 150, "ignore_eos": true})
				st := ask(t, s, "/completion", dict{"prompt": strings.Repeat(" fox", 100), "n_predict": 150, "ignore_eos": true})
				if !st.events[len(st.events)-1].Stop {
					t.Errorf("got %+v", st.events[len(st.events)-1])
				}
			}
			_ = s.Close() // writes the log out
			if got := strings.Contains(strings.Join(log.lines(), "\n"), "try_clear_id: purging slot"); got != (ram < 0) {
				t.Errorf("a slot was purged: %v", got)
			}
		})
	}
}

// TestPromptsComeBackFromMemory takes turns between more conversations than slots.
func TestPromptsComeBackFromMemory(t *testing.T) {
	for name, c := range map[string]struct {
		ram  int
		want bool
	}{"on": {0, true}, "off": {-1, false}, "too small": {10, false}} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Options{Slots: 1, CacheRAM: c.ram})
			texts := []string{strings.Repeat("alpha beta. ", 30), strings.Repeat("gamma delta. ", 30), strings.Repeat("red green. ", 30)}
			for range 2 {
				for _, text := range texts {
					ask(t, s, "/v1/completions", dict{"prompt": text, "max_tokens": 3})
				}
			}
			st := ask(t, s, "/v1/completions", dict{"prompt": texts[0], "max_tokens": 3})
			if got := cachedOf(st) > 50; got != c.want {
				t.Errorf("%d tokens were cached", cachedOf(st))
			}
			pinned := ask(t, s, "/v1/completions", dict{"prompt": texts[1], "max_tokens": 3, "id_slot": 0})
			if got := cachedOf(pinned); got > 1 {
				t.Errorf("a pinned request found %d tokens: the memory is not for it", got)
			}
		})
	}
}

func TestClosedRoutesSayWhatOpensThem(t *testing.T) {
	s := start(t, Options{NoSlots: true, NoMetrics: true})
	for path, want := range map[string]string{"/slots": "Start it with `--slots`", "/metrics": "Start it with `--metrics`"} {
		resp := get1(t, s.URL()+path)
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusNotImplemented || !strings.Contains(string(b), want) {
			t.Errorf("%s: got %d %s, want 501 %s", path, resp.StatusCode, b, want)
		}
	}
}

func TestAnyOfSeveralKeysOpens(t *testing.T) {
	s := start(t, Options{APIKey: "one,two"})
	for key, want := range map[string]int{"one": 200, "two": 200, "one,two": 401, "": 401} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/v1/models", nil)
		req.Header.Set("X-Api-Key", key)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("key %q: got %d, want %d", key, resp.StatusCode, want)
		}
	}
}
