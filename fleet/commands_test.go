package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// running starts a request and returns where its end comes.
func running(m *Manager, a *Applied, r Request, j Job) <-chan answered {
	if r.Model == "" {
		r.Model = "m"
	}
	ended := make(chan answered, 1)
	go func() {
		s, err := m.Admit(context.Background(), a, r)
		if err != nil {
			ended <- answered{err: err}
			return
		}
		var got []string
		err = s.Run(context.Background(), j, func(b []byte) error {
			got = append(got, string(b))
			return nil
		})
		ended <- answered{strings.Join(got, " "), s.Record(), err}
	}()
	return ended
}

type answered struct {
	text   string
	record Record
	err    error
}

// pausing answers with the first word, then waits until it is let go on.
func pausing(first string, more <-chan struct{}, rest ...string) func(context.Context, Assignment, func(Event) error) error {
	return func(ctx context.Context, a Assignment, take func(Event) error) error {
		if err := saying(first)(ctx, a, take); err != nil {
			return err
		}
		select {
		case <-more:
			return saying(rest...)(ctx, a, take)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// only returns the one session there is.
func only(t *testing.T, m *Manager) SessionStatus {
	t.Helper()
	synctest.Wait()
	list := m.Sessions()
	if len(list) != 1 {
		t.Fatalf("got %d sessions, want 1: %+v", len(list), list)
	}
	return list[0]
}

func heldOn(m *Manager, node int) int { return m.Status().Nodes[node].Instances[0].LanesActive }

func TestParkFreesTheLaneAndKeepsWhatWasDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = pausing("one", nil)
		m, a := fleetOf(t, nil, x)
		j := &fakeJob{}
		ended := running(m, a, Request{Class: 3, Tenant: "10.0.0.1"}, j)
		s := only(t, m)
		if s.State != PhaseDecode || s.Node != "a" || s.Class != 3 || s.DeliveredBytes != 3 || s.DeliveredEvents != 1 ||
			s.Tenant == "" || strings.Contains(s.Tenant, "10.0.0.1") {
			t.Errorf("got session %+v", s)
		}
		for range 2 { // the second does nothing
			if err := m.Park(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			if got := only(t, m); got.State != PhaseParked || heldOn(m, 0) != 0 {
				t.Errorf("got state %s and %d lanes held, want parked and none", got.State, heldOn(m, 0))
			}
		}
		if err := m.Move(t.Context(), s.ID); !errors.Is(err, ErrWrongState) {
			t.Errorf("moving it: got %v, want %v", err, ErrWrongState)
		}
		time.Sleep(5 * time.Minute)
		x.set(func(l *fakeLink) { l.run = saying("two.") })
		if err := m.Resume(s.ID); err != nil {
			t.Fatal(err)
		}
		got := <-ended
		if got.text != "one two. [done]" || got.err != nil || got.record.Moves != 1 || got.record.Session != s.ID {
			t.Errorf("got %+v", got)
		}
		for what, err := range map[string]error{
			"park": m.Park(t.Context(), s.ID), "resume": m.Resume(s.ID), "cancel": m.Cancel(s.ID), "move": m.Move(t.Context(), s.ID),
		} {
			if !errors.Is(err, ErrUnknownSession) {
				t.Errorf("%s after its end: got %v, want %v", what, err, ErrUnknownSession)
			}
		}
		if s, ok := m.Session(s.ID); !ok || s.State != PhaseDone || s.Outcome != OutcomeWhole {
			t.Errorf("looked up after its end: got %+v, %v", s, ok)
		}
		if st := m.Status(); st.Up != 1 {
			t.Error("the node was blamed")
		}
		quietNow(t, m)
	})
}

func TestResumeOfWhatIsNotParkedIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, nil, x)
		ended := running(m, a, Request{}, &fakeJob{})
		if err := m.Resume(only(t, m).ID); !errors.Is(err, ErrWrongState) {
			t.Errorf("got %v, want %v", err, ErrWrongState)
		}
		close(more)
		if got := <-ended; got.err != nil {
			t.Error(got.err)
		}
	})
}

func TestParkedRequestThatNobodyResumesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = pausing("one", nil)
		m, a := fleetOf(t, nil, x)
		began := time.Now()
		ended := running(m, a, Request{}, &fakeJob{})
		if err := m.Park(t.Context(), only(t, m).ID); err != nil {
			t.Fatal(err)
		}
		wantReason(t, (<-ended).err, ReasonExpired)
		if took := time.Since(began); took != a.Wait+maxTrying {
			t.Errorf("it ended after %s, want %s", took, a.Wait+maxTrying)
		}
		quietNow(t, m)
	})
}

func TestParkBeforeTheFirstWordBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = blocking(nil)
		m, a := fleetOf(t, nil, x)
		j := &fakeJob{rigid: true} // nothing is delivered, so it matters not
		ended := running(m, a, Request{}, j)
		s := only(t, m)
		if s.State != PhasePrefill {
			t.Errorf("got state %s, want prefill", s.State)
		}
		if err := m.Park(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		x.set(func(l *fakeLink) { l.run = saying("one.") })
		if err := m.Resume(s.ID); err != nil {
			t.Fatal(err)
		}
		if got := <-ended; got.text != "one. [done]" || got.err != nil {
			t.Errorf("got %+v", got)
		}
	})
}

// A refused command leaves the answer alone.
func TestWhatCannotGoOnExactlyIsNeitherParkedNorMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, j := range map[string]*fakeJob{"fixed": {rigid: true}, "anew": {anew: true}} {
			x, y := serving("m", 1), serving("m", 1)
			more := make(chan struct{})
			x.run = pausing("one", more, "two.")
			m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
			ended := running(m, a, Request{}, j)
			id := only(t, m).ID
			if err := m.Park(t.Context(), id); !errors.Is(err, ErrFixed) {
				t.Errorf("%s: park: got %v, want %v", name, err, ErrFixed)
			}
			if err := m.Move(t.Context(), id); !errors.Is(err, ErrFixed) {
				t.Errorf("%s: move: got %v, want %v", name, err, ErrFixed)
			}
			close(more)
			if got := <-ended; got.text != "one two. [done]" || got.err != nil || got.record.Moves != 0 {
				t.Errorf("%s: got %+v", name, got)
			}
			quietNow(t, m)
			m.Close()
		}
	})
}

func TestMoveGoesOnElsewhereWithoutAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "two.")
		x.run = pausing("one", nil)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		ended := running(m, a, Request{}, &fakeJob{})
		if err := m.Move(t.Context(), only(t, m).ID); err != nil {
			t.Fatal(err)
		}
		got := <-ended
		if got.text != "one two. [done]" || got.err != nil || got.record.Node != "b" || got.record.Moves != 1 {
			t.Errorf("got %+v", got)
		}
		quietNow(t, m)
	})
}

func TestMoveNeedsAFreeLaneElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 2)
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, nil, x)
		ended := running(m, a, Request{}, &fakeJob{})
		if err := m.Move(t.Context(), only(t, m).ID); !errors.Is(err, ErrNowhere) {
			t.Errorf("got %v, want %v", err, ErrNowhere)
		}
		close(more)
		if got := <-ended; got.text != "one two. [done]" || got.err != nil {
			t.Errorf("got %+v", got)
		}
		quietNow(t, m)
	})
}

// What was delivered makes the prompt longer: it must fit where the answer goes on.
func TestGrownRequestGoesOnlyWhereItFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, narrow := serving("m", 1), serving("m", 1)
		narrow.instances[0].Context = 64
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, narrow)
		ended := running(m, a, Request{Prompt: 60}, &fakeJob{grown: 96})
		if err := m.Move(t.Context(), only(t, m).ID); !errors.Is(err, ErrNowhere) {
			t.Errorf("got %v, want %v", err, ErrNowhere)
		}
		close(more)
		if got := <-ended; got.err != nil || narrow.ran() != 0 {
			t.Errorf("got %+v, and the narrow node ran %d times", got, narrow.ran())
		}
	})
}

func TestCancelEndsASessionWhereverItIs(t *testing.T) {
	cases := map[string]func(t *testing.T, m *Manager, x *fakeLink, id string){
		"running": func(*testing.T, *Manager, *fakeLink, string) {},
		"parked": func(t *testing.T, m *Manager, _ *fakeLink, id string) {
			if err := m.Park(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		},
		"between two nodes": func(t *testing.T, m *Manager, x *fakeLink, id string) {
			x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
			x.tell(NodeState{Down: &NodeLost{Cause: CauseRefused}})
			if err := m.Park(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if err := m.Resume(id); err != nil {
				t.Fatal(err)
			}
			if s := only(t, m); s.State != PhaseQueued {
				t.Fatalf("got state %s, want queued", s.State)
			}
		},
	}
	for name, bring := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := serving("m", 1)
				x.run = pausing("one", nil)
				m, a := fleetOf(t, nil, x)
				ended := running(m, a, Request{}, &fakeJob{})
				id := only(t, m).ID
				bring(t, m, x, id)
				began := time.Now()
				if err := m.Cancel(id); err != nil {
					t.Fatal(err)
				}
				got := <-ended
				wantReason(t, got.err, ReasonAborted)
				if got.text != "one" || got.record.Outcome != OutcomeBroken || time.Since(began) != 0 {
					t.Errorf("got %+v after %s", got, time.Since(began))
				}
				quietNow(t, m)
			})
		})
	}
}

func TestCancelHoldsForWhatWaitsOrDidNotStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		m, a := fleetOf(t, nil, x)
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		waits := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		if list := m.Sessions(); len(list) != 2 || list[0].State != PhasePrefill || list[1].State != PhaseQueued {
			t.Fatalf("got %+v", list)
		}
		for _, st := range m.Sessions() {
			if err := m.Cancel(st.ID); err != nil {
				t.Fatal(err)
			}
		}
		wantReason(t, (<-waits).err, ReasonAborted)
		err = s.Run(t.Context(), &fakeJob{}, func([]byte) error { return nil })
		wantReason(t, err, ReasonAborted)
		if x.ran() != 0 {
			t.Errorf("the node ran %d times, want never", x.ran())
		}
		quietNow(t, m)
	})
}

func TestCancelEndsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.ask = func(ctx context.Context, _ Call) (Reply, error) {
			<-ctx.Done()
			return Reply{}, context.Cause(ctx)
		}
		m, a := fleetOf(t, nil, x)
		ended := make(chan error, 1)
		go func() { _, err := callCtx(context.Background(), m, a, Request{}); ended <- err }()
		if err := m.Cancel(only(t, m).ID); err != nil {
			t.Fatal(err)
		}
		wantReason(t, <-ended, ReasonAborted)
		quietNow(t, m)
	})
}

func TestClientThatDoesNotReadHoldsUpNoOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one", "two.")
		m, a := fleetOf(t, nil, x)
		read := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			s, err := m.Admit(context.Background(), a, Request{Model: "m"})
			if err == nil {
				err = s.Run(context.Background(), &fakeJob{}, func([]byte) error { <-read; return nil })
			}
			ended <- err
		}()
		id := only(t, m).ID
		began := time.Now()
		if err := m.Park(t.Context(), id); !errors.Is(err, ErrBusy) || time.Since(began) != commandLimit {
			t.Errorf("got %v after %s, want %v after %s", err, time.Since(began), ErrBusy, commandLimit)
		}
		close(read)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		quietNow(t, m)
	})
}

func TestNodeThatLetsGoLateHoldsUpNoOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "two.")
		x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			if err := saying("one")(ctx, a, take); err != nil {
				return err
			}
			<-ctx.Done()
			time.Sleep(20 * time.Second)
			return take(Event{Kind: EventData, Data: []byte("too late")})
		}
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		ended := running(m, a, Request{}, &fakeJob{})
		id := only(t, m).ID
		if err := m.Move(t.Context(), id); !errors.Is(err, ErrSlow) {
			t.Errorf("got %v, want %v", err, ErrSlow)
		}
		if err := m.Park(t.Context(), id); !errors.Is(err, ErrWrongState) {
			t.Errorf("a second command: got %v, want %v", err, ErrWrongState)
		}
		if got := <-ended; got.text != "one two. [done]" || got.err != nil || got.record.Moves != 1 {
			t.Errorf("got %+v", got)
		}
		quietNow(t, m)
	})
}

func TestAnotherBuildGoesOnOnlyIfMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mixed := range []bool{false, true} {
			x, y := serving("m", 1), serving("m", 1, "two.")
			x.run = losing(CauseReset, "one")
			y.instances[0].Fingerprint = "g"
			m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
			j := &fakeJob{}
			got := <-running(m, a, Request{Mixed: mixed}, j)
			if want := "one two. [done]"; mixed && (got.text != want || !got.record.Mixed || j.saw != "f") {
				t.Errorf("mixed: got %+v, and the job was shown fingerprint %q; want f, as if nothing had changed", got, j.saw)
			}
			if !mixed && (got.text != "one" || got.record.Mixed || y.ran() != 0) {
				t.Errorf("not mixed: got %+v", got)
			}
			m.Close()
		}
	})
}

func TestMixedPrefersTheSameBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, z := serving("m", 1), serving("m", 1, "wrong."), serving("m", 1, "two.")
		x.run = losing(CauseReset, "one")
		y.instances[0].Fingerprint = "g"
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y, z)
		if got := <-running(m, a, Request{Mixed: true}, &fakeJob{}); got.text != "one two. [done]" || got.record.Mixed {
			t.Errorf("got %+v", got)
		}
	})
}

func TestWhoWatchesIsToldAndWhoSleepsIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "two.")
		x.run = pausing("one", nil)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		changes, cancel := m.Changes()
		slow, cancelSlow := m.Changes()
		defer cancelSlow()
		ended := running(m, a, Request{}, &fakeJob{})
		s := only(t, m)
		if err := m.Move(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		<-ended
		for _, want := range []Change{
			{Kind: ChangePlaced, Node: "a", Model: "m", Session: s.ID},
			{Kind: ChangeMoved, Node: "b", Model: "m", Session: s.ID},
			{Kind: ChangeEnded, Node: "b", Model: "m", Session: s.ID, Why: "whole"},
		} {
			got := <-changes
			want.At = got.At
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		cancel()
		cancel()
		for range changesKept {
			m.tell(Change{Kind: ChangeUp})
		}
		n := 0
		for range slow {
			n++
		}
		if n != changesKept {
			t.Errorf("who slept got %d changes before it was dropped, want %d", n, changesKept)
		}
	})
}
