package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	commandline "flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
)

var manyReloads = commandline.Int("reloads", 10, "how many reloads the links of TestLinksOverHTTPSSurviveReloadsUnderLoad live through")

// joinSite is a site beside the edge's own, with TLS, where nodes dial in.
type joinSite struct {
	url   string
	cert  string // files
	key   string
	roots *x509.CertPool
}

func newJoinSite(t *testing.T) joinSite {
	t.Helper()
	cert, key, pool := ownCertificate(t)
	return joinSite{"https://" + freeAddr(t) + "/fleet/join", cert, key, pool}
}

// site is the content of the edge's site, and the other site behind it. What usually
// stands around handlers does so here.
func (s joinSite) site(more string) string {
	return fmt.Sprintf("fleet\n\t%s\n}\n%s {\n\ttls %s %s\n\tlog\n\tencode\n\thandle /fleet/join {\n\t\tfleet_join\n\t}\n\trespond gone 410",
		more, strings.TrimSuffix(s.url, "/fleet/join"), s.cert, s.key)
}

// join runs an agent that dials in there until the test ends; said is its log.
func (s joinSite) join(t *testing.T, name, token string, sim *llamasim.Server) (said chan string) {
	t.Helper()
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	said = make(chan string, 1000)
	a, err := agent.Start(agent.Options{
		Heads: []string{s.url}, HeadTLS: &tls.Config{RootCAs: s.roots}, Tokens: []linkf.Token{k},
		Identity: name, Upstream: sim.URL(), Logger: slog.New(slog.NewTextHandler(lines(said), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return said
}

// underLoad has clients ask again and again until work is done. Each answer must be
// whole; a connection that the old listener had not accepted yet may break.
func underLoad(e *edge, clients, tokens int, work func()) {
	e.t.Helper()
	var first, all sync.WaitGroup
	over := make(chan struct{})
	first.Add(clients)
	for i := range clients {
		all.Go(func() {
			started := sync.OnceFunc(first.Done)
			defer started()
			for {
				s := e.chatOf(fmt.Sprint("hello ", i), tokens, func(int) { started() })
				if wrong := s.whole(); wrong != "" && s.Chunks > 0 {
					e.t.Errorf("client %d: %s", i, wrong)
					return
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	first.Wait()
	work()
	close(over)
	all.Wait()
}

func TestLinksOverHTTPSSurviveReloadsUnderLoad(t *testing.T) {
	token := linkf.NewToken()
	at := newJoinSite(t)
	o := llamasim.Options{Model: "m", Slots: 4, Decode: 100}
	sims := []*llamasim.Server{startSim(t, o), startSim(t, o)}
	global := func(more string) string {
		return "fleet {\n\t\ttoken " + token + "\n\t\tstall 5m\n\t\t" + more + "\n\t}"
	}
	e := startEdge(t, global(""), at.site(""))
	said := []chan string{at.join(t, "box-a", token, sims[0]), at.join(t, "box-b", token, sims[1])}
	e.allUp(2)
	underLoad(e, 8, 100, func() {
		for i := range *manyReloads {
			if err := e.load(global(fmt.Sprintf("retry %ds", 3+i)), at.site(fmt.Sprintf("header X-Load %d", i))); err != nil {
				t.Fatal(err)
			}
		}
	})
	if got := e.moves(); got != 0 {
		t.Errorf("%d answers were moved, want none", got)
	}
	for i, lines := range said {
		if len(lines) != 1 || !strings.Contains(<-lines, "linked to a head") {
			t.Errorf("agent %d lost its link: it said more than that it has one", i)
		}
	}
	if got := e.get(e.Admin + "/fleet/nodes").Body; strings.Count(got, `"up":true`) != 2 {
		t.Errorf("got %s, want both nodes up", got)
	}
}

// A link is one of the fleet, and not of the door by which it came.
func TestLinkOutlivesTheDoorItCameBy(t *testing.T) {
	token := linkf.NewToken()
	at := newJoinSite(t)
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 4, Decode: 100})
	e := startEdge(t, "fleet {\n\t\ttoken "+token+"\n\t}", at.site(""))
	said := at.join(t, "box-a", token, sim)
	e.ready()
	address := freeAddr(t)
	underLoad(e, 4, 100, func() {
		if err := e.load("fleet {\n\t\ttoken "+token+"\n\t\tlisten "+address+"\n\t}", "fleet"); err != nil {
			t.Fatal(err)
		}
	})
	if e.moves() != 0 || len(said) != 1 {
		t.Errorf("got %d moves, want none, and %d lines of the agent, want 1", e.moves(), len(said))
	}
	if err := e.load("fleet {\n\t}", "fleet"); err != nil {
		t.Fatal(err)
	}
	await(t, "the fleet without doors to be without nodes", func() bool {
		return !strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, "box-a")
	})
}

// Whoever opens the URL is told what it is for, over each version of HTTP and through
// what usually stands around a handler.
func TestURLOfFleetJoinSaysWhatItIs(t *testing.T) {
	at := newJoinSite(t)
	e := startEdge(t, "fleet {\n\t\ttoken "+linkf.NewToken()+"\n\t}", at.site(""))
	h1, h2, h3 := eachHTTP(t, at.roots)
	for version, via := range map[int]http.RoundTripper{1: h1, 2: h2, 3: h3} {
		r, err := http.NewRequest(http.MethodGet, at.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := via.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUpgradeRequired || resp.ProtoMajor != version || !strings.Contains(string(body), "fleet_node") {
			t.Errorf("HTTP/%d: got %s %s %s, want 426 and what the URL is for", version, resp.Proto, resp.Status, body)
		}
		if got := resp.Header.Get("Upgrade"); (got == "linkf") != (version == 1) {
			t.Errorf("HTTP/%d: got Upgrade %q", version, got)
		}
	}
	if got := e.get(e.Admin + "/fleet/nodes").Body; !strings.Contains(got, `"nodes":[]`) {
		t.Errorf("got %s, want no node", got)
	}
}

// A stranger is told why, and gets no further.
func TestNodeWithoutTheTokenIsRefusedOverHTTPS(t *testing.T) {
	at := newJoinSite(t)
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, "fleet {\n\t\ttoken "+linkf.NewToken()+"\n\t}", at.site(""))
	said := at.join(t, "box-a", linkf.NewToken(), sim)
	if got := <-said; !strings.Contains(got, "unknown token: head and node must have the same one") {
		t.Errorf("the node said %s, want that its token is not known", got)
	}
	if got := e.get(e.Admin + "/fleet/nodes").Body; strings.Contains(got, "box-a") {
		t.Errorf("got %s, want no node", got)
	}
}
