package fleet

import (
	"log/slog"
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
// kills servers must not go through the whole fleet, nor come again at once. Two halves
// bound it: when the young one is full, the old one is forgotten.
type quarantine struct {
	young, old map[uint64]time.Time
}

// ban refuses a request from now on.
func (q *quarantine) ban(digest uint64, now time.Time) {
	if q.young == nil || len(q.young) >= quarantineMost/2 {
		q.old, q.young = q.young, make(map[uint64]time.Time)
	}
	q.young[digest] = now
}

func (q *quarantine) refuses(digest uint64, now time.Time) bool {
	since, ok := q.young[digest]
	if !ok {
		since, ok = q.old[digest]
	}
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
	if s.request.Digest == 0 || time.Since(s.tried) >= earlyLoss {
		m.mu.Unlock()
		return
	}
	banned := false
	switch {
	case cause == CauseCrashed, n.down != nil && n.down.seen:
		banned = m.charge(n, s)
	case cause == CauseReset, cause == CauseClosed:
		n.victims = append(n.victims, s)
	}
	log := m.logger()
	m.mu.Unlock()
	if banned {
		logQuarantine(log, s, n)
	}
}

func logQuarantine(log *slog.Logger, s *Session, n *node) {
	log.Warn("request quarantined: two nodes crashed under it", "session", s.id, "node", n.name)
}

// charge lays a crash to the session's charge. If that was its second, it ends, and
// its like is refused.
func (m *Manager) charge(n *node, s *Session) (banned bool) {
	if slices.Contains(s.crashed, n) {
		return false
	}
	if s.crashed = append(s.crashed, n); len(s.crashed) < 2 {
		return false
	}
	m.quarantine.ban(s.request.Digest, time.Now())
	for _, x := range m.live {
		if x.request.Digest == s.request.Digest {
			x.abort(errQuarantined())
		}
	}
	return true
}
