package linkf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Two addresses of a node lead to one head: one has the link, the other waits, says so
// once, and takes over when the first is lost. The stream is whole, whichever is cut.
func TestSecondAddressOfAHeadIsASpare(t *testing.T) {
	var ofHead, ofNode kept
	tried := make(spares, 1000)
	debug := slog.New(slog.NewTextHandler(io.MultiWriter(&ofHead, tried), &slog.HandlerOptions{Level: slog.LevelDebug}))
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenA), Logger: debug})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: newServer(), link: h.Joined("box-a")}
	attached := make(chan struct{}, 1000)
	ln := listen(t)
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *Joiner) error {
			defer func() { attached <- struct{}{} }()
			return j.Attach(r.link)
		})
	}()
	if r.node, err = NewNode(NodeOptions{Identity: "box-a", Upstream: r.server, Tokens: []Token{token(t, tokenA)}, Logger: ofNode.log()}); err != nil {
		t.Fatal(err)
	}
	ways := []*way{newWay(t, ln.Addr().String()), newWay(t, ln.Addr().String())}
	for _, w := range ways {
		go r.node.Join(t.Context(), w.ln.Addr().String())
	}
	t.Cleanup(func() {
		_ = r.node.Close()
		_ = ln.Close()
		<-served
		_ = r.link.Close("the test is over")
	})
	get(t, attached, "the first link")
	words, end := r.stream(context.Background(), "")
	for i := range 3 {
		get(t, tried, "a try of the other address")
		get(t, tried, "one more")
		if n := len(attached); n > 0 {
			t.Fatalf("round %d: %d times a link took the place of the one that was there", i, n)
		}
		r.says(fmt.Sprint(i))
		ways = r.cutFirst(ways)
		get(t, attached, "the next link")
		if got := get(t, words, "an event"); got != fmt.Sprint(i) {
			t.Errorf("got event %s, want %d", got, i)
		}
	}
	_ = r.cutFirst(ways)[1].ln.Close() // only the other can take over
	get(t, attached, "the last link")
	close(r.server.say)
	if err := get(t, end, "the end"); err != nil {
		t.Errorf("got %v, want a whole answer", err)
	}
	if said := strings.Join(ofHead.lines(), "\n"); strings.Contains(said, "not taken") {
		t.Errorf("the head complains of the spare: %s", said)
	}
	// Once at first, and once for each link that it took over and gave up again.
	if n := strings.Count(strings.Join(ofNode.lines(), "\n"), "is kept as a spare"); n < 1 || n > 5 {
		t.Errorf("the node says %d times that an address is a spare, want 1 to 5", n)
	}
}

// spares gets a value for each time that the head logs of a spare.
type spares chan struct{}

func (h spares) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "is linked already") {
		h <- struct{}{}
	}
	return len(b), nil
}

// cutFirst cuts the way that the link goes, and returns it behind the other.
func (r *rig) cutFirst(ways []*way) []*way {
	r.link.mu.Lock()
	at := r.link.conn.c.RemoteAddr().String()
	r.link.mu.Unlock()
	if !ways[0].goes(at) {
		ways = []*way{ways[1], ways[0]}
	}
	ways[0].cut()
	return []*way{ways[1], ways[0]}
}

// goes reports whether a connection from an address goes this way.
func (w *way) goes(from string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c.LocalAddr().String() == from {
			return true
		}
	}
	return false
}

func TestSpareIsTriedAtOnceWhenTheLinkIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := make(chan struct{})
		j := joinTries{wait: joinMost, freed: freed}
		began := time.Now()
		time.AfterFunc(time.Second, func() { close(freed) })
		if !j.pause(t.Context(), joinMost) || time.Since(began) != time.Second || j.wait != joinFirst {
			t.Errorf("tried after %v, then after %v; want 1s and %v", time.Since(began), j.wait, joinFirst)
		}
	})
}

// A link of which nothing comes any more keeps the spare away for three heartbeats, and
// no longer; the head that began anew, or dials itself, is not kept away at all.
func TestLinkThatIsDeadKeepsNoSpareAway(t *testing.T) {
	a := newAgent(who{identity: "box-a"}, 0)
	conn := uint64(0)
	greet := func(now time.Duration, instance byte, dialled bool) error {
		t.Helper()
		conn++
		a.up(now, conn, dialled)
		m := hello{From: Version, To: Version, Instance: append(make([]byte, 15), instance), Identity: "edge"}
		p, err := encMode.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := appendFrame(nil, typeHello, 1, p)
		if err != nil {
			t.Fatal(err)
		}
		a.receive(now, conn, b)
		for _, x := range a.actions() {
			if x.kind == agentClose && x.conn == conn {
				return x.err
			}
		}
		return nil
	}
	var linked *linkedError
	if err := greet(0, 1, true); err != nil {
		t.Fatal(err)
	}
	dead := heartbeats * heartbeatIdle
	if err := greet(dead-1, 1, true); !errors.As(err, &linked) || linked.by != 1 {
		t.Errorf("while the first may be alive: got %v, want it to be the spare of link 1", err)
	}
	a.tick(dead)
	if err := greet(dead, 1, true); err != nil {
		t.Errorf("when nothing came of the first: got %v, want the spare taken", err)
	}
	if err := greet(dead+1, 1, false); err != nil {
		t.Errorf("a head that dials: got %v", err)
	}
	if err := greet(dead+2, 1, true); err != nil {
		t.Errorf("dialled where the head dialled before: got %v", err)
	}
	if err := greet(dead+3, 2, true); err != nil {
		t.Errorf("a head that began anew: got %v", err)
	}
}

// While another node of its name dials, a node does not; then it does at once, whatever
// it waited for before.
func TestNodeThatRestsDialsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newServer())
		tries := 0
		go n.JoinAny(t.Context(), "x", func() []string {
			tries++
			return []string{"no address"}
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if tries < 10 {
			t.Fatalf("it tried %d times in ten minutes", tries)
		}
		n.Rest(true)
		before := tries
		time.Sleep(10 * time.Minute)
		if synctest.Wait(); tries != before {
			t.Errorf("it tried %d times while it rests", tries-before)
		}
		n.Rest(false)
		if synctest.Wait(); tries != before+1 {
			t.Errorf("it tried %d times when it goes on, want once, at once", tries-before)
		}
		_ = n.Close()
	})
}
