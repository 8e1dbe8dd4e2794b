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

// Join keeps a link to the head at a host:port until ctx ends or the node is closed,
// and waits between attempts, with a wait that doubles. All addresses of a name are
// tried.
func (n *Node) Join(ctx context.Context, address string) {
	if !n.hold() {
		return
	}
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	wait, which := joinFirst, 0
	for {
		greeted, err := n.dial(ctx, address, n.o.Tokens[which])
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, RefusedToken) {
			which = (which + 1) % len(n.o.Tokens)
		}
		if greeted {
			wait = joinFirst
		}
		n.log.Warn("no link to the head", "head", address, "error", err, "again_in", wait)
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

func (n *Node) dial(ctx context.Context, address string, t Token) (greeted bool, err error) {
	d := net.Dialer{Timeout: dialLimit}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	keys := new(Keyring)
	keys.Add(t)
	return n.serve(c, keys, func() {})
}

// serve speaks with a head until the connection ends. known is called, under the mutex,
// when the head said who it is.
func (n *Node) serve(c net.Conn, keys *Keyring, known func()) (greeted bool, err error) {
	defer func() { _ = c.Close() }()
	noDelay(c)
	_, s, rest, err := secured(c, RoleNode, keys)
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
	return x.greeted, err
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

// Serve takes the heads that dial the node on a listener until that is closed, with
// the first of the node's tokens. Their connections end with Close, which does not close
// the listener.
func (n *Node) Serve(ln net.Listener) error {
	keys := new(Keyring)
	keys.Add(n.o.Tokens[0])
	return accepted(n.life, ln, n.log, func(c net.Conn) {
		if !n.hold() {
			_ = c.Close()
			return
		}
		go func() {
			defer n.wg.Done()
			n.accept(c, keys)
		}()
	})
}

func (n *Node) accept(c net.Conn, keys *Keyring) {
	address, ok := n.doors.admit(c)
	if !ok {
		return
	}
	known := sync.OnceFunc(func() { n.doors.leave(address) })
	defer known()
	defer context.AfterFunc(n.life, func() { _ = c.Close() })()
	if _, err := n.serve(c, keys, known); err != nil && n.life.Err() == nil {
		n.doors.warn(n.log, "link of a head ended", address, err)
	}
}
