package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// longAsking wants more text than a buffer of tightBuffer has room for.
func longAsking(stream bool) (a asking, tokens int) {
	return chatAsking("what is held", false, stream), 8000
}

const tightBuffer = "buffer 24KiB"

// An answer that finds no memory to be kept in is not worse for its client, as long as
// its node lives. Where it has to be kept, because it is handed out as a whole, the
// client is told to come again.
func TestAnswersCountTowardsTheBuffer(t *testing.T) {
	o := llamasim.Options{Model: "sim", Context: 16384}
	sims := []*llamasim.Server{startSim(t, o), startSim(t, o)}
	e := startEdge(t, nodes("", sims...), "fleet")
	e.allUp(len(sims))
	stream, tokens := longAsking(true)
	whole, _ := longAsking(false)
	want := e.ask(t.Context(), stream, tokens, nil)
	if want.Fault != "" || len(want.Content) < 24<<10 {
		t.Fatalf("the uninterrupted answer has %d bytes, %s", len(want.Content), want.Fault)
	}
	wantWhole := e.ask(t.Context(), whole, tokens, nil)
	e.quiet(sims)
	e.wantFree()

	// Cut where all of it is kept, and where it is not any more.
	cut := func(at int) told {
		for _, sim := range sims { // what the second one has to add is shorter
			sim.SetFault(llamasim.Fault{Kind: llamasim.FaultFin, Token: at, Times: 1})
		}
		got := e.ask(t.Context(), stream, tokens, nil)
		for _, sim := range sims {
			sim.SetFault(llamasim.Fault{})
		}
		e.allUp(len(sims))
		return got
	}
	if diff := cut(tokens * 3 / 4).equal(want); diff != "" {
		t.Errorf("with room: %s", diff)
	}
	if err := e.load(nodes(tightBuffer, sims...), "fleet"); err != nil {
		t.Fatal(err)
	}
	e.allUp(len(sims))
	if diff := e.ask(t.Context(), stream, tokens, nil).equal(want); diff != "" {
		t.Errorf("without room: %s", diff)
	}
	if got := cut(tokens * 3 / 4); !got.lostHonestly() || !strings.HasPrefix(want.Content, got.Content) || !strings.Contains(got.Fault, "node_lost_unresumable") {
		t.Errorf("without room, when its node is lost: got %d bytes of text, fault %s", len(got.Content), got.Fault)
	}
	a := e.post(whole.path, whole.json(tokens))
	wantError(t, a, http.StatusServiceUnavailable, "overloaded")
	if a.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	large := chatBody("sim", strings.Repeat("x", 16<<10), 5, true) // it fits, its copy for the node does not
	wantError(t, e.post("/v1/chat/completions", large), http.StatusServiceUnavailable, "overloaded")
	if n := e.buffered(); n > 24<<10 {
		t.Errorf("%d bytes are set aside of 24 KiB", n)
	}
	e.quiet(sims)
	e.wantFree()

	if err := e.load(nodes("", sims...), "fleet"); err != nil {
		t.Fatal(err)
	}
	e.allUp(len(sims))
	if diff := e.ask(t.Context(), whole, tokens, nil).equal(wantWhole); diff != "" {
		t.Errorf("afterwards: %s", diff)
	}
}

// What a request does not need any more is given back while it runs.
// The pieces of a text, told one by one, are several times as long as it is.
func TestAnswersOfCallsCountTowardsTheBuffer(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	ask := func(e *edge) answer {
		e.ready()
		a := e.post("/tokenize", `{"with_pieces":true,"content":"`+strings.Repeat("word ", 4<<10)+`"}`)
		e.wantFree()
		return a
	}
	e := startEdge(t, nodes("buffer 1MiB", sim), "fleet")
	a := ask(e)
	if a.Status != 200 || len(a.Body) < 64<<10 {
		t.Fatalf("got %d and %d bytes, want an answer of more than 64 KiB", a.Status, len(a.Body))
	}
	if err := e.load(nodes("buffer 64KiB", sim), "fleet"); err != nil {
		t.Fatal(err)
	}
	wantError(t, ask(e), 503, "overloaded")
}

func TestShareFollowsWhatIsHeld(t *testing.T) {
	var all memory
	mem := share{of: &all, limit: 10 * keepStep}
	if err := mem.grow(keepStep); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		keep, used int64
		ok         bool
	}{
		{1, 2 * keepStep, true},
		{keepStep, 2 * keepStep, true},
		{9 * keepStep, 10 * keepStep, true},
		{9*keepStep + 1, 10 * keepStep, false},
		{2 * keepStep, 3 * keepStep, true},
		{0, keepStep, true},
	} {
		if ok := mem.keep(c.keep); ok != c.ok || all.used.Load() != c.used {
			t.Errorf("keep %d: got %t and %d set aside, want %t and %d", c.keep, ok, all.used.Load(), c.ok, c.used)
		}
	}
	mem.keep(keepStep)
	mem.release()
	mem.release()
	if n := all.used.Load(); n != 0 {
		t.Errorf("%d are left", n)
	}
}
