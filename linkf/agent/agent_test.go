package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func simulate(t testing.TB, o llamasim.Options) *llamasim.Server {
	t.Helper()
	s, err := llamasim.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newToken(t testing.TB) (linkf.Token, *linkf.Keyring) {
	t.Helper()
	k, err := linkf.ParseToken(linkf.NewToken())
	if err != nil {
		t.Fatal(err)
	}
	ring := new(linkf.Keyring)
	ring.Add(k)
	return k, ring
}

// joined starts a head that listens and an agent that dials it, and waits until the
// head knows what the server offers.
func joined(t testing.TB, s *llamasim.Server) (*linkf.Link, *Agent) {
	t.Helper()
	k, ring := newToken(t)
	h, err := linkf.NewHead(linkf.HeadOptions{Identity: "edge", Tokens: ring})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	link := h.Joined("box-a")
	attached := make(chan string, 10)
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *linkf.Joiner) error {
			attached <- j.Identity
			return j.Attach(link)
		})
	}()
	a, err := Start(Options{Heads: []string{ln.Addr().String()}, Tokens: []linkf.Token{k}, Identity: "box-a", Upstream: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.Close()
		_ = ln.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = link.Close("the test is over")
	})
	if got := <-attached; got != "box-a" {
		t.Fatalf("%q dialled in, want box-a", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for { // until the connection is the link's
		_, err := link.Call(ctx, fleet.Call{Op: fleet.OpProbe})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	known := make(chan fleet.NodeState, 100)
	ctx, stop := context.WithCancel(ctx)
	go link.Watch(ctx, func(n fleet.NodeState) {
		if len(n.Instances) > 0 {
			known <- n
			stop()
		}
	})
	select {
	case n := <-known:
		if i := n.Instances[0]; i.Model != "sim-model" || i.Lanes != 3 || i.State != fleet.StateReady || !i.Features.Has(fleet.ContinueContent) {
			t.Fatalf("got %+v, want the server's model with 3 lanes", i)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the head was not told what the node offers")
	}
	return link, a
}

const body = `{"messages":[{"role":"user","content":"tell me"}],"stream":true,"max_tokens":20}`

func run(link *linkf.Link, take func(fleet.Event) error) error {
	return link.Run(context.Background(), fleet.Assignment{Path: "/v1/chat/completions", Model: "sim-model", Body: []byte(body)}, take)
}

func TestServerBehindTheAgentAnswersTheHead(t *testing.T) {
	link, _ := joined(t, simulate(t, llamasim.Options{Slots: 3}))
	var data []string
	opened := false
	err := run(link, func(e fleet.Event) error {
		opened = opened || e.Kind == fleet.EventOpen
		if e.Kind == fleet.EventData {
			data = append(data, string(e.Data))
		}
		return nil
	})
	if err != nil || !opened || len(data) < 20 || !strings.Contains(strings.Join(data, ""), `"finish_reason":"length"`) {
		t.Errorf("got %v, opened %v, %d events; want a whole answer of 20 tokens", err, opened, len(data))
	}
	r, err := link.Call(t.Context(), fleet.Call{
		Op: fleet.OpAsk, Method: "POST", Path: "/tokenize", Model: "sim-model", Body: []byte(`{"content":"some words"}`),
	})
	if err != nil || r.Status != 200 || !strings.Contains(string(r.Body), `"tokens"`) {
		t.Errorf("tokenize: got %d %s, %v; want tokens", r.Status, r.Body, err)
	}
}

func TestServerThatDiesIsLostAtOnceThoughTheLinkStands(t *testing.T) {
	s := simulate(t, llamasim.Options{Slots: 3, Decode: 50})
	link, _ := joined(t, s)
	n := 0
	err := run(link, func(e fleet.Event) error {
		if e.Kind == fleet.EventData {
			if n++; n == 2 {
				s.Kill()
			}
		}
		return nil
	})
	var lost *fleet.NodeLost
	if !errors.As(err, &lost) || lost.Node != "box-a" || lost.Cause == fleet.CauseTimedOut {
		t.Errorf("got %v, want box-a lost, as its server's connection broke", err)
	}
}

func TestRequestThatTheServerRefusesIsNotTheNodesFault(t *testing.T) {
	link, _ := joined(t, simulate(t, llamasim.Options{Slots: 3}))
	err := link.Run(t.Context(), fleet.Assignment{Path: "/v1/chat/completions", Model: "sim-model", Body: []byte(`{"messages":3}`)}, func(fleet.Event) error { return nil })
	var refused *fleet.RequestError
	if !errors.As(err, &refused) || refused.Reply == nil || refused.Reply.Status != 400 {
		t.Errorf("got %v, want the server's own 400", err)
	}
}

func TestAgentThatStopsLeavesNothing(t *testing.T) {
	link, a := joined(t, simulate(t, llamasim.Options{Slots: 3}))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := run(link, func(fleet.Event) error { return nil }); err == nil {
		t.Error("a node that stopped answers, want an error")
	}
}

func TestBadOptionsAreErrors(t *testing.T) {
	for want, o := range map[string]Options{
		"needs a head":           {Upstream: "http://127.0.0.1:1"},
		"neither a host:port":    {Upstream: "http://127.0.0.1:1", Heads: []string{"head"}},
		"http://host":            {Upstream: "ftp://x", Heads: []string{"head:1"}},
		"is not fit to be shown": {Upstream: "http://127.0.0.1:1", Heads: []string{"head:1"}, Identity: strings.Repeat("x", 256)},
	} {
		a, err := Start(o)
		if err == nil {
			_ = a.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
