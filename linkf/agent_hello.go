package linkf

import "fmt"

// hello learns which head it is. A connection of one that is connected takes the place
// of the older, unless the node dialled both: then two of its addresses lead to one head,
// and the newer would be replaced in turn. A head that began anew has no use for what its
// predecessor had here.
func (a *agentMachine) hello(c *agentConn, m hello) error {
	w, err := whoIs(m.Instance, m.Identity)
	if err != nil {
		return err
	}
	v, ok := commonVersion(m.From, m.To, Version, Version)
	if !ok {
		return fmt.Errorf("the head speaks versions %d to %d, this node %d", m.From, m.To, Version)
	}
	h := a.heads[w.identity]
	if h == nil && len(a.heads) >= maxHeads {
		return fmt.Errorf("this node works for %d heads already", maxHeads)
	}
	if h != nil && h.instance == w.instance && c.dialled && h.conn.stays() {
		c.wire.refusal = RefusedLinked
		return &linkedError{head: w.identity, by: h.conn.id}
	}
	if h != nil && h.conn != nil {
		a.close(h.conn, fmt.Errorf("head %s has a newer connection", w.identity))
		h.conn = nil
	}
	if h != nil && h.instance != w.instance {
		for _, s := range h.sessions {
			a.drop(s, fmt.Errorf("head %s began anew", w.identity))
		}
		h = nil
	}
	if h == nil {
		h = &agentHead{who: w, sessions: make(map[uint64]*agentSession)}
		a.heads[w.identity] = h
	}
	h.conn, c.head, c.version = c, h, v
	for _, s := range h.sessions {
		s.away()
	}
	a.act(agentAction{kind: agentGreeted, conn: c.id, identity: w.identity})
	return nil
}

// linkedError says that the node has a link to a head already.
type linkedError struct {
	head string
	by   uint64 // the number of its connection
}

func (e *linkedError) Error() string { return "the node has another link to head " + e.head }

// stays reports whether it is a connection that the node dialled, and nothing ended it
// yet. One of which nothing comes is over after three heartbeats.
func (c *agentConn) stays() bool {
	return c != nil && c.dialled && c.wire.bye == "" && !c.wire.closed
}

// reconcile drops what the head does not list, and says what is held of what it lists.
func (a *agentMachine) reconcile(c *agentConn, m reconcile) error {
	if c.reconciled {
		return fmt.Errorf("reconcile for the second time")
	}
	c.reconciled, c.stateDue, c.slotsDue, c.ack = true, true, a.log != nil, &reconcileAck{}
	listed := make(map[uint64]bool, len(m.Sessions))
	for _, w := range m.Sessions {
		s := c.head.sessions[w.Session]
		x := holding{key: w.key}
		if s != nil && s.epoch == w.Epoch && s.resumes(w, a) {
			listed[w.Session] = true
			x.Held, x.Command = true, s.applied
			a.mark(s)
		}
		c.ack.Sessions = append(c.ack.Sessions, x)
	}
	for id, s := range c.head.sessions {
		if !listed[id] {
			a.drop(s, fmt.Errorf("the head does not know it any more"))
		}
	}
	a.leaseDue = min(a.leaseDue, a.now)
	a.act(agentAction{kind: agentLinked, conn: c.id, identity: c.head.identity})
	return nil
}
