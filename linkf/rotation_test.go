package linkf

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

// A node that listens has two tokens while they are rotated: heads that know either
// reach it, in one attempt and each time anew.
func TestListeningNodeIsReachedByEitherOfItsTokens(t *testing.T) {
	ln := listen(t)
	n := newNode(t, newServer(), token(t, tokenA), token(t, tokenB))
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	for i, known := range []string{tokenB, tokenA, tokenB, tokenB, tokenA} {
		h, err := NewHead(HeadOptions{Identity: fmt.Sprint("edge ", i), Tokens: keysOf(t, known)})
		if err != nil {
			t.Fatal(err)
		}
		link := h.Dial("box-a", ln.Addr().String())
		if _, err := link.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
			t.Errorf("head %d, which knows one of two tokens: got %v", i, err)
		}
		_ = link.Close("over")
	}
	_ = ln.Close()
	_ = n.Close()
	<-served
}

// Strangers who say that they know no token change nothing for others.
func TestTurnsOfPeersAreTheirOwnAndBounded(t *testing.T) {
	n := newNode(t, newServer(), token(t, tokenA), token(t, tokenB))
	defer n.Close()
	for i, want := range []int{0, 1, 0} {
		got := n.turn("stranger")
		if got != want {
			t.Errorf("attempt %d: got token %d, want %d", i+1, got, want)
		}
		n.missed("stranger", got)
		n.missed("stranger", got) // of two connections at once
	}
	if got := n.turn("friend"); got != 0 {
		t.Errorf("got token %d for another peer, want the first", got)
	}
	for i := range 10 * turnsMost {
		n.missed(fmt.Sprint(i), 0)
	}
	if len(n.turns) > turnsMost {
		t.Errorf("%d turns are kept, want at most %d", len(n.turns), turnsMost)
	}
}

// heard passes on the lines of a log.
type heard chan string

func (h heard) Write(b []byte) (int, error) {
	h <- string(b)
	return len(b), nil
}

// A token that is bound to identities is good for no other, whoever dials; what the node
// is called at the head is the head's matter.
func TestHeadThatDialsHoldsTheNodeToItsIdentity(t *testing.T) {
	for allowed, ok := range map[string]bool{"box-a": true, "box-b": false} {
		ln := listen(t)
		said := make(heard, 100)
		n, err := NewNode(NodeOptions{
			Identity: "box-a", Upstream: newServer(), Tokens: []Token{token(t, tokenA)},
			Logger: slog.New(slog.NewTextHandler(said, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- n.Serve(ln) }()
		keys := new(Keyring)
		keys.Add(token(t, tokenA), allowed)
		h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keys})
		if err != nil {
			t.Fatal(err)
		}
		link := h.Dial("name in the configuration", ln.Addr().String())
		_, err = link.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
		const reason = `may not be used by "box-a"`
		switch {
		case ok && err != nil:
			t.Errorf("allowed %s: got %v", allowed, err)
		case !ok && (err == nil || !strings.Contains(err.Error(), reason)):
			t.Errorf("allowed %s: got %v, want the reason", allowed, err)
		case !ok:
			if got := get(t, said, "a line of the node"); !strings.Contains(strings.ReplaceAll(got, `\`, ""), reason) {
				t.Errorf("the node says %s, want the reason", got)
			}
		}
		_ = link.Close("over")
		_ = ln.Close()
		_ = n.Close()
		<-served
	}
}
