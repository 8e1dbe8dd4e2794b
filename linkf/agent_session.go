package linkf

import (
	"errors"
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// agentSession is a session of a head, at the epoch that the node knows. What is not
// in its head's table has no effect any more.
type agentSession struct {
	head    *agentHead
	id      uint64
	epoch   uint64
	applied uint64 // the last command that took effect
	model   string
	unload  string
	lane    bool // it has one
	content *fleet.Assignment
	parts   [][]byte // of its body, if that came as a transfer

	granted  time.Duration // when the lease began
	lease    time.Duration
	renew    time.Duration
	askedAt  time.Duration // for a grant, since it began
	renewDue bool

	generation uint64
	run        *agentRun // nil: none runs
	buf        []numbered
	base       uint64 // the number of buf[0]
	count      uint64 // events so far
	sent       uint64 // the next one to send
	total      uint64 // cost of all so far
	limit      uint64 // credit
	queued     bool
}

// numbered is an event in the retry buffer.
type numbered struct {
	event
	price uint64
	upTo  uint64 // cost of all events up to it
}

// agentRun is a generation of the model server. It may outlive its session: then it is
// to end, and still has its lane.
type agentRun struct {
	id      uint64
	model   string
	session *agentSession // nil: nobody gets its events
	stopped error         // why it is to end
	lane    bool          // it, and not the session, has the lane
	waits   bool          // told to wait for room
	ended   bool
}

// away prepares for the next connection: nothing goes out before reconcile.
func (s *agentSession) away() { s.queued, s.renewDue, s.askedAt = false, false, -never }

// resumes reports whether the session can go on from what the head has, and makes it.
func (s *agentSession) resumes(w wanted, a *agentMachine) bool {
	if w.Generation != s.generation {
		// The head asked for one that did not get here, or it began anew.
		return w.Generation > s.generation && w.Next == 0
	}
	if w.Next < s.base || w.Next > s.count {
		return false
	}
	a.discard(s, w.Next)
	s.sent = w.Next
	return true
}

// fresh finds the session of a command that is to take effect now. A session that is
// not here is reported to the head; a command that is repeated or of the past is not.
func (a *agentMachine) fresh(c *agentConn, k key, n uint64) *agentSession {
	s := c.head.sessions[k.Session]
	switch {
	case s == nil:
		a.goneFrom(c, k, goneUnknown, "the node does not know it")
		return nil
	case k.Epoch > s.epoch:
		a.goneFrom(c, k, goneUnknown, "the node does not know this epoch")
		return nil
	case k.Epoch < s.epoch:
		a.goneFrom(c, k, goneFenced, "a newer epoch has its place")
		return nil
	case n <= s.applied:
		return nil
	}
	s.applied = n
	return s
}

func (a *agentMachine) goneFrom(c *agentConn, k key, r goneReason, message string) {
	if n := len(c.gones); n > 0 && c.gones[n-1].key == k {
		return // it is told already
	}
	if len(c.gones) >= 2*maxSessions {
		a.close(c, errors.New("it goes on with sessions that are not held, and reads nothing"))
		return
	}
	c.gones = append(c.gones, gone{k, r, clip(message, maxText)})
}

// assign gives a session a lane. A newer epoch fences the older.
func (a *agentMachine) assign(c *agentConn, m assign) error {
	h := c.head
	old := h.sessions[m.Session]
	switch {
	case old != nil && m.Epoch < old.epoch:
		a.goneFrom(c, m.key, goneFenced, "a newer epoch has its place")
		return nil
	case old != nil && m.Epoch == old.epoch:
		return nil // repeated
	case old != nil:
		a.drop(old, errors.New("a newer epoch has its place"))
	}
	if m.Lease == 0 || duration(m.Lease) > MaxLease {
		return fmt.Errorf("a lease of %v: more than 0 to %v are allowed", duration(m.Lease), MaxLease)
	}
	if a.offers == nil || len(a.offers.Instances) == 0 {
		a.goneFrom(c, m.key, goneLoading, "the node does not know yet what its server offers")
		return nil
	}
	var why string
	if len(h.sessions) >= maxSessions {
		why = "it has too many sessions"
	} else {
		why = a.take(m.Model)
	}
	if why != "" {
		c.stateDue, c.toldAt = true, -statusGap // with its load, at once
		a.goneFrom(c, m.key, goneDeclined, why)
		return nil
	}
	if len(h.sessions) == 0 {
		c.busySince = a.now
	}
	s := &agentSession{
		head: h, id: m.Session, epoch: m.Epoch, applied: m.Command, model: m.Model, unload: m.Unload, lane: true,
	}
	h.sessions[m.Session] = s
	a.lend(s, m.Lease, m.Renew)
	a.changed(h)
	return nil
}

func (a *agentMachine) lend(s *agentSession, ms, renew uint32) {
	s.granted, s.lease, s.renew = a.now, duration(ms), duration(renew)
	s.askedAt, s.renewDue = -never, false
	a.leaseDue = min(a.leaseDue, s.granted+min(s.renew, s.lease))
}

// append sets what is to be answered.
func (a *agentMachine) append(c *agentConn, m appendContent) error {
	parts, err := c.wire.in.take(m.Transfer)
	if err != nil {
		return fmt.Errorf("session %d: %w", m.Session, err)
	}
	if s := a.fresh(c, m.key, m.Command); s != nil {
		s.content = &fleet.Assignment{Path: m.Path, ContentType: m.ContentType, Body: m.Body, Model: s.model, Unload: s.unload}
		s.parts = parts
	}
	return nil
}

// generate starts a generation.
func (a *agentMachine) generate(c *agentConn, m generate) error {
	s := a.fresh(c, m.key, m.Command)
	if s == nil {
		return nil
	}
	if s.content == nil || s.run != nil || m.Generation <= s.generation {
		return fmt.Errorf("session %d: generation %d is not due", s.id, m.Generation)
	}
	if !s.lane {
		if why := a.take(s.model); why != "" {
			c.stateDue, c.toldAt = true, -statusGap
			a.drop(s, errors.New(why))
			a.goneFrom(c, m.key, goneDeclined, why)
			return nil
		}
		s.lane = true
	}
	a.discard(s, s.count)
	s.generation, s.base, s.count, s.sent, s.total, s.limit = m.Generation, 0, 0, 0, 0, m.Credit
	a.last++
	r := &agentRun{id: a.last, model: s.model, session: s}
	s.run = r
	a.runs[r.id] = r
	x := *s.content
	x.Patience = fleet.Patience{First: duration(m.First), Stall: duration(m.Stall)}
	a.act(agentAction{kind: agentStart, run: r.id, assignment: x, parts: s.parts})
	a.changed(s.head)
	return nil
}

// changed has the other heads told that the load is another one, or who has the lanes.
func (a *agentMachine) changed(by *agentHead) {
	for _, h := range a.heads {
		if h.conn != nil && h != by {
			h.conn.stateDue = true
		}
	}
}

// command is cancel, park and revoke.
func (a *agentMachine) command(c *agentConn, t Type, m command) error {
	if t == typeRevoke && c.head.sessions[m.Session] == nil {
		return nil // as it is meant to be
	}
	s := a.fresh(c, m.key, m.Command)
	if s == nil {
		return nil
	}
	switch t {
	case typeRevoke:
		a.drop(s, errors.New("the head is done with it"))
	case typePark:
		a.stop(s.run, errParked)
		if s.run != nil {
			s.run.lane, s.lane = s.lane, false
		} else {
			a.giveLane(s)
		}
	case typeCancel:
		a.stop(s.run, errCancelled)
	}
	return nil
}

var (
	errCancelled = &fleet.RequestError{Reason: fleet.ReasonCancelled}
	errParked    = &fleet.RequestError{Reason: fleet.ReasonCancelled, Message: "parked"}
)

func (a *agentMachine) giveLane(s *agentSession) {
	if s.lane {
		s.lane = false
		a.lanes.give(s.model)
		a.changed(nil)
	}
}

// stop has a generation end. Nothing of what it says from now on is passed on.
func (a *agentMachine) stop(r *agentRun, why error) {
	if r != nil && r.stopped == nil {
		r.stopped = why
		a.act(agentAction{kind: agentStop, run: r.id, err: why})
	}
}

// drop ends a session here: nothing of it is sent from now on.
func (a *agentMachine) drop(s *agentSession, why error) {
	if s.head.sessions[s.id] == s {
		delete(s.head.sessions, s.id)
	}
	a.discard(s, s.count)
	if r := s.run; r != nil {
		r.lane, r.session, s.run, s.lane = r.lane || s.lane, nil, nil, false
		a.stop(r, why)
	}
	a.giveLane(s)
	a.forgetHead(s.head)
}

// grant begins the lease anew.
func (a *agentMachine) grant(c *agentConn, m grant) error {
	if m.Lease == 0 || duration(m.Lease) > MaxLease {
		return fmt.Errorf("a lease of %v: more than 0 to %v are allowed", duration(m.Lease), MaxLease)
	}
	if s := c.head.sessions[m.Session]; s != nil && s.epoch == m.Epoch {
		a.lend(s, m.Lease, m.Renew)
	}
	return nil
}

// leases ends those that are over and asks for those that are due, of all heads.
func (a *agentMachine) leases() {
	a.leaseDue = never
	for _, h := range a.heads {
		for _, s := range h.sessions {
			a.leaseOf(s)
		}
	}
}

func (a *agentMachine) leaseOf(s *agentSession) {
	age := a.now - s.granted
	if age >= s.lease {
		a.drop(s, errors.New("its lease ended"))
		if c := s.head.conn; c != nil && c.reconciled {
			a.goneFrom(c, key{s.id, s.epoch}, goneExpired, "its lease ended")
		}
		return
	}
	due := s.granted + s.lease
	if c := s.head.conn; c != nil && c.reconciled {
		ask := s.granted + s.renew
		if s.askedAt != -never {
			ask = s.askedAt + renewAgain
		}
		if a.now >= ask {
			s.askedAt, s.renewDue = a.now, true
			a.mark(s)
			ask = a.now + renewAgain
		}
		due = min(due, ask)
	}
	a.leaseDue = min(a.leaseDue, due)
}
