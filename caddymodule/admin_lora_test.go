package caddymodule

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// scale is that of a stand-in's first adapter, as it says itself.
func scale(t *testing.T, s *llamasim.Server) float64 {
	t.Helper()
	resp, err := http.Get(s.URL() + "/lora-adapters")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list []struct{ Scale float64 }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) == 0 {
		t.Fatalf("got adapters %v, %v", list, err)
	}
	return list[0].Scale
}

func TestLoraIsSetOnEveryNodeAndOnThoseThatComeLater(t *testing.T) {
	o := llamasim.Options{Model: "m", Adapters: 1}
	a, b, c := startSim(t, o), startSim(t, o), startSim(t, o)
	e := startEdge(t, nodes("policy round_robin", a, b), "fleet")
	e.allUp(2)
	if code, err := e.command(loraCommand, "m", "0=0.5"); code != 0 || err != nil {
		t.Errorf("got %d, %v", code, err)
	}
	if scale(t, a) != 0.5 || scale(t, b) != 0.5 {
		t.Errorf("got scales %g and %g, want 0.5", scale(t, a), scale(t, b))
	}
	r := e.control("/fleet/control/lora", `{"model":"m","adapters":[{"id":0,"scale":0.25}]}`)
	var got loraResults
	decode(t, r.Body, &got)
	if r.Status != http.StatusOK || len(got.Results) != 2 || !got.Results[0].OK || got.Results[1].Node != "b" || !got.Results[1].OK {
		t.Errorf("got %d %s", r.Status, r.Body)
	}

	b.Kill()
	e.allUp(1)
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	await(t, "b to have the adapters again", func() bool { return scale(t, b) == 0.25 })

	if err := e.load(nodes("policy round_robin", a, b, c), "fleet"); err != nil {
		t.Fatal(err)
	}
	await(t, "a new node to be used", func() bool {
		if r := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); r.Status != http.StatusOK {
			t.Fatalf("got %d %s", r.Status, r.Body)
		}
		return c.Stats().Requests > 0
	})
	if got := scale(t, c); got != 0.25 {
		t.Errorf("a node that came later got a request with the scale %g, want 0.25", got)
	}
}

func TestRouterIsNotAskedForLora(t *testing.T) {
	sim := startSim(t, llamasim.Options{Models: []llamasim.Model{{Name: "m"}}, Adapters: 1})
	e := startEdge(t, nodes("", sim), "fleet")
	e.allUp(1)
	if r := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); r.Status != http.StatusOK {
		t.Fatalf("got %d %s", r.Status, r.Body)
	}
	var got loraResults
	await(t, "the model to be seen loaded", func() bool {
		decode(t, e.control("/fleet/control/lora", `{"model":"m","adapters":[{"id":0,"scale":0.5}]}`).Body, &got)
		return len(got.Results) == 1 && !strings.Contains(got.Results[0].Error, "not loaded")
	})
	if got.Results[0].OK || !strings.Contains(got.Results[0].Error, "router") {
		t.Errorf("got %+v, want it told that a router cannot", got)
	}
	if r := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); r.Status != http.StatusOK {
		t.Errorf("a model of which the adapters cannot be set serves no more: %d %s", r.Status, r.Body)
	}
}

func TestLoraThatMakesNoSenseIsRefused(t *testing.T) {
	e := startEdge(t, nodes("", startSim(t, llamasim.Options{Model: "m"})), "fleet")
	e.ready()
	for body, want := range map[string]int{
		`{"model":"zzz","adapters":[{"id":0,"scale":1}]}`: http.StatusNotFound,
		`{"model":"m"}`:                                                      http.StatusBadRequest,
		`{"adapters":[{"id":0,"scale":1}]}`:                                  http.StatusBadRequest,
		`{"model":"m","adapters":[{"id":-1,"scale":1}]}`:                     http.StatusBadRequest,
		`{"model":"m","adapters":[{"id":0,"scale":1e9}]}`:                    http.StatusBadRequest,
		`{"model":"m","adapters":[{"id":0,"scale":1},{"id":0,"scale":0}]}`:   http.StatusBadRequest,
		`{"model":"m","adapters":[{"id":0,"scale":1}],"path":"/etc/passwd"}`: http.StatusBadRequest,
	} {
		if a := e.control("/fleet/control/lora", body); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", body, a.Status, a.Body, want)
		}
	}
}

func TestAdaptersAreReadFromTheCommandLine(t *testing.T) {
	got, err := adaptersOf([]string{"0=0.5", "3=-1"})
	if err != nil || len(got) != 2 || got[0] != (adapter{0, 0.5}) || got[1] != (adapter{3, -1}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"0", "a=1", "0=x", "-1=1", "0=NaN", "0=Inf", "="} {
		if got, err := adaptersOf([]string{bad}); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
	var b strings.Builder
	l := loraResults{Results: []loraResult{{Node: "a", Model: "m", OK: true}, {Node: "b", Model: "m", Error: "down"}}}
	if err := l.write(&b); err != nil || b.String() != "NODE  MODEL  RESULT\na     m      set\nb     m      down\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}
