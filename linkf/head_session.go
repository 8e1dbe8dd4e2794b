package linkf

import (
	"errors"
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// headSession is one request on the node: a lane, the content, and one generation at
// a time.
type headSession struct {
	id, epoch uint64
	model     string

	// cmds are all commands of the epoch until the first event of its generation
	// shows that they took effect; cursor is the next one to send on this connection.
	cmds    []*headCommand
	cursor  int
	lastCmd uint64
	known   bool // the node may have heard of the epoch

	generation uint64
	running    bool   // no end came yet
	next       uint64 // the event that is waited for
	cost       uint64 // of all that came
	taken      uint64 // the first event that the caller has not taken
	paid       uint64 // cost of those taken
	acked      uint64 // cost of those that the node was told of
	prices     []uint64
	limit      uint64 // credit that the node was given
	parts      int    // bytes of an event whose rest is to come

	ackDue, creditDue, grantDue bool
	leaving                     bool // the caller is gone; the node has not ended it yet
	revoked                     bool
	queued                      bool
}

// headCommand is one command. Which fields it has depends on its type.
type headCommand struct {
	n          uint64
	typ        Type
	a          fleet.Assignment
	generation uint64
	body       *outgoing // the transfer of a.Body
	whole      bool      // of which all was sent
}

// again prepares for a new connection.
func (s *headSession) again() {
	s.cursor, s.queued = 0, false
	s.ackDue, s.creditDue, s.grantDue = false, false, false
	for _, c := range s.cmds {
		c.body, c.whole = nil, false
	}
}

var errUnknownSession = errors.New("no such session on this link")

// open takes a lane for a request and has it run: assign, append and generate without
// waiting in between. The answer is events and an end.
func (h *headMachine) open(now time.Duration, a fleet.Assignment) (session uint64, err error) {
	h.advance(now)
	h.lastID++
	id := h.lastID
	if err := h.assign(id, a.Model, a.Unload); err != nil {
		return 0, err
	}
	if err := h.append(id, a); err != nil {
		return 0, errors.Join(err, h.revoke(now, id))
	}
	return id, h.generate(id, a.Patience)
}

// assign gives a session to the node under a new epoch, which fences what the node has
// of an older one.
func (h *headMachine) assign(id uint64, model, unload string) error {
	old := h.sessions[id]
	if old == nil && len(h.sessions) >= maxSessions {
		return h.declined("has %d sessions of this head already", maxSessions)
	}
	if err := h.carries(nil, model, unload); err != nil {
		return err
	}
	if old != nil {
		h.forget(old)
	}
	if len(h.sessions) == 0 {
		h.busySince = h.now
	}
	s := &headSession{id: id, model: model}
	h.sessions[id] = s
	h.begin(s, fleet.Assignment{Model: model, Unload: unload})
	return nil
}

// begin starts a session's epoch.
func (h *headMachine) begin(s *headSession, a fleet.Assignment) {
	s.epoch, s.known = h.epochs.Add(1), false
	h.command(s, headCommand{typ: typeAssign, a: a})
}

func (h *headMachine) append(id uint64, a fleet.Assignment) error {
	s := h.sessions[id]
	if s == nil {
		return errUnknownSession
	}
	if err := h.carries(a.Body, a.Path, a.ContentType); err != nil {
		return err
	}
	h.command(s, headCommand{typ: typeAppend, a: a})
	return nil
}

// generate has the node answer the content that it was given last.
func (h *headMachine) generate(id uint64, p fleet.Patience) error {
	s := h.sessions[id]
	if s == nil {
		return errUnknownSession
	}
	if s.running {
		return fmt.Errorf("session %d: a generation runs already", id)
	}
	s.generation++
	s.running, s.next, s.taken, s.cost, s.paid, s.acked, s.prices, s.parts = true, 0, 0, 0, 0, 0, nil, 0
	s.limit = creditRoom
	h.command(s, headCommand{typ: typeGenerate, a: fleet.Assignment{Patience: p}, generation: s.generation})
	return nil
}

// cancel gives a generation up. The caller hears no more of it; its lane counts as
// taken until the node says that it ended.
func (h *headMachine) cancel(now time.Duration, id uint64) {
	h.advance(now)
	s := h.sessions[id]
	if s == nil {
		return
	}
	if h.wire == nil || !s.known || !s.running || !s.sent(typeGenerate) {
		_ = h.revoke(now, id)
		return
	}
	s.leaving, s.ackDue, s.creditDue = true, true, true
	s.taken, s.paid, s.prices = s.next, s.cost, nil
	h.command(s, headCommand{typ: typeCancel})
	h.changed()
}

// revoke ends a session on both sides.
func (h *headMachine) revoke(now time.Duration, id uint64) error {
	h.advance(now)
	s := h.sessions[id]
	if s == nil {
		return errUnknownSession
	}
	if h.wire == nil || !s.known {
		h.forget(s)
		return nil
	}
	// Commands that were not sent are not needed any more.
	h.abandon(s)
	s.cmds = s.cmds[:s.cursor]
	s.revoked = true
	h.command(s, headCommand{typ: typeRevoke})
	return nil
}

// sent reports whether a command of the type went out on this connection, or took
// effect before.
func (s *headSession) sent(t Type) bool {
	for _, c := range s.cmds[s.cursor:] {
		if c.typ == t {
			return false
		}
	}
	return true
}

func (h *headMachine) command(s *headSession, c headCommand) {
	s.lastCmd++
	c.n = s.lastCmd
	s.cmds = append(s.cmds, &c)
	h.mark(s)
}

// mark has a session looked at when the connection can take more.
func (h *headMachine) mark(s *headSession) {
	if h.ready && !s.queued {
		s.queued = true
		h.dirty = append(h.dirty, s)
	}
}

// forget drops a session here; the node learns it by a revoke or by reconcile.
func (h *headMachine) forget(s *headSession) {
	h.abandon(s)
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
	}
	s.cmds, s.prices, s.cursor, s.revoked = nil, nil, 0, true
	if s.leaving {
		s.leaving = false
		h.changed()
	}
}

// abandon gives up transfers that are under way for the session.
func (h *headMachine) abandon(s *headSession) {
	for _, c := range s.cmds {
		if c.body != nil && !c.whole && h.wire != nil {
			h.wire.abandon(c.body)
		}
	}
}

// end drops a session and tells the caller that its generation is over without the
// node's end of it.
func (h *headMachine) end(s *headSession, err error) {
	if s.running && !s.leaving && !s.revoked {
		h.act(headAction{kind: headEnded, session: s.id, generation: s.generation, err: err})
	}
	h.forget(s)
}

// renew answers a node that asks for a lease.
func (h *headMachine) renew(k key) error {
	s := h.sessions[k.Session]
	if s == nil || s.epoch != k.Epoch {
		return nil // it gets no grant, and its lease ends
	}
	s.grantDue = true
	h.mark(s)
	return nil
}

// gone says that the node has a session no more.
func (h *headMachine) gone(m gone) error {
	s := h.sessions[m.Session]
	if s == nil || s.epoch != m.Epoch {
		return nil
	}
	why := errors.New(clip(m.Message, maxText))
	if m.Reason == goneLoading {
		h.end(s, lost(h.node, fleet.CauseLoading, why))
		return nil
	}
	if m.Reason == goneDeclined { // it has no lane or room for now
		h.end(s, &fleet.RequestError{Reason: fleet.ReasonOverloaded, Again: true, Err: fmt.Errorf("node %s says: %w", h.node, why)})
		return nil
	}
	h.end(s, lost(h.node, fleet.CauseClosed, fmt.Errorf("it does not hold the session any more: %w", why)))
	return nil
}

// reconciled is what the node still holds of what the head listed.
func (h *headMachine) reconciled(m reconcileAck) error {
	if h.ready || !h.listed {
		return errors.New("reconcile ack, where none was due")
	}
	h.ready = true
	held := make(map[key]holding, len(m.Sessions))
	for _, x := range m.Sessions {
		held[x.key] = x
	}
	for _, s := range h.sessions {
		if s.known {
			h.resume(s, held[key{s.id, s.epoch}])
		}
		h.mark(s)
	}
	for _, c := range h.calls {
		h.ask(c)
	}
	return nil
}

// resume goes on with a session that the node knew before the connection was lost.
func (h *headMachine) resume(s *headSession, x holding) {
	switch {
	case x.Held:
		for s.cursor < len(s.cmds) && s.cmds[s.cursor].n <= x.Command {
			s.cursor++
		}
		s.grantDue, s.creditDue, s.ackDue = true, s.running, s.running
	case !s.revoked && s.running && s.next == 0 && s.cmds[0].typ == typeAssign:
		// Nothing of it came: it begins again, and what may still run there is fenced.
		s.epoch, s.known = h.epochs.Add(1), false
	default:
		h.end(s, &fleet.NodeLost{Node: h.node, Cause: fleet.CauseClosed, Anew: h.anew, Err: errors.New("it forgot the session while the link was gone")})
	}
}
