package caddymodule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
)

// A node that a reload changed has the link from the moment that it runs, however long
// the old one takes to end; and the old one has it again if the reload failed.
func TestNodesOfAReloadTakeNoTurns(t *testing.T) {
	token, address := linkf.NewToken(), freeAddr(t)
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 8})
	e := startEdge(t, fmt.Sprintf("fleet {\n\t\tlisten %s\n\t\ttoken %s\n\t}", address, token), "fleet")
	start := func(lanes int) (*NodeApp, *way) {
		w := newWay(t, "127.0.0.1:0", address, nil)
		a := &NodeApp{Heads: []string{linkfScheme + w.addr}, Tokens: []string{token}, Identity: "box-c", Upstream: sim.URL(), Lanes: lanes}
		ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
		t.Cleanup(cancel)
		if err := a.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		return a, w
	}
	has := func(lanes int) {
		t.Helper()
		await(t, fmt.Sprintf("the fleet to know the node of %d lanes", lanes), func() bool {
			return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, fmt.Sprintf(`"lanes":%d`, lanes))
		})
	}
	old, itsWay := start(2)
	has(2)
	changed, _ := start(3)
	has(3)
	ended := make(chan error, 1)
	time.AfterFunc(time.Second, func() { ended <- old.Stop() })
	if err := <-ended; err != nil {
		t.Error(err)
	}
	itsWay.mu.Lock()
	if itsWay.taken != 1 {
		t.Errorf("the old node dialled %d times, want once", itsWay.taken)
	}
	itsWay.mu.Unlock()
	has(3)
	failed, _ := start(4)
	has(4)
	if err := failed.Stop(); err != nil {
		t.Error(err)
	}
	has(3)
	if err := changed.Stop(); err != nil {
		t.Error(err)
	}
	if len(namesakes.all) != 0 {
		t.Errorf("agents %v are known after their end", namesakes.all)
	}
}
