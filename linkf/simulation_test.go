package linkf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

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
	runs    map[uint64]*upstream
	started map[string]bool
	calls   map[uint64]bool // calls the head waits for
	asked   map[uint64]bool // calls that the node works on
	failed  error
}

// client is who waits for a session's events.
type client struct {
	body     byte
	run      uint64 // whose events it gets
	got      uint32
	seen     uint64 // the last seq
	unread   int
	gen      uint64
	finished bool
	left     bool
}

// upstream is a generation of the model server.
type upstream struct {
	count   uint32
	stopped bool
	waits   bool
}

func newWorld(pick choices) *world {
	w := &world{pick: pick, started: make(map[string]bool)}
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
	w.nodeUp = false
	w.runs = make(map[uint64]*upstream)
	w.asked = make(map[uint64]bool)
	err := w.agent.offer(w.nodeTime(), fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 3}}}, time.Time{})
	if err != nil {
		w.fail("offer: %v", err)
	}
}

func (w *world) headTime() time.Duration { return w.now + w.headOff }
func (w *world) nodeTime() time.Duration { return w.now + w.nodeOff }

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
		if w.pick.IntN(4) == 0 {
			w.newNode()
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
	w.agent.up(w.nodeTime(), w.conn)
}

func (w *world) cut(head, node bool) {
	w.toHead, w.toNode, w.dark = nil, nil, true
	if head {
		w.headDown()
	}
	if node || !head {
		w.nodeDown(w.conn)
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

func (w *world) open() {
	if len(w.clients) >= 5 {
		return
	}
	body := []byte{byte(len(w.started))}
	if w.pick.IntN(150) == 0 {
		body = make([]byte, maxInline+window*chunkLen+1)
	}
	id, err := w.head.open(w.headTime(), fleet.Assignment{Model: "m", Path: "/x", Body: body})
	if err != nil {
		w.fail("open: %v", err)
		return
	}
	w.clients[id] = &client{body: body[0]}
}

// some returns a key of a map, or false if there is none.
func some[V any](w *world, m map[uint64]V) (uint64, bool) {
	if len(m) == 0 {
		return 0, false
	}
	least, n := uint64(0), w.pick.IntN(len(m))
	for ; n >= 0; n-- {
		next := uint64(1<<64 - 1)
		for k := range m {
			if k > least && k < next {
				next = k
			}
		}
		least = next
	}
	return least, true
}

func (w *world) emit() {
	id, ok := some(w, w.runs)
	if !ok || w.runs[id].waits {
		return
	}
	size := 12
	if w.pick.IntN(30) == 0 {
		size = w.pick.IntN(3) * maxPiece * 3
	}
	w.say(id, size)
}

func (w *world) say(id uint64, size int) {
	r := w.runs[id]
	data := make([]byte, max(12, size))
	binary.LittleEndian.PutUint64(data, id)
	binary.LittleEndian.PutUint32(data[8:], r.count)
	got := w.agent.emit(w.nodeTime(), id, fleet.Event{Kind: fleet.EventData, Data: data})
	if (got == roomGone) != (r.stopped || w.agent.runs[id].session == nil) {
		w.fail("run %d: emit says %d; stopped %v", id, got, r.stopped)
	}
	if got != roomGone {
		r.count++
	}
	r.waits = got == roomNone
}

func (w *world) finish() {
	if id, ok := some(w, w.runs); ok {
		w.end(id)
	}
}

func (w *world) end(id uint64) {
	delete(w.runs, id)
	w.agent.finish(w.nodeTime(), id, nil)
}

// read has a client take what it was given.
func (w *world) read() {
	if id, ok := some(w, w.clients); ok {
		c := w.clients[id]
		if c.unread > 0 {
			c.unread = 0
			w.head.took(w.headTime(), id, c.gen, c.seen)
		}
	}
}

func (w *world) leave() {
	id, ok := some(w, w.clients)
	if !ok {
		return
	}
	w.clients[id].left = true
	delete(w.clients, id)
	if w.pick.IntN(2) == 0 {
		w.head.cancel(w.headTime(), id)
	} else {
		_ = w.head.revoke(w.headTime(), id)
	}
}

func (w *world) call() {
	id, err := w.head.call(w.headTime(), fleet.Call{Op: fleet.OpAsk, Path: "/tokenize", Body: []byte("x")})
	if err != nil {
		w.fail("call: %v", err)
	}
	w.calls[id] = true
	if w.pick.IntN(4) == 0 {
		delete(w.calls, id)
		w.head.hangUp(w.headTime(), id)
	}
}

// work answers a call.
func (w *world) work() {
	if id, ok := some(w, w.asked); ok {
		delete(w.asked, id)
		w.agent.answer(w.nodeTime(), id, fleet.Reply{Status: 200, Body: []byte("y")}, nil)
	}
}

// settle does what both machines want done and moves what they want sent, until
// neither wants anything.
func (w *world) settle() {
	for i := 0; w.failed == nil; i++ {
		if i == 1000 {
			w.fail("the machines never come to rest")
			return
		}
		w.headActions()
		w.nodeActions()
		if !w.sendHead() && !w.sendNode() {
			break
		}
	}
	w.check()
}

func (w *world) sendHead() bool {
	if !w.headUp {
		return false
	}
	var b []byte
	if w.greet != nil {
		b = w.greet.pull(nil, w.headTime())
	} else {
		b = w.head.pull(w.headTime(), nil, chunkLen)
	}
	if len(b) > 0 && !w.dark && w.nodeUp {
		w.toNode = append(w.toNode, b)
	}
	return len(b) > 0
}

func (w *world) sendNode() bool {
	sent := false
	for id := range w.agent.conns {
		b := w.agent.pull(w.nodeTime(), id, nil, chunkLen)
		sent = sent || len(b) > 0
		if len(b) > 0 && id == w.conn && !w.dark && w.headUp {
			w.toHead = append(w.toHead, b)
		}
	}
	return sent
}

func (w *world) headActions() {
	for _, x := range w.head.actions() {
		switch x.kind {
		case headClose:
			if w.head.wire != nil {
				w.head.pull(w.headTime(), nil, chunkLen)
			}
			w.headDown()
		case headEvent:
			w.event(x)
		case headEnded:
			w.ended(x)
		case headReply:
			if !w.calls[x.call] {
				w.fail("call %d was answered twice, or nobody asked", x.call)
			}
			delete(w.calls, x.call)
		}
	}
}

// event checks that each comes once, in order, and from one generation.
func (w *world) event(x headAction) {
	c := w.clients[x.session]
	if c == nil || c.finished {
		w.fail("session %d: an event for nobody", x.session)
		return
	}
	c.unread, c.seen, c.gen = c.unread+1, x.seq, x.generation
	if len(x.event.Data) < 12 || len(x.event.Data) == maxPiece && !x.event.More || binary.LittleEndian.Uint64(x.event.Data) == 0 {
		return // the rest of one that came in pieces
	}
	run, n := binary.LittleEndian.Uint64(x.event.Data), binary.LittleEndian.Uint32(x.event.Data[8:])
	if c.got == 0 {
		c.run = run
	}
	if run != c.run || n != c.got {
		w.fail("session %d: event %d of run %d, where %d of run %d was due", x.session, n, run, c.got, c.run)
	}
	c.got++
}

func (w *world) ended(x headAction) {
	c := w.clients[x.session]
	if c == nil || c.finished {
		w.fail("session %d ended twice, or for nobody", x.session)
		return
	}
	c.finished = true
	delete(w.clients, x.session)
	if err := w.head.revoke(w.headTime(), x.session); err != nil && !errors.Is(err, errUnknownSession) {
		w.fail("revoke: %v", err)
	}
}

func (w *world) nodeActions() {
	for _, x := range w.agent.actions() {
		switch x.kind {
		case agentStart:
			s := w.agent.runs[x.run].session
			if s == nil {
				s = new(agentSession) // dropped since
			}
			k := fmt.Sprint(w.agent.me.instance[0], x.run)
			if s.head != nil {
				k = fmt.Sprint(w.agent.me.instance[0], s.head.instance[0], s.id, s.epoch, s.generation)
			}
			if w.started[k] {
				w.fail("generation %s runs twice", k)
			}
			w.started[k] = true
			w.runs[x.run] = new(upstream)
		case agentStop:
			if r := w.runs[x.run]; r != nil {
				r.stopped, r.waits = true, false
			}
		case agentReadOn:
			if r := w.runs[x.run]; r != nil {
				r.waits = false
			}
		case agentCall:
			w.asked[x.run] = true
		case agentCallStop:
			delete(w.asked, x.run)
		case agentClose:
			w.agent.pull(w.nodeTime(), x.conn, nil, chunkLen)
			w.nodeDown(x.conn)
		}
	}
}

// check holds what must hold at any time.
func (w *world) check() {
	a := w.agent
	kept, held := uint64(0), 0
	for _, h := range a.heads {
		for _, s := range h.sessions {
			if age := a.now - s.granted; age >= s.lease {
				w.fail("session %d is held %v after its grant", s.id, age)
			}
			sum := uint64(0)
			for _, e := range s.buf {
				sum += e.price
			}
			if sum > retryRoom+7*maxPiece {
				w.fail("session %d keeps %d bytes", s.id, sum)
			}
			kept += sum
			if s.lane {
				held++
			}
		}
	}
	for _, r := range a.runs {
		if r.lane {
			held++
		}
	}
	if kept != a.kept {
		w.fail("%d bytes of events are kept, and %d counted", kept, a.kept)
	}
	if held != a.lanes.used || held > 3 {
		w.fail("%d lanes are held of 3, and %d counted", held, a.lanes.used)
	}
	for _, s := range w.head.sessions {
		if s.cost-s.paid > creditRoom {
			w.fail("session %d: %d bytes wait for the client", s.id, s.cost-s.paid)
		}
	}
}

// rest lets everything come to its end, and checks that it does.
func (w *world) rest() {
	for i := 0; i < 60 && w.failed == nil; i++ {
		w.connect()
		w.settle()
		w.exchange()
		for id := range w.runs {
			w.end(id)
		}
		for len(w.asked) > 0 {
			w.work()
		}
		for id, c := range w.clients {
			if c.unread > 0 {
				c.unread = 0
				w.head.took(w.headTime(), id, c.gen, c.seen)
			}
		}
		w.settle()
		w.exchange()
		if w.empty() == "" {
			return
		}
		w.pass(time.Second)
	}
	if why := w.empty(); why != "" {
		w.fail("at the end: %s", why)
	}
}

func (w *world) empty() string {
	a := w.agent
	sessions := 0
	for _, h := range a.heads {
		sessions += len(h.sessions)
	}
	if len(w.clients)+len(w.head.sessions)+len(w.calls)+len(w.head.calls)+sessions+len(a.runs)+len(a.calls)+int(a.kept)+a.lanes.used > 0 {
		return fmt.Sprintf("%d clients and %d sessions of the head, %d calls, %d sessions, %d runs and %d calls of the node, %d bytes, %d lanes are left",
			len(w.clients), len(w.head.sessions), len(w.calls), sessions, len(a.runs), len(a.calls), a.kept, a.lanes.used)
	}
	return ""
}

// play runs one schedule.
func play(pick choices, steps int) error {
	w := newWorld(pick)
	for i := 0; i < steps && w.failed == nil; i++ {
		w.step()
	}
	if w.failed == nil {
		w.rest()
	}
	return w.failed
}

// TestNothingIsLostRepeatedOrLeftUnderAnySchedule runs many schedules. A failure names
// the seed of its schedule; LINKF_SEED runs that one alone.
func TestNothingIsLostRepeatedOrLeftUnderAnySchedule(t *testing.T) {
	if s := os.Getenv("LINKF_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := play(rand.New(rand.NewPCG(seed, 0)), 60); err != nil {
			t.Fatal(err)
		}
		return
	}
	schedules := uint64(100_000)
	if testing.Short() {
		schedules = 2_000
	}
	var wg sync.WaitGroup
	var played atomic.Uint64
	failures := make(chan string, runtime.GOMAXPROCS(0))
	end := time.Now().Add(time.Minute)
	for range cap(failures) {
		wg.Go(func() {
			for len(failures) == 0 && time.Now().Before(end) {
				seed := played.Add(1) - 1
				if seed >= schedules {
					return
				}
				if err := play(rand.New(rand.NewPCG(seed, 0)), 60); err != nil {
					failures <- fmt.Sprintf("LINKF_SEED=%d: %v", seed, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	t.Logf("%d of %d schedules", min(played.Load(), schedules), schedules)
}

// drawn takes choices from rapid, which makes a schedule that fails as short as it can.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

func TestScheduleThatFailsIsMadeShort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := play(drawn{rt}, rapid.IntRange(0, 100).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

func FuzzSchedule(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		if err := play(rand.New(rand.NewPCG(seed, 1)), int(steps)); err != nil {
			t.Fatal(err)
		}
	})
}
