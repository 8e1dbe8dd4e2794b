package linkf

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// always takes the first choice.
type always struct{}

func (always) IntN(int) int { return 0 }

// connected returns a head and a node that know each other.
func connected(t *testing.T) *world {
	t.Helper()
	w := newWorld(always{})
	w.connect()
	w.run(t)
	if !w.head.ready {
		t.Fatal("the head and the node did not come to know each other")
	}
	return w
}

// run lets everything arrive.
func (w *world) run(t *testing.T) {
	t.Helper()
	w.settle()
	w.exchange()
	if w.failed != nil {
		t.Fatal(w.failed)
	}
}

// opened opens a session and returns its number and that of its generation.
func opened(t *testing.T, w *world) (session, run uint64) {
	t.Helper()
	w.open()
	w.run(t)
	for id, r := range w.agent.runs {
		if r.session != nil && r.session.id == w.head.lastID {
			return w.head.lastID, id
		}
	}
	t.Fatal("the generation did not start")
	return 0, 0
}

// node hands the node a message as if the head had sent it.
func (w *world) node(t *testing.T, typ Type, m any) error {
	t.Helper()
	p, err := encMode.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return w.agent.frame(w.agent.conns[w.conn], frame{typ: typ, payload: p})
}

func (w *world) session(id uint64) *agentSession { return w.agent.heads["head"].sessions[id] }

func TestCommandThatIsRepeatedOrOfAnOlderEpochHasNoEffect(t *testing.T) {
	w := connected(t)
	id, _ := opened(t, w)
	s := w.session(id)
	k := key{s.id, s.epoch}
	for name, m := range map[string]struct {
		typ Type
		msg any
	}{
		"assign again":         {typeAssign, assign{k, 1, 30000, 10000, "m", ""}},
		"assign of before":     {typeAssign, assign{key{s.id, s.epoch - 1}, 9, 30000, 10000, "m", ""}},
		"append again":         {typeAppend, appendContent{k, 2, "/other", "", nil, 0}},
		"generate again":       {typeGenerate, generate{k, 3, 1, 0, 0, creditRoom}},
		"cancel of before":     {typeCancel, command{key{s.id, s.epoch - 1}, 9}},
		"revoke of before":     {typeRevoke, command{key{s.id, s.epoch - 1}, 9}},
		"append of one to be":  {typeAppend, appendContent{key{s.id, s.epoch + 1}, 9, "/other", "", nil, 0}},
		"append of no session": {typeAppend, appendContent{key{99, 1}, 9, "/other", "", nil, 0}},
	} {
		if err := w.node(t, m.typ, m.msg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if acts := w.agent.actions(); len(acts) != 0 || w.session(id) != s || s.content.Path != "/x" {
			t.Errorf("%s: got %d actions and path %s, want no effect", name, len(acts), s.content.Path)
		}
	}
}

func TestNewerEpochFencesTheOlder(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	old := w.session(id).epoch
	if err := w.head.assign(id, "m", ""); err != nil {
		t.Fatal(err)
	}
	w.run(t)
	if s := w.session(id); s == nil || s.epoch <= old {
		t.Fatalf("got %+v, want a session of an epoch above %d", s, old)
	}
	if !w.runs[run].stopped {
		t.Error("the older generation was not stopped")
	}
	if got := w.agent.emit(w.nodeTime(), run, fleet.Event{Kind: fleet.EventData}); got != roomGone {
		t.Errorf("the older generation's event: got %d, want %d", got, roomGone)
	}
	if used := w.agent.lanes.used; used != 2 {
		t.Errorf("%d lanes are taken, want the new one and that of the generation that has not ended", used)
	}
	w.end(run)
	if used := w.agent.lanes.used; used != 1 {
		t.Errorf("%d lanes are taken after the end, want 1", used)
	}
}

func TestLeaseEndsAndIsRenewed(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	// With a link it lasts as long as the head wants it.
	for range 50 {
		w.now += time.Second
		w.head.tick(w.headTime())
		w.agent.tick(w.nodeTime())
		w.run(t)
	}
	if w.session(id) == nil {
		t.Fatal("the session ended, want it renewed")
	}
	// A grant of another epoch is none.
	s := w.session(id)
	w.now += time.Second
	w.agent.tick(w.nodeTime())
	for _, epoch := range []uint64{s.epoch - 1, s.epoch + 1} {
		if err := w.node(t, typeGrant, grant{key{id, epoch}, 30000, 10000}); err != nil || s.granted == w.agent.now {
			t.Errorf("a grant of epoch %d, where %d is held: got %v and a new lease, want none", epoch, s.epoch, err)
		}
	}
	w.cut(true, true)
	w.now = w.now - w.nodeTime() + s.granted + s.lease - time.Millisecond
	w.agent.tick(w.nodeTime())
	w.settle()
	if w.session(id) == nil || w.runs[run].stopped {
		t.Fatal("the session ended before its lease")
	}
	w.now += time.Millisecond
	if got := w.agent.emit(w.nodeTime(), run, fleet.Event{Kind: fleet.EventData}); got != roomGone {
		t.Errorf("an event at the end of the lease: got %d, want %d", got, roomGone)
	}
	w.settle()
	if !w.runs[run].stopped || w.agent.kept != 0 {
		t.Errorf("stopped %v, %d bytes kept; want the generation stopped and nothing kept", w.runs[run].stopped, w.agent.kept)
	}
}

func TestHeadEndsWhatCannotBeAliveAnyMore(t *testing.T) {
	w := connected(t)
	opened(t, w)
	w.cut(true, true)
	w.now += DefaultLease
	w.head.tick(w.headTime())
	acts := w.head.actions()
	var gone *fleet.NodeLost
	if len(acts) != 1 || acts[0].kind != headEnded || !errors.As(acts[0].err, &gone) {
		t.Errorf("got %+v, want the generation's end with a lost node", acts)
	}
}

func TestAssignBeyondTheLanesIsDeclinedWithTheLoad(t *testing.T) {
	w := connected(t)
	for range 3 {
		opened(t, w)
	}
	w.open()
	w.settle()
	for len(w.toNode)+len(w.toHead) > 0 {
		for _, b := range w.toNode {
			w.nodeGets(b)
		}
		w.toNode = nil
		w.sendNode()
		for _, b := range w.toHead {
			w.headGets(b)
		}
		w.toHead = nil
	}
	var refused *fleet.RequestError
	told := false
	for _, x := range w.head.actions() {
		told = told || x.kind == headState && len(x.status.Instances) == 1
		if x.kind == headEnded && (!errors.As(x.err, &refused) || !told) {
			t.Errorf("got %v, told of the load before: %v; want it declined and the load before", x.err, told)
		}
	}
	if refused == nil || refused.Reason != fleet.ReasonOverloaded || !refused.Again {
		t.Errorf("got %v, want it declined so that another node may take it", refused)
	}
}

func TestNodeThatDoesNotKnowItsServerYetIsNotReady(t *testing.T) {
	w := connected(t)
	w.agent.offers = nil
	w.open()
	w.settle()
	for len(w.toNode)+len(w.toHead) > 0 {
		for _, b := range w.toNode {
			w.nodeGets(b)
		}
		w.toNode = nil
		w.sendNode()
		for _, b := range w.toHead {
			w.headGets(b)
		}
		w.toHead = nil
	}
	acts := w.head.actions()
	var gone *fleet.NodeLost
	if len(acts) != 1 || !errors.As(acts[0].err, &gone) || gone.Cause != fleet.CauseLoading {
		t.Errorf("got %+v, want the node to be loading", acts)
	}
}

func TestNodeThatDoesNotKnowItsServerYetHasNothingToTell(t *testing.T) {
	w := connected(t)
	w.agent.offers = nil
	w.agent.conns[w.conn].stateDue = true
	w.now += time.Second
	if at, ok := w.agent.wake(); !ok || at <= w.nodeTime() {
		t.Errorf("got something due %v from now, want nothing before a heartbeat", at-w.nodeTime())
	}
}

// What can be told at first can be told later, when ages are longer.
func TestStateThatIsTakenCanAlwaysBeTold(t *testing.T) {
	w := connected(t)
	taken := 0
	for length := 70; length < 110; length++ {
		var s fleet.NodeState
		for i := range 2500 {
			name := fmt.Sprintf("%0*d", length, i)
			s.Instances = append(s.Instances, fleet.Instance{Model: name, State: fleet.StateReady, Load: fleet.Load{At: time.Unix(1000, 0)}})
		}
		if w.agent.offer(w.nodeTime(), s, time.Unix(1000, 0)) == nil {
			taken++
		}
		w.now += 1000 * time.Hour
		w.agent.conns[w.conn].wire.lastIn = w.agent.now + 1000*time.Hour
		w.agent.pull(w.nodeTime(), w.conn, nil, chunkLen) // panics if it does not fit
	}
	if taken == 0 || taken == 40 {
		t.Errorf("%d of 40 states were taken: the test shows nothing", taken)
	}
}

func TestParkedSessionGivesItsLaneBackAndGoesOnLater(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	// This head never parks; others may.
	w.head.command(w.head.sessions[id], headCommand{typ: typePark})
	w.settle()
	for _, b := range w.toNode {
		w.nodeGets(b)
	}
	w.toNode = nil
	w.nodeActions()
	w.end(run)
	if used := w.agent.lanes.used; used != 0 {
		t.Errorf("%d lanes are taken, want none", used)
	}
	w.sendNode()
	for _, b := range w.toHead {
		w.headGets(b)
	}
	w.toHead = nil
	acts := w.head.actions()
	if len(acts) == 0 || acts[len(acts)-1].kind != headEnded {
		t.Fatalf("got %+v, want the end of the generation", acts)
	}
	if err := w.head.generate(id, fleet.Patience{}); err != nil {
		t.Fatal(err)
	}
	w.run(t)
	s := w.session(id)
	if s == nil || s.run == nil || s.generation != 2 || s.content.Path != "/x" || w.agent.lanes.used != 1 {
		t.Errorf("got %+v with %d lanes, want generation 2 of the same content on a lane", s, w.agent.lanes.used)
	}
}

func TestCancelledGenerationCountsUntilItsServerLetGo(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	w.head.actions()
	w.head.cancel(w.headTime(), id)
	delete(w.clients, id)
	leaving := func() uint32 {
		for _, x := range w.head.acts {
			if x.kind == headState {
				return x.status.Instances[0].Leaving
			}
		}
		t.Fatal("the load was not told")
		return 0
	}
	if got := leaving(); got != 1 {
		t.Errorf("%d generations are leaving, want 1", got)
	}
	w.run(t)
	if !w.runs[run].stopped || len(w.head.sessions) != 1 {
		t.Errorf("stopped %v, %d sessions; want it stopped and not forgotten", w.runs[run].stopped, len(w.head.sessions))
	}
	w.end(run)
	w.run(t)
	if len(w.head.sessions) != 0 || len(w.agent.heads["head"].sessions) != 0 || w.agent.lanes.used != 0 {
		t.Errorf("%d and %d sessions and %d lanes are left, want none", len(w.head.sessions), len(w.agent.heads["head"].sessions), w.agent.lanes.used)
	}
}

func TestHeadThatBeganAnewRevokesWhatItHad(t *testing.T) {
	w := connected(t)
	_, run := opened(t, w)
	w.newHead()
	w.connect()
	w.sendHead()
	w.nodeGets(w.toNode[0])
	w.toNode = nil
	w.nodeActions()
	if !w.runs[run].stopped {
		t.Error("the generation of the head before goes on after the hello of another one")
	}
	w.run(t)
	opened(t, w)
}

// A call whose body came as a transfer is asked again with a transfer of the next
// connection, for none survives its own.
func TestCallIsAnsweredAndAskedAgainAfterALoss(t *testing.T) {
	for _, size := range []int{0, maxInline + 1} {
		w := connected(t)
		id, err := w.head.call(w.headTime(), fleet.Call{Op: fleet.OpAsk, Path: "/tokenize", Body: make([]byte, size)})
		if err != nil {
			t.Fatal(err)
		}
		w.calls[id] = true
		w.run(t)
		if len(w.asked) != 1 {
			t.Fatalf("%d bytes: the node works on %d calls, want 1", size, len(w.asked))
		}
		w.cut(true, true)
		w.settle()
		if len(w.asked) != 0 {
			t.Fatalf("%d bytes: the node works on %d calls of a link that is gone, want none", size, len(w.asked))
		}
		w.connect()
		w.run(t)
		w.work()
		w.run(t)
		if len(w.calls) != 0 {
			t.Errorf("%d bytes: the call was not answered", size)
		}
	}
}

func TestVersionsAreNegotiated(t *testing.T) {
	for _, c := range []struct {
		a, b, c, d, want uint16
		ok               bool
	}{
		{1, 5, 3, 7, 5, true}, {1, 10, 10, 10, 10, true}, {1, 2, 3, 4, 0, false}, {1, 3, 3, 5, 3, true},
	} {
		if got, ok := commonVersion(c.a, c.b, c.c, c.d); ok != c.ok || ok && got != c.want {
			t.Errorf("%d to %d and %d to %d: got %d, %v; want %d, %v", c.a, c.b, c.c, c.d, got, ok, c.want, c.ok)
		}
	}
}

func TestSilentPeerIsGivenUpAndToldWhy(t *testing.T) {
	w := connected(t)
	w.dark = true
	w.now += heartbeats * heartbeatIdle
	w.agent.tick(w.nodeTime())
	w.head.tick(w.headTime())
	for _, x := range w.head.actions() {
		if x.kind == headClose && !strings.Contains(x.err.Error(), "nothing came for 15s") {
			t.Errorf("got %v, want how long nothing came", x.err)
		}
	}
	b := w.head.pull(w.headTime(), nil, chunkLen)
	if !bytes.Contains(b, []byte("nothing came for 15s")) {
		t.Errorf("the last bytes are %q, want the reason", b)
	}
	if more := w.head.pull(w.headTime(), nil, chunkLen); len(more) != 0 {
		t.Errorf("%d bytes follow the close, want none", len(more))
	}
}

// FuzzPeer gives both machines bytes of a peer that has the token and means ill.
func FuzzPeer(f *testing.F) {
	var good []byte
	w := &wire{}
	for _, v := range vectors() {
		good = w.put(good, v.typ, v.msg, 0)
	}
	f.Add(good, good[:50])
	f.Fuzz(func(t *testing.T, toHead, toNode []byte) {
		w := newWorld(always{})
		w.connect()
		w.settle()
		w.exchange()
		w.open()
		w.settle()
		w.exchange()
		w.head.receive(w.headTime(), toHead)
		w.head.pull(w.headTime(), nil, chunkLen)
		w.head.tick(w.headTime() + time.Hour)
		w.agent.receive(w.nodeTime(), w.conn, toNode)
		w.agent.pull(w.nodeTime(), w.conn, nil, chunkLen)
		w.agent.tick(w.nodeTime() + time.Hour)
		w.nodeActions()
		w.check()
		if w.failed != nil {
			t.Fatal(w.failed)
		}
	})
}

func TestNodeGoesOnAsLongAsTheLeaseOfItsHeadSays(t *testing.T) {
	w := newWorld(always{})
	lease := 90 * time.Second
	w.head.lease = func() time.Duration { return lease }
	w.connect()
	w.run(t)
	id, run := opened(t, w)
	if s := w.session(id); s.lease != lease || s.renew != 30*time.Second {
		t.Errorf("got a lease of %v, renewed from %v; want 1m30s and 30s", s.lease, s.renew)
	}
	w.cut(true, true)
	lease = 10 * time.Second // which the node does not hear of
	w.now += 89 * time.Second
	w.agent.tick(w.nodeTime())
	w.head.tick(w.headTime())
	if w.runs[run].stopped || len(w.head.sessions) != 1 {
		t.Errorf("stopped %v, %d sessions at the head; want it to go on before its lease ends", w.runs[run].stopped, len(w.head.sessions))
	}
	w.now += 2 * time.Second
	w.agent.tick(w.nodeTime())
	w.head.tick(w.headTime())
	w.settle()
	if !w.runs[run].stopped || w.head.sessions[id] != nil && w.head.sessions[id].running {
		t.Error("it goes on after its lease, want it ended on both sides")
	}
}
