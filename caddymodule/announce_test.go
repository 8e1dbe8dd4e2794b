package caddymodule

import (
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/discover"
)

// needsMulticast skips a test where no head can be found.
func needsMulticast(t *testing.T) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		const wanted = net.FlagUp | net.FlagMulticast
		addrs, _ := i.Addrs()
		if i.Flags&wanted == wanted && i.Flags&net.FlagLoopback == 0 && len(addrs) > 0 {
			return
		}
	}
	t.Skip("no interface with multicast is up here")
}

func TestNodeFindsTheFleetOnTheLocalNetwork(t *testing.T) {
	needsMulticast(t)
	token := linkf.NewToken()
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 8})
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	config := func(fleet string) string {
		return fmt.Sprintf(`fleet {
		listen :%s
		token %s
		%s
	}
	fleet_node {
		head auto
		head linkf://127.0.0.1:%s
		token %s
		identity box-c
		upstream %s
	}`, port, token, fleet, port, token, sim.URL())
	}
	announcements := func() (all []*discover.Announcer) {
		signs.Range(func(_, v any) bool {
			all = append(all, v.(sign).Announcer)
			return true
		})
		return all
	}
	e := startEdge(t, config("announce"), "fleet")
	e.ready()
	if a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); a.Status != http.StatusOK {
		t.Errorf("got %d %s, want an answer of the node that came by itself", a.Status, a.Body)
	}
	before := announcements()
	for i := range 3 {
		if err := e.load(config(fmt.Sprintf("announce\n\t\tretry %ds", i+3)), "fleet"); err != nil {
			t.Fatal(err)
		}
	}
	if after := announcements(); len(before) != 1 || len(after) != 1 || after[0] != before[0] {
		t.Errorf("got announcements %v after reloads, want %v", after, before)
	}
	if err := e.load(config(""), "fleet"); err != nil {
		t.Fatal(err)
	}
	if after := announcements(); len(after) != 0 {
		t.Errorf("got announcements %v of a fleet that is not announced any more", after)
	}
	if a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); a.Status != http.StatusOK {
		t.Errorf("got %d %s, want the node to stay when the announcement ends", a.Status, a.Body)
	}
}

func TestValidateAnnouncesAndLooksForNothing(t *testing.T) {
	token := linkf.NewToken()
	config, err := adapt("{\nfleet {\nlisten :8454\nannounce\ntoken " + token + "\n}\nfleet_node {\nhead auto\nhead linkf://127.0.0.1:1\ntoken " + token + "\nupstream http://127.0.0.1:1\n}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(config); err != nil {
		t.Fatal(err)
	}
	for name, pool := range map[string]*caddy.UsagePool{"a door": doors, "an announcement": signs, "an agent": agents} {
		pool.Range(func(key, _ any) bool {
			t.Errorf("it left %s held: %v", name, key)
			return true
		})
	}
}
