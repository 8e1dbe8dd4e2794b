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
// that another node has its name.
func (n *Node) JoinAny(ctx context.Context, head string, addresses func() []string) {
	if !n.hold() {
		return
	}
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	wait, refusals, named := joinFirst, 0, false
	for {
		all := addresses()
		if len(all) == 0 {
			return
		}
		linked, err := n.dialAny(ctx, all)
		if ctx.Err() != nil || n.stops() {
			return
		}
		if errors.Is(err, RefusedToken) {
			refusals++
		} else {
			refusals = 0
		}
		if linked {
			wait, named = joinFirst, false
		}
		again := named
		named = errors.Is(err, RefusedName)
		if refusals > len(n.o.Tokens) || again && named {
			// It was told of each token, and may be somebody else's; or said already that
			// the name is.
			n.log.Debug("no link to the head", "address", head, "error", err, "again_in", wait)
		} else {
			n.amiss.warn("no link to the head", head, err, "again_in", wait)
		}
		// Half of it at random: nodes that lost their head together come back apart.
		if !pause(ctx, wait/2+rand.N(wait/2)) {
			return
		}
		wait = min(2*wait, joinMost)
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
		if linked || ctx.Err() != nil || errors.Is(err, RefusedToken) || errors.Is(err, RefusedName) {
			break
		}
	}
	return linked, err
}

func (n *Node) dial(ctx context.Context, address string) (linked bool, err error) {
	c, err := n.reach(ctx, address)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return n.serve(c, address, func() {})
}

// serve speaks with a head until the connection ends. One that does not know the token it
// is met with is met with the next one from when the connection is closed here. known is
// called, under the mutex, when the head said who it is.
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
	x := n.add(known)
	if x == nil {
		return false, errors.New("the node is stopping")
	}
	if len(plain) > 0 {
		x.receive(plain)
	}
	err = pump(c, s, x, x.kick)
	close(x.done)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, x.id)
	n.m.down(clockNow(), x.id)
	n.stir()
	return x.linked, err
}

func (n *Node) add(known func()) *nodeConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.last++
	x := &nodeConn{node: n, id: n.last, known: known, kick: make(chan struct{}, 1), done: make(chan struct{})}
	n.conns[x.id] = x
	n.m.up(clockNow(), x.id)
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
