package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestOnlyStandInsOfThisMachineAreKilled(t *testing.T) {
	s, err := llamasim.Start(llamasim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	asked := 0
	real := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Method != http.MethodGet {
			t.Errorf("a server that is no stand-in got %s %s", r.Method, r.URL)
		}
		http.NotFound(w, r)
	}))
	defer real.Close()

	for address, want := range map[string]string{
		"http://10.0.0.2:8080":  "not on this machine",
		"https://127.0.0.1:1":   "not on this machine",
		"unix//run/llama.sock":  "not on this machine",
		"http://127.0.0.1.evil": "not on this machine",
		"":                      "not on this machine",
		real.URL:                "is not a stand-in",
	} {
		if err := killStandIn(address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("killStandIn(%q): got error %v, want one with %q", address, err, want)
		}
	}
	if asked == 0 {
		t.Error("the real server was not asked")
	}

	if err := killStandIn(s.URL()); err != nil {
		t.Fatalf("killing a stand-in: %v", err)
	}
	if !untilRefused(t.Context(), s.Addr()) {
		t.Error("the killed stand-in still listens")
	}
}

func TestBusiestNodeIsTheOneToKill(t *testing.T) {
	held := func(n ...int) []fleet.InstanceStatus {
		var list []fleet.InstanceStatus
		for _, lanes := range n {
			list = append(list, fleet.InstanceStatus{LanesActive: lanes})
		}
		return list
	}
	s := statusOf(t, fleet.Status{Nodes: []fleet.NodeStatus{
		{Name: "idle", Instances: held(0)}, {Name: "one", Instances: held(1)}, {Name: "two", Instances: held(1, 1)},
	}})
	if n, ok := s.busiest(); !ok || n.Name != "two" {
		t.Errorf("got %q %v, want two", n.Name, ok)
	}
	s = statusOf(t, fleet.Status{Nodes: []fleet.NodeStatus{{Name: "idle", Instances: held(0)}}})
	if n, ok := s.busiest(); ok {
		t.Errorf("got %q of an idle fleet", n.Name)
	}
}
