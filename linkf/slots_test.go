package linkf

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

// busy is a server whose slots hold so many tokens.
func busy(port uint32, lanes int, held int64) Server {
	x := Server{Port: port, Model: "m", State: "ready", Lanes: uint32(lanes)}
	for i := range lanes {
		x.Slots = append(x.Slots, Slot{Slot: uint32(i), State: "processing", Held: new(held)})
	}
	return x
}

// show has the node say what its log shows, and lets that arrive.
func (w *world) show(t *testing.T, servers ...Server) {
	t.Helper()
	w.agent.show(w.nodeTime(), Log{Servers: servers, At: time.Unix(100, 0)}, time.Unix(100, 0))
	w.run(t)
}

func (w *world) held(port uint32) int64 {
	if w.head.log == nil || len(w.head.log.servers[port].Slots) == 0 {
		return -1
	}
	return *w.head.log.servers[port].Slots[0].Held
}

func TestSlotsAreToldWithin20msOfAChangeAndNoMoreOften(t *testing.T) {
	w := connected(t)
	w.now += time.Second
	w.show(t, busy(8080, 2, 1))
	if got := w.held(8080); got != 1 {
		t.Fatalf("the first word: got %d tokens, want 1 at once", got)
	}
	before := w.agent.conns[w.conn].wire.seqOut
	for i := range int64(19) {
		w.now += time.Millisecond
		w.show(t, busy(8080, 2, 2+i))
	}
	if got := w.held(8080); got != 1 {
		t.Errorf("after 19 ms: got %d tokens, want what was told first", got)
	}
	w.now += time.Millisecond
	if at, ok := w.agent.wake(); !ok || at > w.nodeTime() {
		t.Errorf("the node wakes at %v, %v; want now, %v", at, ok, w.nodeTime())
	}
	w.run(t)
	if got := w.held(8080); got != 20 {
		t.Errorf("after 20 ms: got %d tokens, want the newest, 20", got)
	}
	if n := w.agent.conns[w.conn].wire.seqOut - before; n != 1 {
		t.Errorf("%d frames told of 19 changes, want 1", n)
	}
}

func TestOnlyServersThatChangedAreSentAgain(t *testing.T) {
	w := connected(t)
	w.show(t, busy(1, 4, 10), busy(2, 4, 20))
	m, _, _ := w.agent.log.since(w.agent.conns[w.conn].slotsTold, 0)
	if len(m.Servers) != 0 || len(m.Ports) != 2 {
		t.Errorf("nothing changed: got %d servers of %d ports, want 0 of 2", len(m.Servers), len(m.Ports))
	}
	w.now += time.Second
	w.agent.log.update(Log{Servers: []Server{busy(1, 4, 10), busy(2, 4, 21), busy(3, 1, 30)}})
	m, _, _ = w.agent.log.since(w.agent.conns[w.conn].slotsTold, 0)
	if len(m.Servers) != 2 || len(m.Ports) != 3 {
		t.Errorf("one changed and one came: got %d servers of %d ports, want 2 of 3", len(m.Servers), len(m.Ports))
	}
	w.now += time.Second
	w.show(t, busy(2, 4, 22))
	if len(w.head.log.servers) != 1 || w.held(2) != 22 {
		t.Errorf("got %d servers, want the one that is left", len(w.head.log.servers))
	}
}

// A router with many children does not hold up the events of generations, and all of
// it arrives.
func TestManySlotsComeInPieces(t *testing.T) {
	w := connected(t)
	w.now += time.Second
	var many []Server
	for port := range uint32(200) {
		many = append(many, busy(port, 20, int64(port)))
	}
	w.show(t, many...)
	if n := len(w.head.log.servers); n == 0 || n == 200 {
		t.Errorf("the first frame told of %d servers, want a part of them", n)
	}
	for range 20 {
		w.now += statusGap
		w.run(t)
	}
	if n := len(w.head.log.servers); n != 200 || w.held(199) != 199 {
		t.Errorf("got %d servers, want all 200", n)
	}
}

func TestWhatANodeHasBeyondTheBoundsIsNotTold(t *testing.T) {
	w := connected(t)
	w.now += time.Second
	var many []Server
	for port := range uint32(300) {
		many = append(many, busy(port, 2000, 1))
	}
	w.show(t, many...)
	for range 100 {
		w.now += statusGap
		w.run(t)
	}
	slots := 0
	for _, x := range w.head.log.servers {
		slots += len(x.Slots)
	}
	if n := len(w.head.log.servers); n != maxServers || slots != maxSlots || len(w.head.log.servers[0].Slots) != maxLanes {
		t.Errorf("got %d servers with %d slots, want %d with %d", n, slots, maxServers, maxSlots)
	}
}

func TestHeadTakesNoSlotsBeyondTheBounds(t *testing.T) {
	raw := func(servers ...Server) (m slots) {
		for _, x := range servers {
			m.Ports = append(m.Ports, x.Port)
			m.Servers = append(m.Servers, must(encMode.Marshal(x)))
		}
		return m
	}
	for name, m := range map[string]slots{
		"too many servers":      {Ports: make([]uint32, maxServers+1)},
		"too many slots of one": raw(busy(1, maxLanes+1, 1)),
		"too many slots":        raw(busy(1, 1000, 1), busy(2, 1000, 1), busy(3, 1000, 1), busy(4, 1000, 1), busy(5, 1000, 1)),
		"a server that is none": {Ports: []uint32{1}, Servers: []cbor.RawMessage{{0x01}}},
	} {
		w := connected(t)
		if err := w.head.shows(m); err == nil {
			t.Errorf("%s: it is taken, want an error", name)
		}
	}
}

func TestFiguresThatCannotBeAreUnknown(t *testing.T) {
	w := connected(t)
	w.show(t, Server{Port: 1, Progress: new(7.0), Context: -5, Model: strings.Repeat("x", 1000), Slots: []Slot{
		{Slot: 2, Rate: new(math.NaN()), RateNow: new(math.Inf(1)), Progress: new(-0.1), Held: new(int64(-1)), Task: new(int64(3))},
		{Slot: 1, Rate: new(-1.0)},
		{Slot: 2, Held: new(int64(9))},
	}})
	want := Server{Port: 1, Model: strings.Repeat("x", maxName), Slots: []Slot{{Slot: 1}, {Slot: 2, Task: new(int64(3))}}}
	if diff := cmp.Diff(want, w.head.log.servers[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node that starts anew without a log has none; one that comes back says it again.
func TestLogThatIsNotReadAnyMoreIsForgotten(t *testing.T) {
	w := connected(t)
	w.show(t, busy(1, 1, 5))
	w.cut(true, true)
	w.connect()
	w.run(t)
	if got := w.held(1); got != 5 || !w.head.log.current {
		t.Errorf("after a new connection: got %d tokens, want 5, said again", got)
	}
	w.cut(true, true)
	w.newNode()
	w.connect()
	w.run(t)
	if w.head.log != nil {
		t.Errorf("got %+v of a node that reads no log", w.head.log)
	}
}

func TestLastWordOnSlotsStaysWhenTheLinkIsLost(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		if l, ok := r.link.Log(); ok {
			t.Errorf("got %+v of a node that said nothing", l)
		}
		news := make(chan struct{}, 1)
		defer r.link.Notify(news)()
		looked := time.Now().Add(-3 * time.Second)
		r.node.Show(Log{Servers: []Server{busy(8080, 2, 77)}, At: looked, Unsure: "why"})
		var l Log
		for len(l.Servers) == 0 {
			get(t, news, "the node's word")
			l, _ = r.link.Log()
		}
		if !l.Lost.IsZero() || l.Unsure != "why" || len(l.Servers[0].Slots) != 2 || l.At.Sub(looked).Abs() > time.Second {
			t.Errorf("got %+v, want what was shown, looked at %v", l, looked)
		}
		for len(news) > 0 {
			<-news
		}
		r.way.cut()
		r.until("that is away", func(s fleet.NodeState) bool { return s.Away != nil })
		get(t, news, "the news of the loss")
		r.until("that is back", func(s fleet.NodeState) bool { return s.Away == nil && s.Down == nil })
		for l.Lost = time.Now(); !l.Lost.IsZero(); {
			get(t, news, "the node's word after the loss")
			l, _ = r.link.Log()
		}
		if err := r.node.Close(); err != nil {
			t.Fatal(err)
		}
		r.until("that is down", func(s fleet.NodeState) bool { return s.Down != nil })
		for end := time.Now().Add(20 * time.Second); l.Lost.IsZero() && time.Now().Before(end); {
			get(t, news, "the news of the end")
			l, _ = r.link.Log()
		}
		if l.Lost.IsZero() || len(l.Servers) != 1 || l.At.Sub(looked).Abs() > time.Second {
			t.Errorf("got %+v, want the last word, marked as such", l)
		}
	})
}

// A change of one slot of a server with four, until it is a frame.
func BenchmarkShowSlots(b *testing.B) {
	for _, lanes := range []int{4, 64} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			s, told := new(saying), uint64(0)
			w := &wire{}
			var out []byte
			for i := range b.N {
				s.update(Log{Servers: []Server{busy(8080, lanes, int64(i))}})
				var m slots
				m, told, _ = s.since(told, 0)
				out = w.put(out[:0], typeSlots, m, 0)
			}
			b.ReportMetric(float64(len(out)), "B/frame")
		})
	}
}

// A model's file may be called anything: no word of a log or a server ends the link.
func TestWordsThatAreNoUTF8AreToldAsFarAsTheyAre(t *testing.T) {
	w := connected(t)
	w.now += time.Second
	const odd, want = "mod\xffel\xf0\x9f", "mod\uFFFDel\uFFFD"
	err := w.agent.offer(w.nodeTime(), fleet.NodeState{
		Instances: []fleet.Instance{{Model: odd, Aliases: []string{odd}, Fingerprint: odd, State: fleet.StateReady}},
		Down:      &fleet.NodeLost{Cause: odd, Err: errors.New(odd)},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	mine := []Slot{{State: odd, Phase: odd, Failure: odd}}
	w.show(t, Server{Port: 8080, Model: odd, State: odd, Failure: odd, Slots: mine})
	if w.head.wire == nil || w.head.log == nil {
		t.Fatal("the link ended")
	}
	got := w.head.log.servers[8080]
	if s := got.Slots[0]; got.Model != want || got.State != want || got.Failure != want || s.State != want || s.Phase != want || s.Failure != want {
		t.Errorf("got %+v, want each word to be %q", got, want)
	}
	if i := w.head.status.Instances[0]; i.Model != want || i.Aliases[0] != want || i.Fingerprint != want || w.head.status.Down.Why != want {
		t.Errorf("got %+v and %+v, want each word to be %q", i, w.head.status.Down, want)
	}
	if mine[0].State != odd {
		t.Error("what the caller has was changed")
	}
}
