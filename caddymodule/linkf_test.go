package caddymodule

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
)

// startAgent runs an agent that a head dials, until the test ends.
func startAgent(t *testing.T, name, token string, sim *llamasim.Server) (address string) {
	t.Helper()
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	address = freeAddr(t)
	ln, err := listenTCP(address)
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.Start(agent.Options{Listener: ln, Tokens: []linkf.Token{k}, Identity: name, Upstream: sim.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return address
}

// chatOf reads the stream of a chat; each is called after each chunk.
func (e *edge) chatOf(prompt string, tokens int, each func(int)) streamed {
	e.t.Helper()
	r := e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", prompt, tokens, true)))
	resp, err := e.Client.Do(r)
	if err != nil {
		return streamed{Err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return streamed{Err: fmt.Errorf("status %d", resp.StatusCode)}
	}
	return readStream(resp.Body, each)
}

func TestDialledAgentIsReplacedInTheMiddleOfAStream(t *testing.T) {
	token := linkf.NewToken()
	t.Setenv("SLOTFLEET_TEST_TOKEN", token)
	o := llamasim.Options{Model: "m", Slots: 4, Decode: 200}
	a, b := startSim(t, o), startSim(t, o)
	e := startEdge(t, fmt.Sprintf(`fleet {
		node a linkf://%s {
			token %s
			token {env.SLOTFLEET_TEST_TOKEN}
		}
		node b linkf://%s {
			token {env.SLOTFLEET_TEST_TOKEN}
		}
	}`, startAgent(t, "a", token, a), linkf.NewToken(), startAgent(t, "b", token, b)), "fleet")
	e.ready()
	await(t, "both nodes to be up", func() bool {
		return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"state":"ready"`) == 2
	})
	want := e.chatOf("tell me", 100, nil)
	if wrong := want.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	killed := false
	got := e.chatOf("tell me", 100, func(chunks int) {
		if chunks != 20 {
			return
		}
		for _, s := range []*llamasim.Server{a, b} {
			if s.Stats().Active > 0 {
				s.Kill()
				killed = true
			}
		}
	})
	if wrong := got.whole(); wrong != "" {
		t.Error(wrong)
	}
	if !killed {
		t.Error("no server was killed: the test shows nothing")
	}
	if got.Text != want.Text {
		t.Errorf("got %q, want what an answer without a loss is: %q", got.Text, want.Text)
	}
}

func TestAgentWithAnotherTokenIsNotUsed(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	address := startAgent(t, "a", linkf.NewToken(), sim)
	e := startEdge(t, fmt.Sprintf("fleet {\n\t\tnode a linkf://%s {\n\t\t\ttoken %s\n\t\t}\n\t\tqueue {\n\t\t\ttimeout 1s\n\t\t}\n\t}", address, linkf.NewToken()), "fleet")
	await(t, "the node to be down", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, "token")
	})
	if a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); a.Status == http.StatusOK {
		t.Errorf("got %s of a node whose token is not known", a.Body)
	}
	if got := sim.Stats().Requests; got != 0 {
		t.Errorf("its server got %d requests, want none", got)
	}
}

// joining writes the global options for a Caddy that is its own node: it dials itself.
func joining(address, token string, sim *llamasim.Server, fleet, node string) string {
	return fmt.Sprintf(`fleet {
		listen %s
		token %s
		%s
	}
	fleet_node {
		head linkf://%s
		token %s
		identity box-c
		upstream %s
		%s
	}`, address, token, fleet, address, token, sim.URL(), node)
}

func TestNodeThatDialsInKeepsItsLinkThroughReloads(t *testing.T) {
	token := linkf.NewToken()
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 8, Decode: 100})
	address := freeAddr(t)
	e := startEdge(t, joining(address, token, sim, "", ""), "fleet")
	e.ready()
	links := func() (all []any) {
		agents.Range(func(_, v any) bool {
			all = append(all, v)
			return true
		})
		return all
	}
	before := links()
	underLoad(e, 8, 100, func() {
		for i := range 10 {
			more := fmt.Sprintf("retry %ds\n\t\ttoken %s", 3+i, linkf.NewToken())
			if err := e.load(joining(address, token, sim, more, ""), "fleet"); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got := e.moves(); got != 0 {
		t.Errorf("%d answers were moved, want none", got)
	}
	if after := links(); len(after) != 1 || len(before) != 1 || after[0] != before[0] {
		t.Errorf("got agents %v after the reloads, want %v", after, before)
	}
	if err := e.load("", "respond gone"); err != nil {
		t.Fatal(err)
	}
	await(t, "the state to go", func() bool { return currentState() == nil })
	if all := links(); len(all) != 0 {
		t.Errorf("got agents %v, want none", all)
	}
	doors.Range(func(at, _ any) bool {
		t.Errorf("it still listens on %s", at)
		return true
	})
}

// What changes a node is a new node, which finds the place of the old one free.
func TestChangedNodeDialsInAnew(t *testing.T) {
	token := linkf.NewToken()
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 8})
	address := freeAddr(t)
	e := startEdge(t, joining(address, token, sim, "", ""), "fleet")
	e.ready()
	if err := e.load(joining(address, token, sim, "", "lanes 3\n\t\tlisten "+freeAddr(t)), "fleet"); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to say that it has 3 lanes", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, `"lanes":3`)
	})
	await(t, "it to answer", func() bool {
		return e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)).Status == http.StatusOK
	})
}

func TestTokenOfAnotherNameIsRefused(t *testing.T) {
	token := linkf.NewToken()
	sim := startSim(t, llamasim.Options{Model: "m"})
	address := freeAddr(t)
	file := filepath.Join(t.TempDir(), "tokens")
	config := func(names string) string {
		if err := os.WriteFile(file, []byte(token+" "+names+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("fleet {\n\t\tlisten %s\n\t\ttokens_file %s\n\t}", address, file)
	}
	e := startEdge(t, config("box-d"), "fleet")
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 100)
	a, err := agent.Start(agent.Options{
		Heads: []string{address}, Tokens: []linkf.Token{k}, Identity: "box-c", Upstream: sim.URL(),
		Logger: slog.New(slog.NewTextHandler(lines(said), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	await(t, "the node to hear why it is refused", func() bool {
		return strings.Contains(<-said, "may not be used by")
	})
	if got := e.get(e.Admin + "/fleet/nodes").Body; strings.Contains(got, "box-c") {
		t.Errorf("got %s, want no node", got)
	}
	if err := e.load(config("box-d box-c"), "fleet"); err != nil {
		t.Fatal(err)
	}
	e.ready()
}

// lines are what a logger writes.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

func TestFleetThatCannotListenLeavesTheOldOneAtWork(t *testing.T) {
	token := linkf.NewToken()
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 8})
	address := freeAddr(t)
	e := startEdge(t, joining(address, token, sim, "", ""), "fleet")
	e.ready()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := fmt.Sprintf("fleet {\n\t\tlisten %s\n\t\ttoken %s\n\t}", taken.Addr(), linkf.NewToken())
	if err := e.load(bad, "fleet"); err == nil || !strings.Contains(err.Error(), "listen "+taken.Addr().String()) {
		t.Fatalf("got %v, want an error that names the address", err)
	}
	if a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)); a.Status != http.StatusOK {
		t.Errorf("got %d %s, want an answer of the old configuration", a.Status, a.Body)
	}
	if n, _ := doors.References(address); n != 1 {
		t.Errorf("got %d holders of the old door, want 1", n)
	}
	// Its token holds again: another node is taken.
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.Start(agent.Options{Heads: []string{address}, Tokens: []linkf.Token{k}, Identity: "box-e", Upstream: sim.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	await(t, "box-e to be taken", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, "box-e")
	})
}
