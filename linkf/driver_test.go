package linkf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the model server of a test's node. A generation says what it is given on
// say and ends when that is closed.
type server struct {
	say   chan string
	ended chan error // why each generation was ended from outside

	mu    sync.Mutex
	tell  func(fleet.NodeState)
	stood fleet.NodeState
}

func newServer() *server {
	return &server{
		say: make(chan string), ended: make(chan error, 100),
		stood: fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 4, Load: fleet.Load{At: time.Now()}}}},
	}
}

func (s *server) Run(ctx context.Context, a fleet.Assignment, take func(fleet.Event) error) error {
	if err := take(fleet.Event{Kind: fleet.EventOpen}); err != nil {
		s.ended <- err
		return err
	}
	for {
		select {
		case x, ok := <-s.say:
			if !ok {
				return nil
			}
			if x == "body" {
				x = string(a.Body)
			}
			if err := take(fleet.Event{Kind: fleet.EventData, Data: []byte(x)}); err != nil {
				s.ended <- err
				return err
			}
		case <-ctx.Done():
			s.ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	}
}

func (s *server) Call(_ context.Context, c fleet.Call) (fleet.Reply, error) {
	if c.Op == fleet.OpProbe {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tell(s.stood)
		return fleet.Reply{}, nil
	}
	return fleet.Reply{Status: 200, ContentType: "text/plain", Body: append([]byte(c.Path+" "), c.Body...)}, nil
}

func (s *server) Watch(ctx context.Context, f func(fleet.NodeState)) {
	s.mu.Lock()
	s.tell = f
	s.mu.Unlock()
	f(s.stood)
	<-ctx.Done()
}

func (s *server) Close(string) error { return nil }

// rig is a head and a node over real TCP, with a way between them that can be cut.
type rig struct {
	t      *testing.T
	server *server
	node   *Node
	link   *Link
	way    *way
	states chan fleet.NodeState
}

// way forwards TCP connections until it is cut.
type way struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func newWay(t *testing.T, to string) *way {
	w := &way{ln: listen(t), to: to}
	w.wg.Go(func() {
		for {
			c, err := w.ln.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", w.to)
			if err != nil {
				_ = c.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, c, d)
			w.mu.Unlock()
			for _, x := range [][2]net.Conn{{c, d}, {d, c}} {
				w.wg.Go(func() {
					_, _ = io.Copy(x[0], x[1])
					_ = x[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = w.ln.Close()
		w.cut()
		w.wg.Wait()
	})
	return w
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func keysOf(t *testing.T, s string) *Keyring { return ring(token(t, s)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newNode(t *testing.T, s *server, tokens ...Token) *Node {
	t.Helper()
	n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: s, Tokens: tokens, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rigs runs a test with either side dialling, and over HTTPS.
func rigs(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("dialled by the node over HTTPS", func(t *testing.T) { viaHTTPS(t, f) })
	t.Run("dialled by the head", func(t *testing.T) {
		r := &rig{t: t, server: newServer(), states: make(chan fleet.NodeState, 100)}
		h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenA)})
		if err != nil {
			t.Fatal(err)
		}
		ln := listen(t)
		r.node = newNode(t, r.server, token(t, tokenA))
		served := make(chan error, 1)
		go func() { served <- r.node.Serve(ln) }()
		r.way = newWay(t, ln.Addr().String())
		r.link = h.Dial("box-a", r.way.ln.Addr().String())
		t.Cleanup(func() {
			_ = r.link.Close("the test is over")
			_ = ln.Close()
			_ = r.node.Close()
			<-served
		})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := r.link.Call(ctx, fleet.Call{Op: fleet.OpProbe}); err != nil {
			t.Fatal(err)
		}
		r.watch()
		f(t, r)
	})
	t.Run("dialled by the node", func(t *testing.T) {
		r := &rig{t: t, server: newServer(), states: make(chan fleet.NodeState, 100)}
		h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenA)})
		if err != nil {
			t.Fatal(err)
		}
		r.link = h.Joined("box-a")
		ln := listen(t)
		served := make(chan error, 1)
		go func() { served <- h.Serve(ln, func(j *Joiner) error { return j.Attach(r.link) }) }()
		r.way = newWay(t, ln.Addr().String())
		r.node = newNode(t, r.server, token(t, tokenA))
		ctx, cancel := context.WithCancel(context.Background())
		go r.node.Join(ctx, r.way.ln.Addr().String())
		t.Cleanup(func() {
			cancel()
			_ = r.node.Close()
			_ = ln.Close()
			<-served
			_ = r.link.Close("the test is over")
		})
		r.watch()
		f(t, r)
	})
}

// viaHTTPS runs a test over a site that prefers HTTP/2, as Caddy's do.
func viaHTTPS(t *testing.T, f func(t *testing.T, r *rig)) {
	r := &rig{t: t, server: newServer(), states: make(chan fleet.NodeState, 100)}
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenA)})
	if err != nil {
		t.Fatal(err)
	}
	r.link = h.Joined("box-a")
	site := siteOf(t, h, func(j *Joiner) error { return j.Attach(r.link) })
	r.way = newWay(t, site.Listener.Addr().String())
	r.node, err = NewNode(NodeOptions{
		Identity: "box-a", Upstream: r.server, Tokens: []Token{token(t, tokenA)},
		TLS: site.Client().Transport.(*http.Transport).TLSClientConfig,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go r.node.Join(ctx, "https://"+r.way.ln.Addr().String()+"/fleet/join")
	t.Cleanup(func() {
		cancel()
		_ = r.node.Close()
		_ = r.link.Close("the test is over")
	})
	r.watch()
	f(t, r)
}

// watch waits for the node's first word and passes on the others.
func (r *rig) watch() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.link.Watch(ctx, func(s fleet.NodeState) { r.states <- s })
	}()
	r.t.Cleanup(func() { cancel(); <-done })
	r.until("that is there", func(s fleet.NodeState) bool { return len(s.Instances) == 1 && s.Away == nil && s.Down == nil })
}

func (r *rig) until(what string, ok func(fleet.NodeState) bool) {
	r.t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case s := <-r.states:
			if ok(s) {
				return
			}
		case <-end:
			r.t.Fatalf("no state of the node %s", what)
		}
	}
}

// stream runs a generation and returns what it says and how it ends.
func (r *rig) stream(ctx context.Context, body string) (words chan string, end chan error) {
	words, end = make(chan string, 1000), make(chan error, 1)
	go func() {
		end <- r.link.Run(ctx, fleet.Assignment{Model: "m", Path: "/x", Body: []byte(body)}, func(e fleet.Event) error {
			if e.Kind == fleet.EventData {
				words <- string(e.Data)
			}
			return nil
		})
	}()
	return words, end
}

func (r *rig) says(x string) {
	r.t.Helper()
	select {
	case r.server.say <- x:
	case <-time.After(20 * time.Second):
		r.t.Fatal("no generation runs on the node")
	}
}

func get[T any](t *testing.T, c chan T, what string) T {
	t.Helper()
	select {
	case x := <-c:
		return x
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

func TestGenerationAndCallOverTCP(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, end := r.stream(context.Background(), "the body")
		r.says("body")
		if got := get(t, words, "the word"); got != "the body" {
			t.Errorf("got %q, want the body that was sent", got)
		}
		close(r.server.say)
		if err := get(t, end, "the end"); err != nil {
			t.Errorf("got %v, want the end of a whole answer", err)
		}
		large := strings.Repeat("large", 100_000)
		got, err := r.link.Call(context.Background(), fleet.Call{Op: fleet.OpAsk, Path: "/tokenize", Body: []byte(large)})
		if err != nil || got.Status != 200 || string(got.Body) != "/tokenize "+large {
			t.Errorf("got status %d, %d bytes, %v; want the request back", got.Status, len(got.Body), err)
		}
	})
}

func TestEventsOfAnySizeCrossTheLink(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, _ := r.stream(context.Background(), "")
		for _, n := range []int{1, maxPiece, maxPiece + 1, 3 << 20} {
			want := strings.Repeat("x", n)
			r.says(want)
			if got := get(t, words, "the event"); got != want {
				t.Errorf("got %d bytes, want %d", len(got), n)
			}
		}
	})
}

func TestStreamsSurviveTheLossOfTheirLink(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, end := r.stream(context.Background(), "")
		came := 0
		for i := range 60 {
			if i%20 == 10 {
				r.way.cut()
			}
			r.says(fmt.Sprint(i))
			if i%20 < 10 {
				continue
			}
			// After the cut they come once the link is back.
			for ; came <= i; came++ {
				if got := get(t, words, "an event"); got != fmt.Sprint(came) {
					t.Fatalf("got event %s, want %d", got, came)
				}
			}
		}
		close(r.server.say)
		if err := get(t, end, "the end"); err != nil {
			t.Errorf("got %v, want a whole answer", err)
		}
	})
}

func TestClientThatLeavesEndsItsGeneration(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancelCause(context.Background())
		_, end := r.stream(ctx, "")
		r.says("one")
		gone := errors.New("the client left")
		cancel(gone)
		if err := get(t, end, "the end"); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
		get(t, r.server.ended, "the end of the generation")
	})
}

func TestNodeThatStopsEndsItsGenerationsAsLost(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		_, end := r.stream(context.Background(), "")
		r.says("one")
		if err := r.node.Close(); err != nil {
			t.Fatal(err)
		}
		var lost *fleet.NodeLost
		if err := get(t, end, "the end"); !errors.As(err, &lost) {
			t.Errorf("got %v, want a lost node", err)
		}
		get(t, r.server.ended, "the end of the generation")
	})
}

// A node that is dialled and refuses is dead: nobody waits for it to come back.
func TestNodeThatRefusesIsLostAtOnce(t *testing.T) {
	s := newServer()
	h, err := NewHead(HeadOptions{Identity: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	n := newNode(t, s)
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	link := h.Dial("box-a", ln.Addr().String())
	defer func() { _ = link.Close("over") }()
	r := &rig{t: t, server: s, node: n, link: link, states: make(chan fleet.NodeState, 100)}
	if _, err := link.Call(context.Background(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	r.watch()
	_, end := r.stream(context.Background(), "")
	r.says("one")
	_ = ln.Close()
	<-served
	link.mu.Lock()
	_ = link.conn.c.Close() // as if the process had been killed
	link.mu.Unlock()
	var gone *fleet.NodeLost
	if err := get(t, end, "the end"); !errors.As(err, &gone) || gone.Cause != fleet.CauseRefused {
		t.Errorf("got %v, want the node lost, refused", err)
	}
	r.until("that is down", func(s fleet.NodeState) bool { return s.Down != nil })
	_ = n.Close()
}

func TestWrongTokenIsToldOnBothSides(t *testing.T) {
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenB)})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	n := newNode(t, newServer(), token(t, tokenA))
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	link := h.Dial("box-a", ln.Addr().String())
	_, err = link.Call(context.Background(), fleet.Call{Op: fleet.OpProbe})
	if !errors.Is(err, RefusedToken) {
		t.Errorf("the head: got %v, want %v", err, RefusedToken)
	}
	_ = link.Close("over")
	_ = ln.Close()
	_ = n.Close()
	<-served

	ln = listen(t)
	n = newNode(t, newServer(), token(t, tokenA))
	go func() { served <- h.Serve(ln, func(*Joiner) error { t.Error("a stranger was adopted"); return nil }) }()
	_, err = n.dial(context.Background(), ln.Addr().String())
	if !errors.Is(err, RefusedToken) {
		t.Errorf("the node: got %v, want %v", err, RefusedToken)
	}
	_ = ln.Close()
	<-served
	_ = n.Close()
}

// While tokens are rotated a node has two, and comes in with the one that is known.
func TestNodeUsesItsOtherToken(t *testing.T) {
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenB)})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	joined := make(chan string, 1)
	link := h.Joined("box-a")
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *Joiner) error {
			err := j.Attach(link)
			joined <- j.Identity
			return err
		})
	}()
	n := newNode(t, newServer(), token(t, tokenA), token(t, tokenB))
	go n.Join(context.Background(), ln.Addr().String())
	if got := get(t, joined, "the node"); got != "box-a" {
		t.Errorf("got %q, want box-a", got)
	}
	_ = n.Close()
	_ = ln.Close()
	<-served
	_ = link.Close("over")
}

func TestTokenOfAnotherIdentityIsRefusedWithTheReason(t *testing.T) {
	keys := new(Keyring)
	keys.Add(token(t, tokenA), "box-b")
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keys})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	served := make(chan error, 1)
	go func() { served <- h.Serve(ln, func(*Joiner) error { t.Error("it was adopted"); return nil }) }()
	n := newNode(t, newServer(), token(t, tokenA))
	_, err = n.dial(context.Background(), ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), `may not be used by "box-a"`) {
		t.Errorf("got %v, want the reason", err)
	}
	_ = ln.Close()
	<-served
	_ = n.Close()
}

// Peers that say nothing hold a bounded number of places, for a bounded time, and keep
// no other address out.
func TestSilentPeersDoNotKeepOthersOut(t *testing.T) {
	var d admission
	for i := range handshakesAddress {
		if !d.enter("one") {
			t.Fatalf("handshake %d of an address is refused", i+1)
		}
	}
	if d.enter("one") {
		t.Error("one more of the same address is taken")
	}
	if !d.enter("other") {
		t.Error("another address is refused")
	}
	for i := range handshakesMost {
		d.enter(fmt.Sprint(i))
	}
	if d.enter("late") {
		t.Errorf("more than %d handshakes are open", handshakesMost)
	}
	d.leave("one")
	if !d.enter("late") {
		t.Error("a place that was left is not given again")
	}
}

// A place that is full says so at once.
func TestPeerAboveTheBoundIsTold(t *testing.T) {
	h, err := NewHead(HeadOptions{Identity: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	served := make(chan error, 1)
	go func() { served <- h.Serve(ln, func(*Joiner) error { return nil }) }()
	var conns []net.Conn
	for range handshakesAddress + 1 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	// Which of them it is depends on who was scheduled first.
	told := make(chan []byte, len(conns))
	for _, c := range conns {
		go func() {
			b, _ := io.ReadAll(c)
			told <- b
		}()
	}
	if got := get(t, told, "a refusal"); string(got) != string(refusal(RefusedFull)) {
		t.Errorf("got %x, want the refusal %x", got, refusal(RefusedFull))
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for range len(conns) - 1 {
		<-told
	}
	_ = ln.Close()
	<-served
}
