package fleet

import (
	"fmt"
	"time"
)

// choose finds the best instance for w and takes a lane there, in one step. Neither
// a claim nor an error: w has to wait, and w.why says for what.
func (m *Manager) choose(w *waiter) (*claim, error) {
	now := time.Now()
	found := m.search(w, now)
	if len(found.able) == 0 && w.needs.Anew {
		found.able = found.other
	}
	if len(found.able) == 0 {
		return nil, m.nobody(w, found, now)
	}
	c := chooser{
		placement: w.policy.Placement,
		poolHigh:  w.policy.PoolHigh,
		now:       now,
		cursor:    w.cursor,
		nodes:     len(m.nodes),
	}
	s := shape{prompt: max(w.Prompt, w.needs.Prompt), out: w.Out}
	m.expect(w, found.able)
	s.warm = m.warmest(w, found.able)
	for _, x := range c.rank(found.able, s) {
		if x.held < x.lanes() {
			return m.take(x.owner, w), nil
		}
	}
	w.why = &RequestError{
		Reason:     ReasonExpired,
		Message:    fmt.Sprintf("no lane became free within %s; all instances of the model are busy", w.policy.Wait),
		RetryAfter: busyRetry,
	}
	return nil, nil
}
