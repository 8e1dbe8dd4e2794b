package linkf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

const (
	// redialFor is how long a lost connection is dialled again, if the node does not
	// refuse; the manager may have given it up before.
	redialFor  = 5 * time.Second
	redialWait = 250 * time.Millisecond
)

// connect makes a connection if there is none. Those who ask at the same time share
// one attempt.
func (l *Link) connect(ctx context.Context) error {
	l.mu.Lock()
	switch {
	case l.life.Err() != nil:
		defer l.mu.Unlock()
		return lost(l.name, fleet.CauseClosed, context.Cause(l.life))
	case l.conn != nil:
		l.mu.Unlock()
		return nil
	}
	wait := l.dialling
	if wait == nil {
		wait = make(chan struct{})
		l.dialling = wait
		l.wg.Go(func() {
			err := l.attempt()
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.dialling == wait {
				l.dialled(err)
			}
		})
	}
	l.mu.Unlock()
	select {
	case <-wait:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return nil
	}
	return l.dialErr
}

// dialled ends the attempt that runs, if there is one. Called under the mutex: by attach,
// so that a connection which is lost at once finds no attempt that is as good as over.
func (l *Link) dialled(err error) {
	if l.dialling != nil {
		close(l.dialling)
		l.dialling, l.dialErr = nil, err
	}
}

// attempt makes a connection. A node that came with a token which is not known here is
// dialled once more at once: while tokens are rotated it has two, and uses the other
// one next.
func (l *Link) attempt() error {
	err := l.try()
	if errors.Is(err, RefusedToken) && l.life.Err() == nil {
		err = l.try()
	}
	return err
}

// try dials the node, learns who it is, and attaches the connection.
func (l *Link) try() error {
	ctx, cancel := context.WithTimeout(l.life, dialLimit)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.dial)
	if err != nil {
		return lost(l.name, causeOfDial(err), err)
	}
	stop := context.AfterFunc(l.life, func() { _ = c.Close() })
	defer stop()
	s, g, e, err := l.head.greet(c)
	if err == nil {
		if err = e.allows(g.node.identity); err != nil {
			g.turnAway(c, s, err)
		} else {
			stop() // from here on the link closes it, with a reason
			err = l.attach(c, s, g)
		}
	}
	if err != nil {
		if errors.Is(err, RefusedToken) {
			awaitClose(c)
		}
		_ = c.Close()
		return lost(l.name, fleet.CauseUnusable, fmt.Errorf("link to %s: %w", l.dial, err))
	}
	return nil
}

// awaitClose waits until the peer has closed the connection, and so has understood why.
func awaitClose(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 4096))
}

func causeOfDial(err error) fleet.Cause {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fleet.CauseRefused
	case errors.Is(err, syscall.ECONNRESET):
		return fleet.CauseReset
	case errors.As(err, &timeout) && timeout.Timeout():
		return fleet.CauseTimedOut
	}
	return fleet.CauseRefused
}

// redial tries to get a lost connection back. A node that refuses is dead, and one that
// cannot be reached for long as good as that.
func (l *Link) redial(away context.Context) {
	until := time.Now().Add(redialFor)
	for {
		err := l.connect(away)
		if err == nil || away.Err() != nil {
			return
		}
		var gone *fleet.NodeLost
		refused := errors.As(err, &gone) && (gone.Cause == fleet.CauseRefused || gone.Cause == fleet.CauseReset)
		if refused || time.Now().After(until) {
			l.mu.Lock()
			if away.Err() == nil {
				l.m.lost(clockNow(), err)
				l.stir()
				l.tell(fleet.NodeState{Down: err})
			}
			l.mu.Unlock()
			return
		}
		if !pause(away, redialWait) {
			return
		}
	}
}
