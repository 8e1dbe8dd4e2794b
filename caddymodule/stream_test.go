package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// TestStreamThatCannotGoOnIsBrokenOff: an error event, no [DONE], and no clean end.
func TestStreamThatCannotGoOnIsBrokenOff(t *testing.T) {
	for _, resume := range []string{"on", "before_first_byte", "off"} {
		t.Run(resume, func(t *testing.T) {
			sims := []*llamasim.Server{startSim(t, llamasim.Options{Model: "m"})}
			if resume != "on" { // others may be there: they are not asked
				sims = append(sims, startSim(t, llamasim.Options{Model: "m"}))
			}
			e := startEdge(t, nodes("queue {\n\t\t\ttimeout 300ms\n\t\t}", sims...), "fleet {\n\t\tresume "+resume+"\n\t}")
			e.ready()
			await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == len(sims) })
			for _, sim := range sims {
				sim.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 10})
			}
			resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 100, true))))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			s := readStream(resp.Body, nil)
			if !errors.Is(s.Err, io.ErrUnexpectedEOF) {
				t.Errorf("the stream ended with %v, want an unexpected end", s.Err)
			}
			if s.Done != 0 || s.Finish != "" || !strings.Contains(s.Error, `"code"`) {
				t.Errorf("got %+v, want an error event and no end", s)
			}
			requests := 0
			for _, sim := range sims {
				requests += sim.Stats().Requests
			}
			if requests != 1 {
				t.Errorf("the servers got %d requests, want 1", requests)
			}
		})
	}
}

// TestResumeOffAsksOneNode: not even a request that has nothing goes elsewhere.
func TestResumeOffAsksOneNode(t *testing.T) {
	a, b := startSim(t, llamasim.Options{Model: "m"}), startSim(t, llamasim.Options{Model: "m"})
	for resume, want := range map[string]int{"off": http.StatusBadGateway, "before_first_byte": http.StatusOK} {
		t.Run(resume, func(t *testing.T) {
			e := startEdge(t, nodes("", a, b), "fleet {\n\t\tresume "+resume+"\n\t}")
			e.ready()
			await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == 2 })
			fault := llamasim.Fault{Kind: llamasim.FaultReset, Token: 0, Times: 1}
			before := a.Stats().Requests + b.Stats().Requests
			a.SetFault(fault)
			b.SetFault(fault)
			if resume != "off" {
				b.SetFault(llamasim.Fault{})
			}
			for range 2 {
				r := e.post("/v1/chat/completions", chatBody("m", "hi", 5, true))
				if r.Status != want {
					t.Fatalf("got %d %s, want %d", r.Status, r.Body, want)
				}
			}
			a.SetFault(llamasim.Fault{})
			b.SetFault(llamasim.Fault{})
			if got := a.Stats().Requests + b.Stats().Requests - before; resume == "off" && got != 2 {
				t.Errorf("the servers got %d requests, want 2", got)
			}
		})
	}
}

// TestEventsComeAtOnce: each token arrives when it is made, also through encode.
func TestEventsComeAtOnce(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 20})
	e := startEdge(t, nodes("", sim), "encode zstd gzip\n\tfleet")
	e.ready()
	// The client asks for gzip by itself, and unpacks.
	resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 10, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var at []time.Time
	s := readStream(resp.Body, func(int) { at = append(at, time.Now()) })
	if wrong := s.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	if spread := at[len(at)-1].Sub(at[0]); spread < 300*time.Millisecond {
		t.Errorf("%d events came within %s, want them 50 ms apart", len(at), spread)
	}
}

func TestAccessLogSaysWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 100})
	e := startEdge(t, nodes("", sim), "log {\n\t\toutput file "+file+"\n\t\tformat json\n\t}\n\theader >X-Node {http.fleet.node}\n\tfleet")
	e.ready()
	last := func() (entry map[string]any) {
		content, _ := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(content)), "\n")
		_ = json.Unmarshal([]byte(lines[len(lines)-1]), &entry)
		return entry
	}
	const secret = "the-secret-conversation"
	send := func(id, prompt string, tokens int, each func(int), leave context.Context) {
		r := e.request(leave, "/v1/chat/completions", strings.NewReader(chatBody("m", prompt, tokens, true)))
		r.Header.Set("X-Request-Id", id)
		resp, err := e.Client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("X-Request-Id"); got != id {
			t.Errorf("X-Request-Id: got %q, want %q", got, id)
		}
		readStream(resp.Body, each)
	}
	entryOf := func(id string) map[string]any {
		await(t, "the log entry of "+id, func() bool { return last()["request_id"] == id })
		return last()
	}

	send("whole-1", secret, 5, nil, context.Background())
	got := entryOf("whole-1")
	for field, want := range map[string]any{"node": "a", "model": "m", "outcome": "whole", "moves": 0.0, "status": 200.0} {
		if got[field] != want {
			t.Errorf("%s: got %v, want %v", field, got[field], want)
		}
	}
	for _, field := range []string{"queue", "first_token", "tokens"} {
		if _, ok := got[field].(float64); !ok {
			t.Errorf("%s: got %v, want a number", field, got[field])
		}
	}

	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	send("left-1", secret, 500, func(int) { leave() }, ctx)
	if got := entryOf("left-1"); got["outcome"] != "cancelled" || got["reason"] != "cancelled" {
		t.Errorf("got %v, want it cancelled", got)
	}

	r := e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("nope", secret, 5, true)))
	r.Header.Set("X-Request-Id", "nope-1")
	e.do(r)
	if got := entryOf("nope-1"); got["outcome"] != "refused" || got["reason"] != "unknown_model" || got["model"] != nil {
		t.Errorf("got %v, want it refused", got)
	}
	content, _ := os.ReadFile(file)
	if strings.Contains(string(content), secret) {
		t.Error("the log holds a prompt")
	}
}

// TestClientThatLeavesBeforeTheFirstByteIsLoggedAs499 uses a whole answer, which has
// no first byte before its end.
func TestClientThatLeavesBeforeTheFirstByteIsLoggedAs499(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 20})
	e := startEdge(t, nodes("", sim), "log {\n\t\toutput file "+file+"\n\t\tformat json\n\t}\n\tfleet")
	e.ready()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.do(e.request(ctx, "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 500, false))))
	}()
	await(t, "the generation to begin", func() bool { return sim.Stats().Active == 1 })
	leave()
	<-done
	await(t, "the log entry", func() bool {
		content, _ := os.ReadFile(file)
		return strings.Contains(string(content), `"status":499`) && strings.Contains(string(content), `"outcome":"cancelled"`)
	})
}

func TestRequestIDs(t *testing.T) {
	e := startEdge(t, "fleet {\n\t}", "fleet")
	for sent, echoed := range map[string]bool{
		"":                       false,
		"abc-123":                true,
		strings.Repeat("x", 128): true,
		strings.Repeat("x", 129): false,
		"a b":                    false,
		"caf\u00e9":              false,
	} {
		r, _ := http.NewRequest(http.MethodGet, e.URL+"/health", nil)
		r.Header.Set("X-Request-Id", sent)
		if got := e.do(r).Header.Get("X-Request-Id"); (got == sent) != echoed || got == "" {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}

func TestRequestWaitsForStart(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	defer cancel()
	provision := func() *FleetApp {
		a := new(FleetApp)
		if err := a.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		return a
	}
	result := func(a *FleetApp, ctx context.Context) chan error {
		c := make(chan error, 1)
		go func() {
			l, err := a.lease(ctx)
			if err == nil {
				l.end()
			}
			c <- err
		}()
		await(t, "the request to come", func() bool {
			a.run.mu.Lock()
			defer a.run.mu.Unlock()
			return a.run.users > 1
		})
		return c
	}
	reason := func(err error) fleet.Reason {
		e, _ := errors.AsType[*fleet.RequestError](err)
		if e == nil {
			return ""
		}
		return e.Reason
	}

	a := provision()
	waiting := result(a, context.Background())
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("after Start: got %v, want a lease", err)
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if l, err := a.lease(context.Background()); err != nil {
		t.Errorf("after Stop: got %v, want a lease", err)
	} else {
		l.end()
	}

	never := provision()
	gone, leave := context.WithCancel(context.Background())
	waiting = result(never, gone)
	leave()
	if err := <-waiting; reason(err) != fleet.ReasonCancelled {
		t.Errorf("client gone: got %v", err)
	}
	waiting = result(never, context.Background())
	if err := never.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; reason(err) != fleet.ReasonStopping {
		t.Errorf("cleaned up before Start: got %v", err)
	}

	successor := provision()
	if err := successor.Start(); err != nil {
		t.Fatal(err)
	}
	if err := a.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if l, err := a.lease(context.Background()); err != nil || l.run != successor.run {
		t.Errorf("after Cleanup: got %v, want a lease of the successor", err)
	} else {
		l.end()
	}
	_ = successor.Stop()
	_ = successor.Cleanup()
	_ = successor.Cleanup()
	if _, err := a.lease(context.Background()); reason(err) != fleet.ReasonStopping {
		t.Errorf("after all: got %v", err)
	}
	if currentState() != nil {
		t.Error("the state is still held")
	}
}
