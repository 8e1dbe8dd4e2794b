package llamasim

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
)

// Stats is what the server has done since Start, restarts included, except for
// Active and Queued, which are of now.
type Stats struct {
	Requests  int `json:"requests"`  // completions asked for
	Active    int `json:"active"`    // slots generating
	Queued    int `json:"queued"`    // requests waiting for a slot
	Generated int `json:"generated"` // tokens
	Cancelled int `json:"cancelled"` // generations whose client left
	Faults    int `json:"faults"`    // that struck
}

// Server is a running stand-in. Its methods may be called at any time from any
// goroutine.
type Server struct {
	o     Options
	fault faultBox

	statsMu sync.Mutex
	stats   Stats
	bodies  [][]byte

	// killers end lives, and begin new ones, on behalf of requests that die with them.
	killers sync.WaitGroup
	closing chan struct{} // closed under mu

	// mu guards the life of the server: instance.mu and statsMu are taken inside it.
	mu   sync.Mutex
	addr string
	in   *instance
}

// Start listens and serves until Kill or Close.
func Start(o Options) (*Server, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &Server{o: o, closing: make(chan struct{})}
	ln, err := net.Listen("tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("stand-in server: %w", err)
	}
	s.addr = ln.Addr().String()
	s.in = newInstance(s, o, ln, newLogger(o.Log))
	return s, nil
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

// later runs f on behalf of a request that dies with what f does; not while closing.
func (s *Server) later(f func(closing <-chan struct{})) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closing:
	default:
		closing := s.closing
		s.killers.Go(func() { f(closing) })
	}
}

// instance is the current life. Nobody waits for a life to end under s.mu: handlers,
// which the end waits for, may want it.
func (s *Server) instance() *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in
}

// Close ends the server: running streams are broken off, the log is written out.
func (s *Server) Close() error {
	s.mu.Lock()
	select {
	case <-s.closing:
	default:
		close(s.closing)
	}
	s.mu.Unlock()
	s.killers.Wait()
	s.instance().close()
	return nil
}

// Terminate ends the server as one SIGTERM does (section 3.6): it refuses connections
// and generates nothing more at once, but a stream is silent until its next ping is
// due and ends only then, without a terminator; one without pings when its client
// goes. It returns when nothing of the server is left.
func (s *Server) Terminate() { s.instance().terminate() }

// Restart listens on the same address again after a Kill, a Terminate or a Close, its caches
// empty, its models unloaded and its log's clock at zero. Faults stay set.
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
	select {
	case <-s.closing:
		s.closing = make(chan struct{})
	default:
	}
	s.in = newInstance(s, s.o, ln, newLogger(s.o.Log))
	return nil
}

// Stats is what it has done, with a router all its models.
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

func (s *Server) struck() {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	s.stats.Faults++
}

func (s *Server) count(generated, cancelled int) {
	s.statsMu.Lock()
	defer s.statsMu.Unlock()
	s.stats.Generated += generated
	s.stats.Cancelled += cancelled
}
