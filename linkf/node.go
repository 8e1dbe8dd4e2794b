package linkf

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// NodeOptions say what a node runs, and for whom.
type NodeOptions struct {
	// Identity of the node: what its heads call it. 1 to 255 bytes.
	Identity string

	// Upstream is the link to the node's model server. The node closes it.
	Upstream fleet.Link

	// Lanes bounds the generations of all heads. Default: what the server has.
	Lanes int

	// Tokens that prove the node to its heads and them to it. A head that does not know
	// one is met with the next on its next connection. Default: none, so that nothing is
	// proved.
	Tokens []Token

	// TLS for heads behind https. Default: the system's roots.
	TLS *tls.Config

	// Logger for what nobody gets as an error. Default: none.
	Logger *slog.Logger
}

// Node runs the generations of its heads on one model server.
type Node struct {
	o     NodeOptions
	log   *slog.Logger
	amiss complaints
	doors admission // for heads that dial

	life context.Context // of connections; ends with Close
	quit context.CancelFunc
	wg   sync.WaitGroup

	work     context.Context // of generations and calls; ends first
	stopWork context.CancelCauseFunc
	working  sync.WaitGroup

	mu     sync.Mutex
	m      *agentMachine
	last   uint64 // number of a connection
	conns  map[uint64]*nodeConn
	runs   map[uint64]*nodeRun
	calls  map[uint64]context.CancelFunc
	turns  map[string]int // which token a peer is met with, if it is not the first
	rests  chan struct{}  // closed when heads are dialled again; nil: they are
	closed bool
	state  fleet.NodeState // as the upstream told last
	heard  time.Duration   // when the model server last gave a sign of life
	fails  error           // why it does not answer; nil: it does, as far as is known
	idle   chan struct{}   // closed when a node that takes nothing new is empty; nil: it takes
	ticker *time.Timer     // for leases
	ticks  time.Duration   // when it does
}

// nodeConn is one connection. It is the machine's end of it.
type nodeConn struct {
	node   *Node
	id     uint64
	kick   chan struct{}
	peer   string // its address
	known  func() // called when greeted; nil: the node dialled
	linked bool   // the head has taken the node
	over   error
	done   chan struct{} // closed when it is over, for the machine, too
}

// nodeRun is a generation of the model server.
type nodeRun struct {
	cancel context.CancelCauseFunc
	room   chan struct{} // filled when it may go on
}

// NewNode returns a node and has it watch its model server: what that offers, and, where
// nothing else shows it, whether it answers.
func NewNode(o NodeOptions) (*Node, error) {
	me, err := newWho("node", o.Identity)
	if err != nil {
		return nil, err
	}
	if len(o.Tokens) == 0 {
		o.Tokens = []Token{{}}
	}
	n := &Node{
		o: o, log: o.Logger,
		m:     newAgent(me, o.Lanes),
		conns: make(map[uint64]*nodeConn), runs: make(map[uint64]*nodeRun), calls: make(map[uint64]context.CancelFunc),
		turns: make(map[string]int), heard: clockNow(),
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.amiss.log = n.log
	n.life, n.quit = context.WithCancel(context.Background())
	n.work, n.stopWork = context.WithCancelCause(n.life)
	n.ticker = time.AfterFunc(time.Hour, n.tick)
	n.wg.Go(func() { o.Upstream.Watch(n.life, n.offer) })
	n.wg.Go(n.watch)
	return n, nil
}

// Drain has the node take nothing new and tells its heads so, which move what can go on
// elsewhere. It returns when nothing runs, or ctx ends.
func (n *Node) Drain(ctx context.Context) {
	n.mu.Lock()
	if n.idle == nil {
		n.idle = make(chan struct{})
		n.m.leave(clockNow())
		n.stir()
	}
	idle := n.idle
	n.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	case <-n.life.Done():
	}
}

// Close ends what the node runs, tells its heads so, ends its connections, and closes
// the link to the model server. It waits for all of it.
func (n *Node) Close() error {
	stopping := lost(n.o.Identity, fleet.CauseClosed, errors.New("the node is stopping"))
	n.mu.Lock()
	n.closed = true
	_ = n.m.offer(clockNow(), fleet.NodeState{Down: stopping}, time.Now()) // that fits
	n.stir()
	n.mu.Unlock()
	n.stopWork(stopping)
	n.working.Wait()

	n.mu.Lock()
	for _, c := range n.m.conns {
		c.wire.leaving = true
		n.m.close(c, errors.New("the node is stopping"))
	}
	n.stir()
	n.mu.Unlock()
	n.flushed()
	n.quit()
	n.wg.Wait()
	n.ticker.Stop()
	return n.o.Upstream.Close("the node is stopping")
}

// flushed waits for the last words to go out, as long as a head may take for them.
func (n *Node) flushed() {
	ctx, cancel := context.WithTimeout(n.life, time.Second)
	defer cancel()
	n.mu.Lock()
	var all []chan struct{}
	for _, c := range n.conns {
		all = append(all, c.done)
	}
	n.mu.Unlock()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// offer tells the heads what the model server offers.
func (n *Node) offer(s fleet.NodeState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = s
	n.tell()
}

// tick does what is due with leases: there may be no connection that asks, or one that
// waits for its head to read.
func (n *Node) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ticks = 0
	n.m.tick(clockNow())
	n.stir()
}

// stir does what the machine wants done and has the connections look at it. Called
// under the mutex after everything that the machine was told.
func (n *Node) stir() {
	n.act()
	for _, c := range n.conns {
		wakeUp(c.kick)
	}
	if at, ok := n.m.leaseAt(); ok && at != n.ticks && !n.closed {
		n.ticks = at
		n.ticker.Reset(max(at-clockNow(), time.Millisecond))
	}
}

func (n *Node) act() {
	defer n.lookIdle()
	for _, x := range n.m.actions() {
		switch x.kind {
		case agentStart:
			if !n.closed {
				n.start(x)
			} else {
				n.m.finish(clockNow(), x.run, context.Cause(n.work))
			}
		case agentStop:
			if r := n.runs[x.run]; r != nil {
				r.cancel(x.err)
			}
		case agentReadOn:
			if r := n.runs[x.run]; r != nil {
				wakeUp(r.room)
			}
		case agentCall:
			if !n.closed {
				n.call(x)
			}
		case agentCallStop:
			if cancel := n.calls[x.run]; cancel != nil {
				cancel()
			}
		case agentClose:
			if c := n.conns[x.conn]; c != nil {
				c.over = x.err
			}
		case agentGreeted:
			if c := n.conns[x.conn]; c != nil && c.known != nil {
				c.known()
			}
		case agentLinked:
			if c := n.conns[x.conn]; c != nil {
				c.linked = true
			}
			n.log.Info("linked to a head", "head", x.identity)
		case agentNotice:
			n.amiss.warn("a word of a head", x.identity, x.err)
		}
	}
}

// lookIdle says that a node which takes nothing new is empty. Called under the mutex.
func (n *Node) lookIdle() {
	if n.idle == nil || !n.m.idle() {
		return
	}
	select {
	case <-n.idle:
	default:
		close(n.idle)
	}
}

// start runs a generation. Called under the mutex.
func (n *Node) start(x agentAction) {
	ctx, cancel := context.WithCancelCause(n.work)
	r := &nodeRun{cancel: cancel, room: make(chan struct{}, 1)}
	n.runs[x.run] = r
	n.working.Go(func() {
		x.assignment.Body = joined(x.assignment.Body, x.parts)
		err := n.o.Upstream.Run(ctx, x.assignment, func(e fleet.Event) error { return n.emit(ctx, x.run, r, e) })
		cancel(nil)
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.runs, x.run)
		n.m.finish(clockNow(), x.run, err)
		n.stir()
	})
}

// emit keeps an event for the head, and waits while there is no room for more.
func (n *Node) emit(ctx context.Context, run uint64, r *nodeRun, e fleet.Event) error {
	e.Data = append([]byte(nil), e.Data...)
	e.Progress, e.Timings = copyOf(e.Progress), copyOf(e.Timings)
	n.mu.Lock()
	n.hear()
	got := n.m.emit(clockNow(), run, e)
	n.stir()
	n.mu.Unlock()
	switch got {
	case roomGone:
		return errCancelled
	case roomNone:
		select {
		case <-r.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// call does something short. Called under the mutex.
func (n *Node) call(x agentAction) {
	ctx, cancel := context.WithCancel(n.work)
	n.calls[x.run] = cancel
	n.working.Go(func() {
		defer cancel()
		x.call.Body = joined(x.call.Body, x.parts)
		r, err := n.o.Upstream.Call(ctx, x.call)
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.calls, x.run)
		if err == nil {
			n.hear()
		}
		n.m.answer(clockNow(), x.run, r, err)
		n.stir()
	})
}

// receive implements end.
func (x *nodeConn) receive(data []byte) {
	x.node.mu.Lock()
	defer x.node.mu.Unlock()
	x.node.m.receive(clockNow(), x.id, data)
	x.node.stir()
}

// pull implements end.
func (x *nodeConn) pull(b []byte) ([]byte, time.Duration, error) {
	n := x.node
	n.mu.Lock()
	defer n.mu.Unlock()
	now := clockNow()
	n.m.tick(now)
	b = n.m.pull(now, x.id, b, chunkLen)
	again := heartbeatIdle
	if at, ok := n.m.wake(); ok {
		again = max(time.Millisecond, at-now)
	}
	n.act()
	return b, again, x.over
}

// late implements end.
func (x *nodeConn) late() error {
	x.node.mu.Lock()
	defer x.node.mu.Unlock()
	if x.node.conns[x.id] != x {
		return net.ErrClosed
	}
	x.node.m.tick(clockNow())
	x.node.stir()
	return x.over
}
