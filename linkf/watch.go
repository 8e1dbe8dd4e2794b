package linkf

import (
	"context"
	"errors"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

const (
	// watchEvery is how long a node hears nothing of its model server before it looks
	// whether that answers.
	watchEvery = heartbeatIdle

	watchLimit   = 5 * time.Second  // for one look
	relearnLimit = 30 * time.Second // for what a server that came back offers
)

// watch looks after the model server until the node is closed. Heads are told of one
// that does not answer, so that they need not ask for it, each on its own, while they
// hear of the node.
func (n *Node) watch() {
	for wait := watchEvery; pause(n.life, wait); {
		if wait = n.untilQuiet(); wait <= 0 {
			n.look()
			wait = watchEvery
		}
	}
}

// untilQuiet is when nothing was heard of the server for watchEvery.
func (n *Node) untilQuiet() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.heard + watchEvery - clockNow()
}

// look asks the server whether it is there. One that came back is asked what it offers
// now.
func (n *Node) look() {
	n.mu.Lock()
	heard, failed := n.heard, n.fails != nil
	n.mu.Unlock()
	err := n.ask(fleet.OpHealth, watchLimit)
	if err == nil && failed {
		err = n.ask(fleet.OpProbe, relearnLimit)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.work.Err() != nil:
	case err == nil:
		n.hear()
	case n.heard == heard && (n.fails == nil || n.fails.Error() != err.Error()):
		n.fails = err
		n.tell()
	}
}

func (n *Node) ask(op fleet.Op, limit time.Duration) error {
	late := lost(n.o.Identity, fleet.CauseTimedOut, errors.New("no answer within "+limit.String()))
	ctx, cancel := context.WithTimeoutCause(n.work, limit, late)
	defer cancel()
	_, err := n.o.Upstream.Call(ctx, fleet.Call{Op: op})
	return err
}

// hear notes a sign of life of the server. Called under the mutex.
func (n *Node) hear() {
	n.heard = clockNow()
	if n.fails != nil {
		n.fails = nil
		n.tell()
	}
}

// tell has the heads know what the server offers, or why it cannot be used. Called under
// the mutex.
func (n *Node) tell() {
	if n.closed {
		return
	}
	s := n.state
	if s.Down == nil {
		s.Down = n.fails
	}
	if err := n.m.offer(clockNow(), s, time.Now()); err != nil {
		n.log.Error("the state of the model server cannot be told", "error", err)
	}
	n.stir()
}

// Vouched returns when the node was last heard of, and how long it takes at most to
// notice that its server does not answer. Zero: it does not say that it looks, or there
// is no connection.
func (l *Link) Vouched() (at time.Time, within time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.m.wire == nil || l.m.status == nil || l.m.status.Down != nil {
		return time.Time{}, 0
	}
	return time.Now().Add(l.m.told(l.m.wire.lastIn) - clockNow()), duration(l.m.status.Watch)
}

var _ fleet.Voucher = (*Link)(nil)
