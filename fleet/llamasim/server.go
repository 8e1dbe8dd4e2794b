package llamasim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Options says what the stand-in pretends to be. The zero value is a server with
// two slots of 4096 tokens that is as fast as the machine.
type Options struct {
	// Addr is where it listens, a loopback address: a fake has no business on a
	// network. Default 127.0.0.1:0.
	Addr string

	// Model is the name it answers with. Default sim-model.
	Model string

	// Aliases are further names, shown in /v1/models. As with the real server in
	// single mode, the model a request asks for is ignored.
	Aliases []string

	// Slots is how many generations run at once. Default 2.
	Slots int

	// Context is how many tokens one slot holds. Default 4096.
	Context int

	// Prefill and Decode are speeds in tokens per second, each slot on its own.
	// Default 0: as fast as it can.
	Prefill, Decode float64

	// Thinking gives the chat template a think block; answers begin with reasoning.
	Thinking bool

	// APIKey is demanded on every route but the health ones, if not empty.
	APIKey string

	// Log gets the server's log at default verbosity, one Write a line. Default none.
	Log io.Writer

	// Ping is the interval of SSE comments between events; a request may set its own
	// with sse_ping_interval. Default 30s.
	Ping time.Duration
}

// Stats is what the server has done since Start, restarts included, except for
// Active and Queued, which are of now.
type Stats struct {
	Requests  int `json:"requests"`  // completions asked for
	Active    int `json:"active"`    // slots generating
	Queued    int `json:"queued"`    // requests waiting for a slot
	Generated int `json:"generated"` // tokens
	Cancelled int `json:"cancelled"` // generations whose client left
}

// Server is a running stand-in. Its methods may be called at any time from any
// goroutine.
type Server struct {
	o     Options
	fault faultBox

	statsMu sync.Mutex
	stats   Stats
	bodies  [][]byte

	killers sync.WaitGroup // kills asked for over HTTP

	// mu guards the life of the server: instance.mu and statsMu are taken inside it.
	mu   sync.Mutex
	addr string
	in   *instance
}

// Start listens and serves until Kill or Close.
func Start(o Options) (*Server, error) {
	o = o.withDefaults()
	if err := checkLoopback(o.Addr); err != nil {
		return nil, err
	}
	s := &Server{o: o}
	ln, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("stand-in server: %w", err)
	}
	s.addr = ln.Addr().String()
	s.in = newInstance(s, ln)
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Model == "" {
		o.Model = "sim-model"
	}
	if o.Slots <= 0 {
		o.Slots = 2
	}
	if o.Context <= 0 {
		o.Context = 4096
	}
	if o.Ping <= 0 {
		o.Ping = 30 * time.Second
	}
	o.Aliases = slices.Clone(o.Aliases)
	return o
}

func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("stand-in server: listen address %q: %w", addr, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("stand-in server: listen address %q is not loopback; use 127.0.0.1 or [::1]", addr)
	}
	return nil
}

// Addr is the address it listens on, the same after a Restart.
func (s *Server) Addr() string { return s.addr }

// URL is the base address of its API.
func (s *Server) URL() string { return "http://" + s.addr }

// Kill ends the server as SIGKILL would: every connection is reset, nothing more is
// answered or logged. Killing twice does nothing.
func (s *Server) Kill() { s.instance().kill() }

// instance is the current life. Nobody waits for a life to end under s.mu: handlers,
// which the end waits for, may want it.
func (s *Server) instance() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in
}

// Close ends the server: running streams are broken off, the log is written out.
func (s *Server) Close() error {
	s.instance().close()
	s.killers.Wait()
	return nil
}

// Restart listens on the same address again after a Kill or a Close, its caches
// empty and its log's clock at zero. The fault stays set.
func (s *Server) Restart() error {
	old := s.instance()
	if !old.isDead() {
		return errors.New("stand-in server: restart: it is running")
	}
	<-old.gone
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != old {
		return errors.New("stand-in server: restart: someone else did")
	}
	ln, err := net.Listen("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("stand-in server: restart: %w", err)
	}
	s.in = newInstance(s, ln)
	return nil
}

// Stats is what it has done.
func (s *Server) Stats() Stats {
	s.statsMu.Lock()
	st := s.stats
	s.statsMu.Unlock()
	st.Active, st.Queued = s.instance().load()
	return st
}

// How many bodies, and how much of each, LastBodies can show.
const (
	keptBodies = 64
	keptBytes  = 1 << 20
)

// LastBodies are the bodies of the last completions asked for, oldest first.
func (s *Server) LastBodies() [][]byte {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	return slices.Clone(s.bodies)
}

func (s *Server) asked(body []byte) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	s.stats.Requests++
	if len(s.bodies) == keptBodies {
		s.bodies = slices.Clone(s.bodies[1:])
	}
	s.bodies = append(s.bodies, body[:min(len(body), keptBytes)])
}

func (s *Server) count(generated, cancelled int) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	s.stats.Generated += generated
	s.stats.Cancelled += cancelled
}

// instance is one process life of the server, from Start or Restart to Kill or Close.
type instance struct {
	server *Server
	o      Options
	start  time.Time
	log    *logger
	http   *http.Server
	ctx    context.Context // done when it dies
	cancel context.CancelFunc
	gone   chan struct{} // closed when nothing of it is left

	// mu guards all below. Nothing is done under it that waits.
	mu       sync.Mutex
	listener net.Listener // nil while it refuses
	conns    map[*conn]http.ConnState
	dead     bool
	slots    []*slot
	queue    []*waiter
	nextTask int
	decodes  int // calls the real server would name graphs reused
	counters counters
	handlers sync.WaitGroup // requests, joined only under mu while not dead
	serving  sync.WaitGroup
}

func newInstance(s *Server, ln net.Listener) *instance {
	in := &instance{server: s, o: s.o, start: time.Now(), conns: map[*conn]http.ConnState{}, gone: make(chan struct{})}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	for i := range s.o.Slots {
		in.slots = append(in.slots, &slot{id: i})
	}
	in.log = newLogger(s.o.Log, in.start)
	in.http = &http.Server{
		Handler: in,
		// An idle connection lives 5 s (section 1.0).
		IdleTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return in.ctx },
		ConnContext: withConn,
		ConnState:   in.connState,
		ErrorLog:    discardLog(),
	}
	in.log.startup(s.o, s.addr)
	in.serve(ln)
	return in
}

// serve accepts connections until the listener is closed.
func (in *instance) serve(ln net.Listener) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.dead {
		_ = ln.Close()
		return
	}
	in.listener = ln
	in.serving.Go(func() {
		// It ends with the listener, on command.
		_ = in.http.Serve(&trackingListener{Listener: ln, in: in})
	})
}

// refuse closes the listener and the idle connections; allow opens it again.
func (in *instance) refuse() {
	in.mu.Lock()
	ln := in.listener
	in.listener = nil
	var idle []*conn
	for c, state := range in.conns {
		if state == http.StateIdle || state == http.StateNew {
			idle = append(idle, c)
		}
	}
	in.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	for _, c := range idle {
		_ = c.Close()
	}
}

func (in *instance) allow() {
	in.mu.Lock()
	closed := in.listener == nil && !in.dead
	in.mu.Unlock()
	if !closed {
		return
	}
	if ln, err := net.Listen("tcp", in.server.addr); err == nil {
		in.serve(ln)
	}
}

func (in *instance) kill() {
	if !in.die() {
		<-in.gone
		return
	}
	in.log.kill()
	in.shut(true)
	in.log.wait(time.Second)
	close(in.gone)
}

func (in *instance) close() {
	if !in.die() {
		<-in.gone
		return
	}
	in.log.write('I', "srv    operator(): operator(): cleaning up before exit...")
	// No release lines follow (section 2.2 of the log's notes).
	in.log.stop()
	in.shut(false)
	in.log.wait(5 * time.Second)
	close(in.gone)
}

func (in *instance) isDead() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.dead
}

// die marks the end; false: it was dead already.
func (in *instance) die() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	was := in.dead
	in.dead = true
	return !was
}

func (in *instance) shut(reset bool) {
	in.mu.Lock()
	ln := in.listener
	in.listener = nil
	conns := make([]*conn, 0, len(in.conns))
	for c := range in.conns {
		conns = append(conns, c)
	}
	in.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	for _, c := range conns {
		if reset {
			c.reset()
		}
		_ = c.Close()
	}
	in.cancel()
	_ = in.http.Close()
	in.handlers.Wait()
	in.serving.Wait()
}
