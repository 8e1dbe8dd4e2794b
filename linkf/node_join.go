package linkf

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
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
	if !n.hold() {
		return
	}
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	wait := joinFirst
	for {
		greeted, err := n.dial(ctx, address)
		if ctx.Err() != nil || n.stops() {
			return
		}
		if greeted {
			wait = joinFirst
		}
		n.amiss.warn("no link to the head", address, err, "again_in", wait)
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

// turnsMost bounds the peers that are met with another token than the first.
const turnsMost = 256

// turn is which token a peer is met with.
func (n *Node) turn(peer string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.turns[peer]
}

// turnOver has a peer that does not know a token be met with the next one from now on.
func (n *Node) turnOver(peer string, which int) {
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

func (n *Node) dial(ctx context.Context, address string) (greeted bool, err error) {
	c, err := n.reach(ctx, address)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return n.serve(c, address, func() {})
}

// serve speaks with a peer, which should be a head, until the connection ends. shaken is
// called when the handshake is over.
func (n *Node) serve(c net.Conn, peer string, shaken func()) (greeted bool, err error) {
	defer func() { _ = c.Close() }()
	noDelay(c)
	keys, which := new(Keyring), n.turn(peer)
	keys.Add(n.o.Tokens[which])
	_, s, rest, err := secured(c, RoleNode, keys)
	shaken()
	if errors.Is(err, RefusedToken) {
		n.turnOver(peer, which) // before it is closed: the peer may dial again then
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
	x := n.add()
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
	return x.greeted, err
}

func (n *Node) add() *nodeConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.last++
	x := &nodeConn{node: n, id: n.last, kick: make(chan struct{}, 1), done: make(chan struct{})}
	n.conns[x.id] = x
	n.m.up(clockNow(), x.id)
	return x
}

// Serve takes the heads that dial the node on a listener until that is closed. Close
// waits for their connections to end, and does not close the listener.
func (n *Node) Serve(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			n.amiss.warn("accept a head", "", err)
			if !pause(n.life, 100*time.Millisecond) {
				return nil
			}
			continue
		}
		if !n.hold() {
			_ = c.Close()
			continue
		}
		go func() {
			defer n.wg.Done()
			n.accept(c)
		}()
	}
}

func (n *Node) accept(c net.Conn) {
	host := hostOf(c)
	if !n.doors.enter(host) {
		_ = writeAll(c, refusal(RefusedFull), time.Second)
		_ = c.Close()
		n.amiss.warn("a head that dialled was not taken", host, RefusedFull)
		return
	}
	defer context.AfterFunc(n.life, func() { _ = c.Close() })()
	if _, err := n.serve(c, host, func() { n.doors.leave(host) }); err != nil && !n.stops() {
		n.amiss.warn("link of a head ended", host, err)
	}
}
