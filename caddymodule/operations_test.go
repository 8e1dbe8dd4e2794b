package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// What the manager does with requests that are under way, through the handler.

// A request of a higher class takes the lane of a lower one, whose client gets the rest
// when the lane is free again, and notices nothing.
func TestHigherClassTakesALaneThroughTheHandler(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 50})
	e := startEdge(t, nodes("preempt", sim), `
	handle_path /urgent/* {
		fleet {
			class 7
		}
	}
	handle {
		fleet {
			class 2
		}
	}`)
	e.ready()
	whole := <-e.stream(100)
	if wrong := whole.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	low := e.stream(100)
	if a := e.post("/urgent/v1/chat/completions", chatBody("m", "now", 5, false)); a.Status != http.StatusOK {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	select {
	case got := <-low:
		t.Fatalf("the lower class had ended before the higher was answered: %+v", got)
	default:
	}
	got := <-low
	if wrong := got.whole(); wrong != "" || got.Text != whole.Text {
		t.Errorf("%s; got\n%s\nwant\n%s", wrong, got.Text, whole.Text)
	}
	if m := e.get(e.Admin + "/metrics").Body; !strings.Contains(m, `reason="preempted"`) {
		t.Error("no metric tells that a request gave way")
	}
}

// A drain on a full fleet waits for a lane with the answer running on.
func TestDrainOfAFullFleetWaitsForALane(t *testing.T) {
	o := llamasim.Options{Model: "m", Slots: 1, Decode: 50}
	sims := map[string]*llamasim.Server{"a": startSim(t, o), "b": startSim(t, o)}
	e := startEdge(t, nodes("policy round_robin", sims["a"], sims["b"]), "fleet")
	e.allUp(2)
	long := e.stream(400)
	drained := e.sessions()[0].Node
	short := e.stream(50)
	if a := e.control("/fleet/control/nodes/"+drained+"/drain", ""); a.Status != http.StatusOK {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if got := e.sessions()[0]; got.State != "decode" || got.Node != drained || got.Moves != 0 {
		t.Errorf("got %+v, want it to run on while all lanes are taken", got)
	}
	if wrong := (<-short).whole(); wrong != "" {
		t.Error(wrong)
	}
	await(t, "the long answer to move", func() bool {
		list := e.sessions()
		return len(list) == 1 && list[0].Node != drained && list[0].Moves == 1
	})
	if wrong := (<-long).whole(); wrong != "" {
		t.Error(wrong)
	}
	var n nodeStatus
	decode(t, e.get(e.Admin+"/fleet/nodes/"+drained).Body, &n)
	if n.Drain == nil || !n.Drain.Drained || n.Drain.Moved != 1 || n.Drain.Ended != 0 {
		t.Errorf("got %+v", n.Drain)
	}
	before := sims[drained].Stats().Requests
	if a := e.control("/fleet/control/nodes/"+drained+"/undrain", ""); a.Status != http.StatusOK || strings.Contains(a.Body, `"drain"`) {
		t.Errorf("undrain: got %d %s", a.Status, a.Body)
	}
	await(t, "the node to be used again", func() bool {
		if a := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); a.Status != http.StatusOK {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		return sims[drained].Stats().Requests > before
	})
}

// A request under which two servers crashed is refused when it comes again, whoever is
// up then, and others are answered.
func TestRequestThatCrashesServersIsQuarantined(t *testing.T) {
	o := llamasim.Options{Model: "m"}
	sims := []*llamasim.Server{startSim(t, o), startSim(t, o), startSim(t, o)}
	e := startEdge(t, nodes("", sims...), "fleet")
	e.allUp(3)
	setFaults(sims, llamasim.Fault{Kind: llamasim.FaultCrash})
	killer := chatBody("m", "the killer", 5, false)
	if a := e.post("/v1/chat/completions", killer); a.Status != http.StatusUnprocessableEntity && a.Status != http.StatusBadGateway {
		t.Errorf("got %d %s, want it refused or lost", a.Status, a.Body)
	}
	// It waits until the servers are seen away, at the longest.
	wantError(t, e.post("/v1/chat/completions", killer), http.StatusUnprocessableEntity, "quarantined")
	setFaults(sims, llamasim.Fault{})
	for _, s := range sims {
		s.Kill() // two have crashed, the third may have
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	e.allUp(3)
	before := requests(sims)
	wantError(t, e.post("/v1/chat/completions", killer), http.StatusUnprocessableEntity, "quarantined")
	if got := requests(sims); got != before {
		t.Errorf("servers got it %d times after they had crashed under it", got-before)
	}
	if a := e.post("/v1/chat/completions", chatBody("m", "another", 5, false)); a.Status != http.StatusOK {
		t.Errorf("another request: got %d %s", a.Status, a.Body)
	}
}

func requests(sims []*llamasim.Server) (n int) {
	for _, s := range sims {
		n += s.Stats().Requests
	}
	return n
}
