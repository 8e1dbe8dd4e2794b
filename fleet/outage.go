package fleet

import (
	"context"
	"errors"
	"slices"
	"time"
)

// downtime is an outage.
type downtime struct {
	since     time.Time
	cause     Cause
	why       string // for an operator
	nextProbe time.Time
	told      bool // it was logged
	seen      bool // a probe found it so
}

// tellAgain is how often outages of one node are logged at most: a node that comes
// and goes with each request must not fill the log.
const tellAgain = 10 * time.Second

// markDown notes that the node failed, and reports whether that is news. Only the
// change is logged.
func (m *Manager) markDown(n *node, err error) (fresh bool) {
	cause, why := outage(err)
	m.mu.Lock()
	now := time.Now()
	fresh = n.down == nil
	worse := fresh || n.down.cause != cause
	if fresh {
		n.down = &downtime{since: now, nextProbe: now.Add(firstRetry)}
		if !n.learned {
			n.down.since = n.added
		}
	}
	n.down.cause, n.down.why = cause, why
	tell := worse && (n.told.IsZero() || now.Sub(n.told) >= tellAgain)
	if tell {
		n.told = now
		n.down.told = true
	}
	log := m.logger()
	m.pump()
	m.mu.Unlock()
	if tell {
		log.Warn("node is down", "node", n.name, "cause", string(cause), "error", why)
		m.tell(Change{Kind: ChangeDown, Node: n.name, Why: string(cause)})
	}
	return fresh
}

// outage is what an error says of a node, for an operator.
func outage(err error) (cause Cause, why string) {
	if lost, ok := errors.AsType[*NodeLost](err); ok {
		return lost.Cause, err.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return CauseTimedOut, err.Error()
	}
	// Its message is for clients; what an operator has to change stands below.
	if re, ok := errors.AsType[*RequestError](err); ok && re.Err != nil {
		return CauseUnusable, re.Err.Error()
	}
	return CauseUnusable, err.Error()
}

// outageSeen notes that the node is really away, and not only that one connection
// to it broke.
func (m *Manager) outageSeen(n *node) {
	m.mu.Lock()
	if n.down == nil || n.down.seen {
		m.mu.Unlock()
		return
	}
	n.down.seen = true
	banned := slices.DeleteFunc(n.victims, func(s *Session) bool { return !m.charge(n, s) })
	n.victims = nil
	log := m.logger()
	m.mu.Unlock()
	for _, s := range banned {
		logQuarantine(log, s, n)
	}
	m.cameAndWent(n)
}

// beganAnew notes that another run of the node is there than the one of that life.
func (m *Manager) beganAnew(n *node, life int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n.lives != life {
		return // another request said so
	}
	n.lives++
	m.forgetCaches(n)
	m.owes(n, n.instances)
	m.pump()
}

// markUp notes that the node answered.
func (m *Manager) markUp(n *node) {
	n.hear()
	m.mu.Lock()
	was := n.down
	n.down, n.victims = nil, nil
	log := m.logger()
	if was != nil {
		if was.seen {
			n.lives++
			m.forgetCaches(n)
			m.owes(n, n.instances)
		}
		m.pump()
	}
	m.mu.Unlock()
	if was != nil && was.told {
		m.tell(Change{Kind: ChangeUp, Node: n.name})
		log.Info("node is up", "node", n.name, "down_for", time.Since(was.since).Round(time.Millisecond))
	}
}
