package linkf

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// headKind says what a [headAction] asks for.
type headKind uint8

const (
	headEvent headKind = iota + 1 // an event of a generation
	headEnded                     // a generation ended, or its session was lost
	headReply                     // a call was answered, or failed
	headState                     // what the node offers changed
	headLog                       // what its log shows changed
	headClose                     // the connection is over: send what is left, close it
)

// headAction is what the head machine wants done.
type headAction struct {
	kind       headKind
	session    uint64
	generation uint64
	seq        uint64 // of the event: what took is told
	event      event
	err        error // of headEnded, headReply and headClose
	call       uint64
	reply      fleet.Reply
	parts      [][]byte // of the reply's body, if that came as a transfer
	status     *status
}

// headMachine is a head's end of the link to one node: what runs there, over any
// number of connections that follow each other. It has no clock, goroutine or socket:
// it is given bytes, times and the caller's wishes, and gives bytes and actions.
type headMachine struct {
	me     who
	node   string         // for errors
	epochs *atomic.Uint64 // of this run of the head, over all nodes
	lease  func() time.Duration

	clock
	wire *wire // nil: no connection
	// ready: the node told what it still holds, so that commands may be sent.
	ready     bool
	listed    bool          // reconcile was sent
	downSince time.Duration // while wire is nil
	longest   time.Duration // lease that the node was granted
	busySince time.Duration // when the first of the sessions began
	run       instanceID    // of the node, on this connection or the last
	anew      bool          // it is not that of the connection before

	sessions map[uint64]*headSession
	dirty    []*headSession // with something to send, each once
	lastID   uint64

	calls    map[uint64]*headCall
	asking   []*headCall // with something to send, each once
	lastCall uint64

	word   string // for the node's operator, to be sent
	status *status
	log    *shown // nil: it reads none, as far as is known
	acts   []headAction
}

func newHead(me who, node string, epochs *atomic.Uint64) *headMachine {
	return &headMachine{
		me: me, node: node, epochs: epochs, lease: func() time.Duration { return DefaultLease },
		sessions: make(map[uint64]*headSession), calls: make(map[uint64]*headCall),
	}
}

// advance moves the machine's time on.
func (h *headMachine) advance(now time.Duration) { h.tell(now) }

// actions returns what is to be done, and forgets it.
func (h *headMachine) actions() []headAction {
	a := h.acts
	h.acts = nil
	return a
}

func (h *headMachine) act(a headAction) { h.acts = append(h.acts, a) }

// up gives the machine a connection whose greeting is done.
func (h *headMachine) up(now time.Duration, g *greeting) {
	h.advance(now)
	if h.wire != nil {
		h.down(now)
	}
	h.wire, h.ready, h.listed = g.wire, false, false
	h.anew = h.run != instanceID{} && h.run != g.node.instance
	h.run = g.node.instance
	h.wire.lastIn, h.wire.lastOut = h.now, h.now
	h.busySince = h.now
	for _, s := range h.sessions {
		s.again()
	}
	for _, c := range h.calls {
		c.sent, c.body, c.whole = false, nil, false
	}
	if h.log != nil {
		h.log.current = false
	}
	// What came right behind the answer.
	h.receive(now, nil)
}

// down says that the connection is gone. Sessions stay: the node goes on with them.
func (h *headMachine) down(now time.Duration) {
	h.advance(now)
	if h.wire == nil {
		return
	}
	h.wire, h.ready, h.downSince = nil, false, h.now
	h.dirty, h.asking = nil, nil
	for _, s := range h.sessions {
		s.queued = false
		if s.leaving || s.revoked {
			// Not in the next reconcile, so the node drops it.
			h.forget(s)
		}
	}
	for _, c := range h.calls {
		c.queued = false
	}
}

// lost ends all that runs: the node is gone for good, or this link to it. One that is
// connected is told.
func (h *headMachine) lost(now time.Duration, err error) {
	h.advance(now)
	for _, s := range h.sessions {
		if s.running && !s.leaving && !s.revoked {
			h.act(headAction{kind: headEnded, session: s.id, generation: s.generation, err: err})
		}
		if !s.revoked {
			_ = h.revoke(now, s.id) // it is there
		}
	}
	for _, c := range h.calls {
		h.answer(c, headAction{err: err})
	}
}

// receive takes bytes of the connection.
func (h *headMachine) receive(now time.Duration, data []byte) {
	h.advance(now)
	if h.wire == nil {
		return
	}
	if err := h.wire.read(data, h.now, h.frame); err != nil {
		if hasLeft(err) {
			h.lost(now, lost(h.node, fleet.CauseClosed, err))
		}
		h.close(err)
	}
}

// hasLeft reports whether the peer closed because it is stopping, and so will not come
// back with what it had.
func hasLeft(err error) bool {
	var c *closedByPeer
	return errors.As(err, &c) && c.leaving
}

// close ends the connection for a reason.
func (h *headMachine) close(err error) {
	if h.wire == nil || h.wire.bye != "" || h.wire.closed {
		return
	}
	h.wire.fail(err.Error())
	h.act(headAction{kind: headClose, err: err})
}

// tick does what is due.
func (h *headMachine) tick(now time.Duration) {
	h.advance(now)
	if h.wire != nil {
		if err := h.wire.tick(h.now, h.heartbeat(), h.busySince); err != nil {
			h.close(err)
		}
		return
	}
	// The node's lease ended before, so that nothing of ours runs there any more.
	if len(h.sessions)+len(h.calls) > 0 && h.now-h.downSince >= h.patience() {
		h.lost(now, lost(h.node, fleet.CauseClosed, errors.New("it did not come back before its lease ended")))
	}
}

// wake is when tick has something to do next; ok is false if nothing is due.
func (h *headMachine) wake() (at time.Duration, ok bool) {
	if h.wire != nil {
		return h.told(h.wire.wake(h.heartbeat(), h.busySince)), !h.wire.closed
	}
	return h.told(h.downSince + h.patience()), len(h.sessions)+len(h.calls) > 0
}

// patience is how long the node may go on without a connection.
func (h *headMachine) patience() time.Duration { return max(h.longest, h.lease()) }

func (h *headMachine) heartbeat() time.Duration {
	if len(h.sessions) > 0 {
		return heartbeatBusy
	}
	return heartbeatIdle
}

// frame handles one message of the node.
func (h *headMachine) frame(f frame) error {
	if ok, err := h.wire.common(f); ok {
		return err
	}
	if !h.ready && f.typ != typeReconcileAck && f.typ != typeStatus {
		return fmt.Errorf("%s before reconcile ack", f.typ)
	}
	switch f.typ {
	case typeEvents:
		return handle(f, h.events)
	case typeReconcileAck:
		return handle(f, h.reconciled)
	case typeRenew:
		return handle(f, h.renew)
	case typeGone:
		return handle(f, h.gone)
	case typeStatus:
		return handle(f, h.says)
	case typeSlots:
		return handle(f, h.shows)
	case typeReply:
		return handle(f, h.replied)
	}
	return fmt.Errorf("%s is nothing that a node sends", f.typ)
}

// handle decodes a message for f.
func handle[T any](f frame, do func(T) error) error {
	m, err := decode[T](f)
	if err != nil {
		return err
	}
	return do(m)
}

func (h *headMachine) says(m status) error {
	h.status = &m
	h.changed()
	h.toldAll()
	return nil
}

// changed tells the caller what the node offers, with what this head left there.
func (h *headMachine) changed() {
	if h.status != nil {
		h.act(headAction{kind: headState, status: h.offered()})
	}
}

// offered is the node's word, and the generations that it has not ended yet though
// their clients left: their lanes are not free.
func (h *headMachine) offered() *status {
	s := *h.status
	s.Instances = slices.Clone(s.Instances)
	for i := range s.Instances {
		for _, x := range h.sessions {
			if x.leaving && x.model == s.Instances[i].Model {
				s.Instances[i].Leaving++
			}
		}
	}
	return &s
}
