package llamasim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func routerOf(t *testing.T, o Options, models ...Model) *Server {
	t.Helper()
	o.Models = models
	return start(t, o)
}

// status is what a router says of its models.
func status(t *testing.T, s *Server) map[string]string {
	t.Helper()
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Status struct {
				Value    string `json:"value"`
				Failed   bool   `json:"failed"`
				ExitCode int    `json:"exit_code"`
			} `json:"status"`
		} `json:"data"`
	}
	decode(t, get1(t, s.URL()+"/v1/models"), &list)
	out := map[string]string{}
	for _, m := range list.Data {
		out[m.ID] = m.Status.Value
		if m.Status.Failed {
			out[m.ID] = fmt.Sprintf("failed %d", m.Status.ExitCode)
		}
	}
	return out
}

func decode(t *testing.T, resp *http.Response, v any) {
	t.Helper()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatalf("body: %v", err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 5000 {
		if holds() {
			return
		}
		<-tick.C
	}
	t.Fatalf("it never came to pass: %s", what)
}

func to(model string) dict { return dict{"model": model, "messages": user(question), "max_tokens": 8} }

func TestRouterLoadsOnDemandAndAnswersAlike(t *testing.T) {
	s := routerOf(t, Options{}, Model{Name: "alpha", Aliases: []string{"a"}}, Model{Name: "beta"})
	single := ask(t, start(t, Options{}), chatPath, to("x"))
	for _, name := range []string{"alpha", "a", "beta"} {
		if got := ask(t, s, chatPath, to(name)); got.content != single.content || !got.done {
			t.Errorf("%s: got %q, want %q", name, got.content, single.content)
		}
	}
	if got := fmt.Sprint(status(t, s)); got != "map[alpha:loaded beta:loaded]" {
		t.Errorf("status: got %s", got)
	}
	if st := s.Stats(); st.Requests != 3 || st.Generated < 24 || st.Active != 0 {
		t.Errorf("stats: got %+v", st)
	}
}

func TestRouterRefuses(t *testing.T) {
	s := routerOf(t, Options{}, Model{Name: "alpha"}, Model{Name: "broken", FailLoad: true})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", chatPath, `{"model":"nope"}`, 400, "model 'nope' not found"},
		{"POST", chatPath, `{}`, 400, "model name is missing from the request"},
		{"GET", "/slots", "", 400, "model name is missing from the request"},
		{"POST", chatPath + "?autoload=false", `{"model":"alpha"}`, 400, "model is not loaded"},
		{"POST", chatPath, `{"model":"broken","messages":[]}`, 500, "model name=broken failed to load"},
		{"POST", "/models/load", `{"model":"nope"}`, 404, "File Not Found"},
		{"POST", "/models/unload", `{"model":"nope"}`, 400, "model is not found"},
		{"POST", "/models/unload", `{"model":"alpha"}`, 400, "model is not running"},
		{"POST", "/models/load", `{"model":"alpha"}`, 200, `{"success":true}`},
		{"POST", "/models/load", `{"model":"alpha"}`, 400, "model is already running"},
		{"DELETE", "/models", "", 404, "File Not Found"},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), c.method, s.URL()+c.path, strings.NewReader(c.body))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(b), c.want) {
			t.Errorf("%s %s %s: got %d %s, want %d %s", c.method, c.path, c.body, resp.StatusCode, b, c.status, c.want)
		}
	}
	if got := status(t, s)["broken"]; got != "failed 1" {
		t.Errorf("broken: got %s", got)
	}
}

func TestRouterEvictsTheLeastUsedIdleModel(t *testing.T) {
	log := newLines()
	s := routerOf(t, Options{ModelsMax: 2, Log: log}, Model{Name: "alpha"}, Model{Name: "beta"}, Model{Name: "gamma"})
	for _, name := range []string{"alpha", "beta", "alpha", "gamma"} {
		ask(t, s, chatPath, to(name))
	}
	if got := fmt.Sprint(status(t, s)); got != "map[alpha:loaded beta:unloaded gamma:loaded]" {
		t.Errorf("status: got %s", got)
	}
	log.await(t, "evicting idle LRU name=beta to make room for name=gamma")
	log.await(t, "instance name=beta exited with status 0")
	log.await(t, "loading queued model name=gamma")
}

// TestRouterQueuesBehindBusyModels asks for a model while all places answer others.
func TestRouterQueuesBehindBusyModels(t *testing.T) {
	s := routerOf(t, Options{ModelsMax: 1, Decode: 300}, Model{Name: "alpha"}, Model{Name: "beta"})
	hold, let := context.WithCancel(t.Context())
	defer let()
	body := dict{"model": "alpha", "messages": user("hold"), "stream": true, "ignore_eos": true}
	read(t, post(hold, t, s.URL()+chatPath, js(t, body)), func(event) bool { return false })
	var wg sync.WaitGroup
	var st *stream
	wg.Go(func() { st = ask(t, s, chatPath, to("beta")) })
	router := s.instance().router
	eventually(t, "beta is queued", func() bool {
		router.mu.Lock()
		defer router.mu.Unlock()
		return len(router.queue) == 1
	})
	if got := status(t, s)["alpha"]; got != "loaded" {
		t.Errorf("alpha was evicted while it answered: %s", got)
	}
	let()
	wg.Wait()
	if !st.done || status(t, s)["alpha"] != "unloaded" {
		t.Errorf("beta: done %v, status %v", st.done, status(t, s))
	}
}

func TestRouterTellsWhatItsModelsDo(t *testing.T) {
	s := routerOf(t, Options{LoadTime: 40 * time.Millisecond, SleepIdle: 60 * time.Millisecond}, Model{Name: "alpha"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/models/sse", nil)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	post(t.Context(), t, s.URL()+"/models/load", `{"model":"alpha"}`)
	var got []string
	for lines := bufio.NewScanner(resp.Body); len(got) < 6 && lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Model, Event string
			Data         struct {
				Status   string
				Progress *struct{ Value float64 }
				Info     *struct{ ID string }
				ExitCode *int `json:"exit_code"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		text := e.Event + " " + e.Data.Status
		if p := e.Data.Progress; p != nil {
			if p.Value != 0 && p.Value != 1 {
				continue // a load that is slow enough shows more
			}
			text += fmt.Sprintf(" %.1f", p.Value)
		}
		if e.Data.Info != nil {
			text += " " + e.Data.Info.ID
		}
		if c := e.Data.ExitCode; c != nil {
			text += fmt.Sprintf(" %d", *c)
		}
		got = append(got, text)
		if e.Data.Status == "sleeping" {
			post(t.Context(), t, s.URL()+"/models/unload", `{"model":"alpha"}`)
		}
	}
	want := []string{
		"model_status loading", "status_change loading 0.0", "status_change loading 1.0",
		"status_change loaded alpha", "status_change sleeping", "status_change unloaded 0",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRouterOutlivesItsChild kills a model's server in the middle of a stream (P56).
func TestRouterOutlivesItsChild(t *testing.T) {
	log := &logBuffer{}
	s := routerOf(t, Options{Log: log}, Model{Name: "alpha"}, Model{Name: "beta"})
	body := dict{"model": "alpha", "messages": user(question), "max_tokens": 50}
	whole := ask(t, s, chatPath, body)
	s.SetFault(Fault{Kind: FaultCrash, Model: "alpha", Token: 10, Times: 1})
	broken := ask(t, s, chatPath, body)
	if broken.err != nil || broken.rest != routerTail || broken.finish != "" || !strings.HasPrefix(whole.content, broken.content) {
		t.Errorf("got %q, %v after %q, want %q and a clean end", broken.rest, broken.err, broken.content, routerTail)
	}
	for _, want := range []string{"http client error: " + childTail, "instance name=alpha exited with status 1"} {
		eventually(t, want, func() bool { return strings.Contains(strings.Join(log.lines(), "\n"), want) })
	}
	if got := status(t, s)["alpha"]; got != "failed 1" {
		t.Errorf("alpha: got %s", got)
	}
	if again := ask(t, s, chatPath, body); again.content != whole.content {
		t.Errorf("after the crash: got %q", again.content)
	}
}

func TestRouterGivesEachLoadAPortAndAClock(t *testing.T) {
	log := newLines()
	s := routerOf(t, Options{Log: log}, Model{Name: "alpha"})
	ask(t, s, chatPath, to("alpha"))
	line := log.await(t, "spawning server instance with name=alpha on port ")
	port := strings.TrimSpace(line[strings.LastIndex(line, " "):])
	child := log.await(t, fmt.Sprintf("[%5s] 0.00.", port))
	if !strings.Contains(child, "common_params_print_info") {
		t.Errorf("the child's first line is %q", child)
	}
	log.await(t, "stop processing")
	resp := get1(t, "http://127.0.0.1:"+port+"/health")
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the child's own port: got %d", resp.StatusCode)
	}
}

func TestRouterEndsItsChildren(t *testing.T) {
	for name, end := range map[string]func(*Server){
		"kill":  (*Server).Kill,
		"close": func(s *Server) { _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			s := routerOf(t, Options{Decode: 100}, Model{Name: "alpha"}, Model{Name: "slow", LoadTime: time.Hour})
			post(t.Context(), t, s.URL()+"/models/load", `{"model":"slow"}`)
			body := dict{"model": "alpha", "messages": user("hi"), "stream": true, "ignore_eos": true}
			ended := false
			st := read(t, post(t.Context(), t, s.URL()+chatPath, js(t, body)), func(event) bool {
				if !ended {
					ended = true
					end(s)
				}
				return true
			})
			if st.done {
				t.Error("the stream came to its end")
			}
			if err := s.Restart(); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(status(t, s)); got != "map[alpha:unloaded slow:unloaded]" {
				t.Errorf("after the restart: got %s", got)
			}
			ask(t, s, chatPath, to("alpha"))
		})
	}
}
