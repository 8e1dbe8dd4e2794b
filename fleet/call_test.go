package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// answering answers calls with the words.
func answering(words string) func(context.Context, Call) (Reply, error) {
	return func(context.Context, Call) (Reply, error) {
		return Reply{Status: 200, Body: []byte(words)}, nil
	}
}

// callCtx asks the fleet with one call.
func callCtx(ctx context.Context, m *Manager, a *Applied, r Request) (string, error) {
	r.Model = "m"
	s, err := m.Admit(ctx, a, r)
	if err != nil {
		return "", err
	}
	reply, err := s.Call(ctx, Call{Op: OpAsk, Path: "/embeddings"})
	return string(reply.Body), err
}

func TestCallIsAnsweredAndTheLaneGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		var got Call
		x.ask = func(_ context.Context, c Call) (Reply, error) {
			got = c
			return Reply{Body: []byte("yes")}, nil
		}
		m, a := fleetOf(t, nil, x)
		words, err := callCtx(t.Context(), m, a, Request{Prompt: 100})
		if words != "yes" || err != nil {
			t.Errorf("got %q, %v", words, err)
		}
		if got.Op != OpAsk || got.Path != "/embeddings" || got.Model != "m" || got.Patience.Stall != stallUnknown {
			t.Errorf("the link got %+v", got)
		}
		quietNow(t, m)
	})
}

func TestCallIsAskedWholeElsewhereWhenItsNodeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.ask = func(context.Context, Call) (Reply, error) { return Reply{}, &NodeLost{Cause: CauseReset} }
		y.ask = answering("yes")
		y.instances[0].Fingerprint = "g" // a call goes on with nothing of the first
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		words, err := callCtx(t.Context(), m, a, Request{})
		if words != "yes" || err != nil || x.asks != 1 || y.asks != 1 {
			t.Errorf("got %q, %v after %d and %d questions", words, err, x.asks, y.asks)
		}
		quietNow(t, m)
	})
}

func TestCallsOfALostFleetAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		for range 6 {
			l := serving("m", 1)
			l.ask = func(context.Context, Call) (Reply, error) { return Reply{}, &NodeLost{Cause: CauseReset} }
			links = append(links, l)
		}
		m, a := fleetOf(t, nil, links...)
		_, err := callCtx(t.Context(), m, a, Request{})
		wantReason(t, err, ReasonLost)
		asks := 0
		for _, l := range links {
			asks += l.asks
		}
		if asks != maxLost {
			t.Errorf("got %d attempts, want %d", asks, maxLost)
		}
		quietNow(t, m)
	})
}

// There is one memory for all answers, whichever node gives them.
func TestCallWithoutRoomIsNotMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.ask = func(_ context.Context, c Call) (Reply, error) { return Reply{}, c.Room(100) }
		y.ask = x.ask
		m, a := fleetOf(t, nil, x, y)
		synctest.Wait()
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		full := &RequestError{Reason: ReasonOverloaded}
		_, err = s.Call(t.Context(), Call{Op: OpAsk, Path: "/embeddings", Room: func(int64) error { return full }})
		if !errors.Is(err, full) || x.asks+y.asks != 1 {
			t.Errorf("got %v after %d calls, want %v after 1", err, x.asks+y.asks, full)
		}
		quietNow(t, m)
	})
}

func TestRefusedCallIsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		said := &RequestError{Reason: ReasonRefused, Reply: &Reply{Status: 400}}
		x.ask = func(context.Context, Call) (Reply, error) { return Reply{}, said }
		y.ask = answering("yes")
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		if _, err := callCtx(t.Context(), m, a, Request{}); !errors.Is(err, said) || y.asks != 0 {
			t.Errorf("got %v, and the other node was asked %d times", err, y.asks)
		}
		quietNow(t, m)
	})
}

func TestLightRequestDoesNotWaitForALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		x := serving("m", 1)
		x.run = blocking(end)
		seen := make(chan InstanceStatus, 1)
		m, a := fleetOf(t, nil, x)
		x.ask = func(context.Context, Call) (Reply, error) {
			seen <- m.Status().Nodes[0].Instances[0]
			return Reply{Body: []byte("yes")}, nil
		}
		synctest.Wait()
		ended := make(chan error)
		go func() { _, err := ask(m, a, &fakeJob{}); ended <- err }()
		synctest.Wait()
		began := time.Now()
		words, err := callCtx(t.Context(), m, a, Request{Light: true})
		if words != "yes" || err != nil || time.Since(began) != 0 {
			t.Errorf("got %q, %v after %s", words, err, time.Since(began))
		}
		if i := <-seen; i.Light != 1 || i.LanesActive != 1 {
			t.Errorf("while it ran, got %d light requests and %d lanes, want 1 and 1", i.Light, i.LanesActive)
		}
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		quietNow(t, m)
	})
}

func TestLightRequestWakesNobodyWhileOneIsAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.instances[0].State = StateSleeping
		x.ask, y.ask = answering("asleep"), answering("awake")
		m, a := fleetOf(t, nil, x, y)
		if words, err := callCtx(t.Context(), m, a, Request{Light: true}); words != "awake" || err != nil {
			t.Errorf("got %q, %v", words, err)
		}
	})
}

func TestClientThatLeavesDuringACallFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.ask = func(ctx context.Context, _ Call) (Reply, error) {
			<-ctx.Done()
			return Reply{}, context.Cause(ctx)
		}
		m, a := fleetOf(t, nil, x)
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { _, err := callCtx(ctx, m, a, Request{}); ended <- err }()
		synctest.Wait()
		leave()
		wantReason(t, <-ended, ReasonCancelled)
		quietNow(t, m)
	})
}
