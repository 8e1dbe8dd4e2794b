package caddymodule

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestAdminShowsWhatIsCachedAcrossALife(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	global := "fleet {\n\t\tnode box-a " + sim.URL() + "\n\t}"
	e := startEdge(t, global, "fleet")
	e.ready()
	r := e.request(t.Context(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hello", 3, false)))
	r.Header.Set("X-Session-Id", "one")
	if a := e.do(r); a.Status != http.StatusOK {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	var warm struct {
		Entries, Limit int
		Kept           bool
		Instances      []struct {
			Node, Model string
			Blocks      int
			Confidence  float64
		}
	}
	show := func() {
		t.Helper()
		a := e.get(e.Admin + "/fleet/warm")
		if a.Status != http.StatusOK {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		decode(t, a.Body, &warm)
		if len(warm.Instances) != 1 {
			t.Fatalf("got %s, want one instance", a.Body)
		}
	}
	show()
	if i := warm.Instances[0]; warm.Entries == 0 || !warm.Kept || i.Node != "box-a" || i.Model != "m" || i.Blocks == 0 {
		t.Errorf("got %+v, want what the one request left on box-a, kept", warm)
	}
	blocks := warm.Instances[0].Blocks
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(caddy.AppDataDir(), "slotfleet", "warm.db")); err != nil {
		t.Error(err)
	}
	if err := e.load(global, "fleet"); err != nil {
		t.Fatal(err)
	}
	e.ready()
	if show(); warm.Instances[0].Blocks != blocks {
		t.Errorf("got %d blocks after a restart, want %d", warm.Instances[0].Blocks, blocks)
	}
	if err := e.load("fleet {\n\t\tnode box-a "+sim.URL()+"\n\t\twarm {\n\t\t\tmemory_only\n\t\t}\n\t}", "fleet"); err != nil {
		t.Fatal(err)
	}
	if show(); warm.Kept || warm.Instances[0].Blocks != blocks {
		t.Errorf("got %+v after a reload with memory_only, want the same blocks, not kept", warm)
	}
	r, _ = http.NewRequest(http.MethodPost, e.Admin+"/fleet/warm", nil)
	if a := e.do(r); a.Status != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d, want 405", a.Status)
	}
}
