package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ErrUnknownNode: the policy in force has no node of this name.
var ErrUnknownNode = errors.New("no node has this name")

// drain is a node that is being taken out of service: it gets nothing new.
type drain struct {
	since, until time.Time
	cancel       context.CancelFunc
	total        int // sessions it had at the beginning
	moved, ended int
	own          bool          // the node said that it stops; nobody asked for it
	over         bool          // nothing of ours runs there any more
	changed      chan struct{} // has room for one: who runs there changed
}

// DrainStatus tells how far a drain is.
type DrainStatus struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // what still runs then is ended

	Left     int  `json:"left"`     // sessions that still run there
	Moved    int  `json:"moved"`    // that went on elsewhere
	Finished int  `json:"finished"` // that came to their end there
	Ended    int  `json:"ended"`    // that were broken off at the end of the time
	Drained  bool `json:"drained"`  // nothing runs there any more
}

// Drain takes a node out of service: it gets no new request. What can go on elsewhere
// exactly moves there as soon as a lane is free; the rest may finish until the policy's
// DrainTimeout is over. Then what can go on exactly waits for a lane elsewhere, and
// what cannot ends with an error. It returns at once; a node that is drained already
// stays so. Error: [ErrUnknownNode].
func (m *Manager) Drain(name string) (DrainStatus, error) {
	m.mu.Lock()
	a, n := m.named(name)
	switch {
	case n == nil:
		m.mu.Unlock()
		return DrainStatus{}, fmt.Errorf("%w: %q", ErrUnknownNode, name)
	case m.closed:
		m.mu.Unlock()
		return DrainStatus{}, errEnded
	case n.drain != nil:
		defer m.mu.Unlock()
		n.drain.own = false
		return *m.drainStatus(n), nil
	}
	st := m.beginDrain(n, a.DrainTimeout, false)
	m.mu.Unlock()
	a.Log.Info("node is drained", "node", name, "sessions", st.Left, "timeout", a.DrainTimeout)
	m.tell(Change{Kind: ChangeDraining, Node: name})
	return st, nil
}

// beginDrain takes the node out of service. Called under the mutex.
func (m *Manager) beginDrain(n *node, timeout time.Duration, own bool) DrainStatus {
	ctx, cancel := context.WithCancel(m.ctx)
	now := time.Now()
	d := &drain{
		since: now, until: now.Add(timeout), cancel: cancel, own: own,
		total: len(m.on(n)), changed: make(chan struct{}, 1),
	}
	n.drain = d
	m.wg.Go(func() { m.empty(ctx, n, d) })
	return *m.drainStatus(n)
}

// leaves follows what a node says of its stopping: one that is about to is drained, until
// another run of it says that it is not.
func (m *Manager) leaves(n *node, leaving bool) {
	m.mu.Lock()
	a, _ := m.policyOf(n)
	switch {
	case m.closed || a == nil:
	case leaving && n.drain == nil:
		st := m.beginDrain(n, a.DrainTimeout, true)
		m.mu.Unlock()
		a.Log.Info("node is about to stop, and is drained", "node", n.name, "sessions", st.Left)
		m.tell(Change{Kind: ChangeDraining, Node: n.name, Why: "stopping"})
		return
	case !leaving && n.drain != nil && n.drain.own:
		m.endDrain(n)
		m.mu.Unlock()
		m.tellUndrained(a, n)
		return
	}
	m.mu.Unlock()
}

// Undrain gives a node back to service. One that is not drained stays as it is.
// Error: [ErrUnknownNode].
func (m *Manager) Undrain(name string) error {
	m.mu.Lock()
	a, n := m.named(name)
	drained := n != nil && n.drain != nil
	if drained {
		m.endDrain(n)
	}
	m.mu.Unlock()
	switch {
	case n == nil:
		return fmt.Errorf("%w: %q", ErrUnknownNode, name)
	case drained:
		m.tellUndrained(a, n)
	}
	return nil
}

// endDrain gives the node back to service. Called under the mutex.
func (m *Manager) endDrain(n *node) {
	n.drain.cancel()
	n.drain = nil
	m.pump()
}

func (m *Manager) tellUndrained(a *Applied, n *node) {
	a.Log.Info("node is back in service", "node", n.name)
	m.tell(Change{Kind: ChangeUndrained, Node: n.name})
}

// Probe asks a node what it offers, now. Its answer, or its silence, counts as any
// other. Errors: [ErrUnknownNode], or what is wrong with the node.
func (m *Manager) Probe(ctx context.Context, name string) error {
	m.mu.Lock()
	_, n := m.named(name)
	m.mu.Unlock()
	if n == nil {
		return fmt.Errorf("%w: %q", ErrUnknownNode, name)
	}
	err := m.call(ctx, n, OpProbe, probeLimit)
	if err != nil && ctx.Err() == nil {
		n.nudge()
	}
	return err
}

// named returns a node of the policy in force. Called under the mutex.
func (m *Manager) named(name string) (*Applied, *node) {
	a := m.inForce()
	if a == nil {
		return nil, nil
	}
	for _, n := range a.nodes {
		if n.name == name {
			return a, n
		}
	}
	return a, nil
}

// on returns the sessions that run on a node. Called under the mutex.
func (m *Manager) on(n *node) []*Session {
	var list []*Session
	for _, s := range m.live {
		if c := s.claim; c != nil && !c.given && c.instance.node == n {
			list = append(list, s)
		}
	}
	return list
}

// drainLook is how often it is asked whether a session that could not leave a drained
// node can do so now: nothing tells that an answer can go on exactly again, or that a
// node came up where none was.
const drainLook = time.Second

// empty moves what runs on the node, until nothing does or the drain is undone.
func (m *Manager) empty(ctx context.Context, n *node, d *drain) {
	var all sync.WaitGroup
	defer all.Wait()
	leaving := make(map[*Session]context.CancelFunc)
	for !m.isEmpty(n, d) {
		m.mu.Lock()
		here := m.on(n)
		m.mu.Unlock()
		for s, stop := range leaving {
			if !slices.Contains(here, s) {
				stop()
				delete(leaving, s)
			}
		}
		for _, s := range here {
			if leaving[s] == nil {
				its, stop := context.WithCancel(ctx)
				leaving[s] = stop
				all.Go(func() { m.moveOff(its, s, n, d) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		}
	}
	for _, stop := range leaving {
		stop()
	}
}

// changes tells a drain that what runs on its node has changed. Called under the
// mutex.
func (n *node) changes() {
	if n.drain != nil {
		signal(n.drain.changed)
	}
}

// moveOff moves one session away from a node that is drained. While there is time, it
// runs on until it has a lane elsewhere, for which it stands in the queue with those
// whose answers are read already. Then it has to go: to where a lane is free first, or
// to its end. ctx ends when it left the node.
func (m *Manager) moveOff(ctx context.Context, s *Session, n *node, d *drain) {
	early, done := context.WithDeadline(ctx, d.until)
	defer done()
	for ctx.Err() == nil {
		if early.Err() == nil {
			m.moveEarly(early, s, n, d)
			pause(early, drainLook)
			continue
		}
		m.moveLate(ctx, s, n, d)
		pause(ctx, drainLook)
	}
}

// moveEarly waits for a lane on another node and moves the session there, if it can go
// on there exactly.
func (m *Manager) moveEarly(ctx context.Context, s *Session, n *node, d *drain) {
	w, err := s.waiterNow(ctx)
	if err != nil {
		return
	}
	w.first, w.kept, w.Deadline = true, true, d.until.Add(time.Hour) // ctx ends before
	c, err := m.place(ctx, w)
	if err != nil {
		return
	}
	taken := false
	_ = s.give(ctx, d.command(commandMove), func(needs Needs) error { // it is asked again
		like, second := s.waiter(needs).suits(&c.instance.Instance)
		switch {
		case s.claim.instance.node != n:
			return ErrWrongState // it left meanwhile
		case !like && !second, needs.Prompt > c.instance.Context && c.instance.Context > 0:
			return ErrNowhere // it is further than when it began to wait
		}
		s.next, taken = c, true
		return nil
	})
	if !taken {
		m.giveBack(c)
	}
}

// command is one that the drain gives.
func (d *drain) command(kind commandKind) *command {
	o := newCommand(kind)
	o.drain = d
	return o
}

// moveLate has the session leave at once: it waits without a lane, or ends.
func (m *Manager) moveLate(ctx context.Context, s *Session, n *node, d *drain) {
	err := s.give(ctx, d.command(commandLeave), func(Needs) error {
		if s.claim.instance.node != n {
			return ErrWrongState
		}
		return nil
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil || errors.Is(err, ErrSlow) {
		return
	}
	leaves := s.command != nil || s.ended || s.claim.given || s.claim.instance.node != n
	if ctx.Err() != nil || leaves || s.quit != nil {
		return
	}
	d.ended++
	s.abort(&RequestError{
		Reason:  ReasonLost,
		Message: "its server was taken out of service, and the answer could not go on elsewhere",
	})
}

// isEmpty reports whether the drain is over, and says so.
func (m *Manager) isEmpty(n *node, d *drain) bool {
	m.mu.Lock()
	if n.drain != d {
		m.mu.Unlock()
		return true // undone
	}
	if n.busy() {
		m.mu.Unlock()
		return false
	}
	d.over = true
	st, log := m.drainStatus(n), m.logger()
	m.mu.Unlock()
	log.Info("node is empty", "node", n.name, "moved", st.Moved, "finished", st.Finished, "ended", st.Ended)
	m.tell(Change{Kind: ChangeDrained, Node: n.name})
	return true
}

// drainStatus returns nil if the node is not drained. Called under the mutex.
func (m *Manager) drainStatus(n *node) *DrainStatus {
	d := n.drain
	if d == nil {
		return nil
	}
	left := len(m.on(n))
	return &DrainStatus{
		Since: d.since, Until: d.until,
		Left: left, Moved: d.moved, Ended: d.ended,
		Finished: max(0, d.total-d.moved-d.ended-left),
		Drained:  d.over,
	}
}
