package caddymodule

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// What is promised to clients is tried with those that people use: they read strictly,
// try again by rules of their own, and each builds its requests in another way.

// A sdk is a library under test. It does a task and says what came of it: the same of
// the same answer, however that came about.
type sdk interface {
	do(ctx context.Context, task string) string
}

// The tasks, and what comes of those that fail.
var (
	openaiGenerations    = []string{"chat", "stream", "tools", "tools streamed", "schema", "responses", "responses streamed"}
	anthropicGenerations = []string{"message", "stream", "tools", "tools streamed", "thinking", "thinking streamed"}

	openaiFailures = map[string]string{
		"unknown model":    "404 model_not_found",
		"wrong key":        "401 invalid_api_key",
		"too long":         "400 context_length_exceeded",
		"model of others":  "403 model_not_allowed",
		"broken in stream": "node_lost_unresumable",
	}
	anthropicFailures = map[string]string{
		"unknown model":   "404 not_found_error",
		"wrong key":       "401 authentication_error",
		"too long":        "400 invalid_request_error",
		"model of others": "403 permission_error",
	}
)

// Tokens that a generation is asked for, and after which its node dies.
const (
	clientTokens = 40
	dieAt        = 4
)

// askedOf is what a task asks, the same with every library.
func askedOf(task string) string {
	if task == "too long" {
		return strings.Repeat("word ", 20000)
	}
	return "Tell me about the sea: " + task
}

// schemaOf is what tools and answers are described by.
var schemaOf = map[string]any{
	"type":                 "object",
	"properties":           map[string]any{"city": map[string]any{"type": "string"}, "day": map[string]any{"type": "string"}},
	"required":             []string{"city", "day"},
	"additionalProperties": false,
}

// secretOf is the key that a task uses.
func secretOf(task string) string {
	switch task {
	case "wrong key":
		return "sk-wrong"
	case "model of others":
		return othersSecret
	case "retry":
		return patientSecret
	}
	return freeSecret
}

func modelOf(task string) string {
	switch {
	case task == "unknown model":
		return "gpt-3.5-turbo"
	case strings.HasPrefix(task, "thinking"):
		return thinker
	}
	return "m"
}

// thinker is the name of a model that thinks before it answers.
const thinker = "thinker"

// clientFleet is an edge with keys before two nodes of each model.
type clientFleet struct {
	*edge
	sims []*llamasim.Server
}

// The secrets of the keys there are: one may everything, one a model that is not served,
// one a single request at once.
const (
	freeSecret    = "sk-free"
	othersSecret  = "sk-others"
	patientSecret = "sk-patient"
)

func startClientFleet(t *testing.T, models ...string) *clientFleet {
	t.Helper()
	var f clientFleet
	for _, model := range models {
		for range 2 {
			f.sims = append(f.sims, startSim(t, llamasim.Options{Model: model, Embeddings: true, Infill: true, Thinking: model == thinker}))
		}
	}
	keys := keysOnDisk(t, "free "+freeSecret, "others "+othersSecret+` "models": ["n"]`, "patient "+patientSecret+` "concurrent": 1`)
	f.edge = startEdge(t, nodes("retry 50ms\n\t\tpolicy round_robin", f.sims...), "fleet {\n\t\tkeys "+keys+"\n\t}")
	f.allUp(len(f.sims))
	return &f
}

// testOpenAIClient has a library of OpenAI do all it can.
func testOpenAIClient(t *testing.T, start func(url string) sdk) {
	f := startClientFleet(t, "m")
	s := start(f.URL)
	f.generate(t, s, openaiGenerations)
	f.call(t, s, "embeddings", "/v1/embeddings")
	f.fail(t, s, openaiFailures)
}

// testAnthropicClient has a library of Anthropic do all it can.
func testAnthropicClient(t *testing.T, start func(url string) sdk) {
	f := startClientFleet(t, "m", thinker)
	s := start(f.URL)
	f.generate(t, s, anthropicGenerations)
	f.call(t, s, "count", "/v1/messages/count_tokens")
	f.fail(t, s, anthropicFailures)
}

// generate does each task undisturbed and with a node killed under it.
func (f *clientFleet) generate(t *testing.T, s sdk, tasks []string) {
	for _, task := range tasks {
		t.Run(task, func(t *testing.T) {
			want := s.do(t.Context(), task)
			if strings.HasPrefix(want, "error") || !strings.Contains(want, "|") {
				t.Fatalf("undisturbed: got %s", want)
			}
			got := f.underDeath(t, func() string { return s.do(t.Context(), task) })
			if strings.HasPrefix(task, "thinking") {
				got, want = uncounted(got), uncounted(want)
			}
			if got != want {
				t.Errorf("with a node killed under it: got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// uncounted cuts the number of tokens, which is not exact where tokens have no text: a
// stream of Messages does not tell them (docs/resume.md).
func uncounted(answer string) string {
	return answer[:strings.LastIndexByte(answer, '|')]
}

// call does a task that is asked whole, with a node that resets the connection.
func (f *clientFleet) call(t *testing.T, s sdk, task, path string) {
	t.Run(task, func(t *testing.T) {
		want := s.do(t.Context(), task)
		f.sims[0].SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Path: path})
		for range 2 { // the nodes take turns
			if got := s.do(t.Context(), task); got != want || strings.HasPrefix(got, "error") {
				t.Errorf("with a node that resets: got %s, want %s", got, want)
			}
		}
		f.sims[0].SetFault(llamasim.Fault{})
		f.allUp(len(f.sims))
	})
}

// fail does what cannot succeed, leaves in the middle of an answer and comes again.
func (f *clientFleet) fail(t *testing.T, s sdk, failures map[string]string) {
	for task, want := range failures {
		t.Run(task, func(t *testing.T) {
			if task == "broken in stream" {
				// No node can go on with what all of them break.
				f.breakAll(llamasim.Fault{Kind: llamasim.FaultReset, Token: dieAt})
				defer f.breakAll(llamasim.Fault{})
			}
			before := f.asked()
			got := s.do(t.Context(), task)
			if got != "error "+want {
				t.Errorf("got %s, want error %s", got, want)
			}
			// A wrong key is no request of the fleet.
			if n := f.asked() - before; n > 1 || n == 0 && task != "wrong key" {
				t.Errorf("it asked %d times, want once: what fails for good is not tried again", n)
			}
			f.allUp(len(f.sims))
		})
	}
	t.Run("abort", func(t *testing.T) {
		f.breakAll(llamasim.Fault{Kind: llamasim.FaultHang, Token: dieAt}) // it would never end
		if got := s.do(t.Context(), "abort"); got != "aborted" {
			t.Errorf("got %s, want an aborted stream", got)
		}
		f.quiet(f.sims)
		f.breakAll(llamasim.Fault{})
	})
	t.Run("retry", func(t *testing.T) { f.retry(t, s) })
}

// retry lets a library meet a limit, which is gone when it comes again.
func (f *clientFleet) retry(t *testing.T, s sdk) {
	hung := f.hang(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r := f.request(ctx, chatPath, strings.NewReader(chatBody("m", "hi", clientTokens, true)))
	r.Header.Set("Authorization", "Bearer "+patientSecret)
	resp, err := f.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	hung()
	f.breakAll(llamasim.Fault{})
	limited := f.refused("limit")
	got := make(chan string, 1)
	go func() { got <- s.do(t.Context(), "retry") }()
	await(t, "the limit to be met", func() bool { return f.refused("limit") > limited })
	leave()
	select {
	case s := <-got:
		if strings.HasPrefix(s, "error") {
			t.Errorf("got %s, want an answer the second time", s)
		}
	case <-time.After(30 * time.Second):
		t.Error("no answer in 30 s")
	}
}

func (f *clientFleet) breakAll(fault llamasim.Fault) {
	for _, s := range f.sims {
		s.SetFault(fault)
	}
}

// hang has the nodes fall silent in the middle of the next answer. The function that it
// returns waits for that and says which one has.
func (f *clientFleet) hang(t *testing.T) func() *llamasim.Server {
	t.Helper()
	var before []int
	for _, s := range f.sims {
		before = append(before, s.Stats().Faults)
	}
	f.breakAll(llamasim.Fault{Kind: llamasim.FaultHang, Token: dieAt})
	return func() (hung *llamasim.Server) {
		t.Helper()
		await(t, "a node to fall silent", func() bool {
			for i, s := range f.sims {
				if s.Stats().Faults > before[i] {
					hung = s
				}
			}
			return hung != nil
		})
		return hung
	}
}

// underDeath does something and kills the node that answers once it has said a little.
func (f *clientFleet) underDeath(t *testing.T, do func() string) string {
	t.Helper()
	hung := f.hang(t)
	got := make(chan string, 1)
	go func() { got <- do() }()
	dying := hung()
	f.breakAll(llamasim.Fault{})
	dying.Kill()
	out := <-got
	if err := dying.Restart(); err != nil {
		t.Fatal(err)
	}
	f.allUp(len(f.sims))
	return out
}

// asked counts the requests of the fleet that ended, those that were refused included.
func (f *clientFleet) asked() int { return f.counted("") }

// refused counts those that were refused for a reason.
func (f *clientFleet) refused(reason string) int { return f.counted(`reason="` + reason + `"`) }

func (f *clientFleet) counted(label string) int {
	f.t.Helper()
	n := 0
	for series, value := range scrape(f.t, f.edge) {
		if strings.HasPrefix(series, "slotfleet_requests_total{") && strings.Contains(series, label) {
			n += int(value)
		}
	}
	return n
}
