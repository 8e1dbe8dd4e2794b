package agent

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
)

// chat is a job that asks once and passes on what comes.
type chat struct{ whole bool }

func (c *chat) Request(fleet.Instance) (fleet.Assignment, error) {
	return fleet.Assignment{Path: "/v1/chat/completions", Body: []byte(body)}, nil
}

func (c *chat) Take(e fleet.Event) ([]byte, error) {
	c.whole = c.whole || strings.Contains(string(e.Data), `"finish_reason":"length"`)
	return e.Data, nil
}

func (c *chat) Needs() (fleet.Needs, error) {
	if !c.whole {
		return fleet.Needs{}, errors.New("it cannot go on")
	}
	return fleet.Needs{Done: true}, nil
}

func (c *chat) Delivered()       {}
func (c *chat) End(error) []byte { return nil }

func TestNodeThatDialsInIsPlacedLikeAnyOther(t *testing.T) {
	s := simulate(t, llamasim.Options{Slots: 3})
	k, ring := newToken(t)
	h, err := linkf.NewHead(linkf.HeadOptions{Identity: "edge", Tokens: ring})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := fleet.New()
	a, err := m.Apply(fleet.Policy{Joins: true})
	if err != nil {
		t.Fatal(err)
	}
	adopted := make(chan error, 10)
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *linkf.Joiner) error {
			_, err := m.Adopt(j.Joining())
			adopted <- err
			return err
		})
	}()
	start := func() *Agent {
		x, err := Start(Options{Heads: []string{ln.Addr().String()}, Tokens: []linkf.Token{k}, Identity: "box-a", Upstream: s.URL()})
		if err != nil {
			t.Fatal(err)
		}
		if err := <-adopted; err != nil {
			t.Fatal(err)
		}
		return x
	}
	ask := func() (fleet.Record, error) {
		x, err := m.Admit(t.Context(), a, fleet.Request{Model: "sim-model", Deadline: time.Now().Add(20 * time.Second)})
		if err != nil {
			return fleet.Record{}, err
		}
		c := new(chat)
		err = x.Run(t.Context(), c, func([]byte) error { return nil })
		if err == nil && !c.whole {
			err = errors.New("the answer is not whole")
		}
		return x.Record(), err
	}
	node := start()
	if rec, err := ask(); err != nil || rec.Node != "box-a" {
		t.Errorf("got an answer of %q, %v; want one of box-a", rec.Node, err)
	}
	// The node starts anew and gets its place back.
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = start()
	if rec, err := ask(); err != nil || rec.Node != "box-a" {
		t.Errorf("after a restart: got an answer of %q, %v; want one of box-a", rec.Node, err)
	}
	if n := len(m.Status().Nodes); n != 1 {
		t.Errorf("%d nodes are listed, want 1", n)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	<-served
	m.Close()
}
