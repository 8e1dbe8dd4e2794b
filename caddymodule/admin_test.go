package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestAdminShowsNodes(t *testing.T) {
	t.Setenv("SLOTFLEET_TEST_KEY", "sesame")
	sim := startSim(t, llamasim.Options{Model: "m", APIKey: "sesame"})
	e := startEdge(t, "fleet {\n\t\tnode box-a "+sim.URL()+" {\n\t\t\tkey {env.SLOTFLEET_TEST_KEY}\n\t\t}\n\t}", "fleet")
	e.ready()
	var all struct {
		Up, Known int
		Serving   []struct {
			Model string
			Ready int
		}
		Nodes []struct {
			Name string
			Up   bool
		}
	}
	a := e.get(e.Admin + "/fleet/nodes")
	decode(t, a.Body, &all)
	if a.Status != http.StatusOK || a.Header.Get("Content-Type") != "application/json" ||
		all.Up != 1 || all.Known != 1 || all.Serving[0].Model != "m" || all.Serving[0].Ready != 1 || all.Nodes[0].Name != "box-a" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if one := e.get(e.Admin + "/fleet/nodes/box-a"); one.Status != http.StatusOK || !strings.Contains(one.Body, `"name":"box-a"`) {
		t.Errorf("got %d %s", one.Status, one.Body)
	}
	if none := e.get(e.Admin + "/fleet/nodes/box-z"); none.Status != http.StatusNotFound || !strings.Contains(none.Body, `"error"`) {
		t.Errorf("got %d %s", none.Status, none.Body)
	}
	for _, path := range []string{"/fleet/nodes", "/fleet/nodes/box-a", "/slotlog/slots", "/slotlog/sources"} {
		r, _ := http.NewRequest(http.MethodPost, e.Admin+path, nil)
		a := e.do(r)
		if a.Status != http.StatusMethodNotAllowed || a.Header.Get("Allow") == "" || !strings.HasPrefix(a.Body, `{"error"`) {
			t.Errorf("POST %s: got %d %s", path, a.Status, a.Body)
		}
		if got := e.get(e.Admin + path); got.Header.Get("Access-Control-Allow-Origin") != "" || strings.Contains(got.Body, "sesame") {
			t.Errorf("%s: got %v %s", path, got.Header, got.Body)
		}
	}
	// The paths are the admin API's, not the site's.
	if a := e.get(e.URL + "/fleet/nodes"); strings.Contains(a.Body, "box-a") {
		t.Errorf("the site shows the nodes: %s", a.Body)
	}
	if a := e.get(e.Admin + "/config/"); strings.Contains(a.Body, "sesame") {
		t.Errorf("the configuration shows the key: %s", a.Body)
	}
}

func TestAdminWithoutApps(t *testing.T) {
	e := startEdge(t, "", "respond x")
	for _, path := range []string{"/fleet/nodes", "/fleet/nodes/a", "/slotlog/slots", "/slotlog/sources"} {
		if a := e.get(e.Admin + path); a.Status != http.StatusNotFound || !strings.Contains(a.Body, "configured") {
			t.Errorf("%s: got %d %s", path, a.Status, a.Body)
		}
	}
	if err := e.load("slotlog {\n\t\tsource a file /does/not/exist\n\t}", "respond x"); err != nil {
		t.Fatal(err)
	}
	if a := e.get(e.Admin + "/fleet/nodes"); a.Status != http.StatusNotFound {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	await(t, "the log to be missed", func() bool {
		return strings.Contains(e.get(e.Admin+"/slotlog/sources").Body, `"file":"missing"`)
	})
}
