package linkf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// headConn is one connection of a link. It is the machine's end of it.
type headConn struct {
	link *Link
	c    net.Conn
	kick chan struct{}
	over error
}

// attach gives the link a connection that was greeted; the one before is closed. It is
// served until it ends.
func (l *Link) attach(c net.Conn, s *secure, g *greeting) error {
	l.mu.Lock()
	if l.life.Err() != nil {
		l.mu.Unlock()
		return context.Cause(l.life)
	}
	old := l.conn
	if err := l.contest(g.node.instance, hostOf(c)); err != nil {
		l.mu.Unlock()
		return err
	}
	if old != nil {
		_ = old.c.Close()
		l.lostAt = time.Now()
	}
	x := &headConn{link: l, c: c, kick: make(chan struct{}, 1)}
	l.conn = x
	if l.back != nil {
		l.back()
	}
	l.dialled(nil)
	l.m.up(clockNow(), g)
	l.stir()
	l.wg.Go(func() { l.serve(x, s) })
	l.mu.Unlock()
	return nil
}

func (l *Link) serve(x *headConn, s *secure) {
	err := pump(x.c, s, x, x.kick)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != x {
		return
	}
	l.conn, l.lostAt = nil, time.Now()
	l.logChanged()
	l.m.down(clockNow())
	l.stir()
	if l.life.Err() != nil {
		return
	}
	l.head.log.Warn("link lost", "node", l.name, "error", err)
	state := l.state
	if hasLeft(err) {
		state.Down = lost(l.name, fleet.CauseClosed, err)
	} else {
		state.Away = fmt.Errorf("node %s: the link was lost: %w", l.name, err)
	}
	l.tell(state)
	away, back := context.WithCancel(l.life)
	l.back = back
	l.wg.Go(func() {
		defer back()
		l.goOn(away)
	})
}

// goOn does what is due while there is no connection: it dials again at once, and ends
// what cannot be alive any more. away ends with the next connection.
func (l *Link) goOn(away context.Context) {
	if l.dial != "" {
		l.redial(away)
	}
	for {
		l.mu.Lock()
		if away.Err() != nil {
			l.mu.Unlock()
			return
		}
		l.m.tick(clockNow())
		l.stir()
		at, due := l.m.wake()
		l.mu.Unlock()
		if !due || !pause(away, at-clockNow()) {
			return
		}
	}
}

// receive implements end.
func (x *headConn) receive(data []byte) {
	x.link.mu.Lock()
	defer x.link.mu.Unlock()
	if x.link.conn == x {
		x.link.m.receive(clockNow(), data)
		x.link.stir()
	}
}

// pull implements end.
func (x *headConn) pull(b []byte) ([]byte, time.Duration, error) {
	l := x.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != x {
		return b, 0, errReplaced
	}
	now := clockNow()
	l.m.tick(now)
	b = l.m.pull(now, b, chunkLen)
	l.act()
	at, _ := l.m.wake()
	return b, max(time.Millisecond, at-now), x.over
}

// late implements end.
func (x *headConn) late() error {
	l := x.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != x {
		return errReplaced
	}
	l.m.tick(clockNow())
	l.stir()
	return x.over
}

var errReplaced = errors.New("the node has a newer connection")
