package fleet

import "time"

// claim is one lane of an instance, held, or the place of a light request beside the
// lanes. It has one owner, who gives it back once.
type claim struct {
	instance *instance
	state    Instance // as it was when the lane was had
	others   int      // lanes we held there besides
	life     int      // of the node
	light    bool     // it is no lane
	share    share    // of the instance's work
	phase    phase
	choices  choices
	given    bool
	warm     warmRun
	unload   *instance // that goes so that this one can be loaded; nil: none
}

// take holds a lane of the instance.
func (m *Manager) take(i *instance, w *waiter) *claim {
	m.unbind(w)
	c := &w.lane
	*c = claim{instance: i, others: i.held, life: i.node.lives, share: w.share, choices: c.choices}
	i.tick(time.Now())
	i.work.readers++
	c.phase = phase{taken: i.work.at, takenRead: i.work.read}
	i.add(c.share)
	if i.State == StateSleeping {
		i.begins(i.work.at)
	}
	i.held++
	i.sessions++
	c.state = i.Instance
	m.noteRun(c, w)
	return c
}

// giveBack gives the lane back; a second time does nothing.
func (m *Manager) giveBack(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.given {
		return
	}
	c.given = true
	c.instance.node.changes()
	c.instance.used = time.Now()
	if c.light {
		c.instance.light--
	} else {
		c.instance.release(c)
		m.endRun(c)
	}
	if c.instance.node.wanted == 0 {
		m.dropUnwanted()
	}
	m.pump()
}

// release takes what the claim stood for off the instance.
func (i *instance) release(c *claim) {
	i.tick(time.Now())
	if c.phase.writing.IsZero() {
		i.work.readers--
	}
	i.held--
	if i.State == StateSleeping && i.held == 0 {
		i.loading = time.Time{} // it did not wake
	}
	i.remove(c.share)
	i.sessions--
	i.served(time.Since(c.phase.taken))
}

// unloads is the model that has to go before a claim is used; empty: none.
func (c *claim) unloads() string {
	if c.unload == nil {
		return ""
	}
	return c.unload.Model
}
