package llamasim

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// instance is one process life of the server, from Start or Restart to Kill or Close.
type instance struct {
	server *Server
	o      Options
	can    features
	addr   string
	start  time.Time
	log    *logger
	http   *http.Server
	ctx    context.Context // done when it dies
	cancel context.CancelFunc
	term   chan struct{} // closed by terminate
	gone   chan struct{} // closed when nothing of it is left
	router *router       // nil: it has a model of its own

	mediaMarker string // stands for an image in prompts
	streams     keptStreams
	lastResult  atomic.Int64 // when anybody got one, in nanoseconds since start

	// mu guards all below. Nothing is done under it that waits.
	mu       sync.Mutex
	listener net.Listener // nil while it refuses
	conns    map[*conn]http.ConnState
	dead     bool
	told     func(string)  // a router's: hears of sleeping and waking; or nil
	loading  chan struct{} // closed when the model is there; nil: it is
	asleep   bool
	used     time.Time // when the model was last asked for
	users    int       // requests that use it now
	slots    []*slot
	queue    []*waiter
	running  map[*job]bool
	ram      [][]int32 // prompts kept outside the slots, the newest last
	nextTask int
	decodes  int // calls the real server would name graphs reused
	counters counters
	scales   []float64      // of its LoRA adapters
	handlers sync.WaitGroup // requests, joined only under mu while not dead
	serving  sync.WaitGroup
}

// newInstance begins a life on a listener. The options have been checked.
func newInstance(s *Server, o Options, ln net.Listener, log *logger) *instance {
	in := &instance{
		server: s, o: o, addr: ln.Addr().String(), start: log.start, log: log,
		conns: map[*conn]http.ConnState{}, term: make(chan struct{}), gone: make(chan struct{}), running: map[*job]bool{},
		mediaMarker: "<__media_" + randomID() + "__>",
		scales:      newScales(o.Adapters),
	}
	in.can, _ = o.Version.features()
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.heard()
	in.http = &http.Server{
		Handler: in,
		// An idle connection lives 5 s (section 1.0).
		IdleTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return in.ctx },
		ConnContext: withConn,
		ConnState:   in.connState,
		ErrorLog:    discardLog(),
	}
	in.log.banner(o)
	if len(o.Models) > 0 {
		in.router = newRouter(in)
		in.serve(ln)
		return in
	}
	in.log.write('I', "srv    load_model: loading model '%s'", modelPath(o))
	in.emptySlots()
	if o.LoadTime > 0 {
		in.loading = make(chan struct{})
		in.serving.Go(in.load1)
	} else {
		in.log.loaded(o)
		in.log.listening(in.addr)
	}
	in.serve(ln)
	if o.SleepIdle > 0 {
		in.serving.Go(in.watchIdle)
	}
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
	if ln, err := net.Listen("tcp", in.addr); err == nil {
		in.serve(ln)
	}
}

func (in *instance) kill() {
	if !in.die() {
		<-in.gone
		return
	}
	in.log.kill()
	if in.router != nil {
		in.router.kill()
	}
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
	if in.router != nil {
		in.router.close()
	}
	// No release lines follow (section 2.2 of the log's notes).
	in.log.stop()
	in.shut(false)
	in.log.wait(5 * time.Second)
	close(in.gone)
}

func (in *instance) terminate() {
	if !in.die() {
		<-in.gone
		return
	}
	in.log.write('I', "srv    operator(): operator(): cleaning up before exit...")
	in.log.stop()
	in.refuse()
	close(in.term)
	if in.router != nil {
		in.router.close()
	}
	in.handlers.Wait()
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

// heard notes that somebody got a result.
func (in *instance) heard() { in.lastResult.Store(int64(time.Since(in.start))) }

// silence is for how long nobody did.
func (in *instance) silence() time.Duration {
	return time.Since(in.start) - time.Duration(in.lastResult.Load())
}
