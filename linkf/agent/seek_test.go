package agent

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/discover"
)

// headOn is a head that nodes dial, and who came to it.
type headOn struct {
	ln   net.Listener
	came chan string
	link *linkf.Link
	done chan error
}

func startHead(t *testing.T, identity string, ring *linkf.Keyring) *headOn {
	t.Helper()
	h, err := linkf.NewHead(linkf.HeadOptions{Identity: identity, Tokens: ring})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &headOn{ln: ln, came: make(chan string, 100), link: h.Joined("box-a"), done: make(chan error, 1)}
	go func() {
		x.done <- h.Serve(ln, func(j *linkf.Joiner) error {
			x.came <- j.Identity
			return j.Attach(x.link)
		})
	}()
	t.Cleanup(x.close)
	return x
}

func (h *headOn) close() {
	if h.ln.Close() == nil {
		<-h.done
	}
	_ = h.link.Close("the test is over")
}

// logged are the lines that a logger writes.
type logged chan string

func (l logged) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func (l logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Of the heads that are found, those that know the node's token get a link each, by the
// first address that works; what the network says later does not end it.
func TestHeadsThatAreFoundAreDialledByTheToken(t *testing.T) {
	k, ring := newToken(t)
	_, other := newToken(t)
	good, second, stranger := startHead(t, "good", ring), startHead(t, "second", ring), startHead(t, "stranger", other)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()

	up, err := llamacpp.New(llamacpp.Options{Name: "box-a", URL: simulate(t, llamasim.Options{}).URL()})
	if err != nil {
		t.Fatal(err)
	}
	said := make(logged, 1000)
	n, err := linkf.NewNode(linkf.NodeOptions{
		Identity: "box-a", Upstream: up, Tokens: []linkf.Token{k}, Logger: said.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &seeker{node: n, links: make(map[string]bool)}
	defer func() {
		cancel()
		s.wg.Wait()
		_ = n.Close()
	}()
	at := func(all ...net.Listener) (addrs []string) {
		for _, ln := range all {
			addrs = append(addrs, ln.Addr().String())
		}
		return addrs
	}
	first := discover.Head{Name: "a", Addresses: at(nobody, good.ln)}
	strange := discover.Head{Name: "x", Addresses: at(stranger.ln)}
	s.found(ctx, []discover.Head{first, strange})
	comes := func(h *headOn, what string) {
		t.Helper()
		select {
		case <-h.came:
		case <-time.After(20 * time.Second):
			t.Fatalf("the node did not come to %s", what)
		}
	}
	comes(good, "the first head")
	s.found(ctx, []discover.Head{first, strange, {Name: "b", Addresses: at(second.ln)}})
	comes(second, "the second head")
	warned := 0
	for tried := 0; tried < 3; {
		select {
		case line := <-said:
			if strings.Contains(line, "address=x") {
				tried++
				warned += strings.Count(line, "level=WARN")
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the node does not try the stranger again")
		}
	}
	if warned != 1 {
		t.Errorf("%d lines warn of the stranger, want one", warned)
	}
	s.found(ctx, nil)
	if _, err := good.link.Call(ctx, fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Errorf("after the network forgot the head: got %v, want its link to stand", err)
	}
	// A link that is lost to a head that is gone is not dialled again.
	good.close()
	second.close()
	cleared := make(chan struct{})
	go func() { s.wg.Wait(); close(cleared) }()
	select {
	case <-cleared:
	case <-time.After(20 * time.Second):
		t.Error("heads that are gone are still dialled")
	}
	if n := len(stranger.came) + len(good.came) + len(second.came); n > 0 {
		t.Errorf("the node came %d times to heads that have it already, or do not know its token", n)
	}
}
