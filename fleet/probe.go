package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstRetry  = 250 * time.Millisecond
	probeLimit  = 30 * time.Second // for all that a link asks in one probe
	healthLimit = 5 * time.Second
)

// tend probes the node when it is new, when it was lost, and when nothing was
// heard of it for long.
func (m *Manager) tend(ctx context.Context, n *node) {
	var wait time.Duration // before the next probe
	for ctx.Err() == nil {
		if !pauseUntil(ctx, wait, n.back) { // a node that dialled in need not wait
			return
		}
		if m.call(ctx, n, OpProbe, probeLimit) != nil {
			wait = m.probeLater(n, wait)
			continue
		}
		if wait = m.untilLost(ctx, n); wait > 0 {
			m.probeIn(n, wait)
		}
	}
}

// untilLost returns when the node needs a probe, and how long that should wait.
func (m *Manager) untilLost(ctx context.Context, n *node) time.Duration {
	for {
		idle := time.NewTimer(m.retryOf(n))
		select {
		case <-ctx.Done():
			idle.Stop()
			return 0
		case <-n.lost:
			idle.Stop()
			return m.firstWait(n)
		case <-n.doubt:
			idle.Stop()
			m.examine(ctx, n)
			m.catchUp(ctx, n)
			continue
		case <-idle.C:
		}
		if m.quiet(n) && m.call(ctx, n, OpHealth, healthLimit) != nil {
			return firstRetry
		}
	}
}

// call makes a call and lets its outcome speak for the node.
func (m *Manager) call(ctx context.Context, n *node, op Op, limit time.Duration) error {
	limited, cancel := context.WithTimeoutCause(ctx, limit, errors.New("no answer within "+limit.String()))
	defer cancel()
	_, err := n.link.Call(limited, Call{Op: op})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		m.markDown(n, err)
		m.outageSeen(n)
		return err
	}
	m.markUp(n)
	return nil
}

// probeLater doubles the wait for the next probe, up to the policy's limit, and
// spreads it, so that a whole rack that comes back is not probed at one moment.
func (m *Manager) probeLater(n *node, last time.Duration) time.Duration {
	next := min(max(firstRetry, 2*last), m.retryOf(n))
	next -= time.Duration(rand.Int64N(int64(next)/4 + 1))
	m.probeIn(n, next)
	return next
}

func (m *Manager) probeIn(n *node, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n.down != nil {
		n.down.nextProbe = time.Now().Add(wait)
	}
}

// firstWait is how long the first probe after a loss waits. A port that refuses
// needs a moment, and one that comes and goes more and more; any other loss may have
// been one connection only.
func (m *Manager) firstWait(n *node) time.Duration {
	retry := m.retryOf(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := n.flaps(time.Now()); f > 0 {
		return min(firstRetry<<min(f, 8), retry)
	}
	if n.down != nil && (n.down.cause == CauseRefused || n.down.cause == CauseLoading) {
		return firstRetry
	}
	return time.Millisecond
}

// retryOf is the longest wait between probes of the node.
func (m *Manager) retryOf(n *node) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, _ := m.policyOf(n); a != nil {
		return a.Retry
	}
	return 10 * time.Second // nobody wants it, and it goes with its last request
}

// quiet reports whether nothing was heard of the node for as long as a probe waits. What
// a link alone hears of a node says that its server is well only if the node looks as
// often as we would ask.
func (m *Manager) quiet(n *node) bool {
	retry := m.retryOf(n)
	n.hearOf(retry)
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.down == nil && time.Since(n.lastHeard()) >= retry
}

// pause waits; false: the context ended first.
func pause(ctx context.Context, d time.Duration) bool { return pauseUntil(ctx, d, nil) }

// pauseUntil is pause that sooner ends, too.
func pauseUntil(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-sooner:
		return true
	case <-t.C:
		return true
	}
}
