package fleet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// joining is a node that dials in from the address.
func joining(identity, address string, l *fakeLink, attached *int) Joining {
	return Joining{
		Identity: identity, Address: address,
		Open:   func() (Link, error) { return l, nil },
		Attach: func(Link) error { *attached++; return nil },
		Rival:  func(l Link, from string) { l.(*fakeLink).rival = from + " and " + address },
	}
}

func joins(p *Policy) { p.Joins = true }

func TestNodeThatDialsInIsUsedAndGetsItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, joins)
		x := serving("m", 2, "one.")
		attached := 0
		if isNew, err := m.Adopt(joining("box-a", "10.0.0.1", x, &attached)); !isNew || err != nil {
			t.Fatalf("got %v, %v", isNew, err)
		}
		// At once: it is listed, and what it offers is waited for.
		if got := <-running(m, a, Request{}, &fakeJob{}); got.err != nil || got.record.Node != "box-a" {
			t.Errorf("got %+v", got)
		}
		if isNew, err := m.Adopt(joining("box-a", "10.0.0.1", serving("m", 1), &attached)); isNew || err != nil || attached != 1 {
			t.Errorf("the same from the same address: got %v, %v, attached %d times", isNew, err, attached)
		}
		if _, err := m.Adopt(joining("box-a", "10.0.0.2", serving("m", 1), &attached)); !errors.Is(err, ErrNameInUse) {
			t.Errorf("the same name from another address: got %v, want %v", err, ErrNameInUse)
		}
		if want := "10.0.0.1 and 10.0.0.2"; x.rival != want {
			t.Errorf("the first one's link was told %q, want %q", x.rival, want)
		}
		if got := m.Status().Nodes[0].Namesake; got == nil || got.Address != "10.0.0.2" {
			t.Errorf("got %+v, want the second one's address shown", got)
		}
		x.tell(NodeState{Away: errors.New("cut")})
		if isNew, err := m.Adopt(joining("box-a", "10.0.0.2", serving("m", 1), &attached)); isNew || err != nil || attached != 2 {
			t.Errorf("another address once the first is away: got %v, %v", isNew, err)
		}
		st := m.Status()
		if got := st.Nodes[0].Namesake; got != nil {
			t.Errorf("got %+v of the one that has the name now", got)
		}
		if len(st.Nodes) != 1 || st.Nodes[0].Address != "10.0.0.2" || !st.Nodes[0].Joined || st.Nodes[0].Away == nil {
			t.Errorf("got %+v", st.Nodes)
		}
	})
}

// Who dials in again is there: nobody waits for the next probe to find that out.
func TestNodeThatDialsInAgainIsProbedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := fleetOf(t, joins)
		x, attached := serving("m", 2, "one."), 0
		if _, err := m.Adopt(joining("box-a", "10.0.0.1", x, &attached)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		x.set(func(l *fakeLink) {
			l.down = &NodeLost{Node: "box-a", Cause: CauseRefused, Err: errors.New("it has not dialled in")}
		})
		x.tell(NodeState{Down: errors.New("gone")})
		time.Sleep(time.Minute) // the waits between probes have grown
		for n := x.probed(); x.probed() == n; {
			time.Sleep(time.Millisecond)
		}
		x.set(func(l *fakeLink) { l.down = nil })
		if m.Status().Up != 0 {
			t.Fatal("it is up before it dialled in")
		}
		if _, err := m.Adopt(joining("box-a", "10.0.0.1", serving("m", 1), &attached)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := m.Status(); got.Up != 1 {
			t.Errorf("right after it dialled in: got %+v, want it up", got.Nodes)
		}
	})
}

func TestWhoMayNotDialIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		closed, _ := fleetOf(t, nil, serving("m", 1))
		if _, err := closed.Adopt(joining("b", "1", serving("m", 1), &n)); !errors.Is(err, ErrNotTaken) {
			t.Errorf("got %v, want %v", err, ErrNotTaken)
		}
		m, _ := fleetOf(t, joins, serving("m", 1))
		if _, err := m.Adopt(joining("a", "1", serving("m", 1), &n)); !errors.Is(err, ErrNameInUse) {
			t.Errorf("a configured name: got %v, want %v", err, ErrNameInUse)
		}
		if _, err := m.Adopt(joining("", "1", serving("m", 1), &n)); err == nil {
			t.Error("one without an identity was taken")
		}
		bad := joining("c", "1", nil, &n)
		bad.Open = func() (Link, error) { return nil, errors.New("no") }
		if _, err := m.Adopt(bad); err == nil || len(m.Status().Nodes) != 1 {
			t.Errorf("got %v and %d nodes", err, len(m.Status().Nodes))
		}
	})
}

func TestNodesThatDialledInAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		m, _ := fleetOf(t, joins)
		for i := range joinedMost {
			if _, err := m.Adopt(joining(fmt.Sprint(i), "1", serving("m", 1), &n)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Adopt(joining("more", "1", serving("m", 1), &n)); !errors.Is(err, ErrFull) {
			t.Errorf("got %v, want %v", err, ErrFull)
		}
	})
}

func TestNodesThatDialledInAreForgottenAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		m, _ := fleetOf(t, joins)
		x := serving("m", 1)
		x.down = &NodeLost{Cause: CauseClosed}
		if _, err := m.Adopt(joining("gone", "1", x, &n)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(joinedKept + time.Minute)
		if isNew, err := m.Adopt(joining("more", "1", serving("m", 1), &n)); !isNew || err != nil {
			t.Errorf("got %v, %v", isNew, err)
		}
		synctest.Wait()
		if st := m.Status().Nodes; len(st) != 1 || st[0].Name != "more" || x.closed == "" {
			t.Errorf("got nodes %+v, and the link closed with %q", st, x.closed)
		}
	})
}

func TestNodesThatDialledInSurviveAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		m, old := fleetOf(t, joins)
		x := serving("m", 1, "one.")
		if _, err := m.Adopt(joining("box-a", "1", x, &n)); err != nil {
			t.Fatal(err)
		}
		fresh := apply(t, m, joins)
		old.Withdraw()
		old.Release()
		if got := <-running(m, fresh, Request{}, &fakeJob{}); got.err != nil || x.closed != "" {
			t.Errorf("got %+v, closed %q", got, x.closed)
		}
		last := apply(t, m, nil, serving("n", 1))
		fresh.Withdraw()
		fresh.Release()
		synctest.Wait()
		if x.closed == "" || len(m.Status().Nodes) != 1 {
			t.Error("a configuration that takes none kept it")
		}
		last.Release()
	})
}

// A link that breaks is not a node that died.
func TestLinkMayBreakAndComeBack(t *testing.T) {
	for name, back := range map[string]bool{"in time": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n int
				more := make(chan struct{})
				x, y := serving("m", 1), serving("m", 1, "elsewhere.")
				x.run = pausing("one", more, "two.")
				m, a := fleetOf(t, func(p *Policy) { p.Joins, p.Placement = true, RoundRobin })
				for name, l := range map[string]*fakeLink{"box-a": x} {
					if _, err := m.Adopt(joining(name, "1", l, &n)); err != nil {
						t.Fatal(err)
					}
				}
				ended := running(m, a, Request{}, &fakeJob{})
				synctest.Wait()
				if _, err := m.Adopt(joining("box-b", "2", y, &n)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				x.tell(NodeState{Away: errors.New("cut")})
				x.tell(NodeState{Away: errors.New("cut")})
				if got := <-running(m, a, Request{}, &fakeJob{}); got.record.Node != "box-b" {
					t.Errorf("while it is away it got a request: %+v", got)
				}
				time.Sleep(a.Relink - time.Second)
				synctest.Wait()
				if s := only(t, m); s.Node != "box-a" || s.Moves != 0 {
					t.Errorf("got %+v before the time was over", s)
				}
				if back {
					x.tell(NodeState{Instances: x.instances})
					time.Sleep(time.Minute)
					close(more)
				}
				got := <-ended
				want := map[bool]string{true: "one two. [done]", false: "one elsewhere. [done]"}[back]
				if got.text != want || got.err != nil {
					t.Errorf("got %+v, want %q", got, want)
				}
				quietNow(t, m)
			})
		})
	}
}

func TestJoinersAtOneMomentGetOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := fleetOf(t, joins)
		results := make(chan bool, 10)
		for range 10 {
			go func() {
				var n int
				isNew, err := m.Adopt(joining("box-a", "1", serving("m", 1), &n))
				if err != nil {
					t.Error(err)
				}
				results <- isNew
			}()
		}
		fresh := 0
		for range 10 {
			if <-results {
				fresh++
			}
		}
		if fresh != 1 || len(m.Status().Nodes) != 1 {
			t.Errorf("got %d new nodes and %d listed, want one", fresh, len(m.Status().Nodes))
		}
		_, err := m.Admit(context.Background(), m.InForce(), Request{Model: "zzz"})
		wantReason(t, err, ReasonUnknownModel)
	})
}

func TestStatusTellsHowOldTheNodesWordIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n int
		m, _ := fleetOf(t, joins)
		x := serving("m", 1)
		if _, err := m.Adopt(joining("box-a", "1", x, &n)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		age := func() time.Duration {
			a := m.Status().Nodes[0].StatusAge
			if a == nil {
				t.Fatal("got no age of a word that was said")
			}
			return time.Duration(*a * float64(time.Second)).Round(time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		x.tell(NodeState{Away: errors.New("cut")})
		if got := age(); got != 3*time.Second {
			t.Errorf("after 3 s, and the loss of its link: got an age of %v", got)
		}
		x.tell(NodeState{Instances: x.instances})
		if got := age(); got != 0 {
			t.Errorf("after another word: got an age of %v", got)
		}
		if all := m.Links(); len(all) != 1 || all[0].Node != "box-a" || all[0].Link != Link(x) || all[0].Down {
			t.Errorf("got links %+v, want that of the node", all)
		}
	})
}
