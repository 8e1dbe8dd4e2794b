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
		greeted, err := n.meet(address, func(t Token) (bool, error) { return n.dial(ctx, address, t) })
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

// meet speaks with a peer by the token whose turn it is; one that does not know it gets
// the next one when it is met again.
func (n *Node) meet(peer string, by func(Token) (bool, error)) (greeted bool, err error) {
	n.mu.Lock()
	which := n.turns[peer]
	n.mu.Unlock()
	greeted, err = by(n.o.Tokens[which])
	if !errors.Is(err, RefusedToken) {
		return greeted, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turns[peer] != which {
		return greeted, err // another connection did so
	}
	if len(n.turns) >= turnsMost {
		clear(n.turns)
	}
	n.turns[peer] = (which + 1) % len(n.o.Tokens)
	return greeted, err
}

// turnsMost bounds the peers that may have a turn of their own.
const turnsMost = 256

func (n *Node) dial(ctx context.Context, address string, t Token) (greeted bool, err error) {
	c, err := n.reach(ctx, address)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return n.serve(c, t, func() {})
}

// serve speaks with a head until the connection ends. shaken is called when the
// handshake is over.
func (n *Node) serve(c net.Conn, t Token, shaken func()) (greeted bool, err error) {
	defer func() { _ = c.Close() }()
	noDelay(c)
	keys := new(Keyring)
	keys.Add(t)
	_, s, rest, err := secured(c, RoleNode, keys)
	shaken()
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
	_, err := n.meet(host, func(t Token) (bool, error) {
		return n.serve(c, t, func() { n.doors.leave(host) })
	})
	if err != nil && n.life.Err() == nil {
		n.amiss.warn("link of a head ended", host, err)
	}
}
