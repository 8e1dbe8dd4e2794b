package fleet

import (
	"slices"
	"time"
)

const (
	// quarantineFor is how long a request is refused under which two nodes crashed.
	quarantineFor = 10 * time.Minute

	// earlyLoss is how long an attempt may have run for the loss of its node to be laid
	// to its charge: what kills a server does so when it is read. A server that goes
	// after that was restarted, or fell over something else.
	earlyLoss = 10 * time.Second

	// quarantineMost is how many requests are refused at once, at most.
	quarantineMost = 4096
)

// quarantine remembers the digests of requests under which two nodes crashed: what
// kills servers must not go through the whole fleet, nor come again at once.
type quarantine struct {
	since map[uint64]time.Time
}

// ban refuses a request from now on.
func (q *quarantine) ban(digest uint64, now time.Time) {
	if q.since == nil {
		q.since = make(map[uint64]time.Time)
	}
	q.makeRoom(now)
	q.since[digest] = now
}

// makeRoom forgets what is over, and if that is nothing, whatever comes first.
func (q *quarantine) makeRoom(now time.Time) {
	if len(q.since) < quarantineMost {
		return
	}
	for d := range q.since {
		if !q.refuses(d, now) {
			delete(q.since, d)
		}
	}
	for d := range q.since {
		if len(q.since) < quarantineMost {
			return
		}
		delete(q.since, d)
	}
}

func (q *quarantine) refuses(digest uint64, now time.Time) bool {
	since, ok := q.since[digest]
	return ok && now.Sub(since) < quarantineFor
}

func errQuarantined() *RequestError {
	return &RequestError{
		Reason:  ReasonQuarantined,
		Message: "two servers crashed under this request; it is refused for ten minutes",
	}
}

// checkQuarantine refuses a request under which two nodes crashed lately.
func (m *Manager) checkQuarantine(digest uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.quarantine.refuses(digest, time.Now()) {
		return errQuarantined()
	}
	return nil
}

// blame notes that the node was lost early under the session. Whether it crashed is
// known when it says so itself, or when a probe finds it away.
func (m *Manager) blame(s *Session, n *node, cause Cause) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.request.Digest == 0 || time.Since(s.tried) >= earlyLoss {
		return
	}
	switch {
	case cause == CauseCrashed, n.down != nil && n.down.seen:
		m.charge(n, s)
	case cause == CauseReset, cause == CauseClosed:
		n.victims = append(n.victims, s)
	}
}

// charge lays a crash to the session's charge. If that was its second, it ends, and
// its like is refused.
func (m *Manager) charge(n *node, s *Session) {
	if slices.Contains(s.crashed, n) {
		return
	}
	if s.crashed = append(s.crashed, n); len(s.crashed) < 2 {
		return
	}
	m.logger().Warn("request quarantined: two nodes crashed under it", "session", s.id, "node", n.name)
	m.quarantine.ban(s.request.Digest, time.Now())
	for _, x := range m.live {
		if x.request.Digest == s.request.Digest {
			x.abort(errQuarantined())
		}
	}
}
