package linkf

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// choices is where a schedule comes from.
type choices interface{ IntN(n int) int }

// world is one head and one node, the connection between them, and those who use them.
type world struct {
	pick choices
	now  time.Duration

	head    *headMachine
	headOff time.Duration // the head's clock against the world's
	agent   *agentMachine
	nodeOff time.Duration
	epochs  *atomic.Uint64
	names   byte

	conn   uint64 // number of the connection; 0: none yet
	greet  *greeting
	headUp bool // the head believes in the connection
	nodeUp bool
	dark   bool     // what is sent is lost, and nobody is told
	toNode [][]byte // on the way
	toHead [][]byte

	clients map[uint64]*client // by session, of the head that lives
	asks    uint64             // how many there were
	runs    map[uint64]*upstream
	had     map[*agentSession]bool // what the node had when it began to leave; nil: it did not
	spoken  []*upstream            // all that ever ran; the place is what their events say
	started map[string]bool
	watch   *watcher
	calls   map[uint64]bool // calls the head waits for
	asked   map[uint64]bool // calls that the node works on
	failed  error
}

// client is who waits for a session's events.
type client struct {
	ask    uint64    // what it asked for
	run    *upstream // whose events it gets; nil: none yet
	got    uint32
	seen   uint64 // the last seq
	unread int
	gen    uint64
	parked bool // it goes on once its generation ended
}

// upstream is a generation of the model server.
type upstream struct {
	id      uint64 // place in spoken
	ask     uint64 // what it answers
	count   uint32
	stopped bool
	waits   bool
}

func newWorld(pick choices) *world {
	w := &world{pick: pick, started: make(map[string]bool)}
	w.watch = newWatcher(w)
	w.newHead()
	w.newNode()
	return w
}

func (w *world) name() (n who) {
	w.names++
	n.instance[0] = w.names
	return n
}

func (w *world) newHead() {
	me := w.name()
	me.identity = "head"
	w.epochs = new(atomic.Uint64)
	w.head = newHead(me, "node", w.epochs)
	w.headUp, w.greet = false, nil
	w.headOff = -w.now
	w.clients = make(map[uint64]*client)
	w.calls = make(map[uint64]bool)
}

func (w *world) newNode() {
	me := w.name()
	me.identity = "node"
	w.agent = newAgent(me, 0)
	w.nodeOff = -w.now
	w.watch.restarted(0)
	w.nodeUp, w.had = false, nil
	w.runs = make(map[uint64]*upstream)
	w.asked = make(map[uint64]bool)
	err := w.agent.offer(w.nodeTime(), fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 3}}}, time.Time{})
	if err != nil {
		w.fail("offer: %v", err)
	}
}

func (w *world) headTime() time.Duration { return w.now + w.headOff }
func (w *world) nodeTime() time.Duration { return w.watch.tell(w.now + w.nodeOff) }

func (w *world) fail(format string, a ...any) {
	if w.failed == nil {
		w.failed = fmt.Errorf(format, a...)
	}
}

// step does one thing that may happen.
func (w *world) step() {
	switch k := w.pick.IntN(40); {
	case k < 5:
		w.deliver(&w.toNode, w.nodeGets)
	case k < 10:
		w.deliver(&w.toHead, w.headGets)
	case k < 13:
		w.open()
	case k < 18:
		w.emit()
	case k < 20:
		w.finish()
	case k < 23:
		w.read()
	case k < 25:
		w.connect()
	case k < 26:
		w.leave()
	case k < 27:
		w.park()
	case k < 28:
		w.beginAgain()
	case k < 31:
		w.wait()
	default:
		w.trouble(k - 31)
	}
	w.settle()
}

func (w *world) trouble(kind int) {
	switch kind {
	case 0: // a connection that breaks, seen by both
		w.cut(true, true)
	case 1: // seen by one
		w.cut(w.pick.IntN(2) == 0, false)
	case 2: // by nobody
		w.dark = true
	case 3:
		w.again(&w.toNode)
		w.again(&w.toHead)
	case 4:
		if w.pick.IntN(4) == 0 {
			w.newHead()
		}
	case 5:
		switch w.pick.IntN(8) {
		case 0, 1:
			w.newNode()
		case 2:
			w.stop()
		}
	case 6: // clocks jump, each on its own
		jump := time.Duration(w.pick.IntN(41)-20) * time.Second
		if w.pick.IntN(2) == 0 {
			w.headOff += jump
		} else {
			w.nodeOff += jump
		}
	case 7:
		w.call()
	case 8:
		w.work()
		if w.pick.IntN(100) == 0 {
			w.flood()
		}
	}
}

// flood has a model server say as much as there is room for.
func (w *world) flood() {
	id, ok := some(w, w.runs)
	for i := 0; ok && i < 20 && w.runs[id] != nil && !w.runs[id].waits && !w.runs[id].stopped; i++ {
		w.say(id, 3*maxPiece)
		w.settle()
		if w.pick.IntN(4) == 0 {
			w.exchange()
		}
	}
}

// again has the first chunk that is on the way come twice.
func (w *world) again(way *[][]byte) {
	if len(*way) > 0 {
		*way = append([][]byte{(*way)[0]}, *way...)
	}
}

func (w *world) deliver(way *[][]byte, to func([]byte)) {
	for n := 1 + w.pick.IntN(4); n > 0 && len(*way) > 0; n-- {
		data := (*way)[0]
		*way = (*way)[1:]
		// Split somewhere: a stream has no bounds.
		at := w.pick.IntN(len(data) + 1)
		to(data[:at])
		to(data[at:])
	}
}

func (w *world) nodeGets(data []byte) {
	if w.nodeUp {
		w.nodeTime()
		w.watch.gets(w.conn, data)
		w.agent.receive(w.nodeTime(), w.conn, data)
	}
}

func (w *world) headGets(data []byte) {
	switch {
	case !w.headUp:
	case w.greet == nil:
		w.head.receive(w.headTime(), data)
	default:
		if err := w.greet.receive(data, w.headTime()); err != nil {
			w.headDown()
			return
		}
		if w.greet.done {
			g := w.greet
			w.greet = nil
			w.head.up(w.headTime(), g)
		}
	}
}

func (w *world) connect() {
	if w.headUp {
		return
	}
	// The node may still believe in the one before.
	w.conn++
	w.headUp, w.nodeUp, w.dark = true, true, false
	w.toHead, w.toNode = nil, nil
	w.greet = newGreeting(w.head.me, w.headTime())
	w.agent.up(w.nodeTime(), w.conn, false)
}

// cut breaks the connection; some of what was on the way may have arrived, cut anywhere.
func (w *world) cut(head, node bool) {
	if len(w.toNode) > 0 {
		w.nodeGets(w.toNode[0][:w.pick.IntN(len(w.toNode[0]))])
	}
	if len(w.toHead) > 0 {
		w.headGets(w.toHead[0][:w.pick.IntN(len(w.toHead[0]))])
	}
	w.toHead, w.toNode, w.dark = nil, nil, true
	if head {
		w.headDown()
	}
	if node || !head {
		w.nodeDown(w.conn)
	}
}

// stop has the node take nothing new.
func (w *world) stop() {
	w.agent.leave(w.nodeTime())
	w.had = make(map[*agentSession]bool)
	for _, h := range w.agent.heads {
		for _, s := range h.sessions {
			w.had[s] = true
		}
	}
}

func (w *world) headDown() {
	if w.headUp {
		w.headUp, w.greet = false, nil
		w.head.down(w.headTime())
	}
}

func (w *world) nodeDown(conn uint64) {
	if conn == w.conn {
		w.nodeUp = false
	}
	w.agent.down(w.nodeTime(), conn)
}

func (w *world) wait() {
	steps := []time.Duration{time.Millisecond, 25 * time.Millisecond, time.Second, 4 * time.Second, 11 * time.Second, 40 * time.Second}
	w.pass(steps[w.pick.IntN(len(steps))])
}

// pass lets time go by; both sides wake when they wanted to, and in between what is on
// the way arrives, if it is not a long way.
func (w *world) pass(d time.Duration) {
	end := w.now + d
	prompt := w.pick.IntN(2) == 0
	for i := 0; i < 12 && w.failed == nil; i++ {
		next := end
		if at, ok := w.head.wake(); ok {
			next = min(next, at-w.headOff)
		}
		if at, ok := w.agent.wake(); ok {
			next = min(next, at-w.nodeOff)
		}
		w.now = max(w.now, min(next, end))
		w.head.tick(w.headTime())
		w.agent.tick(w.nodeTime())
		w.settle()
		if prompt {
			w.exchange()
		}
		if w.now >= end {
			return
		}
	}
	w.now = end
	w.head.tick(w.headTime())
	w.agent.tick(w.nodeTime())
	w.settle()
}

// exchange delivers all that is on the way and what that brings about.
func (w *world) exchange() {
	for i := 0; i < 200 && len(w.toHead)+len(w.toNode) > 0 && w.failed == nil; i++ {
		for len(w.toNode) > 0 {
			data := w.toNode[0]
			w.toNode = w.toNode[1:]
			w.nodeGets(data)
		}
		for len(w.toHead) > 0 {
			data := w.toHead[0]
			w.toHead = w.toHead[1:]
			w.headGets(data)
		}
		w.settle()
	}
}
