package fleet

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNodeThatFailsFarMoreThanOthersRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, x, y := serving("m", 4), serving("m", 4, "one."), serving("m", 4, "one.")
		bad.run = losing(CauseCrashed)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, bad, x, y)
		changes, cancel := m.Changes()
		defer cancel()
		for range 60 {
			if _, err := ask(m, a, &fakeJob{}); err != nil {
				t.Fatal(err)
			}
		}
		if n := bad.ran(); n < 5 || n > 8 {
			t.Errorf("the node that always fails was asked %d times, want a few more than the 5 it takes to know", n)
		}
		st := m.Status().Nodes[0]
		if st.RestsTo == nil || time.Until(*st.RestsTo) != restFirst || !st.Up {
			t.Errorf("got %+v, want it up and resting for %s", st, restFirst)
		}
		var told bool
		for len(changes) > 0 {
			c := <-changes
			told = told || c.Kind == ChangeEjected && c.Node == "a"
		}
		if !told {
			t.Error("nobody was told")
		}
		time.Sleep(restFirst)
		before := bad.ran()
		for range 3 {
			_, _ = ask(m, a, &fakeJob{})
		}
		if bad.ran() == before {
			t.Error("it was not tried again after its rest")
		}
	})
}

func TestFleetThatFailsAsAWholeDoesNotRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 4), serving("m", 4)
		x.run, y.run = losing(CauseCrashed), losing(CauseCrashed)
		m, a := fleetOf(t, nil, x, y)
		for range 20 {
			_, err := ask(m, a, &fakeJob{})
			wantReason(t, err, ReasonLost)
		}
		for _, n := range m.Status().Nodes {
			if n.RestsTo != nil {
				t.Errorf("node %s rests: it fails no more than the other", n.Name)
			}
		}
	})
}

// One node that serves is better than none, however it fared.
func TestLastNodeIsAlwaysTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := serving("m", 4), serving("m", 4, "one.")
		bad.run = losing(CauseCrashed)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, bad, good)
		for range 20 {
			_, _ = ask(m, a, &fakeJob{})
		}
		if m.Status().Nodes[0].RestsTo == nil {
			t.Fatal("the node does not rest: the test shows nothing")
		}
		good.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		good.tell(NodeState{Down: &NodeLost{Cause: CauseRefused}})
		bad.set(func(l *fakeLink) { l.run = saying("two.") })
		began := time.Now()
		if got, err := ask(m, a, &fakeJob{}); got != "two. [done]" || err != nil || time.Since(began) != 0 {
			t.Errorf("got %q, %v after %s", got, err, time.Since(began))
		}
	})
}

func TestWrongRequestsCountAgainstNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 4, "one."), serving("m", 4, "one.")
		refuse := func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonRefused}
		}
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		for range 20 {
			_, _ = ask(m, a, &fakeJob{})
		}
		x.set(func(l *fakeLink) { l.run = refuse })
		for range 40 {
			_, _ = ask(m, a, &fakeJob{})
		}
		if st := m.Status(); st.Up != 2 || st.Nodes[0].RestsTo != nil {
			t.Errorf("got %+v", st.Nodes[0])
		}
	})
}

func TestNodeThatFlapsHundredTimesASecondIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		x, y := serving("m", 1, "one."), serving("m", 1, "one.")
		m, a := fleetOf(t, func(p *Policy) { p.Log = slog.New(slog.NewTextHandler(&out, nil)) }, x, y)
		changes, cancel := m.Changes()
		defer cancel()
		before := x.probed()
		for range 1000 {
			x.tell(NodeState{Down: &NodeLost{Cause: CauseReset}})
			time.Sleep(5 * time.Millisecond)
			x.tell(NodeState{Instances: x.instances})
			time.Sleep(5 * time.Millisecond)
		}
		synctest.Wait()
		if n := x.probed() - before; n == 0 || n > 30 {
			t.Errorf("it was probed %d times in 10 s, want few", n)
		}
		if n := strings.Count(out.String(), "\n"); n == 0 || n > 8 {
			t.Errorf("got %d lines of log:\n%s", n, out.String())
		}
		if n := len(changes); n == 0 || n > 8 {
			t.Errorf("got %d changes, want few", n)
		}
		for range 5 {
			if _, err := ask(m, a, &fakeJob{}); err != nil {
				t.Error(err)
			}
		}
		if x.ran() != 0 {
			t.Errorf("it was given %d requests while it flaps", x.ran())
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if st := m.Status(); st.Up != 2 || st.Nodes[0].RestsTo != nil {
			t.Errorf("got %+v long after it stopped", st.Nodes[0])
		}
	})
}

func TestAtMostAThirdRests(t *testing.T) {
	m := New()
	defer m.Close()
	now := time.Now()
	for range 9 {
		m.nodes = append(m.nodes, &node{})
	}
	rest := 0
	for _, n := range m.nodes {
		if m.rest(n, now) {
			rest++
		}
	}
	if rest != 3 {
		t.Errorf("got %d of 9 resting, want 3", rest)
	}
	n := m.nodes[0]
	for want := 2 * restFirst; ; want = min(2*want, restLongest) {
		now = n.restUntil
		if !m.rest(n, now) || n.restUntil.Sub(now) != want {
			t.Fatalf("got a rest of %s, want %s", n.restUntil.Sub(now), want)
		}
		if want == restLongest {
			break
		}
	}
	now = n.restUntil.Add(restLongest + time.Second)
	if m.rest(n, now); n.restUntil.Sub(now) != restFirst {
		t.Errorf("got a rest of %s after a long good time, want %s", n.restUntil.Sub(now), restFirst)
	}
	m.nodes = m.nodes[:1]
	if m.rest(m.nodes[0], now.Add(time.Hour)) {
		t.Error("the only node rests")
	}
	m.nodes = nil
}

func TestClockThatGoesBackFadesNothing(t *testing.T) {
	now := time.Now()
	var tl tally
	tl.add(now, 0, 3)
	tl.add(now.Add(-time.Hour), 0, 1)
	if tl.bad != 4 {
		t.Errorf("got %g failures, want 4", tl.bad)
	}
	tl.fade(now.Add(tallyHalf))
	if math.Abs(tl.bad-2) > 1e-9 {
		t.Errorf("got %g failures after %s, want 2", tl.bad, tallyHalf)
	}
	var c counts
	c.add(now, 5)
	c.add(now.Add(-time.Hour), 1)
	if got := c.total(now); got != 6 {
		t.Errorf("got %d, want 6", got)
	}
	if got := c.total(now.Add(movesWindow)); got != 0 {
		t.Errorf("got %d after a minute, want 0", got)
	}
}

// A server whose log shows it idle while it should read a prompt of ours knows nothing
// of it.
func TestServerThatLetsARequestLieIsSuspected(t *testing.T) {
	for name, c := range map[string]struct {
		health error
		within time.Duration
	}{
		"dead":    {&NodeLost{Cause: CauseTimedOut}, suspectAfter + 5*time.Second},
		"answers": {nil, letLie + 5*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := serving("m", 1), serving("m", 1, "one.")
				x.run = blocking(nil)
				m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
				began := time.Now()
				ended := running(m, a, Request{}, &fakeJob{})
				synctest.Wait()
				x.set(func(l *fakeLink) { l.down = c.health })
				stop := telling(x, Load{})
				got := <-ended
				close(stop)
				if got.text != "one. [done]" || got.err != nil || got.record.Node != "b" {
					t.Errorf("got %+v", got)
				}
				if took := time.Since(began); took > c.within || took < suspectAfter {
					t.Errorf("it took %s, want at most %s", took, c.within)
				}
				quietNow(t, m)
			})
		})
	}
}

// telling has the node say its load every second, as one does whose log is read.
func telling(x *fakeLink, l Load) (stop chan struct{}) {
	stop = make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
				l.At = time.Now()
				i := x.instances[0]
				i.Load = l
				x.tell(NodeState{Instances: []Instance{i}})
			}
		}
	}()
	return stop
}

// Template and tokens of a huge prompt take their time before any slot shows it.
func TestPreparationOfAHugePromptIsNotSuspected(t *testing.T) {
	for name, c := range map[string]struct {
		prompt   Tokens
		prefill  float64
		prepares time.Duration
		moves    int
	}{
		"huge":                      {prompt: 300_000, prefill: 3000, prepares: 30 * time.Second},
		"long, on a slow machine":   {prompt: 20_000, prefill: 100, prepares: 25 * time.Second},
		"short, so it is let lie":   {prompt: 1000, prefill: 3000, prepares: 30 * time.Second, moves: 1},
		"huge, and beyond all time": {prompt: 300_000, prefill: 3000, prepares: time.Hour, moves: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := serving("m", 1), serving("m", 1, "one.")
				x.instances[0].Rates.Prefill = c.prefill
				x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
					if !pause(ctx, c.prepares) {
						return context.Cause(ctx)
					}
					return saying("one.")(ctx, a, take)
				}
				m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
				ended := running(m, a, Request{Prompt: c.prompt}, &fakeJob{})
				synctest.Wait()
				stop := telling(x, Load{})
				got := <-ended
				close(stop)
				if got.text != "one. [done]" || got.err != nil || got.record.Moves != c.moves {
					t.Errorf("got %+v, want %d moves", got, c.moves)
				}
				quietNow(t, m)
			})
		})
	}
}

func TestLongPrefillIsNotSuspected(t *testing.T) {
	for name, c := range map[string]struct {
		load Load
		say  Event
	}{
		"its slot runs":         {load: Load{Active: 1}},
		"it tells its progress": {say: Event{Kind: EventAlive, Progress: &Progress{Total: 100000, Processed: 2048}}},
		"it has taken a lane":   {say: Event{Kind: EventOpen}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := serving("m", 1)
				x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
					if c.say.Kind != 0 {
						if err := take(c.say); err != nil {
							return err
						}
					}
					if !pause(ctx, 90*time.Second) {
						return context.Cause(ctx)
					}
					return saying("one.")(ctx, a, take)
				}
				m, a := fleetOf(t, nil, x)
				stop := telling(x, c.load)
				defer close(stop)
				if got := <-running(m, a, Request{}, &fakeJob{}); got.err != nil || got.record.Moves != 0 || x.ran() != 1 {
					t.Errorf("got %+v after %d attempts", got, x.ran())
				}
			})
		})
	}
}

func TestMovesOfAFleetAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 300), serving("m", 300, "one.")
		x.run = losing(CauseCrashed)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = LeastLoaded }, x, y)
		moved := func(n int) (moves int) {
			for range n {
				m.mu.Lock()
				m.nodes[0].restUntil = time.Time{}
				m.mu.Unlock()
				s, err := m.Admit(t.Context(), a, Request{Model: "m"})
				if err != nil {
					t.Fatal(err)
				}
				if s.Run(t.Context(), &fakeJob{}, func([]byte) error { return nil }) == nil {
					moves += s.Record().Moves
				}
			}
			return moves
		}
		if got, want := moved(600), 300+60; got < want-30 || got > want {
			t.Errorf("got %d moves of 600 requests, want %d: a node's lanes and a tenth", got, want)
		}
		time.Sleep(movesWindow)
		if got := moved(10); got != 10 {
			t.Errorf("got %d moves a minute later, want 10", got)
		}
	})
}

func TestRequestUnderWhichTwoNodesCrashedIsQuarantined(t *testing.T) {
	dies := func(l *fakeLink) func(context.Context, Assignment, func(Event) error) error {
		return func(context.Context, Assignment, func(Event) error) error {
			l.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
			return &NodeLost{Cause: CauseReset}
		}
	}
	for name, kill := range map[string]func(l *fakeLink) func(context.Context, Assignment, func(Event) error) error{
		"the process dies": dies,
		"the engine fails": func(*fakeLink) func(context.Context, Assignment, func(Event) error) error {
			return losing(CauseCrashed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y, z := serving("m", 2), serving("m", 2), serving("m", 2)
				x.run, y.run = kill(x), kill(y)
				z.run = blocking(nil)
				m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y, z)
				r := Request{Model: "m", Digest: 7}
				wantReason(t, (<-running(m, a, r, &fakeJob{})).err, ReasonQuarantined)
				if x.ran() != 1 || y.ran() != 1 {
					t.Errorf("the nodes ran it %d and %d times, want once each", x.ran(), y.ran())
				}
				ran := z.ran()
				wantReason(t, (<-running(m, a, r, &fakeJob{})).err, ReasonQuarantined)
				if z.ran() != ran {
					t.Error("it was run though it is quarantined")
				}
				z.set(func(l *fakeLink) { l.run = saying("one.") })
				if got := <-running(m, a, Request{Digest: 8}, &fakeJob{}); got.err != nil {
					t.Errorf("another request: got %v", got.err)
				}
				x.set(func(l *fakeLink) { l.run = saying("one.") })
				y.set(func(l *fakeLink) { l.run = saying("one.") })
				time.Sleep(quarantineFor)
				if got := <-running(m, a, r, &fakeJob{}); got.err != nil {
					t.Errorf("after ten minutes: got %v", got.err)
				}
				quietNow(t, m)
			})
		})
	}
}

// A rolling restart takes a node from under a long answer, and then the next: that is
// no request's fault.
func TestLongAnswerIsNotBlamedForRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goes := func(l *fakeLink, word string) {
			l.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
				if err := saying(word)(ctx, a, take); err != nil {
					return err
				}
				if !pause(ctx, time.Minute) {
					return context.Cause(ctx)
				}
				l.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
				return &NodeLost{Cause: CauseReset}
			}
		}
		x, y, z := serving("m", 1), serving("m", 1), serving("m", 1, "three.")
		goes(x, "one")
		goes(y, "two")
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y, z)
		if got := <-running(m, a, Request{Digest: 7}, &fakeJob{}); got.text != "one two three. [done]" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestRequestsThatCrashOneNodeEachAreNotQuarantined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 2), serving("m", 2)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		for i := range 8 { // an operator kills one after the other under the same question
			links := []*fakeLink{x, y}
			links[i%2].set(func(l *fakeLink) { l.run = losing(CauseCrashed) })
			links[(i+1)%2].set(func(l *fakeLink) { l.run = saying("one.") })
			if got := <-running(m, a, Request{Digest: 7}, &fakeJob{}); got.err != nil {
				t.Fatalf("request %d: %v", i, got.err)
			}
		}
	})
}

func TestQuarantineIsBounded(t *testing.T) {
	var q quarantine
	now := time.Now()
	for d := range uint64(3 * quarantineMost) {
		q.ban(d+1, now)
	}
	if n := len(q.young) + len(q.old); n > quarantineMost {
		t.Errorf("got %d requests refused, want at most %d", n, quarantineMost)
	}
	if last := uint64(3 * quarantineMost); !q.refuses(last, now) || q.refuses(last, now.Add(quarantineFor)) {
		t.Error("the last one is not refused for ten minutes")
	}
}
