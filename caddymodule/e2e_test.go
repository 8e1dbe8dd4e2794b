package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// The main promise, end to end: a client reads one answer, whatever becomes of the
// server that began it. Stand-ins answer as a function of their whole context, so
// that the answer of several must equal that of one, byte for byte.

// trio starts an edge before three stand-ins.
func trio(t testing.TB, o llamasim.Options, more string) (*edge, []*llamasim.Server) {
	t.Helper()
	o.Model = "sim"
	var sims []*llamasim.Server
	for range 3 {
		sims = append(sims, startSim(t, o))
	}
	e := startEdge(t, nodes(more, sims...), "fleet")
	e.allUp(len(sims))
	return e, sims
}

// allUp waits until so many nodes are up.
func (e *edge) allUp(n int) {
	e.t.Helper()
	await(e.t, fmt.Sprintf("%d nodes to be up", n), func() bool {
		var s struct{ Up int }
		decode(e.t, e.get(e.Admin+"/fleet/nodes").Body, &s)
		return s.Up == n
	})
}

// quiet waits until no lane is held and no stand-in generates.
func (e *edge) quiet(sims []*llamasim.Server) {
	e.t.Helper()
	await(e.t, "all lanes to be free", func() bool {
		for _, s := range sims {
			if st := s.Stats(); st.Active+st.Queued > 0 {
				return false
			}
		}
		return !strings.Contains(lanesHeld(e), "held")
	})
}

func lanesHeld(e *edge) string {
	var s struct {
		Nodes []struct {
			Name      string
			Instances []struct {
				Active int `json:"lanes_active"`
			}
		}
	}
	decode(e.t, e.get(e.Admin+"/fleet/nodes").Body, &s)
	var held strings.Builder
	for _, n := range s.Nodes {
		for _, i := range n.Instances {
			if i.Active != 0 {
				fmt.Fprintf(&held, "node %s: %d lanes held; ", n.Name, i.Active)
			}
		}
	}
	return held.String()
}

// killServing kills the stand-in that generates and returns it.
func killServing(sims []*llamasim.Server) *llamasim.Server {
	for _, s := range sims {
		if s.Stats().Active > 0 {
			s.Kill()
			return s
		}
	}
	return nil
}

func TestAnswerSurvivesTheDeathOfItsNodeAtAnyPoint(t *testing.T) {
	const points, tokens = 20, 160
	for _, a := range askings {
		t.Run(a.name, func(t *testing.T) {
			e, sims := trio(t, llamasim.Options{Thinking: a.thinking, Decode: 800}, "")
			want := e.ask(t.Context(), a, tokens, nil)
			if want.Fault != "" || want.Content == "" || a.thinking && want.Reasoning == "" {
				t.Fatalf("the uninterrupted answer: %+v", want)
			}
			for i := range points {
				at := 1 + i*(tokens-20)/(points-1) // near the end it may be whole before the kill
				killed, got := e.askAndKill(t, a, tokens, at, sims)
				if killed == nil {
					t.Errorf("point %d: nothing was being generated", at)
					continue
				}
				if diff := got.equal(want); diff != "" {
					t.Errorf("killed at token %d: %s", at, diff)
				}
				if err := killed.Restart(); err != nil {
					t.Fatal(err)
				}
				e.allUp(len(sims))
			}
			e.quiet(sims)
		})
	}
}

// askAndKill asks and kills the serving stand-in when so many tokens are there: by
// what the client read of a stream, by what was generated for a whole answer. The
// stand-in goes no further, so that it is there to be killed however slow the machine.
func (e *edge) askAndKill(t *testing.T, a asking, tokens, at int, sims []*llamasim.Server) (*llamasim.Server, told) {
	var killed *llamasim.Server
	stop := llamasim.Fault{Kind: llamasim.FaultHang, Token: at}
	kill := func() {
		for _, s := range sims {
			if s.Stats().Active == 0 {
				s.SetFault(llamasim.Fault{}) // it is to go on
			}
		}
		killed = killServing(sims)
		setFaults(sims, llamasim.Fault{})
	}
	if a.stream {
		stop.Token += 15 // what the client has read by then is less than was generated
		setFaults(sims, stop)
		got := e.ask(t.Context(), a, tokens, func(chunk int) {
			if chunk == at {
				kill()
			}
		})
		return killed, got
	}
	setFaults(sims, stop)
	before := generated(sims)
	answered := make(chan told)
	go func() { answered <- e.ask(t.Context(), a, tokens, nil) }()
	await(t, "tokens to be generated", func() bool { return generated(sims)-before >= at-1 && serving(sims) })
	kill()
	return killed, <-answered
}

func setFaults(sims []*llamasim.Server, f llamasim.Fault) {
	for _, s := range sims {
		s.SetFault(f)
	}
}

func generated(sims []*llamasim.Server) (n int) {
	for _, s := range sims {
		n += s.Stats().Generated
	}
	return n
}

func serving(sims []*llamasim.Server) bool {
	for _, s := range sims {
		if s.Stats().Active > 0 {
			return true
		}
	}
	return false
}

// Each way in which a server can fail, at each token of a short answer.
func TestAnswerSurvivesEveryFaultAtEveryToken(t *testing.T) {
	const tokens = 12
	faults := []llamasim.FaultKind{
		llamasim.FaultReset, llamasim.FaultFin, llamasim.FaultCut, llamasim.FaultError,
		llamasim.FaultKVFull, llamasim.FaultGarbage, llamasim.FaultCleanEOF,
	}
	tools := []asking{toolAsking("tools, streamed", true), toolAsking("tools, whole", false)}
	for _, a := range append(tools, askings[:4]...) {
		t.Run(a.name, func(t *testing.T) {
			e, sims := trio(t, llamasim.Options{Thinking: a.thinking}, "moves 300")
			tokens := tokens
			if strings.HasPrefix(a.name, "tools") {
				tokens = 100 // it ends with the call
			}
			want := e.ask(t.Context(), a, tokens, nil)
			if want.Fault != "" || strings.HasPrefix(a.name, "tools") && want.CallIDs != 1 {
				t.Fatalf("the uninterrupted answer: %+v", want)
			}
			for _, kind := range faults {
				for token := range min(tokens, 30) {
					for _, s := range sims[:2] { // two of three: the answer may move twice
						s.SetFault(llamasim.Fault{Kind: kind, Token: token, Times: 1})
					}
					if diff := e.ask(t.Context(), a, tokens, nil).equal(want); diff != "" {
						t.Errorf("%s at token %d: %s", kind, token, diff)
					}
					for _, s := range sims {
						s.SetFault(llamasim.Fault{})
					}
				}
			}
			e.quiet(sims)
		})
	}
}

// A node that is silent, though its connection stands, is given up after the stall
// limit; one that refuses or is loading, at once.
func TestAnswerSurvivesSilenceAndRefusal(t *testing.T) {
	e, sims := trio(t, llamasim.Options{}, "stall 300ms")
	a := askings[0]
	want := e.ask(t.Context(), a, 12, nil)
	for _, f := range []llamasim.Fault{
		{Kind: llamasim.FaultHang, Token: 0, Times: 1},
		{Kind: llamasim.FaultHang, Token: 5, Times: 1},
		{Kind: llamasim.FaultRefuse},
		{Kind: llamasim.FaultLoading},
		{Kind: llamasim.FaultStatus},
	} {
		broken := sims[:2]
		if f.Kind == llamasim.FaultStatus {
			broken = sims[:1] // what two servers say alike is the answer
		}
		for _, s := range broken {
			s.SetFault(f)
		}
		if diff := e.ask(t.Context(), a, 12, nil).equal(want); diff != "" {
			t.Errorf("%s at token %d: %s", f.Kind, f.Token, diff)
		}
		for _, s := range sims {
			s.SetFault(llamasim.Fault{})
		}
		e.allUp(len(sims))
	}
	e.quiet(sims)
}

// lostHonestly: all three nodes failed one request, and the client was told so.
func (a told) lostHonestly() bool {
	return a.Done == 0 && strings.Contains(a.Fault, "node_lost") && (a.Status != http.StatusOK || a.Cut)
}

func TestNobodyLeftToGoOnIsAnHonestEnd(t *testing.T) {
	for _, a := range []asking{askings[0], askings[2]} {
		t.Run(a.name, func(t *testing.T) {
			e, sims := trio(t, llamasim.Options{}, "")
			for _, s := range sims {
				s.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 8})
			}
			got := e.ask(t.Context(), a, 100, nil)
			if !got.lostHonestly() || got.Finish != "" || !strings.Contains(got.Fault, "node_lost_unresumable") {
				t.Errorf("got %+v, want an error end, a connection that breaks off, and no [DONE]", got)
			}
			if got.Content == "" {
				t.Error("what three nodes said before they were lost did not come through")
			}
			for _, s := range sims {
				s.SetFault(llamasim.Fault{})
			}
			e.quiet(sims)
		})
	}
}

// Nothing was delivered: the client gets a proper status.
func TestNobodyLeftBeforeTheFirstByteIsAStatus(t *testing.T) {
	e, sims := trio(t, llamasim.Options{}, "")
	for _, s := range sims {
		s.SetFault(llamasim.Fault{Kind: llamasim.FaultReset})
	}
	for _, a := range askings {
		got := e.ask(t.Context(), a, 10, nil)
		if got.Status != http.StatusBadGateway || got.Fault == "" {
			t.Errorf("%s: got %+v, want status 502 and an error", a.name, got)
		}
		e.allUp(len(sims))
	}
	for _, s := range sims {
		s.SetFault(llamasim.Fault{})
	}
	e.quiet(sims)
}

// A client that leaves frees the slot on the node within a second, whether its
// answer streams or not, and while it waits.
func TestClientThatLeavesFreesTheSlotOnTheNode(t *testing.T) {
	for _, a := range []asking{askings[0], askings[3]} {
		t.Run(a.name, func(t *testing.T) {
			e, sims := trio(t, llamasim.Options{Decode: 50}, "")
			ctx, leave := context.WithCancel(t.Context())
			answered := make(chan told)
			go func() { answered <- e.ask(ctx, a, 3000, nil) }()
			await(t, "a generation", func() bool { return serving(sims) && generated(sims) >= 0 })
			leave()
			<-answered
			began := time.Now()
			e.quiet(sims)
			t.Logf("free after %s", time.Since(began).Round(time.Millisecond))
		})
	}
}

// What is too long for one node goes to a wider one; what is too long for all is
// refused with the widest context, whichever node was asked.
func TestTooLongAPromptIsToldTheWidestContext(t *testing.T) {
	narrow := startSim(t, llamasim.Options{Model: "sim", Context: 300})
	wide := startSim(t, llamasim.Options{Model: "sim", Context: 1000})
	e := startEdge(t, nodes("policy round_robin", narrow, wide), "fleet")
	e.allUp(2)
	for range 4 { // each node is asked first, sometimes
		for _, stream := range []bool{true, false} {
			a := e.post("/v1/chat/completions", chatBody("sim", strings.Repeat("word ", 500), 5, stream))
			if a.Status != http.StatusOK || a.Err != nil {
				t.Fatalf("500 words: got %d %s, want an answer of the wide node", a.Status, a.Body)
			}
			a = e.post("/v1/chat/completions", chatBody("sim", strings.Repeat("word ", 5000), 5, stream))
			wantError(t, a, http.StatusBadRequest, "context_length_exceeded")
			if !strings.Contains(a.Body, `"n_ctx":1000`) {
				t.Errorf("got %s, want the widest context, 1000", a.Body)
			}
		}
	}
	e.quiet([]*llamasim.Server{narrow, wide})
}

// More requests than lanes wait; more than may wait are refused at once, and those
// that waited too long, then.
func TestFullFleetAnswersInTime(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "sim", Slots: 1, Decode: 20})
	e := startEdge(t, nodes("queue {\n\t\t\trequests 2\n\t\t\ttimeout 1s\n\t\t}", sim), "fleet")
	e.allUp(1)
	ctx, leave := context.WithCancel(t.Context())
	running := make(chan told)
	go func() { running <- e.ask(ctx, askings[0], 1000, nil) }()
	await(t, "the only lane to be taken", func() bool { return serving([]*llamasim.Server{sim}) })

	waiting := make(chan answer, 2)
	for range 2 {
		go func() { waiting <- e.post("/v1/chat/completions", chatBody("sim", "hi", 5, true)) }()
	}
	await(t, "two requests to wait", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, `"waiting":2`)
	})
	full := e.post("/v1/chat/completions", chatBody("sim", "hi", 5, true))
	wantError(t, full, http.StatusServiceUnavailable, "overloaded")
	for range 2 {
		wantError(t, <-waiting, http.StatusGatewayTimeout, "timeout")
	}
	leave()
	<-running
	e.quiet([]*llamasim.Server{sim})
	if a := e.ask(t.Context(), askings[0], 5, nil); a.Fault != "" {
		t.Errorf("afterwards: got %+v", a)
	}
}
