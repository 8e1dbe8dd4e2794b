package fleet

import (
	"fmt"
	"time"
)

// A placer decides where a request goes. It is called under the manager's lock.
type placer interface {
	// place returns the instance for w: one of able, or one of unloaded, which the request
	// loads and which has a lane. If no lane is free there, w counts as bound to it: it is
	// part of the work there, until placement is asked again and decides otherwise. nil:
	// it waits for any lane.
	place(m *Manager, w *waiter, able, unloaded []candidate, now time.Time) *instance
}

// choose finds the best instance for w and takes a lane there, in one step. Neither
// a claim nor an error: w has to wait, and w.why says for what.
func (m *Manager) choose(w *waiter) (*claim, error) {
	now := time.Now()
	m.warm.asked = nil // what it was told may have changed
	able, others := m.search(w, now).best()
	unloaded := m.loadable(others, w, now)
	m.unbind(w)
	if len(able)+len(unloaded) == 0 {
		return nil, m.nobody(w, now)
	}
	if w.Light && len(able) > 0 {
		return m.takeLight(able), nil
	}
	i := m.pick(w, able, unloaded, now)
	switch {
	case i != nil && i.node.wouldLoad(i):
		return m.takeUnloaded(i, w, now), nil
	case i != nil && !i.full():
		return m.take(i, w), nil
	}
	m.bind(w, i)
	w.why = &RequestError{
		Reason:     ReasonExpired,
		Message:    fmt.Sprintf("no lane became free within %s; all instances of the model are busy", w.policy.Wait),
		RetryAfter: busyRetry,
	}
	return nil, nil
}

// pick asks the policy, unless it is only about which instance a light request loads.
func (m *Manager) pick(w *waiter, able, unloaded []candidate, now time.Time) *instance {
	if w.Light {
		return toLoad(unloaded, false)
	}
	m.expect(w, able)
	return w.policy.placer.place(m, w, able, unloaded, now)
}

// usable: it can take a request as soon as it has a lane.
func (i *instance) usable() bool {
	return !i.gone && i.node.up() && i.loaded()
}

// ranked takes the first free lane in the order of a chooser, and loads an instance where
// none is free.
type ranked struct{ placement Placement }

func (r ranked) place(m *Manager, w *waiter, able, unloaded []candidate, now time.Time) *instance {
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
	return toLoad(unloaded, len(able) > 0)
}

func newPlacer(p Placement) placer {
	if p == LowestCost {
		return cheapest{}
	}
	return ranked{p}
}
