package fleet

import (
	"fmt"
	"time"
)

// A placer decides where a request goes. It is called under the manager's lock.
type placer interface {
	// place returns the instance for w: one of able, or one of cold, which the request
	// loads and which has a lane. If no lane is free there, w counts as bound to it: it is
	// part of the work there, until placement is asked again and decides otherwise. nil:
	// it waits for any lane.
	place(m *Manager, w *waiter, able, cold []candidate, now time.Time) *instance
}

// choose finds the best instance for w and takes a lane there, in one step. Neither
// a claim nor an error: w has to wait, and w.why says for what.
func (m *Manager) choose(w *waiter) (*claim, error) {
	now := time.Now()
	m.warm.asked = nil // what it was told may have changed
	able, unloaded := m.search(w, now).best()
	cold := m.loadable(unloaded, w, now)
	m.unbind(w)
	if len(able)+len(cold) == 0 {
		return nil, m.nobody(w, now)
	}
	if w.Light && len(able) > 0 {
		return m.takeLight(able), nil
	}
	i := m.pick(w, able, cold, now)
	switch {
	case i != nil && i.node.cold(i):
		return m.takeCold(i, w, now), nil
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
func (m *Manager) pick(w *waiter, able, cold []candidate, now time.Time) *instance {
	if w.Light {
		return coldest(cold, false)
	}
	m.expect(w, able)
	return w.policy.placer.place(m, w, able, cold, now)
}

// usable: it can take a request as soon as it has a lane.
func (i *instance) usable() bool {
	return !i.gone && i.node.up() && i.loaded()
}

// ranked takes the first free lane in the order of a chooser, and loads an instance where
// none is free.
type ranked struct{ placement Placement }

func (r ranked) place(m *Manager, w *waiter, able, cold []candidate, now time.Time) *instance {
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
	return coldest(cold, len(able) > 0)
}

func newPlacer(p Placement) placer {
	if p == LowestCost {
		return cheapest{}
	}
	return ranked{p}
}
