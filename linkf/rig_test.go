package linkf

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
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
	run   func(context.Context, fleet.Assignment, func(fleet.Event) error) error // nil: as said above
}

func newServer() *server {
	return &server{
		say: make(chan string), ended: make(chan error, 100),
		stood: fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 4, Load: fleet.Load{At: time.Now()}}}},
	}
}

func (s *server) Run(ctx context.Context, a fleet.Assignment, take func(fleet.Event) error) error {
	s.mu.Lock()
	run := s.run
	s.mu.Unlock()
	if run != nil {
		return run(ctx, a, take)
	}
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
	head   *Head
	node   *Node
	link   *Link
	way    *way
	dials  string // what the node dials; empty: the head does
	states chan fleet.NodeState
}

// way forwards TCP connections until it is cut.
type way struct {
	ln net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	leash func() int64 // how many bytes either direction of a new connection gets; nil: any number
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
			w.mu.Lock()
			to := w.to
			w.mu.Unlock()
			d, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, c, d)
			leash := w.leash
			w.mu.Unlock()
			for _, x := range [][2]net.Conn{{c, d}, {d, c}} {
				w.wg.Go(func() {
					if leash != nil {
						_, _ = io.CopyN(x[0], x[1], leash())
						_ = x[1].Close()
					} else {
						_, _ = io.Copy(x[0], x[1])
					}
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

// lead has new connections go somewhere else.
func (w *way) lead(to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
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

// newEdge returns a head that knows the token; empty: it wants none.
func newEdge(t *testing.T, token string) *Head {
	t.Helper()
	o := HeadOptions{Identity: "edge"}
	if token != "" {
		o.Tokens = keysOf(t, token)
	}
	h, err := NewHead(o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

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
		h := newEdge(t, tokenA)
		ln := listen(t)
		r.node = newNode(t, r.server, token(t, tokenA))
		served := make(chan error, 1)
		go func() { served <- r.node.Serve(ln) }()
		r.head, r.way = h, newWay(t, ln.Addr().String())
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
		h := newEdge(t, tokenA)
		r.link = h.Joined("box-a")
		ln := listen(t)
		served := make(chan error, 1)
		go func() { served <- h.Serve(ln, func(j *Joiner) error { return j.Attach(r.link) }) }()
		r.head, r.way = h, newWay(t, ln.Addr().String())
		r.node = newNode(t, r.server, token(t, tokenA))
		ctx, cancel := context.WithCancel(context.Background())
		r.dials = r.way.ln.Addr().String()
		go r.node.Join(ctx, r.dials)
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
	h := newEdge(t, tokenA)
	r.link = h.Joined("box-a")
	site := siteOf(t, h, func(j *Joiner) error { return j.Attach(r.link) })
	r.head, r.way = h, newWay(t, site.Listener.Addr().String())
	var err error
	r.node, err = NewNode(NodeOptions{
		Identity: "box-a", Upstream: r.server, Tokens: []Token{token(t, tokenA)},
		TLS: site.Client().Transport.(*http.Transport).TLSClientConfig,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.dials = "https://" + r.way.ln.Addr().String() + "/fleet/join"
	go r.node.Join(ctx, r.dials)
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
