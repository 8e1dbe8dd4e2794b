package caddymodule

import (
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
)

// What the manager does with nodes that dial in is what it does with others.

// The lane of a parked request is free on the node, too, and the request goes on from
// what its client has.
func TestRequestOnANodeThatDialledInIsParkedAndResumed(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 1, Decode: 100})
	e := startEdge(t, joining(freeAddr(t), linkf.NewToken(), sim, "", ""), "fleet")
	e.ready()
	whole := <-e.stream(100)
	if wrong := whole.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	ended := e.stream(100)
	id := e.sessions()[0].ID
	if a := e.control("/fleet/control/sessions/"+id+"/park", ""); a.Status != http.StatusOK {
		t.Fatalf("park: got %d %s", a.Status, a.Body)
	}
	await(t, "the server to let go", func() bool { return sim.Stats().Active == 0 })
	if a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); a.Status != http.StatusOK {
		t.Errorf("another request meanwhile: got %d %s, want the lane that was given back", a.Status, a.Body)
	}
	if a := e.control("/fleet/control/sessions/"+id+"/resume", ""); a.Status != http.StatusOK {
		t.Fatalf("resume: got %d %s", a.Status, a.Body)
	}
	got := <-ended
	if wrong := got.whole(); wrong != "" || got.Text != whole.Text {
		t.Errorf("%s; got\n%s\nwant\n%s", wrong, got.Text, whole.Text)
	}
	if n := sim.Stats().Cancelled; n != 1 {
		t.Errorf("the server saw %d cancelled, want 1", n)
	}
}

func TestSecondMachineWithTheNameOfOneThatIsAliveIsRefused(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a second loopback address to dial from")
	}
	token := linkf.NewToken()
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddr(t)
	e := startEdge(t, "fleet {\n\t\tlisten "+address+"\n\t\ttoken "+token+"\n\t}", "fleet")
	first, second := startSim(t, llamasim.Options{Model: "m"}), startSim(t, llamasim.Options{Model: "m"})
	start := func(head string, sim *llamasim.Server, said chan string) *agent.Agent {
		a, err := agent.Start(agent.Options{
			Heads: []string{head}, Tokens: []linkf.Token{k}, Identity: "box-c", Upstream: sim.URL(),
			Logger: slog.New(slog.NewTextHandler(lines(said), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a := start(address, first, make(chan string))
	e.ready()
	w := newTunnel(t, address, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)})
	said := make(chan string, 100)
	start(w.ln.Addr().String(), second, said)
	await(t, "the second machine to hear why it is refused", func() bool { return strings.Contains(<-said, "is alive; give this one an identity of its own") })
	if r := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); r.Status != http.StatusOK || first.Stats().Requests != 1 {
		t.Errorf("got %d and %d requests at the first machine, want its answer", r.Status, first.Stats().Requests)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the second machine to get the place of the first", func() bool {
		return e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)).Status == http.StatusOK && second.Stats().Requests > 0
	})
	if n := strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"name":"box-c"`); n != 1 {
		t.Errorf("%d nodes have the name, want 1", n)
	}
}
