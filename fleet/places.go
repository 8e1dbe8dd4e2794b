package fleet

import (
	"cmp"
	"time"
)

// A node may offer more instances than it can have loaded at once: a llama-server in
// router mode does. Which one goes when another is loaded is decided here, and never at
// the price of one that answers: the node would take the one that was asked longest ago,
// whether it still answers or not.

// taken reports whether the instance has one of its node's places. One on whose behalf
// we sent a request is being loaded, whatever was said of it last.
func (i *instance) taken() bool {
	switch {
	case i.gone || i.evicted:
		return false
	case i.State == StateUnloaded || i.State == StateFailed:
		return i.held+i.light > 0
	}
	return true
}

// occupied is how many of its lanes are taken, by what runs and by what was given up and
// has not ended.
func (i *instance) occupied() int { return i.held + i.Leaving }

// full reports whether no lane is free there.
func (i *instance) full() bool { return i.occupied() >= i.lanes() }

// roomy reports whether a lane is free there that nobody of ours waits for.
func (i *instance) roomy() bool { return i.occupied()+i.work.bound < i.lanes() }

// idle reports whether nobody would miss the instance, as far as is known.
func (i *instance) idle(now time.Time) bool {
	others := i.Load.fresh(now) && i.Load.Active+i.Load.Queued > 0
	return i.loaded() && !others && i.occupied()+i.light+i.sessions == 0
}

// room reports whether the node can load one instance more, and which one has to go for
// it; nil: none.
func (n *node) room(now time.Time) (goes *instance, ok bool) {
	if !n.loads {
		return nil, false
	}
	taken := 0
	for _, i := range n.instances {
		if i.taken() {
			taken++
		}
		if i.idle(now) && !i.evicted && (goes == nil || goesSooner(i, goes)) {
			goes = i
		}
	}
	if n.places == 0 || taken < n.places {
		return nil, true
	}
	return goes, goes != nil && taken == n.places
}

// goesSooner: what sleeps has nothing to lose, else what was used longer ago goes.
func goesSooner(a, b *instance) bool {
	if asleep(a.State) != asleep(b.State) {
		return asleep(a.State) > asleep(b.State)
	}
	return a.used.Before(b.used)
}

// coldly finds a lane for w on an instance that is not loaded, or is being loaded. With
// others that are loaded, though all their lanes are taken, none has to go for it.
func (m *Manager) coldly(w *waiter, cold []*instance, loaded bool, now time.Time) *claim {
	var best, bestGoes *instance
	for _, i := range cold {
		switch {
		case i.full() && !w.Light:
			continue
		case i.State == StateLoading || i.taken(): // it is on its way
			return m.takeCold(i, nil, w)
		}
		goes, ok := i.node.room(now)
		if !ok || goes != nil && loaded {
			continue
		}
		if best == nil || cmp.Compare(evicts(goes), evicts(bestGoes)) < 0 {
			best, bestGoes = i, goes
		}
	}
	if best == nil {
		return nil
	}
	return m.takeCold(best, bestGoes, w)
}

func evicts(goes *instance) int {
	if goes == nil {
		return 0
	}
	return 1
}

// takeCold holds a lane of an instance that the request loads.
func (m *Manager) takeCold(i, goes *instance, w *waiter) *claim {
	i.State = StateLoading
	var c *claim
	if w.Light {
		c = m.takeLight([]candidate{{instance: i}})
	} else {
		c = m.take(i, w)
	}
	if goes != nil {
		goes.evicted, c.unload = true, goes
	}
	return c
}

// cold reports whether a request that is sent to the instance loads it first.
func (n *node) cold(i *instance) bool {
	return n.loads && (i.State == StateUnloaded || i.State == StateLoading)
}
