package fleet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnswerIsHandedOnAndTheLaneGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one", "two."))
		got, err := ask(m, a, &fakeJob{})
		if got != "one two. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		quietNow(t, m)
	})
}

func TestLostNodeIsReplacedAndNothingIsRepeated(t *testing.T) {
	for _, cause := range []Cause{CauseReset, CauseClosed, CauseStalled, CauseCrashed} {
		synctest.Test(t, func(t *testing.T) {
			x, y := serving("m", 1), serving("m", 1, "three.")
			x.run = losing(cause, "one", "two")
			m, a := fleetOf(t, nil, x, y)
			j := &fakeJob{}
			got, err := ask(m, a, j)
			if got != "one two three. [done]" || err != nil {
				t.Errorf("%s: got %q, %v", cause, got, err)
			}
			if !slices.Equal(j.requests, []string{"a", "b"}) {
				t.Errorf("%s: asked %v", cause, j.requests)
			}
			quietNow(t, m)
		})
	}
}

func TestStreamThatEndsEarlyIsALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one"), serving("m", 1, "two."))
		if got, err := ask(m, a, &fakeJob{}); got != "one two. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestWholeAnswerIsWholeThoughItsNodeIsLostThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = losing(CauseReset, "one.")
		m, a := fleetOf(t, nil, x)
		if got, err := ask(m, a, &fakeJob{}); got != "one. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// Another run of a node did not fail at anything.
func TestNodeThatBeganAnewGetsTheRequestAgain(t *testing.T) {
	for _, anew := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			x := serving("m", 1)
			x.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
				if x.ran() > 1 {
					return take(Event{Kind: EventData, Data: []byte("two.")})
				}
				if err := take(Event{Kind: EventData, Data: []byte("one")}); err != nil {
					return err
				}
				return &NodeLost{Node: "a", Cause: CauseClosed, Anew: anew}
			}
			m, a := fleetOf(t, nil, x)
			began := time.Now()
			got, err := ask(m, a, &fakeJob{})
			took := time.Since(began)
			if at := took < firstRetry; anew && (got != "one two. [done]" || err != nil || !at) {
				t.Errorf("got %q, %v after %v, want all of it at once", got, err, took)
			} else if !anew && err == nil && at {
				t.Errorf("the run that failed got it again after %v", took)
			}
		})
	}
}

func TestFailedNodeDoesNotGetTheRequestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 4), serving("m", 4)
		x.run, y.run = losing(CauseReset, "one"), losing(CauseReset, "two")
		m, a := fleetOf(t, nil, x, y)
		got, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonLost)
		if got != "one two" || x.ran() != 1 || y.ran() != 1 {
			t.Errorf("got %q after %d and %d runs", got, x.ran(), y.ran())
		}
		quietNow(t, m)
	})
}

func TestAttemptsAndLossesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		for range 8 {
			l := serving("m", 1)
			l.run = losing(CauseReset)
			links = append(links, l)
		}
		m, a := fleetOf(t, func(p *Policy) { p.Attempts = 7 }, links...)
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonLost)
		runs := 0
		for _, l := range links {
			runs += l.ran()
		}
		if runs != maxLost {
			t.Errorf("got %d attempts, want %d", runs, maxLost)
		}
	})
}

func TestWhatCannotGoOnIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "again.")
		x.run = losing(CauseReset, "one")
		m, a := fleetOf(t, nil, x, y)
		got, err := ask(m, a, &fakeJob{rigid: true})
		if re := wantReason(t, err, ReasonLost); re.Message != "this answer cannot go on elsewhere" {
			t.Errorf("got message %q", re.Message)
		}
		if got != "one" || y.ran() != 0 {
			t.Errorf("got %q, and the other node ran %d times", got, y.ran())
		}
	})
}

func TestGoingOnNeedsTheSameModelAndTheFeature(t *testing.T) {
	for name, spoil := range map[string]func(*Instance){
		"another fingerprint": func(i *Instance) { i.Fingerprint = "g" },
		"no fingerprint":      func(i *Instance) { i.Fingerprint = "" },
		"cannot continue":     func(i *Instance) { i.Features = 0 },
	} {
		synctest.Test(t, func(t *testing.T) {
			x, y := serving("m", 1), serving("m", 1, "two.")
			x.run = losing(CauseReset, "one")
			spoil(&y.instances[0])
			m, a := fleetOf(t, nil, x, y)
			_, err := ask(m, a, &fakeJob{})
			wantReason(t, err, ReasonLost)
			if y.ran() != 0 {
				t.Errorf("%s: it was asked all the same", name)
			}
		})
	}
}

func TestWhatTheClientHasNothingOfMayBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "two.")
		x.run = losing(CauseReset, "one")
		y.instances[0].Fingerprint = "g"
		m, a := fleetOf(t, nil, x, y)
		if _, err := ask(m, a, &fakeJob{anew: true}); err != nil || y.ran() != 1 {
			t.Errorf("got %v, and the other model's node ran %d times, want once", err, y.ran())
		}
	})
}

func TestAnswerIsRepeatedOnlyByTheSameModel(t *testing.T) {
	for print, want := range map[string]int{"f": 1, "g": 0} {
		synctest.Test(t, func(t *testing.T) {
			x, y := serving("m", 1), serving("m", 1, "two.")
			x.run = losing(CauseReset, "one")
			y.instances[0].Fingerprint, y.instances[0].Features = print, 0
			m, a := fleetOf(t, nil, x, y)
			if _, err := ask(m, a, &fakeJob{repeat: true}); y.ran() != want || (err == nil) != (want == 1) {
				t.Errorf("fingerprint %s: got %v, and the other node ran %d times, want %d", print, err, y.ran(), want)
			}
		})
	}
}

func TestRequestErrorIsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "one.")
		said := &RequestError{Reason: ReasonRefused, Message: "no such field", Reply: &Reply{Status: 400}}
		x.run = func(context.Context, Assignment, func(Event) error) error { return said }
		m, a := fleetOf(t, nil, x, y)
		if _, err := ask(m, a, &fakeJob{}); !errors.Is(err, said) || y.ran() != 0 {
			t.Errorf("got %v, and the other node ran %d times", err, y.ran())
		}
		if st := m.Status(); st.Up != 2 {
			t.Errorf("got %d nodes up, want 2: a wrong request is not its fault", st.Up)
		}
	})
}

func TestDeclinedRequestIsTriedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "one.")
		x.run = func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonDeclined, Message: "not here"}
		}
		m, a := fleetOf(t, nil, x, y)
		if got, err := ask(m, a, &fakeJob{}); got != "one. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if st := m.Status(); st.Up != 2 {
			t.Errorf("got %d nodes up, want 2", st.Up)
		}
	})
}

func TestSameWordFromTwoServersIsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		strange := func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonRefused, Message: "strange", Again: true}
		}
		x, y, z := serving("m", 1), serving("m", 1), serving("m", 1)
		x.run, y.run, z.run = strange, strange, strange
		m, a := fleetOf(t, nil, x, y, z)
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonRefused)
		if n := x.ran() + y.ran() + z.ran(); n != 2 {
			t.Errorf("got %d attempts, want 2", n)
		}
	})
}

func TestTooLongGoesOnlyWhereItFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, mid, big := serving("m", 1), serving("m", 1, "wrong."), serving("m", 1, "one.")
		small.instances[0].Context, mid.instances[0].Context, big.instances[0].Context = 100, 200, 300
		small.run = func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonTooLong, Len: 250, Max: 100}
		}
		m, a := fleetOf(t, func(p *Policy) { p.Placement = LoadAware }, small, mid, big) // in their order
		synctest.Wait()
		if got, err := ask(m, a, &fakeJob{}); got != "one. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		big.set(func(l *fakeLink) {
			l.run = func(context.Context, Assignment, func(Event) error) error { return nil }
		})
		small.set(func(l *fakeLink) {
			l.run = func(context.Context, Assignment, func(Event) error) error {
				return &RequestError{Reason: ReasonTooLong, Len: 900, Max: 100}
			}
		})
		_, err := ask(m, a, &fakeJob{})
		if re := wantReason(t, err, ReasonTooLong); re.Len != 900 || re.Max != 300 {
			t.Errorf("got %d tokens against %d, want 900 against 300, the widest", re.Len, re.Max)
		}
	})
}

func TestClientThatLeavesFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = blocking(nil)
		m, a := fleetOf(t, nil, x)
		ctx, leave := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { _, err := askCtx(ctx, m, a, &fakeJob{}); ended <- err }()
		synctest.Wait()
		leave()
		wantReason(t, <-ended, ReasonCancelled)
		quietNow(t, m)
		if st := m.Status(); st.Up != 1 {
			t.Error("the node was blamed for the client's leaving")
		}
	})
}

func TestClientThatDoesNotReadFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one", "two."))
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Run(t.Context(), &fakeJob{}, func([]byte) error { return errors.New("broken pipe") })
		wantReason(t, err, ReasonCancelled)
		quietNow(t, m)
	})
}

func TestPanicFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one"))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = ask(m, a, &fakeJob{take: func(Event) ([]byte, error) { panic("fault") }})
		}()
		quietNow(t, m)
	})
}

func TestSessionThatIsNotRunFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1))
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		s.Close()
		quietNow(t, m)
	})
}

func TestNothingIsReadWhileTheClientIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken []string
		x := serving("m", 1)
		x.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
			for _, w := range []string{"one", "two."} {
				taken = append(taken, w)
				if err := take(Event{Kind: EventData, Data: []byte(w)}); err != nil {
					return err
				}
			}
			return nil
		}
		m, a := fleetOf(t, nil, x)
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		reads := make(chan struct{})
		ended := make(chan error)
		go func() { ended <- s.Run(t.Context(), &fakeJob{}, func([]byte) error { <-reads; return nil }) }()
		synctest.Wait()
		if !slices.Equal(taken, []string{"one"}) {
			t.Errorf("got %v from the node while the client reads nothing, want only the first", taken)
		}
		close(reads)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestRecordTellsTheWholeStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &listener{}
		x, y := serving("m", 1), serving("m", 1)
		x.run = losing(CauseReset, "role", "one", "two")
		y.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
			time.Sleep(3 * time.Second)
			return take(Event{Kind: EventData, Data: []byte("three."), Timings: &Timings{Predicted: 7}})
		}
		m, a := fleetOf(t, func(p *Policy) { p.Observer = o }, x, y)
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context(), &fakeJob{}, func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		want := Record{Session: s.ID(), Model: "m", Node: "b", Outcome: OutcomeWhole, FirstToken: 1, Took: 3 * time.Second, Moves: 1, Generated: 9}
		if got := s.Record(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if !slices.Equal(o.moved, []string{"a reset"}) || o.generated != 9 {
			t.Errorf("got moves %v and %d tokens, want one from a, and 9", o.moved, o.generated)
		}
	})
}

// listener is an Observer that remembers. Requests of a test come one by one.
type listener struct {
	deaf
	moved     []string
	generated Tokens
}

func (l *listener) Moved(node, why string)          { l.moved = append(l.moved, node+" "+why) }
func (l *listener) Generated(_, _ string, n Tokens) { l.generated += n }

// What the last server said is the answer, where nobody may go on.
func TestServersWordIsTheAnswerOfWhatCannotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
			if err := take(Event{Kind: EventData, Data: []byte("one")}); err != nil {
				return err
			}
			return &RequestError{Reason: ReasonOverloaded, Message: "no memory left", Again: true}
		}
		m, a := fleetOf(t, nil, x, serving("m", 1, "two."))
		_, err := ask(m, a, &fakeJob{rigid: true})
		if re := wantReason(t, err, ReasonOverloaded); re.Message != "no memory left" {
			t.Errorf("got message %q", re.Message)
		}
	})
}

// Too long for the servers that are left is not too long, if one that could hold it
// was lost or is away.
func TestOutageOfTheWideServerIsNotTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small, wide := serving("m", 1), serving("m", 1)
		small.instances[0].Context, wide.instances[0].Context = 4096, 16384
		small.run = func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonTooLong, Len: 8000, Max: 4096, Again: true}
		}
		wide.run = losing(CauseReset)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, small, wide)
		for range 2 { // each is asked first, once
			_, err := ask(m, a, &fakeJob{})
			wantReason(t, err, ReasonLost)
			time.Sleep(time.Second)
		}
		wide.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		time.Sleep(5 * time.Minute)
		_, err := ask(m, a, &fakeJob{})
		if re, _ := errors.AsType[*RequestError](err); re == nil || re.Reason == ReasonTooLong {
			t.Errorf("got %v while the wide server is down", err)
		}
	})
}

func TestNoAttemptBeginsAfterTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "one.")
		x.run = func(context.Context, Assignment, func(Event) error) error {
			time.Sleep(12 * time.Minute)
			return &NodeLost{Cause: CauseReset}
		}
		m, a := fleetOf(t, nil, x, y)
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonLost)
		if y.ran() != 0 {
			t.Error("another server was asked for what began 12 minutes ago")
		}
	})
}

func TestRequestsGoWhereTheirModelIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, x, y := serving("m", 1), serving("n", 1, "n."), serving("m", 1, "m.")
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, dead, x, y)
		dead.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		dead.tell(NodeState{Down: &NodeLost{Cause: CauseRefused}})
		for range 3 {
			for _, model := range []string{"m", "n"} {
				if got := <-running(m, a, Request{Model: model}, &fakeJob{}); got.text != model+". [done]" || got.record.Model != model {
					t.Errorf("for %s: got %+v", model, got)
				}
			}
		}
		if st := m.Status(); st.Up != 2 || dead.ran() != 0 {
			t.Errorf("got %d nodes up, and the dead one ran %d times: a model that a node has not is no fault", st.Up, dead.ran())
		}
	})
}

func TestTooLongARequestLeavesTheNodeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		narrow, wide := serving("m", 1, "one."), serving("n", 1, "one.")
		narrow.instances[0].Context, wide.instances[0].Context = 64, 4096
		tooLong := func(context.Context, Assignment, func(Event) error) error {
			return &RequestError{Reason: ReasonTooLong, Len: 96, Max: 64}
		}
		m, a := fleetOf(t, nil, narrow, wide)
		narrow.set(func(l *fakeLink) { l.run = tooLong })
		re := wantReason(t, (<-running(m, a, Request{Prompt: 96}, &fakeJob{})).err, ReasonTooLong)
		if re.Len != 96 || re.Max != 64 {
			t.Errorf("got %d of %d tokens, want 96 of 64, the context of this model's node", re.Len, re.Max)
		}
		narrow.set(func(l *fakeLink) { l.run = saying("one.") })
		if got := <-running(m, a, Request{Prompt: 8}, &fakeJob{}); got.err != nil || m.Status().Up != 2 {
			t.Errorf("got %+v and %d nodes up", got, m.Status().Up)
		}
	})
}

// together answers with the words as if they had come in one piece.
func together(words ...string) func(context.Context, Assignment, func(Event) error) error {
	return func(_ context.Context, _ Assignment, take func(Event) error) error {
		for i, w := range words {
			if err := take(Event{Kind: EventData, Data: []byte(w), More: i+1 < len(words)}); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestWhatCameTogetherIsWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = together("one", "two", "three.")
		m, a := fleetOf(t, nil, x)
		synctest.Wait()
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		var writes []string
		err = s.Run(t.Context(), &fakeJob{}, func(b []byte) error {
			writes = append(writes, string(b))
			return nil
		})
		if want := []string{"onetwothree.", "[done]"}; !slices.Equal(writes, want) || err != nil {
			t.Errorf("got %q, %v, want %q", writes, err, want)
		}
	})
}

// What was to be written together with an event that did not come is not lost.
func TestWhatWaitsForAnEventIsWrittenBeforeTheNextNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
			for _, w := range []string{"one", "two"} {
				if err := take(Event{Kind: EventData, Data: []byte(w), More: true}); err != nil {
					return err
				}
			}
			return &NodeLost{Node: "x", Cause: CauseReset}
		}
		m, a := fleetOf(t, nil, x, serving("m", 1, "three."))
		synctest.Wait()
		if got, err := ask(m, a, &fakeJob{}); got != "onetwo three. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}
