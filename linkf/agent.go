package linkf

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// agentKind says what an [agentAction] asks for.
type agentKind uint8

const (
	agentStart    agentKind = iota + 1 // run a generation; finish tells its end
	agentStop                          // end one: its session is over, or it was cancelled
	agentReadOn                        // there is room again for events of one that found none
	agentCall                          // do something short; answer tells the result
	agentCallStop                      // nobody waits for that any more
	agentClose                         // a connection is over: send what is left, close it
	agentGreeted                       // a head is there
	agentLinked                        // it has taken the node
	agentNotice                        // it has a word for the operator
)

// agentAction is what the agent machine wants done.
type agentAction struct {
	kind       agentKind
	run        uint64 // of agentStart, agentStop, agentReadOn and of both kinds of calls
	assignment fleet.Assignment
	call       fleet.Call
	parts      [][]byte // of the body of either, if that came as a transfer
	conn       uint64
	err        error  // of agentStop, agentClose and agentNotice
	identity   string // of the head: of agentGreeted, agentLinked and agentNotice
}

// agentMachine is a node's end of its links to all heads. It has no clock, goroutine
// or socket.
type agentMachine struct {
	me who
	clock

	conns map[uint64]*agentConn
	heads map[string]*agentHead // by identity
	runs  map[uint64]*agentRun
	calls map[uint64]*agentAsked
	last  uint64 // number of a run or call

	lanes lanes
	kept  uint64      // cost of all events that are kept
	full  []*agentRun // told to wait

	offers   *status // as told last
	offersAt time.Duration
	log      *saying       // nil: the node reads none
	leaving  bool          // nothing new is taken
	leaseDue time.Duration // no lease has anything due before

	acts []agentAction
}

// maxHeads is how many heads one node works for.
const maxHeads = 64

// agentHead is a head as the node knows it, over all its connections.
type agentHead struct {
	who
	conn     *agentConn // nil: away
	sessions map[uint64]*agentSession
}

// agentConn is one connection.
type agentConn struct {
	id         uint64
	wire       *wire
	head       *agentHead // nil: hello is awaited
	version    uint16     // to be told with the answer to hello
	greeted    bool       // the answer was sent
	dialled    bool       // by the node
	reconciled bool
	ack        *reconcileAck // to be sent

	dirty     []*agentSession // with something to send, each once
	gones     []gone
	replies   []*agentAsked
	since     time.Duration
	toldAt    time.Duration // when the status was sent last
	stateDue  bool
	slotsAt   time.Duration // when the log was told last
	slotsDue  bool
	slotsTold uint64 // up to which change
	busySince time.Duration
}

// newAgent makes the machine. most bounds the generations of the whole node; 0: only
// its instances do.
func newAgent(me who, most int) *agentMachine {
	return &agentMachine{
		me:    me,
		conns: make(map[uint64]*agentConn), heads: make(map[string]*agentHead),
		runs: make(map[uint64]*agentRun), calls: make(map[uint64]*agentAsked),
		lanes:    lanes{most: most, models: make(map[string]*modelLanes)},
		leaseDue: never,
	}
}

const never = time.Duration(1<<63 - 1)

// advance moves the machine's time on, and ends the leases that are over before
// anything else happens.
func (a *agentMachine) advance(now time.Duration) {
	if a.tell(now); a.now >= a.leaseDue {
		a.leases()
	}
}

// actions returns what is to be done, and forgets it.
func (a *agentMachine) actions() []agentAction {
	acts := a.acts
	a.acts = nil
	return acts
}

func (a *agentMachine) act(x agentAction) { a.acts = append(a.acts, x) }

// up gives the machine a connection that is encrypted, under a number never used before;
// dialled says that the node made it.
func (a *agentMachine) up(now time.Duration, conn uint64, dialled bool) {
	a.advance(now)
	a.conns[conn] = &agentConn{
		id: conn, dialled: dialled, wire: &wire{lastIn: a.now, lastOut: a.now, follows: true},
		since: a.now, busySince: a.now, toldAt: a.now - statusGap, slotsAt: a.now - statusGap,
	}
}

// down says that a connection is gone. What runs goes on until its lease ends.
func (a *agentMachine) down(now time.Duration, conn uint64) {
	a.advance(now)
	c := a.conns[conn]
	if c == nil {
		return
	}
	delete(a.conns, conn)
	for n, x := range a.calls {
		if x.conn == c {
			a.act(agentAction{kind: agentCallStop, run: n})
			delete(a.calls, n)
		}
	}
	if h := c.head; h != nil && h.conn == c {
		h.conn = nil
		for _, s := range h.sessions {
			s.away()
		}
		a.forgetHead(h)
	}
}

// forgetHead drops a head that is away and has nothing here.
func (a *agentMachine) forgetHead(h *agentHead) {
	if h.conn == nil && len(h.sessions) == 0 && a.heads[h.identity] == h {
		delete(a.heads, h.identity)
	}
}

// receive takes bytes of a connection.
func (a *agentMachine) receive(now time.Duration, conn uint64, data []byte) {
	a.advance(now)
	c := a.conns[conn]
	if c == nil {
		return
	}
	if err := c.wire.read(data, a.now, func(f frame) error { return a.frame(c, f) }); err != nil {
		a.close(c, err)
	}
}

func (a *agentMachine) close(c *agentConn, err error) {
	if c.wire.bye != "" || c.wire.closed {
		return
	}
	c.wire.fail(err.Error())
	a.act(agentAction{kind: agentClose, conn: c.id, err: err})
}

// tick does what is due.
func (a *agentMachine) tick(now time.Duration) {
	a.advance(now)
	for _, c := range a.conns {
		if err := c.wire.tick(a.now, c.heartbeat(), c.busySince); err != nil {
			a.close(c, err)
		}
		if c.head == nil && a.now-c.since >= greetLimit {
			a.close(c, fmt.Errorf("no hello came within %v", greetLimit))
		}
	}
}

// wake is when tick, or a pull, has something to do next.
func (a *agentMachine) wake() (at time.Duration, ok bool) {
	at = a.leaseDue
	for _, c := range a.conns {
		if c.wire.closed {
			continue
		}
		at = min(at, c.wire.wake(c.heartbeat(), c.busySince))
		if c.head == nil {
			at = min(at, c.since+greetLimit)
		}
		if a.owesState(c) {
			at = min(at, c.toldAt+statusGap)
		}
		if c.slotsDue && c.reconciled {
			at = min(at, c.slotsAt+statusGap)
		}
	}
	if at == never {
		return 0, false
	}
	return a.told(at), true
}

// leaseAt is when tick has something to do with a lease next.
func (a *agentMachine) leaseAt() (at time.Duration, ok bool) {
	return a.told(a.leaseDue), a.leaseDue != never
}

func (c *agentConn) heartbeat() time.Duration {
	if c.head != nil && len(c.head.sessions) > 0 {
		return heartbeatBusy
	}
	return heartbeatIdle
}

// frame handles one message of a head.
func (a *agentMachine) frame(c *agentConn, f frame) error {
	if f.typ == typeNotice && c.reconciled {
		return handle(f, func(m notice) error { return a.noticed(c, m) })
	}
	if ok, err := c.wire.common(f); ok {
		return err
	}
	if c.head == nil {
		if f.typ != typeHello {
			return fmt.Errorf("%s before hello", f.typ)
		}
		return handle(f, func(m hello) error { return a.hello(c, m) })
	}
	if !c.reconciled && f.typ != typeReconcile {
		return fmt.Errorf("%s before reconcile", f.typ)
	}
	switch f.typ {
	case typeReconcile:
		return handle(f, func(m reconcile) error { return a.reconcile(c, m) })
	case typeAssign:
		return handle(f, func(m assign) error { return a.assign(c, m) })
	case typeAppend:
		return handle(f, func(m appendContent) error { return a.append(c, m) })
	case typeGenerate:
		return handle(f, func(m generate) error { return a.generate(c, m) })
	case typeCancel, typePark, typeRevoke:
		return handle(f, func(m command) error { return a.command(c, f.typ, m) })
	case typeGrant:
		return handle(f, func(m grant) error { return a.grant(c, m) })
	case typeAck:
		return handle(f, func(m ack) error { return a.acked(c, m) })
	case typeCredit:
		return handle(f, func(m credit) error { return a.credit(c, m) })
	case typeCall:
		return handle(f, func(m call) error { return a.asked(c, m) })
	case typeCallCancel:
		return handle(f, func(m callID) error { return a.hungUp(c, m) })
	}
	return fmt.Errorf("%s is nothing that a head sends", f.typ)
}

// offer says what the node offers now; wall is the time of its clock. It takes effect
// for lanes at once and goes to the heads when they were not told for statusGap.
func (a *agentMachine) offer(now time.Duration, s fleet.NodeState, wall time.Time) error {
	a.advance(now)
	m := statusOf(s, wall)
	if err := m.fits(); err != nil {
		return err
	}
	a.offers, a.offersAt = &m, a.now
	a.lanes.set(&m)
	for _, c := range a.conns {
		c.stateDue = true
	}
	return nil
}

// leave has the node take nothing new, and the heads told so.
func (a *agentMachine) leave(now time.Duration) {
	a.advance(now)
	a.leaving = true
	for _, c := range a.conns {
		c.stateDue = true
	}
}

// idle reports whether nothing runs, and no head has anything here.
func (a *agentMachine) idle() bool {
	for _, h := range a.heads {
		if len(h.sessions) > 0 {
			return false
		}
	}
	return len(a.runs)+len(a.calls) == 0
}

// take takes a lane; why says why there is none.
func (a *agentMachine) take(model string) (why string) {
	if a.leaving {
		return "the node is stopping"
	}
	return a.lanes.take(model)
}

// fits reports whether the status can be sent, whatever stateFor makes of it.
func (m *status) fits() error {
	largest, most := *m, uint32(math.MaxUint32)
	largest.Instances = slices.Clone(m.Instances)
	for i := range largest.Instances {
		largest.Instances[i].Age, largest.Instances[i].Ours = &most, most
	}
	p, err := encMode.Marshal(largest)
	if err != nil {
		return fmt.Errorf("the node's state: %w", err)
	}
	if len(m.Instances) > maxElements || len(p) > maxPayload {
		return fmt.Errorf("the node's state has %d instances in %d bytes: at most %d in %d can be told", len(m.Instances), len(p), maxElements, maxPayload)
	}
	return nil
}

// stateFor is the status for one head: ages as of now, which load is its own, and which
// lanes it cannot have, because others do.
func (a *agentMachine) stateFor(h *agentHead) status {
	m := *a.offers
	m.Leaving, m.Watch = a.leaving, millis(watchEvery)
	m.Instances = slices.Clone(m.Instances)
	for i := range m.Instances {
		x := &m.Instances[i]
		x.Ours = 0
		own := 0 // of the lanes
		for _, s := range h.sessions {
			if s.model != x.Model {
				continue
			}
			if s.run != nil {
				x.Ours++
			}
			if s.lane {
				own++
			}
		}
		x.Leaving += uint32(max(0, a.lanes.taken(x.Model, int(x.Lanes))-own))
		if x.Age != nil {
			age := *x.Age + millis(a.now-a.offersAt)
			x.Age = &age
		}
	}
	return m
}
