package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallAllReachesEveryInstanceAndTellsOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, z, other := serving("m", 1), serving("m", 1), serving("m", 1), serving("n", 1)
		x.ask = answering("yes")
		y.ask = func(context.Context, Call) (Reply, error) { return Reply{}, &RequestError{Reason: ReasonRefused} }
		z.down = &NodeLost{Cause: CauseRefused}
		m, _ := fleetOf(t, nil, x, y, z, other)
		results, err := m.CallAll(t.Context(), "m", Call{Op: OpAsk, Path: "/lora-adapters"})
		if err != nil || len(results) != 2 { // z never said what it has
			t.Fatalf("got %+v, %v, want two results", results, err)
		}
		if r := results[0]; r.Node != "a" || r.Model != "m" || string(r.Reply.Body) != "yes" || r.Err != nil {
			t.Errorf("got %+v", r)
		}
		if r := results[1]; r.Node != "b" || r.Err == nil {
			t.Errorf("got %+v", r)
		}
		if other.asks != 0 {
			t.Error("a node without the model was asked")
		}
		_, err = m.CallAll(t.Context(), "zzz", Call{Op: OpAsk})
		wantReason(t, err, ReasonUnknownModel)
	})
}

// What is set on all must be set on who comes later, before it gets a request.
func TestCallToAllIsRepeatedForThoseWhoComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, late := serving("m", 1, "one."), serving("m", 1, "one."), serving("m", 1, "one.")
		var set atomic.Int32
		for _, l := range []*fakeLink{x, y, late} {
			l.ask = func(_ context.Context, c Call) (Reply, error) {
				if string(c.Body) != "second" || c.Model != "m" {
					t.Errorf("got call %+v, want the second one alone", c)
				}
				time.Sleep(time.Second)
				set.Add(1)
				return Reply{}, nil
			}
		}
		m, a := fleetOf(t, nil, x, y)
		y.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		if err := m.Probe(t.Context(), "b"); err == nil {
			t.Fatal("it is up")
		}
		x.set(func(l *fakeLink) { l.ask, l.run = answering("yes"), blocking(nil) })
		if _, err := m.CallAll(t.Context(), "m", Call{Op: OpAsk, Path: "/p", Body: []byte("first")}); err != nil {
			t.Fatal(err)
		}
		results, err := m.CallAll(t.Context(), "m", Call{Op: OpAsk, Path: "/p", Body: []byte("second")})
		if lost, ok := errors.AsType[*NodeLost](results[1].Err); err != nil || !ok || lost.Cause != CauseRefused {
			t.Fatalf("got %+v, %v, want the node that is down to be named", results, err)
		}
		y.set(func(l *fakeLink) {
			l.down = nil
			l.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
				if set.Load() != 1 {
					t.Error("it got a request before what is set on all was set there")
				}
				return saying("one.")(ctx, a, take)
			}
		})
		holds := running(m, a, Request{}, &fakeJob{}) // the lane of a
		synctest.Wait()
		if got := <-running(m, a, Request{}, &fakeJob{}); got.err != nil || got.record.Node != "b" {
			t.Errorf("got %+v", got)
		}
		apply(t, m, nil, x, y, late)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := set.Load(); n != 2 || late.asks != 1 {
			t.Errorf("got %d calls to those who came later, want one each", n)
		}
		if err := m.Cancel(m.Sessions()[0].ID); err != nil {
			t.Error(err)
		}
		<-holds
		quietNow(t, m)
	})
}

// Another process has an instance that was unloaded, or that a router started again: it
// knows nothing of what was set before.
func TestCallToAllIsRepeatedForWhatIsLoadedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		var asks atomic.Int32
		x.ask = func(context.Context, Call) (Reply, error) {
			asks.Add(1)
			return Reply{}, nil
		}
		says := func(s State, port int) {
			i := x.instances[0]
			i.State, i.Port = s, port
			x.tell(NodeState{Instances: []Instance{i}, Places: 2, Loads: true})
			synctest.Wait()
		}
		m, a := fleetOf(t, nil, x)
		says(StateUnloaded, 0)
		results, err := m.CallAll(t.Context(), "m", Call{Op: OpAsk, Path: "/p"})
		if err != nil || len(results) != 1 || !errors.Is(results[0].Err, ErrNotLoaded) || asks.Load() != 0 {
			t.Fatalf("got %+v, %v and %d calls, want none to what a call would load", results, err, asks.Load())
		}
		if got := <-running(m, a, Request{}, &fakeJob{}); got.err != nil {
			t.Errorf("what is not loaded and not set yet was not used: %v", got.err)
		}
		for _, c := range []struct {
			what  string
			state State
			port  int
			want  int32
		}{
			{"it was loaded", StateReady, 4001, 1},
			{"it said so again", StateReady, 4001, 1},
			{"it fell asleep", StateSleeping, 4001, 1},
			{"it woke", StateReady, 4001, 1},
			{"it was started again", StateReady, 4002, 2},
			{"it was unloaded", StateUnloaded, 0, 2},
			{"it is loaded again", StateLoading, 4003, 2},
			{"it is there again", StateReady, 4003, 3},
		} {
			says(c.state, c.port)
			if got := asks.Load(); got != c.want {
				t.Errorf("%s: got %d calls, want %d", c.what, got, c.want)
			}
		}
		quietNow(t, m)
	})
}
