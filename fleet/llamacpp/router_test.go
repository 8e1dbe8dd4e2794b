package llamacpp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// fakeRouter is a llama-server in router mode: models by name with their status.
type fakeRouter struct {
	mu     sync.Mutex
	status map[string]string
	ports  map[string]int
	asked  []string // path and model
	slow   int      // looks until a model that was unloaded is gone
	events chan string
	deaf   bool // it has no events
}

func newFakeRouter() *fakeRouter {
	return &fakeRouter{
		status: map[string]string{"alpha": "loaded", "beta": "unloaded", "gamma": "sleeping"},
		ports:  map[string]int{"alpha": 4001, "gamma": 4003},
		events: make(chan string, 8),
	}
}

func (f *fakeRouter) set(model, status string, port int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status[model], f.ports[model] = status, port
}

func (f *fakeRouter) times(question string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.asked {
		if a == question {
			n++
		}
	}
	return n
}

func (f *fakeRouter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/models/sse" {
		f.tell(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	var q struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(body, &q)
	if q.Model == "" {
		q.Model = r.URL.Query().Get("model")
	}
	f.asked = append(f.asked, strings.TrimSpace(r.URL.Path+" "+q.Model))
	var answer string
	switch {
	case r.URL.Path == "/v1/models":
		answer = f.list()
	case r.URL.Path == "/props" && q.Model == "":
		answer = `{"role":"router","max_instances":2,"models_autoload":true,"default_generation_settings":{"params":null,"n_ctx":0}}`
	case r.URL.Path == "/models/unload":
		f.status[q.Model], answer = "unloading", `{"success":true}`
	case f.status[q.Model] != "loaded" || r.URL.Query().Get("autoload") != "false":
		w.WriteHeader(http.StatusBadRequest)
		answer = errorBody(400, "model is not loaded")
	case r.URL.Path == "/props":
		answer = `{"default_generation_settings":{"params":{"generation_prompt":""},"n_ctx":2048},"total_slots":2,"chat_template":"t","is_sleeping":false}`
	case r.URL.Path == "/tokenize":
		answer = `{"tokens":[1,2,3]}`
	case r.URL.Path == "/apply-template":
		var status int
		status, answer = modern(string(body))
		w.WriteHeader(status)
	default:
		answer = `{"input_tokens":3}`
	}
	fmt.Fprint(w, answer)
}

func (f *fakeRouter) list() string {
	var all []string
	names := make([]string, 0, len(f.status))
	for name := range f.status {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		status, meta := f.status[name], ""
		if status == "unloading" {
			status = "loaded"
			if f.slow--; f.slow < 0 {
				status = "unloaded"
				f.status[name] = status
			}
		}
		if status == "loaded" {
			meta = `,"meta":{"n_vocab":100,"n_params":7,"n_ctx":2048}`
		}
		all = append(all, fmt.Sprintf(`{"id":%q,"aliases":[%q,"the-%s"],"status":{"value":%q,"args":["llama-server","--port","%d","--parallel","3"]}%s}`,
			name, name, name, status, f.ports[name], meta))
	}
	return `{"object":"list","data":[` + strings.Join(all, ",") + `]}`
}

func (f *fakeRouter) tell(w http.ResponseWriter, r *http.Request) {
	if f.deaf {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for { // headers come with the first event, as llama-server's do
		select {
		case <-r.Context().Done():
			return
		case e := <-f.events:
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
	}
}

func routerStates(t *testing.T, l *Link) (next func(what string, ok func(fleet.NodeState) bool) fleet.NodeState) {
	t.Helper()
	states := make(chan fleet.NodeState, 64)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Watch(ctx, func(s fleet.NodeState) { states <- s }) }()
	t.Cleanup(func() { cancel(); <-done })
	return func(what string, ok func(fleet.NodeState) bool) fleet.NodeState {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			select {
			case s := <-states:
				if ok(s) {
					return s
				}
			case <-late:
				t.Fatalf("%s: not told within 20 s", what)
			}
		}
	}
}

func instanceOf(s fleet.NodeState, model string) fleet.Instance {
	for _, i := range s.Instances {
		if i.Model == model {
			return i
		}
	}
	return fleet.Instance{}
}

func TestRouterOffersAllItsModels(t *testing.T) {
	f := newFakeRouter()
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	s, _ := l.current(timeZero)
	if s.Places != 2 || !s.Loads || len(s.Instances) != 3 {
		t.Fatalf("got %+v, want two places, loaded on request, for three models", s)
	}
	a, b, c := instanceOf(s, "alpha"), instanceOf(s, "beta"), instanceOf(s, "gamma")
	if a.State != fleet.StateReady || a.Port != 4001 || a.Lanes != 2 || a.Context != 2048 || a.Fingerprint == "" ||
		a.Features != allFeatures || !a.Routed || !slices.Equal(a.Aliases, []string{"the-alpha"}) {
		t.Errorf("loaded: got %+v", a)
	}
	if b.State != fleet.StateUnloaded || b.Port != 0 || b.Lanes != 3 || b.Fingerprint != "" {
		t.Errorf("unloaded: got %+v", b)
	}
	if c.State != fleet.StateSleeping || c.Port != 4003 {
		t.Errorf("sleeping: got %+v", c)
	}
	for _, model := range []string{"beta", "gamma"} {
		if n := f.times("/props "+model) + f.times("/tokenize "+model); n != 0 {
			t.Errorf("%s was asked %d times, want it left alone", model, n)
		}
	}
}

func TestLoadedModelIsAskedOnceAsLongAsItsProcessLives(t *testing.T) {
	f := newFakeRouter()
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	probe(t, l)
	if n := f.times("/tokenize alpha"); n != 1 {
		t.Errorf("got %d questions in two probes, want 1", n)
	}
	f.set("alpha", "loaded", 4010)
	probe(t, l)
	if n := f.times("/tokenize alpha"); n != 2 {
		t.Errorf("got %d questions after the process changed, want 2", n)
	}
}

func TestRouterTellsWhatBecomesOfItsModels(t *testing.T) {
	f := newFakeRouter()
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	next := routerStates(t, l)
	f.events <- `{"model":"beta","event":"status_change","data":{"status":"loading","progress":{"value":0.5}}}`
	next("beta loads", func(s fleet.NodeState) bool { return instanceOf(s, "beta").State == fleet.StateLoading })
	f.set("beta", "loaded", 4002)
	f.events <- `{"model":"beta","event":"model_status","data":{"status":"loaded","info":{}}}`
	s := next("beta is loaded", func(s fleet.NodeState) bool { return instanceOf(s, "beta").State == fleet.StateReady })
	if i := instanceOf(s, "beta"); i.Port != 4002 || i.Features != allFeatures {
		t.Errorf("got %+v, want it learned", i)
	}
	f.set("alpha", "unloaded", 0)
	f.events <- `{"model":"alpha","event":"status_change","data":{"status":"unloaded","exit_code":0}}`
	next("alpha is unloaded", func(s fleet.NodeState) bool { return instanceOf(s, "alpha").State == fleet.StateUnloaded })
}

func TestRouterWithoutEventsIsLookedAtWhenAModelAnswers(t *testing.T) {
	f := newFakeRouter()
	f.deaf = true
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	next := routerStates(t, l)
	f.set("beta", "loaded", 4002)
	if _, err := l.Call(t.Context(), fleet.Call{
		Op: fleet.OpAsk, Method: "POST", Path: "/tokenize?autoload=false", Body: []byte(`{"model":"beta"}`), Model: "beta",
	}); err != nil {
		t.Fatal(err)
	}
	next("beta is loaded", func(s fleet.NodeState) bool { return instanceOf(s, "beta").State == fleet.StateReady })
}

func TestRoomIsMadeBeforeTheRequestGoesOut(t *testing.T) {
	f := newFakeRouter()
	f.slow = 2
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	f.set("beta", "loaded", 4002)
	if _, err := l.Call(t.Context(), fleet.Call{
		Op: fleet.OpAsk, Method: "POST", Path: "/tokenize?autoload=false", Body: []byte(`{"model":"beta"}`),
		Model: "beta", Unload: "alpha",
	}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last := len(f.asked) - 1
	if f.asked[0] != "/models/unload alpha" || f.asked[last] != "/tokenize beta" || f.status["alpha"] != "unloaded" {
		t.Errorf("got %q and alpha %s, want alpha unloaded before beta is asked", f.asked, f.status["alpha"])
	}
}
