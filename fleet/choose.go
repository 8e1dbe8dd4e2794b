package fleet

import (
	"fmt"
	"time"
)

// A placer decides where a request goes. It is called under the manager's lock.
type placer interface {
	// place returns the instance for w, one of able. If no lane is free there, w
	// waits for one of its lanes and no other's. nil: w takes any lane that becomes
	// free.
	place(m *Manager, w *waiter, able []candidate, now time.Time) *instance
}

// choose finds the best instance for w and takes a lane there, in one step. Neither
// a claim nor an error: w has to wait, and w.why says for what.
func (m *Manager) choose(w *waiter) (*claim, error) {
	now := time.Now()
	if i := w.bound; i != nil && i.full() && i.usable() {
		return nil, nil
	}
	found := m.search(w, now)
	if len(found.able) == 0 {
		found.able = found.resting
	}
	if len(found.able) == 0 {
		found.able = found.other
	}
	if len(found.able) == 0 {
		m.unbind(w)
		if c := m.coldly(w, found.cold, false, now); c != nil {
			return c, nil
		}
		return nil, m.nobody(w, found, now)
	}
	if w.Light {
		return m.takeLight(found.able), nil
	}
	i := w.bound
	if i == nil || !offers(found.able, i) {
		m.unbind(w)
		m.expect(w, found.able)
		i = w.policy.placer.place(m, w, found.able, now)
	}
	if i != nil && !i.full() {
		return m.take(i, w), nil
	}
	if c := m.coldly(w, found.cold, true, now); c != nil {
		return c, nil
	}
	m.bind(w, i)
	w.why = &RequestError{
		Reason:     ReasonExpired,
		Message:    fmt.Sprintf("no lane became free within %s; all instances of the model are busy", w.policy.Wait),
		RetryAfter: busyRetry,
	}
	return nil, nil
}

// usable: a request that waits for it need not look elsewhere.
func (i *instance) usable() bool {
	return !i.gone && i.node.up() && (i.State == StateReady || i.State == StateSleeping)
}

func offers(able []candidate, i *instance) bool {
	for k := range able {
		if able[k].owner == i {
			return true
		}
	}
	return false
}

// ranked takes the first free lane in the order of a chooser.
type ranked struct{ placement Placement }

func (r ranked) place(m *Manager, w *waiter, able []candidate, now time.Time) *instance {
	c := chooser{
		placement: r.placement,
		poolHigh:  w.policy.PoolHigh,
		now:       now,
		cursor:    w.cursor,
		nodes:     len(m.nodes),
	}
	s := shape{prompt: max(w.Prompt, w.needs.Prompt), out: w.Out}
	s.warm = m.warmest(w, able)
	for _, x := range c.rank(able, s) {
		if x.held < x.lanes() {
			return x.owner
		}
	}
	return nil
}

func newPlacer(p Placement) placer {
	if p == LowestCost {
		return cheapest{}
	}
	return ranked{p}
}
