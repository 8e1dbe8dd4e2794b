package linkf

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
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
	n.JoinAny(ctx, address, func() []string { return []string{address} })
}

// JoinAny is Join for a head that may be at any of some addresses, which are tried in
// turn. It also returns when the link was lost and there are none any more. That the head
// knows none of the node's tokens is logged once: it may be somebody else's.
func (n *Node) JoinAny(ctx context.Context, head string, addresses func() []string) {
	if !n.hold() {
		return
	}
	defer n.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	wait, which, refusals := joinFirst, 0, 0
	for {
		all := addresses()
		if len(all) == 0 {
			return
		}
		greeted, err := n.dialAny(ctx, all, n.o.Tokens[which])
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, RefusedToken) {
			which = (which + 1) % len(n.o.Tokens)
			refusals++
		} else {
			refusals = 0
		}
		if greeted {
			wait = joinFirst
		}
		level := slog.LevelWarn
		if refusals > len(n.o.Tokens) {
			level = slog.LevelDebug
		}
		n.log.Log(ctx, level, "no link to the head", "head", head, "error", err, "again_in", wait)
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

// dialAny tries one address after the other, until one is that of the head.
func (n *Node) dialAny(ctx context.Context, all []string, t Token) (greeted bool, err error) {
	for _, address := range all {
		greeted, err = n.dial(ctx, address, t)
		if greeted || ctx.Err() != nil || errors.Is(err, RefusedToken) {
			break
		}
	}
	return greeted, err
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

// serve speaks with a head until the connection ends. shaken is called when the
// handshake is over.
func (n *Node) serve(c net.Conn, keys *Keyring, shaken func()) (greeted bool, err error) {
	defer func() { _ = c.Close() }()
	noDelay(c)
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

// Serve takes the heads that dial the node on a listener until that is closed, with
// the first of the node's tokens, and waits for their connections to end. Close does
// not close the listener.
func (n *Node) Serve(ln net.Listener) error {
	keys := new(Keyring)
	keys.Add(n.o.Tokens[0])
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			n.log.Warn("accept a head", "error", err)
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
			n.accept(c, keys)
		}()
	}
}

func (n *Node) accept(c net.Conn, keys *Keyring) {
	address := hostOf(c)
	if !n.doors.enter(address) {
		_ = writeAll(c, refusal(RefusedFull), time.Second)
		_ = c.Close()
		return
	}
	defer context.AfterFunc(n.life, func() { _ = c.Close() })()
	if _, err := n.serve(c, keys, func() { n.doors.leave(address) }); err != nil && n.life.Err() == nil {
		n.log.Warn("link of a head ended", "address", address, "error", err)
	}
}
