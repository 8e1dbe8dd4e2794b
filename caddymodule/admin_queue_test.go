package caddymodule

import (
	"context"
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

// Who waits is shown by class and model, and goes in that order.
func TestAdminShowsWhoWaits(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 50})
	e := startEdge(t, nodes("queue {\n\t\t\trequests 2\n\t\t}", sim),
		"fleet {\n\t\ttenant {header.X-Who}\n\t\tclass {header.X-Class}\n\t\talias other m\n\t}")
	e.ready()
	free := takeLane(t, e, sim)
	ended := make(chan string, 2)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	wait := func(class string, waiting int) {
		t.Helper()
		r := e.request(ctx, "/v1/chat/completions", strings.NewReader(chatBody("other", "hello", 3000, true)))
		r.Header.Set("X-Class", class)
		r.Header.Set("X-Who", "secret-"+class)
		go func() {
			resp, err := e.Client.Do(r) // returns with the first words
			if err == nil {
				defer resp.Body.Close()
			}
			ended <- class
			<-ctx.Done()
		}()
		await(t, "it to wait", func() bool { return currentState().manager.Queue().Waiting == waiting })
	}
	wait("2", 1)
	wait("8", 2)
	a := e.get(e.Admin + "/fleet/queue")
	var q struct {
		Waiting       int
		Bytes         int64
		LimitRequests int `json:"limit_requests"`
		Classes       []struct{ Class, Waiting, Tenants int }
		Models        []struct {
			Model   string
			Waiting int
		}
	}
	decode(t, a.Body, &q)
	if a.Status != http.StatusOK || q.Waiting != 2 || q.Bytes == 0 || q.LimitRequests != 2 ||
		len(q.Classes) != 2 || q.Classes[0].Class != 8 || q.Classes[1].Tenants != 1 ||
		len(q.Models) != 1 || q.Models[0].Model != "m" || q.Models[0].Waiting != 2 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if strings.Contains(a.Body, "secret") || strings.Contains(a.Body, "127.0.0.1") {
		t.Errorf("it tells who they are: %s", a.Body)
	}
	full := e.do(e.request(t.Context(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hello", 1, false))))
	if full.Status != http.StatusServiceUnavailable || full.Header.Get("Retry-After") == "" {
		t.Errorf("got %d with Retry-After %q from a full queue, want 503 with one", full.Status, full.Header.Get("Retry-After"))
	}
	series := scrape(t, e)
	if series[`slotfleet_queue_refused_total{reason="requests"}`] != 1 || series["slotfleet_queue_bytes{}"] != float64(q.Bytes) ||
		series["slotfleet_queue_waiting{}"] != 2 {
		t.Errorf("got metrics %v", series)
	}
	free()
	if got := <-ended; got != "8" {
		t.Errorf("got class %s answered first, want 8", got)
	}
	if got := currentState().manager.Queue(); got.Waiting != 1 || got.Classes[0].Class != 2 {
		t.Errorf("got %+v, want class 2 to wait yet", got)
	}
}
