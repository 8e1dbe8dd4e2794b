package linkf

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// Two nodes of one name that dial in from one address do not take the link from each
// other in turns: one has it, and both and the head say once what is to be changed.
func TestTwoNodesOfOneNameAreToldSoAndTakeNoTurns(t *testing.T) {
	logs := []*kept{{}, {}, {}} // of the head, and both
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenA), Logger: logs[0].log()})
	if err != nil {
		t.Fatal(err)
	}
	link := h.Joined("box-a")
	came := make(chan error, 100)
	ln := listen(t)
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *Joiner) error {
			err := j.Attach(link)
			came <- err
			return err
		})
	}()
	ctx, cancel := context.WithCancel(context.Background())
	var nodes []*Node
	join := func(i int) {
		n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: newServer(), Tokens: []Token{token(t, tokenA)}, Logger: logs[i].log()})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		go n.Join(ctx, ln.Addr().String())
	}
	join(1)
	if err := get(t, came, "the first node"); err != nil {
		t.Fatal(err)
	}
	join(2)
	if err := get(t, came, "the second node"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := get(t, came, "the first node again"); !errors.Is(err, fleet.ErrNameInUse) {
			t.Errorf("attempt %d of the first: got %v, want it turned away", i+1, err)
		}
	}
	cancel()
	for _, n := range nodes {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	_ = ln.Close()
	<-served
	_ = link.Close("over")
	for i, want := range []string{"two nodes call themselves box-a", "give one of the two another `identity`", "two nodes call themselves box-a"} {
		if got := strings.Count(strings.Join(logs[i].lines(), "\n"), want); got != 1 {
			t.Errorf("log %d says %q %d times, want once", i, want, got)
		}
	}
}

// A node that began anew has its place at once, as often as it does.
func TestNodeThatBeganAnewTakesItsLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEdge(t, "")
		l := h.Joined("box-a")
		l.conn = new(headConn) // which may be over, and nobody noticed
		run := func(i int) (id instanceID) {
			id[0] = byte(i)
			return id
		}
		for i := range 100 {
			if err := l.contest(run(i), "192.0.2.1"); err != nil {
				t.Fatalf("run %d: %v", i, err)
			}
		}
		if n := len(l.twins.ousted); n > twinsMost {
			t.Errorf("%d runs are remembered, want at most %d", n, twinsMost)
		}
		if err := l.contest(run(99), "192.0.2.1"); err != nil {
			t.Errorf("the same run again: %v", err)
		}
		if err := l.contest(run(3), "192.0.2.1"); !errors.Is(err, errTwins) {
			t.Errorf("a run of before: got %v, want %v", err, errTwins)
		}
		l.conn.over = errors.New("it said that it ends")
		if err := l.contest(run(4), "192.0.2.1"); err != nil {
			t.Errorf("a run of before, when the one that is linked has ended: %v", err)
		}
		l.conn.over = nil
		time.Sleep(twinKept + 1)
		if err := l.contest(run(3), "192.0.2.1"); err != nil {
			t.Errorf("long after: %v", err)
		}
		l.conn = nil
		if err := l.contest(run(99), "192.0.2.1"); err != nil {
			t.Errorf("nobody else is there: %v", err)
		}
	})
}
