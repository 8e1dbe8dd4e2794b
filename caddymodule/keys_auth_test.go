package caddymodule

import (
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestKeysGuardOtherRoutes(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	path := keysOnDisk(t, `ann sk-1 "class": 7`, "bob sk-2")
	e := startEdge(t, nodes("", sim), "fleet_keys /tools/* "+path+`
	respond /tools/* "{http.auth.user.id} {http.auth.user.class}"
	fleet`)
	for header, want := range map[string]string{
		"Authorization: Bearer sk-1": "ann 7",
		"x-api-key: sk-2":            "bob ",
		"x-api-key: sk-3":            "",
		"":                           "",
	} {
		a := e.with(header, "/tools/x", "")
		if want == "" {
			if a.Status != 401 || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("%q: got %d %v, want 401", header, a.Status, a.Header)
			}
			continue
		}
		if a.Status != 200 || a.Body != want {
			t.Errorf("%q: got %d %q, want %q", header, a.Status, a.Body, want)
		}
	}
	if a := e.get(e.URL + "/v1/models"); a.Status != 200 {
		t.Errorf("got %d on a route that is not guarded", a.Status)
	}
}
