package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestDrainMovesWhatItCanAndLetsTheRestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 3), serving("m", 3, "two.")
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		y.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		m, a := fleetOf(t, nil, x, y)
		moves := running(m, a, Request{}, &fakeJob{})
		rigid := make(chan answered, 2)
		for range 2 {
			go func() { rigid <- <-running(m, a, Request{}, &fakeJob{rigid: true}) }()
		}
		synctest.Wait()
		y.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(10 * time.Second)

		st, err := m.Drain("a")
		if err != nil || st.Left != 3 || st.Drained {
			t.Fatalf("got %+v, %v", st, err)
		}
		if got := <-moves; got.text != "one two. [done]" || got.record.Node != "b" {
			t.Errorf("got %+v", got)
		}
		more <- struct{}{}
		if got := <-rigid; got.text != "one two. [done]" || got.record.Node != "a" {
			t.Errorf("got %+v", got)
		}
		time.Sleep(time.Minute)
		if again, err := m.Drain("a"); err != nil || again.Until != st.Until || again.Left != 1 || again.Moved != 1 || again.Finished != 1 {
			t.Errorf("got %+v, %v", again, err)
		}
		fresh := <-running(m, a, Request{}, &fakeJob{})
		if fresh.record.Node != "b" {
			t.Errorf("a new request went to %q, want b", fresh.record.Node)
		}
		time.Sleep(time.Minute + time.Second)
		select {
		case last := <-rigid:
			wantReason(t, last.err, ReasonLost)
		default:
			t.Fatal("what could not move was not ended at the end of the time")
		}
		if got := m.Status().Nodes[0].Drain; got == nil || !got.Drained || got.Ended != 1 || got.Left != 0 || got.Moved != 1 || got.Finished != 1 {
			t.Errorf("got %+v", got)
		}
		if err := m.Undrain("a"); err != nil || m.Status().Nodes[0].Drain != nil {
			t.Errorf("got %v, %+v", err, m.Status().Nodes[0])
		}
		quietNow(t, m)
	})
}

func TestDrainedRequestWaitsForALaneElsewhereWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.run = pausing("one", nil)
		free := make(chan struct{})
		y.run = blocking(free)
		m, a := fleetOf(t, func(p *Policy) { p.Placement, p.DrainTimeout = RoundRobin, 10*time.Second }, x, y)
		ended := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		other := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		if _, err := m.Drain("a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if st := m.Status(); st.Waiting != 1 || !st.Nodes[0].Drain.Drained || st.Nodes[0].Drain.Moved != 1 {
			t.Errorf("got %d waiting and %+v", st.Waiting, st.Nodes[0].Drain)
		}
		close(free)
		if got := <-ended; got.text != "one end. [done]" || got.record.Node != "b" {
			t.Errorf("got %+v", got)
		}
		<-other
		quietNow(t, m)
	})
}

// On a full fleet what has to leave a node gets the first lane that another gives back,
// in that moment, before all whose answers nobody reads yet; and it runs on until then.
func TestDrainOnAFullFleetGetsTheNextLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.run = pausing("one", nil)
		free := make(chan struct{})
		y.run = blocking(free)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		leaves := running(m, a, Request{}, &fakeJob{})
		time.Sleep(time.Millisecond) // so that it is the oldest
		holds := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		waits := running(m, a, Request{Class: 9}, &fakeJob{})
		synctest.Wait()
		if _, err := m.Drain("a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		if q, st := m.Queue(), m.Sessions()[0]; q.Waiting != 2 || q.Moving != 1 || st.State != PhaseDecode || st.Node != "a" {
			t.Fatalf("got queue %+v and session %+v, want it to run on while it waits", q, st)
		}
		y.set(func(l *fakeLink) { l.run = saying("two.") })
		at := time.Now()
		free <- struct{}{}
		got := <-leaves
		if got.text != "one two. [done]" || got.record.Node != "b" || got.record.Moves != 1 {
			t.Errorf("got %+v", got)
		}
		if took := time.Since(at); took != 0 {
			t.Errorf("it moved %s after the lane was free, want at once", took)
		}
		<-holds
		if got := <-waits; got.err != nil || got.record.Node != "b" {
			t.Errorf("got %+v", got)
		}
		synctest.Wait()
		if st := m.Status().Nodes[0].Drain; !st.Drained || st.Moved != 1 {
			t.Errorf("got %+v", st)
		}
		quietNow(t, m)
	})
}

// What ends while it waits for a lane elsewhere leaves nothing in the queue.
func TestDrainedRequestThatEndsMeanwhileDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		more, free := make(chan struct{}), make(chan struct{})
		x.run, y.run = pausing("one", more, "two."), blocking(free)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		leaves := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		holds := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		if _, err := m.Drain("a"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(more)
		if got := <-leaves; got.text != "one two. [done]" || got.record.Node != "a" {
			t.Errorf("got %+v", got)
		}
		synctest.Wait()
		if st := m.Status(); st.Waiting != 0 || !st.Nodes[0].Drain.Drained || st.Nodes[0].Drain.Finished != 1 {
			t.Errorf("got %d waiting, %+v", st.Waiting, st.Nodes[0].Drain)
		}
		close(free)
		<-holds
		quietNow(t, m)
	})
}

func TestUndrainStopsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, nil, x)
		ended := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		if _, err := m.Drain("a"); err != nil {
			t.Fatal(err)
		}
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonNoNode)
		if st := m.Status(); st.Serving[0].Ready != 0 {
			t.Errorf("got %+v ready, want none while all that serves it is drained", st.Serving[0])
		}
		for range 2 {
			if err := m.Undrain("a"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		close(more)
		if got := <-ended; got.text != "one two. [done]" {
			t.Errorf("got %+v", got)
		}
		if got := <-running(m, a, Request{}, &fakeJob{}); got.err != nil {
			t.Error(got.err)
		}
	})
}

func TestDrainSurvivesAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, old := fleetOf(t, nil, x)
		if _, err := m.Drain("a"); err != nil {
			t.Fatal(err)
		}
		apply(t, m, nil, x)
		old.Withdraw()
		old.Release()
		if m.Status().Nodes[0].Drain == nil {
			t.Error("the reload put the node back in service")
		}
	})
}

func TestOperationsOnNodesThatAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := fleetOf(t, nil, serving("m", 1))
		_, drain := m.Drain("z")
		for what, err := range map[string]error{"drain": drain, "undrain": m.Undrain("z"), "probe": m.Probe(t.Context(), "z")} {
			if !errors.Is(err, ErrUnknownNode) {
				t.Errorf("%s: got %v, want %v", what, err, ErrUnknownNode)
			}
		}
	})
}

func TestProbeOnDemandFindsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, _ := fleetOf(t, nil, x)
		x.set(func(l *fakeLink) { l.instances = []Instance{{Model: "n", State: StateReady}} })
		if err := m.Probe(t.Context(), "a"); err != nil || m.Status().Serving[0].Model != "n" {
			t.Errorf("got %v, serving %+v", err, m.Status().Serving)
		}
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		if err := m.Probe(t.Context(), "a"); err == nil || m.Status().Up != 0 {
			t.Errorf("got %v and %d nodes up", err, m.Status().Up)
		}
		x.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(15 * time.Second)
		if m.Status().Up != 1 {
			t.Error("nobody asked the node again after it failed a probe on demand")
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := m.Probe(gone, "a"); err == nil || m.Status().Up != 1 {
			t.Errorf("an operator who left: got %v and %d nodes up, want the node not blamed", err, m.Status().Up)
		}
	})
}
