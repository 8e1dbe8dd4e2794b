package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestHigherClassTakesTheLaneOfALowerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 2)
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, func(p *Policy) { p.Preempt, p.Waiting = true, 1 }, x)
		older := running(m, a, Request{Class: 3}, &fakeJob{})
		synctest.Wait()
		time.Sleep(time.Second)
		younger := running(m, a, Request{Class: 3}, &fakeJob{})
		synctest.Wait()
		x.set(func(l *fakeLink) { l.run = pausing("urgent", more, "words.") })
		time.Sleep(time.Second)
		urgent := running(m, a, Request{Class: 7}, &fakeJob{})
		synctest.Wait()
		list := m.Sessions()
		if len(list) != 3 || list[0].State != PhaseDecode || list[1].State != PhaseQueued || list[2].State != PhaseDecode {
			t.Fatalf("got %+v, want the younger of the two to wait", list)
		}
		if list[1].DeliveredBytes == 0 {
			t.Error("what was delivered is not counted any more")
		}
		same := make(chan error, 1)
		go func() { same <- (<-running(m, a, Request{Class: 3}, &fakeJob{})).err }()
		synctest.Wait()
		x.set(func(l *fakeLink) { l.run = saying("two.") })
		time.Sleep(5 * time.Minute) // more than anybody else may wait
		close(more)
		for name, c := range map[string]struct {
			ended <-chan answered
			want  string
			moves int
		}{
			"older": {older, "one two. [done]", 0}, "younger": {younger, "one two. [done]", 1}, "urgent": {urgent, "urgent words. [done]", 0},
		} {
			if got := <-c.ended; got.text != c.want || got.err != nil || got.record.Moves != c.moves {
				t.Errorf("%s: got %+v", name, got)
			}
		}
		wantReason(t, <-same, ReasonOverloaded)
		quietNow(t, m)
	})
}

func TestNobodyGivesWayWithoutReason(t *testing.T) {
	for name, c := range map[string]struct {
		preempt bool
		class   int
		job     *fakeJob
	}{
		"not configured":          {false, 9, &fakeJob{}},
		"same class":              {true, 3, &fakeJob{}},
		"it could not go on then": {true, 9, &fakeJob{rigid: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := serving("m", 1)
				more := make(chan struct{})
				x.run = pausing("one", more, "two.")
				m, a := fleetOf(t, func(p *Policy) { p.Preempt = c.preempt }, x)
				first := running(m, a, Request{Class: 3}, c.job)
				synctest.Wait()
				second := running(m, a, Request{Class: c.class}, &fakeJob{})
				time.Sleep(10 * time.Second)
				if n := m.Status().Waiting; n != 1 {
					t.Errorf("got %d waiting, want the second", n)
				}
				close(more)
				if got := <-first; got.text != "one two. [done]" || got.record.Moves != 0 {
					t.Errorf("got %+v", got)
				}
				if got := <-second; got.err != nil {
					t.Error(got.err)
				}
			})
		})
	}
}

func TestRequestThatNamesNoModelTakesALaneLikewise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		more := make(chan struct{})
		x.run = pausing("one", more, "two.")
		m, a := fleetOf(t, func(p *Policy) { p.Preempt = true }, x)
		low := running(m, a, Request{Class: 3}, &fakeJob{})
		synctest.Wait()
		x.set(func(l *fakeLink) { l.run = saying("two.") })
		s, err := m.Admit(t.Context(), a, Request{Class: 7})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if got := <-low; got.text != "one two. [done]" || got.err != nil {
			t.Errorf("got %+v, want it to go on when its lane is free", got)
		}
		quietNow(t, m)
	})
}
