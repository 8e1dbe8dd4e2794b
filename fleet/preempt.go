package fleet

import "cmp"

// preempt lets a request that has to wait take the lane of one of a lower class, if
// the policy says so. The other goes back to the queue with what its client has, and
// is not subject to the queue's limits. Called under the mutex.
func (m *Manager) preempt(w *waiter) {
	if !w.policy.Preempt || w.isSettled() || m.closed || m.victim(w, nil) == nil {
		return
	}
	m.wg.Go(func() {
		// What cannot go on exactly keeps its lane, and the next one is asked.
		spared := make(map[*Session]bool)
		for {
			m.mu.Lock()
			s := m.victim(w, spared)
			m.mu.Unlock()
			if s == nil || s.give(m.ctx, newCommand(commandPreempt), func(Needs) error {
				if w.isSettled() {
					return ErrWrongState
				}
				return nil
			}) == nil {
				return
			}
			spared[s] = true
		}
	})
}

// victim returns the session whose lane the request may take: of the lowest class,
// and of these the one that began last; nil: nobody has to give way. Called under the
// mutex.
func (m *Manager) victim(w *waiter, spared map[*Session]bool) *Session {
	if w.isSettled() {
		return nil
	}
	var found *Session
	for _, s := range m.live {
		if s.request.Class >= w.Class || s.request.Light || spared[s] || s.stop == nil || s.command != nil || !m.wants(w, s.claim) {
			continue
		}
		if found == nil || cmp.Or(cmp.Compare(s.request.Class, found.request.Class), found.began.Compare(s.began)) < 0 {
			found = s
		}
	}
	return found
}

// wants reports whether the lane would do for the request.
func (m *Manager) wants(w *waiter, c *claim) bool {
	i := c.instance
	n := i.node
	like, _ := w.suits(&i.Instance)
	named := w.Model == "" || i.Serves(w.Model) // without a name there is only one
	return named && like && n.up() && n.drain == nil && w.failedOn(n) == nil &&
		(i.Context == 0 || w.needs.Prompt <= i.Context)
}
