package linkf

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// Link is a [fleet.Link] to a node that runs our agent. It outlives its connections:
// generations wait while there is none, until the manager ends them.
type Link struct {
	head *Head
	name string
	dial string // the node's address; empty: the node dials

	life context.Context // ends with Close
	quit context.CancelCauseFunc
	wg   sync.WaitGroup // connections, and who dials

	mu       sync.Mutex
	m        *headMachine
	conn     *headConn // nil: none
	twins    twins
	runs     map[uint64]*headRun
	calls    map[uint64]chan headAction
	state    fleet.NodeState
	known    bool // state is what the node said, or why there is none
	watchers map[chan struct{}]struct{}
	readers  map[chan struct{}]int // of its log
	lostAt   time.Time             // when it had a connection last
	back     context.CancelFunc    // ends what is done while there is none; nil: there was none yet
	dialling chan struct{}         // closed when the attempt that runs is over; nil: none
	dialErr  error                 // of the last attempt
}

// headRun is who waits for the events of a session.
type headRun struct {
	events []headAction // as many as the credit allows
	signal chan struct{}
}

func newLink(h *Head, name, dial string) *Link {
	l := &Link{
		head: h, name: name, dial: dial, m: newHead(h.me, name, &h.epochs),
		runs: make(map[uint64]*headRun), calls: make(map[uint64]chan headAction),
		watchers: make(map[chan struct{}]struct{}), readers: make(map[chan struct{}]int),
	}
	l.m.lease = func() time.Duration { return time.Duration(h.lease.Load()) }
	l.life, l.quit = context.WithCancelCause(context.Background())
	return l
}

// Run runs one generation, as [fleet.Link] says. Events are acknowledged once take
// returned, and the node sends only a bounded part of an answer that is not taken.
func (l *Link) Run(ctx context.Context, a fleet.Assignment, take func(fleet.Event) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	id, r, err := l.open(a)
	if err != nil {
		return err
	}
	var parts []byte
	for {
		select {
		case <-r.signal:
		case <-ctx.Done():
			l.giveUp(id)
			return context.Cause(ctx)
		}
		came := l.drain(r)
		for i, x := range came {
			if x.kind == headEnded {
				l.close(id)
				return x.err
			}
			if x.event.More {
				parts = append(parts, x.event.Data...)
			} else {
				e := x.event.fleet()
				e.More = wholeNext(came[i+1:])
				if len(parts) > 0 {
					e.Data, parts = append(parts, e.Data...), nil
				}
				if err := take(e); err != nil {
					l.giveUp(id)
					return err
				}
			}
			l.took(id, x)
		}
	}
}

// wholeNext reports whether an event that is whole comes next.
func wholeNext(came []headAction) bool {
	return len(came) > 0 && came[0].kind == headEvent && !came[0].event.More
}

func (l *Link) open(a fleet.Assignment) (uint64, *headRun, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return 0, nil, err
	}
	id, err := l.m.open(clockNow(), a)
	if err != nil {
		return 0, nil, err
	}
	r := &headRun{signal: make(chan struct{}, 1)}
	l.runs[id] = r
	l.stir()
	return id, r, nil
}

// usable says why nothing can be sent to the node. Called under the mutex.
func (l *Link) usable() error {
	switch {
	case l.life.Err() != nil:
		return lost(l.name, fleet.CauseClosed, context.Cause(l.life))
	case l.conn == nil && l.dial == "":
		return lost(l.name, fleet.CauseRefused, errors.New("it has not dialled in"))
	case l.conn == nil:
		return lost(l.name, fleet.CauseRefused, errors.New("there is no connection to it"))
	}
	return nil
}

func (l *Link) drain(r *headRun) []headAction {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := r.events
	r.events = nil
	return e
}

func (l *Link) took(id uint64, x headAction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.m.took(clockNow(), id, x.generation, x.seq)
	l.stir()
}

// giveUp cancels a generation that nobody waits for any more.
func (l *Link) giveUp(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, id)
	l.m.cancel(clockNow(), id)
	l.stir()
}

func (l *Link) close(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, id)
	_ = l.m.revoke(clockNow(), id) // it may be over on this side already
	l.stir()
}

// Call does something short. [fleet.OpProbe] of a node that is dialled connects to it
// if there is no connection.
func (l *Link) Call(ctx context.Context, c fleet.Call) (fleet.Reply, error) {
	if c.Op == fleet.OpProbe && l.dial != "" {
		if err := l.connect(ctx); err != nil {
			return fleet.Reply{}, err
		}
	}
	l.mu.Lock()
	if err := l.usable(); err != nil {
		l.mu.Unlock()
		return fleet.Reply{}, err
	}
	id, err := l.m.call(clockNow(), c)
	if err != nil {
		l.mu.Unlock()
		return fleet.Reply{}, err
	}
	answer := make(chan headAction, 1)
	l.calls[id] = answer
	l.stir()
	l.mu.Unlock()
	select {
	case x := <-answer:
		x.reply.Body = joined(x.reply.Body, x.parts)
		return x.reply, x.err
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.calls, id)
		l.m.hangUp(clockNow(), id)
		l.stir()
		return fleet.Reply{}, context.Cause(ctx)
	}
}

// Watch tells what the node says of itself, as [fleet.Link] says. Without a connection
// the last state comes again, with Away or Down.
func (l *Link) Watch(ctx context.Context, f func(fleet.NodeState)) {
	c := make(chan struct{}, 1)
	l.mu.Lock()
	l.watchers[c] = struct{}{}
	if l.known {
		c <- struct{}{}
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.watchers, c)
		l.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.life.Done():
			return
		case <-c:
		}
		l.mu.Lock()
		s := l.state
		l.mu.Unlock()
		f(s)
	}
}

// closeLimit is how long a node may take for the last words of a link.
const closeLimit = time.Second

// Close ends the link and its connection, and waits for both.
func (l *Link) Close(reason string) error {
	l.mu.Lock()
	err := errors.New(reason)
	l.quit(err)
	if x := l.conn; x != nil {
		defer time.AfterFunc(closeLimit, func() { _ = x.c.Close() }).Stop()
	}
	l.m.lost(clockNow(), lost(l.name, fleet.CauseClosed, err))
	l.m.close(err)
	l.stir()
	l.mu.Unlock()
	l.wg.Wait()
	return nil
}

// stir does what the machine wants done, and has the connection send what is to be
// sent. Called under the mutex after everything that the machine was told.
func (l *Link) stir() {
	l.act()
	if l.conn != nil && l.m.wants() {
		wakeUp(l.conn.kick)
	}
}

func (l *Link) act() {
	for _, x := range l.m.actions() {
		switch x.kind {
		case headEvent, headEnded:
			if r := l.runs[x.session]; r != nil {
				r.events = append(r.events, x)
				wakeUp(r.signal)
			}
		case headReply:
			if c := l.calls[x.call]; c != nil {
				delete(l.calls, x.call)
				c <- x
			}
		case headState:
			l.tell(x.status.state(l.name, time.Now()))
		case headLog:
			l.logChanged()
		case headClose:
			if l.conn != nil {
				l.conn.over = x.err
			}
		}
	}
}

func (l *Link) tell(s fleet.NodeState) {
	l.state, l.known = s, true
	for c := range l.watchers {
		wakeUp(c)
	}
}

// logChanged wakes those who read the node's log. Called under the mutex.
func (l *Link) logChanged() {
	for c := range l.readers {
		wakeUp(c)
	}
}

var _ fleet.Link = (*Link)(nil)
