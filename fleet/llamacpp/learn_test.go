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

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

// fake answers the questions of a probe; render answers /apply-template.
type fake struct {
	mu     sync.Mutex
	models string
	props  string
	tokens string
	counts bool // it counts the tokens of Responses and Messages
	render func(body string) (int, string)
	asked  []string
}

const cannotBoth = "Cannot set both add_generation_prompt and continue_final_message to true."

// modern renders as a server with continuation does.
func modern(body string) (int, string) {
	switch {
	case strings.Contains(body, `"add_generation_prompt":true`):
		return 400, errorBody(400, cannotBoth)
	case strings.Contains(body, `"continue_final_message":"reasoning_content"`):
		return 200, `{"prompt":"<user>x<assistant><think>RPROBE"}`
	default:
		return 200, `{"prompt":"<user>x<assistant>PROBE"}`
	}
}

func newFake(t testing.TB) *fake {
	f := &fake{tokens: `{"tokens":[1,2,3]}`, counts: true, render: modern}
	for _, r := range recordings(t) {
		switch r.Name {
		case "models":
			f.models = r.Response.Body
		case "props":
			f.props = r.Response.Body
		}
	}
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	f.asked = append(f.asked, r.URL.Path)
	status, answer := 404, errorBody(404, "File Not Found")
	if r.URL.Path == chat.Path {
		f.props = strings.Replace(f.props, `"is_sleeping":true`, `"is_sleeping":false`, 1)
		writeStream(w)
		return
	}
	known := func(s string) {
		if s != "" {
			status, answer = 200, s
		}
	}
	switch r.Method + r.URL.Path {
	case "GET/v1/models":
		known(f.models)
	case "GET/props":
		known(f.props)
	case "POST/tokenize":
		known(f.tokens)
	case "POST/v1/responses/input_tokens", "POST/v1/messages/count_tokens":
		if f.counts {
			known(`{"input_tokens":3}`)
		}
	case "POST/apply-template":
		if f.render != nil {
			status, answer = f.render(string(body))
		}
	}
	if strings.HasPrefix(answer, "!") {
		_, _ = fmt.Sscanf(answer, "!%d", &status)
		answer = errorBody(status, "Loading model")
	}
	w.WriteHeader(status)
	fmt.Fprint(w, answer)
}

func (f *fake) set(change func(*fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fake) paths() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(f.asked)))
}

func learned(t *testing.T, f *fake) *fleet.Instance {
	t.Helper()
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	i, ok := only(l, timeZero)
	if !ok {
		t.Fatal("nothing was learned")
	}
	return &i
}

// only is the instance of a server that has one.
func only(l *Link, now time.Time) (fleet.Instance, bool) {
	s, ok := l.current(now)
	if !ok || len(s.Instances) != 1 {
		return fleet.Instance{}, false
	}
	return s.Instances[0], true
}

// offerOf is what a server that has one instance offers.
func offerOf(i fleet.Instance) *offer { return &offer{instances: []fleet.Instance{i}} }

func TestPathOfAModelFileIsNoPublicName(t *testing.T) {
	for id, want := range map[string]string{
		"/srv/secret/models/x-7b.gguf": "x-7b.gguf",
		`C:\\models\\x-7b.gguf`:        "x-7b.gguf",
		"x-7b.gguf":                    "x-7b.gguf",
		"org/model:Q4_K_M":             "org/model:Q4_K_M",
	} {
		f := newFake(t)
		f.models = strings.ReplaceAll(f.models, "char-model", id)
		if got := learned(t, f); got.Model != want || len(got.Aliases) != 0 {
			t.Errorf("%s: got name %q and aliases %q, want %q and none", id, got.Model, got.Aliases, want)
		}
	}
}

func TestProbeLearnsWhatTheServerIs(t *testing.T) {
	f := newFake(t)
	f.models = strings.Replace(f.models, `"aliases":["char-model"]`, `"aliases":["char-model","tiny"]`, 1)
	got := learned(t, f)
	if len(got.Fingerprint) != 16 {
		t.Errorf("got fingerprint %q", got.Fingerprint)
	}
	got.Fingerprint = ""
	want := &fleet.Instance{
		Model: "char-model", Aliases: []string{"tiny"}, State: fleet.StateReady, Lanes: 2, Context: 4096,
		Features: allFeatures,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUnknownFiguresStayZero(t *testing.T) {
	for name, tt := range map[string]struct {
		models, props string
		want          fleet.Instance
	}{
		"early 2025": {
			`{"object":"list","data":[{"id":"m","object":"model","meta":{"vocab_type":2,"n_vocab":100,"n_ctx_train":4096,"n_embd":64,"n_params":7,"size":9}}]}`,
			`{"default_generation_settings":{"n_ctx":2048},"total_slots":1,"model_path":"m.gguf","chat_template":"t","bos_token":"","eos_token":"","build_info":"b4700"}`,
			fleet.Instance{Model: "m", State: fleet.StateReady, Lanes: 1, Context: 2048},
		},
		"meta null, no props":   {`{"data":[{"id":"m","aliases":null,"meta":null}]}`, "", fleet.Instance{Model: "m", State: fleet.StateReady}},
		"odd shapes":            {`{"data":[{"id":"m","aliases":[1,"b"],"meta":{"n_ctx":"4096","n_vocab":-1}}]}`, `{"total_slots":"two","is_sleeping":0,"default_generation_settings":[]}`, fleet.Instance{Model: "m", Aliases: []string{"b"}, State: fleet.StateReady}},
		"no models, but a name": {"", `{"model_alias":"m","total_slots":3}`, fleet.Instance{Model: "m", State: fleet.StateReady, Lanes: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{models: tt.models, props: tt.props}
			got := learned(t, f)
			got.Load = fleet.Load{}
			if d := cmp.Diff(&tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

const allFeatures = fleet.ContinueContent | fleet.ContinueReasoning | fleet.ContinueGrammar |
	fleet.GenerationPrompt | fleet.ContinueResponses | fleet.ContinueMessages

func TestFeaturesAreWhatTheServerWasSeenToDo(t *testing.T) {
	always := func(status int, answer string) func(string) (int, string) {
		return func(string) (int, string) { return status, answer }
	}
	for name, tt := range map[string]struct {
		render     func(string) (int, string)
		mute, bare bool // it counts no tokens; its settings name no generation_prompt
		want       fleet.Features
	}{
		"modern":       {render: modern, want: allFeatures},
		"no such path": {want: fleet.GenerationPrompt},
		"early 2026 goes on with messages, without a field for it": {
			render: always(200, `{"prompt":"<user>x<assistant>PROBE"}`), bare: true, want: fleet.ContinueMessages,
		},
		"early 2025": {render: always(200, `{"prompt":"<user>x<assistant>PROBE<end><assistant>"}`), bare: true, mute: true},
		"thinking template of early 2026": {
			render: always(400, errorBody(400, "Assistant response prefill is incompatible with enable_thinking.")), bare: true,
		},
		"without jinja the turn is closed": {
			render: func(b string) (int, string) {
				if status, s := modern(b); status != 200 {
					return status, s
				}
				return 200, `{"prompt":"<user>x<assistant>PROBE<end>"}`
			},
			want: fleet.GenerationPrompt,
		},
		"no reasoning": {
			render: func(b string) (int, string) {
				if strings.Contains(b, "RPROBE") {
					return 200, `{"prompt":"<user>x<assistant>"}`
				}
				return modern(b)
			},
			want: allFeatures &^ fleet.ContinueReasoning,
		},
		"no Responses, no Messages": {
			render: modern, mute: true, want: allFeatures &^ (fleet.ContinueResponses | fleet.ContinueMessages),
		},
		"a grammar begins again": {
			render: modern, bare: true, want: allFeatures &^ (fleet.ContinueGrammar | fleet.GenerationPrompt),
		},
		"--no-prefill-assistant leaves nothing open by itself": {
			render: func(b string) (int, string) {
				if !strings.Contains(b, "continue_final_message") {
					return 200, `{"prompt":"<user>x<assistant>PROBE<end><assistant>"}`
				}
				return modern(b)
			},
			want: allFeatures &^ fleet.ContinueMessages,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.render, f.counts = tt.render, !tt.mute
			if tt.bare {
				f.props = strings.Replace(f.props, `"generation_prompt"`, `"another"`, 1)
			}
			if got := learned(t, f).Features; got != tt.want {
				t.Errorf("got %b, want %b", got, tt.want)
			}
		})
	}
}

func TestFingerprintTellsModelsApart(t *testing.T) {
	base := learned(t, newFake(t)).Fingerprint
	if again := learned(t, newFake(t)).Fingerprint; again != base || base == "" {
		t.Fatalf("got %q, then %q", base, again)
	}
	seen := map[string]string{base: "the first"}
	for name, change := range map[string]func(*fake){
		"vocabulary": func(f *fake) { f.models = strings.Replace(f.models, `"n_vocab":371`, `"n_vocab":372`, 1) },
		"parameters": func(f *fake) { f.models = strings.Replace(f.models, `"n_params":211904`, `"n_params":211905`, 1) },
		"template":   func(f *fake) { f.props = strings.Replace(f.props, `for m in messages`, `for n in messages`, 1) },
		"tokens":     func(f *fake) { f.tokens = `{"tokens":[1,2,4]}` },
	} {
		f := newFake(t)
		change(f)
		got := learned(t, f).Fingerprint
		if other, ok := seen[got]; ok || got == "" {
			t.Errorf("another %s gives %q, as %s does", name, got, other)
		}
		seen[got] = name
	}
	for name, change := range map[string]func(*fake){
		"marker":         func(f *fake) { f.props = strings.Replace(f.props, "media_RSeplf", "media_XXXXXX", 1) },
		"created":        func(f *fake) { f.models = strings.Replace(f.models, `"created":1796057606`, `"created":1`, 1) },
		"name":           func(f *fake) { f.models = strings.Replace(f.models, `"id":"char-model"`, `"id":"other"`, 1) },
		"form of tokens": func(f *fake) { f.tokens = `{"tokens":[{"id":1,"piece":"a"},{"id":2,"piece":[226]},{"id":3}]}` },
	} {
		f := newFake(t)
		change(f)
		if got := learned(t, f).Fingerprint; got != base {
			t.Errorf("another %s gives another fingerprint", name)
		}
	}
	for name, change := range map[string]func(*fake){
		"tokens":     func(f *fake) { f.tokens = "" },
		"vocabulary": func(f *fake) { f.models = strings.Replace(f.models, `"n_vocab":371,`, ``, 1) },
		"template":   func(f *fake) { f.props = strings.Replace(f.props, `"chat_template":`, `"x":`, 1) },
	} {
		f := newFake(t)
		change(f)
		if got := learned(t, f).Fingerprint; got != "" {
			t.Errorf("without %s the fingerprint is %q, want none", name, got)
		}
	}
}

func sleeping(f *fake) {
	f.props = strings.Replace(f.props, `"is_sleeping":false`, `"is_sleeping":true`, 1)
}

func TestSleepingServerIsNeverWoken(t *testing.T) {
	f := newFake(t)
	sleeping(f)
	got := learned(t, f)
	if got.State != fleet.StateSleeping || got.Fingerprint != "" || got.Features != 0 || got.Context != 4096 {
		t.Errorf("got %+v", got)
	}
	if p := f.paths(); !slices.Equal(p, []string{"/props", "/v1/models"}) {
		t.Errorf("asked %q", p)
	}
}

func TestServerThatFellAsleepStaysKnown(t *testing.T) {
	f := newFake(t)
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe := func() fleet.Instance {
		t.Helper()
		if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
			t.Fatal(err)
		}
		i, _ := only(l, timeZero)
		return i
	}
	want := probe()
	f.set(func(f *fake) { sleeping(f); f.asked = nil })
	want.State = fleet.StateSleeping
	if d := cmp.Diff(want, probe()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if p := f.paths(); !slices.Equal(p, []string{"/props", "/v1/models"}) {
		t.Errorf("asked %q", p)
	}
	f.set(func(f *fake) { f.models = strings.Replace(f.models, `"id":"char-model"`, `"id":"other"`, 1) })
	if got := probe(); got.Fingerprint != "" || got.Features != 0 {
		t.Errorf("another model has what the one before had: %+v", got)
	}
}

func TestServerIsLearnedWhenAGenerationWokeIt(t *testing.T) {
	f := newFake(t)
	sleeping(f)
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	states, stop := watching(t, l)
	defer stop()
	if i := <-states; i.State != fleet.StateSleeping {
		t.Fatalf("got %+v", i)
	}
	if err := l.Run(t.Context(), chat, discard); err != nil {
		t.Fatal(err)
	}
	if i := <-states; i.State != fleet.StateReady || i.Fingerprint == "" || i.Features == 0 {
		t.Fatalf("got %+v, want all of it", i)
	}
}

func TestProbeTellsWhatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fake)
		check  func(*testing.T, error)
	}{
		"loading":          {func(f *fake) { f.models = "!503" }, func(t *testing.T, err error) { wantLost(t, err, fleet.CauseLoading) }},
		"loading later on": {func(f *fake) { f.tokens = "!503" }, func(t *testing.T, err error) { wantLost(t, err, fleet.CauseLoading) }},
		"wrong key": {func(f *fake) { f.models = "!401" }, func(t *testing.T, err error) {
			if e := wantRequestError(t, err, fleet.ReasonNoNode); e.Err == nil || !strings.Contains(e.Err.Error(), "n1 answers 401") {
				t.Errorf("got %v", err)
			}
		}},
		"wrong key later on": {func(f *fake) { f.tokens = "!401" }, func(t *testing.T, err error) {
			wantRequestError(t, err, fleet.ReasonNoNode)
		}},
		"no llama-server": {func(f *fake) { f.models, f.props = "", "" }, func(t *testing.T, err error) {
			if !strings.Contains(err.Error(), "is it a llama-server?") {
				t.Errorf("got %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			tt.change(f)
			l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
			_, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
			if err == nil {
				t.Fatal("got no error")
			}
			tt.check(t, err)
			if _, ok := l.current(timeZero); ok {
				t.Error("something was learned all the same")
			}
		})
	}
}

func TestFailedProbeRepeatsNothingOfALongAnswer(t *testing.T) {
	for _, status := range []int{400, 413, 500, 503} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"message":"%s"}}`, strings.Repeat("sk-secret ", 300000))
		})
		_, err := newLink(t, Options{URL: s.URL}).Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
		if err == nil || len(err.Error()) > 300 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: got %.300v, want an error without the text", status, err)
		}
	}
}

// watching runs Watch and hands on what it tells.
func watching(t *testing.T, l *Link) (states <-chan fleet.Instance, stop func()) {
	t.Helper()
	c := make(chan fleet.Instance, 64)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Watch(ctx, func(s fleet.NodeState) { c <- s.Instances[0] })
	}()
	return c, func() {
		cancel()
		<-done
	}
}

// probe has the link learn its server.
func probe(t *testing.T, l *Link) {
	t.Helper()
	if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
}

func TestWatchTellsAfterEachProbe(t *testing.T) {
	f := newFake(t)
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	states, stop := watching(t, l)
	defer stop()
	probe(t, l)
	if i := <-states; i.Model != "char-model" || i.State != fleet.StateReady {
		t.Fatalf("got %+v", i)
	}
	f.set(sleeping)
	if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	if i := <-states; i.State != fleet.StateSleeping {
		t.Fatalf("got %+v, want the new state", i)
	}
}

func TestWatchTellsWhatWasLearnedBeforeIt(t *testing.T) {
	l := newLink(t, Options{URL: serve(t, newFake(t).ServeHTTP).URL})
	probe(t, l)
	states, stop := watching(t, l)
	defer stop()
	if i := <-states; i.Model != "char-model" {
		t.Fatalf("got %+v", i)
	}
}

func TestWatchAsksNothingButHearsTheProbeThatDoes(t *testing.T) {
	f := newFake(t)
	models := f.models
	f.models = "!503"
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	states, stop := watching(t, l)
	defer stop()
	_, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
	wantLost(t, err, fleet.CauseLoading)
	f.set(func(f *fake) { f.models = models })
	if _, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	if i := <-states; i.Model != "char-model" {
		t.Fatalf("got %+v", i)
	}
}

func TestCloseEndsWatch(t *testing.T) {
	f := newFake(t)
	l := newLink(t, Options{URL: serve(t, f.ServeHTTP).URL})
	probe(t, l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Watch(t.Context(), func(fleet.NodeState) { _ = l.Close("reload") })
	}()
	waitFor(t, "the end of Watch", done)
}

func TestFixedTextIsValidAndWide(t *testing.T) {
	if b, err := json.Marshal(fingerprintText); err != nil || strings.Contains(string(b), "\\ufffd") {
		t.Fatalf("%s, %v", b, err)
	}
}
