package fleet

import (
	"fmt"
	"time"
)

// A placer decides where a request goes. It is called under the manager's lock.
type placer interface {
	// place returns the instance for w, one of able. If no lane is free there, w
	// counts as bound to it: it is part of the work there, until placement is asked
	// again and decides otherwise. nil: it waits for any lane.
	place(m *Manager, w *waiter, able []candidate, now time.Time) *instance
}

// choose finds the best instance for w and takes a lane there, in one step. Neither
// a claim nor an error: w has to wait, and w.why says for what.
func (m *Manager) choose(w *waiter) (*claim, error) {
	now := time.Now()
	m.warm.asked = nil // what it was told may have changed
	found := m.search(w, now)
	if len(found.able) == 0 {
		found.able = found.resting
	}
	if len(found.able) == 0 {
		found.able = found.other
	}
	m.unbind(w)
	if len(found.able) == 0 {
		if c := m.coldly(w, found.cold, false, now); c != nil {
			return c, nil
		}
		return nil, m.nobody(w, now)
	}
	if w.Light {
		return m.takeLight(found.able), nil
	}
	m.expect(w, found.able)
	i := w.policy.placer.place(m, w, found.able, now)
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

// usable: it can take a request as soon as it has a lane.
func (i *instance) usable() bool {
	return !i.gone && i.node.up() && i.loaded()
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
		if !x.full() {
			return x.instance
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
