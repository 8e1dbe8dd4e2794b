package linkf

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// kept is what a log got, by line.
type kept struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (k *kept) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b.Write(b)
}

func (k *kept) lines() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Split(strings.TrimSuffix(k.b.String(), "\n"), "\n")
}

func (k *kept) log() *slog.Logger { return slog.New(slog.NewTextHandler(k, nil)) }

func TestWhoKnocksAllTheTimeDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k kept
		c := complaints{log: k.log()}
		want := func(n int, last ...string) {
			t.Helper()
			lines := k.lines()
			if len(lines) != n {
				t.Fatalf("got %d lines, want %d:\n%s", len(lines), n, strings.Join(lines, "\n"))
			}
			for _, s := range last {
				if !strings.Contains(lines[n-1], s) {
					t.Errorf("got %s, want it to say %s", lines[n-1], s)
				}
			}
		}
		wrong := fmt.Errorf("handshake: %w", RefusedToken)
		for i := range 100 {
			c.warn("not taken", fmt.Sprintf("10.0.0.%d", i), wrong)
			time.Sleep(50 * time.Millisecond)
		}
		want(1, "not taken", "10.0.0.0", "unknown token")
		c.warn("not taken", "10.0.0.1", RefusedFull)
		want(2, "too many")
		c.warn("not taken", "10.0.1.1", wrong)
		want(3, "10.0.1.1")
		time.Sleep(complaintGap / 2)
		c.warn("not taken", "10.0.0.7", wrong, "again_in", time.Second)
		want(4, "10.0.0.7", "not_logged=99", "again_in=1s")
		c.warn("not taken", "10.0.0.7", wrong)
		time.Sleep(2 * complaintGap)
		// Nobody comes from there any more: what was not logged is told all the same.
		c.warn("not taken", "2001:db8::1", wrong)
		want(6)
		if all := strings.Join(k.lines(), "\n"); !strings.Contains(all, `came again since" address=10.0.0.0/24`) || !strings.Contains(all, "not_logged=1\n") {
			t.Errorf("got\n%s\nwant it to say what was not logged", all)
		}
		c.warn("not taken", "2001:db8::ffff:1", wrong) // the same network
		want(6)
	})
}

func TestMemoryOfComplaintsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k kept
		c := complaints{log: k.log()}
		for i := range 10_000 {
			c.warn("not taken", fmt.Sprintf("10.%d.%d.1", i/256, i%256), errors.New("something"))
		}
		if len(c.told) > complaintsMost+1 || len(k.lines()) > complaintsMost+1 {
			t.Errorf("got %d places and %d lines, want at most %d", len(c.told), len(k.lines()), complaintsMost+1)
		}
		time.Sleep(2 * complaintGap)
		c.warn("not taken", "10.0.0.1", errors.New("something"))
		if len(c.told) != 1 {
			t.Errorf("%d places are kept after all is over, want 1", len(c.told))
		}
	})
}

// A wrong token is one line on each side that takes connections, however often it comes,
// and no line shows it.
func TestWrongTokensAreLoggedOnceAndNotShown(t *testing.T) {
	var atHead, atNode kept
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenB), Logger: atHead.log()})
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: newServer(), Tokens: []Token{token(t, tokenA)}, Logger: atNode.log()})
	if err != nil {
		t.Fatal(err)
	}
	for name, knock := range map[string]func() error{
		"the head dials": func() error {
			ln := listen(t)
			served := make(chan error, 1)
			go func() { served <- n.Serve(ln) }()
			defer func() { _ = ln.Close(); <-served }()
			link := h.Dial("box-a", ln.Addr().String())
			defer func() { _ = link.Close("over") }()
			_, err := link.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
			return err
		},
		"the node dials": func() error {
			ln := listen(t)
			served := make(chan error, 1)
			go func() {
				served <- h.Serve(ln, func(*Joiner) error { t.Error("a stranger was adopted"); return nil })
			}()
			defer func() { _ = ln.Close(); <-served }()
			_, err := n.dial(t.Context(), ln.Addr().String())
			return err
		},
	} {
		for range 5 {
			if err := knock(); !errors.Is(err, RefusedToken) {
				t.Errorf("%s: got %v, want %v", name, err, RefusedToken)
			}
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for side, k := range map[string]*kept{"head": &atHead, "node": &atNode} {
		lines := k.lines()
		if len(lines) != 1 || !strings.Contains(lines[0], "unknown token") {
			t.Errorf("the %s logged %d lines, want one about the token:\n%s", side, len(lines), strings.Join(lines, "\n"))
		}
		for _, secret := range []string{tokenA, tokenB} {
			if strings.Contains(strings.Join(lines, ""), secret) {
				t.Errorf("the %s shows a token", side)
			}
		}
	}
}
