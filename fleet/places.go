package fleet

import "time"

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

// coming reports whether the instance is on its way into memory.
func (i *instance) coming() bool { return i.State == StateLoading || i.taken() }

// loadable are those of the instances that are not loaded which can take w, with what has
// to go for each.
func (m *Manager) loadable(unloaded []*instance, w *waiter, now time.Time) []candidate {
	list := m.scratch.unloaded[:0]
	for _, i := range unloaded {
		if i.full() && !w.Light {
			continue
		}
		if i.coming() {
			list = append(list, candidate{instance: i})
		} else if goes, ok := i.node.room(now); ok {
			list = append(list, candidate{instance: i, goes: goes})
		}
	}
	m.scratch.unloaded = list
	return list
}

// toLoad is the one to load where no cost decides: one that is on its way, else one for
// which none has to go. With others that are loaded, though all their lanes are taken,
// none goes. nil: none is to be loaded.
func toLoad(unloaded []candidate, loaded bool) *instance {
	var best *candidate
	for k := range unloaded {
		x := &unloaded[k]
		switch {
		case x.coming():
			return x.instance
		case x.goes != nil && loaded:
		case best == nil, best.goes != nil && x.goes == nil:
			best = x
		}
	}
	if best == nil {
		return nil
	}
	return best.instance
}

// takeUnloaded holds a lane of an instance that the request loads.
func (m *Manager) takeUnloaded(i *instance, w *waiter, now time.Time) *claim {
	var goes *instance
	if !i.coming() {
		goes, _ = i.node.room(now)
	}
	i.loads(now)
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

// wouldLoad reports whether a request that is sent to the instance loads it first.
func (n *node) wouldLoad(i *instance) bool {
	return n.loads && (i.State == StateUnloaded || i.State == StateLoading)
}
