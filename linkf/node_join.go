package linkf

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	joinFirst = 500 * time.Millisecond // until the second attempt to reach a head
	joinMost  = 30 * time.Second       // between two attempts
)

// Join keeps a link to the head at a host:port, or at the http:// or https:// URL of its
// fleet_join, until ctx ends or the node is closed. It waits between attempts, with a
// wait that doubles. All addresses of a name are tried.
func (n *Node) Join(ctx context.Context, address string) {
	n.JoinAny(ctx, address, func() []string { return []string{address} })
}

// JoinAny is Join for a head that may be at any of some addresses, which are tried in
// turn. It also returns when the link was lost and there are none any more. That the head
// knows none of the node's tokens is logged once: it may be somebody else's; and so is
// that another node has its name, and that another address leads to the same head. Then
// this one is a spare: tried seldom, and at once when the link by the other is lost.
func (n *Node) JoinAny(ctx context.Context, head string, addresses func() []string) {
	if !n.hold() {
		return
	}
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	tries := joinTries{wait: joinFirst}
	for n.rested(ctx) {
		all := addresses()
		if len(all) == 0 {
			return
		}
		linked, err := n.dialAny(ctx, all)
		if ctx.Err() != nil || n.stops() {
			return
		}
		if linked {
			tries.wait = joinFirst
		}
		n.noted(&tries, head, err)
		// Half of it at random: nodes that lost their head together come back apart.
		if !tries.pause(ctx, tries.wait/2+rand.N(tries.wait/2)) {
			return
		}
	}
}

// Rest has the node dial no head until it is told to go on, while another of its name
// does so in its place. Links that stand stay.
func (n *Node) Rest(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case on && n.rests == nil:
		n.rests = make(chan struct{})
	case !on && n.rests != nil:
		close(n.rests)
		n.rests = nil
	}
}

// resting is closed when heads are dialled again; nil: they are.
func (n *Node) resting() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rests
}

// rested waits until heads are dialled; false: ctx ended first.
func (n *Node) rested(ctx context.Context) bool {
	for {
		rests := n.resting()
		if rests == nil {
			return true
		}
		select {
		case <-rests:
		case <-ctx.Done():
			return false
		}
	}
}

// errRests: the node dials no head for now.
var errRests = errors.New("another node of this name dials in its place")

// joinTries are those to keep a link to one head.
type joinTries struct {
	wait     time.Duration   // until the next one
	refusals int             // of tokens, one after the other
	known    Refusal         // why the last one was turned away, which is said once; 0: it was not
	freed    <-chan struct{} // closed when the other link to the head is over; nil: there is none
}

// noted says why a try ended, unless that was said before.
func (n *Node) noted(j *joinTries, head string, err error) {
	before := j.known
	j.known, j.freed = 0, nil
	if errors.Is(err, RefusedToken) {
		j.refusals++
	} else {
		j.refusals = 0
	}
	var other *linkedError
	switch {
	case n.resting() != nil:
		return // its place was taken, as is due
	case errors.As(err, &other):
		var by string
		j.known = RefusedLinked
		by, j.freed = n.linkBy(other.by)
		if before != j.known {
			n.log.Info("this address leads to a head that the node is linked to, and is kept as a spare", "address", head, "head", other.head, "linked_by", by)
			return
		}
	case errors.Is(err, RefusedName):
		j.known = RefusedName
	}
	if j.refusals > len(n.o.Tokens) || j.known != 0 && j.known == before {
		// It was told of each token, and may be somebody else's; or the rest was said already.
		n.log.Debug("no link to the head", "address", head, "error", err, "again_in", j.wait)
		return
	}
	n.amiss.warn("no link to the head", head, err, "again_in", j.wait)
}

// linkBy returns the address that a connection was made to, and what is closed when that
// is over.
func (n *Node) linkBy(conn uint64) (address string, over <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.conns[conn]; c != nil {
		return c.peer, c.done
	}
	gone := make(chan struct{})
	close(gone)
	return "", gone
}

// pause waits for the next try, and has the one after wait longer, unless the other link
// to the head is lost; false: ctx ended first.
func (j *joinTries) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		j.wait = min(2*j.wait, joinMost)
		return true
	case <-j.freed:
		j.wait = joinFirst
		return true
	case <-ctx.Done():
		return false
	}
}

// hold counts the caller among those that Close waits for; false: it is closed.
func (n *Node) hold() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Add(1)
	return true
}

func (n *Node) stops() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// turn is the token that a peer is met with.
func (n *Node) turn(peer string) (which int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.turns[peer]
}

// missed has a peer that does not know a token met with the next one.
func (n *Node) missed(peer string, which int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turns[peer] != which {
		return // another connection did so
	}
	if len(n.turns) >= turnsMost {
		clear(n.turns)
	}
	n.turns[peer] = (which + 1) % len(n.o.Tokens)
}

// turnsMost bounds the peers that may have a turn of their own.
const turnsMost = 256

// dialAny tries one address after the other, until one is that of the head.
func (n *Node) dialAny(ctx context.Context, all []string) (linked bool, err error) {
	for _, address := range all {
		linked, err = n.dial(ctx, address)
		if linked || ctx.Err() != nil || turnedAway(err) {
			break
		}
	}
	return linked, err
}

// turnedAway reports whether it is the head that was met, and not to be had by another of
// its addresses either.
func turnedAway(err error) bool {
	var linked *linkedError
	return errors.Is(err, RefusedToken) || errors.Is(err, RefusedName) || errors.As(err, &linked)
}

func (n *Node) dial(ctx context.Context, address string) (linked bool, err error) {
	c, err := n.reach(ctx, address)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if n.resting() != nil {
		_ = c.Close()
		return false, errRests
	}
	return n.serve(c, address, nil)
}

// serve speaks with a head until the connection ends. One that does not know the token it
// is met with is met with the next one from when the connection is closed here. known is
// called, under the mutex, when the head said who it is; nil: the node dialled.
func (n *Node) serve(c net.Conn, peer string, known func()) (linked bool, err error) {
	defer func() { _ = c.Close() }()
	noDelay(c)
	which := n.turn(peer)
	keys := new(Keyring)
	keys.Add(n.o.Tokens[which])
	_, s, rest, err := secured(c, RoleNode, keys)
	if errors.Is(err, RefusedToken) {
		n.missed(peer, which)
	}
	if err != nil {
		return false, err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return false, err
	}
	plain, err := s.open(rest)
	if err != nil {
		return false, err
	}
	x := n.add(peer, known)
	if x == nil {
		return false, errors.New("the node is stopping")
	}
	if len(plain) > 0 {
		x.receive(plain)
	}
	err = pump(c, s, x, x.kick)
	n.mu.Lock()
	defer n.mu.Unlock()
	defer close(x.done)
	delete(n.conns, x.id)
	n.m.down(clockNow(), x.id)
	n.stir()
	return x.linked, err
}

func (n *Node) add(peer string, known func()) *nodeConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.last++
	x := &nodeConn{node: n, id: n.last, peer: peer, known: known, kick: make(chan struct{}, 1), done: make(chan struct{})}
	n.conns[x.id] = x
	n.m.up(clockNow(), x.id, known == nil)
	return x
}

// Serve takes the heads that dial the node on a listener until that is closed. Their
// connections end with Close, which does not close the listener.
func (n *Node) Serve(ln net.Listener) error {
	return accepted(n.life, ln, &n.amiss, func(c net.Conn) {
		if !n.hold() {
			_ = c.Close()
			return
		}
		go func() {
			defer n.wg.Done()
			n.accept(c)
		}()
	})
}

func (n *Node) accept(c net.Conn) {
	host := hostOf(c)
	if err := n.doors.admit(c, host); err != nil {
		_ = c.Close()
		n.amiss.warn("a head that dialled was not taken", host, err)
		return
	}
	known := sync.OnceFunc(func() { n.doors.leave(host) })
	defer known()
	defer context.AfterFunc(n.life, func() { _ = c.Close() })()
	if _, err := n.serve(c, host, known); err != nil && !n.stops() {
		n.amiss.warn("link of a head ended", host, err)
	}
}
