package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestLoraIsAskedOfEveryNodeAndEachAnswerTold(t *testing.T) {
	o := llamasim.Options{Model: "m"} // these know no adapters, and say so
	e := startEdge(t, nodes("", startSim(t, o), startSim(t, o)), "fleet")
	e.ready()
	await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == 2 })
	if code, err := e.command(loraCommand, "m", "0=0.5"); code != exitRefused || err != nil {
		t.Errorf("got %d, %v, want %d: the stand-ins have no adapters", code, err, exitRefused)
	}
	a := e.control("/fleet/control/lora", `{"model":"m","adapters":[{"id":0,"scale":0.5}]}`)
	var got loraResults
	decode(t, a.Body, &got)
	if a.Status != http.StatusOK || len(got.Results) != 2 || got.Results[0].OK || got.Results[1].Node != "b" || got.Results[1].Error == "" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if r := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); r.Status != http.StatusOK {
		t.Errorf("a node that refused the adapters serves no more: %d %s", r.Status, r.Body)
	}
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
