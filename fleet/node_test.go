package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestNodeThatRefusesIsProbedMoreAndMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		x.down = &NodeLost{Cause: CauseRefused}
		m, _ := fleetOf(t, nil, x)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		var gaps []time.Duration
		for i := range x.probes[1:] {
			gaps = append(gaps, x.probes[i+1].Sub(x.probes[i]))
		}
		if n := len(gaps); n < 12 || n > 24 {
			t.Errorf("got %d probes in two minutes: %v", n, gaps)
		}
		if gaps[0] > firstRetry || gaps[0] < firstRetry*3/4 {
			t.Errorf("got the first retry after %s, want about %s", gaps[0], firstRetry)
		}
		if last := slices.Max(gaps); last > 10*time.Second {
			t.Errorf("got a gap of %s, want at most the policy's 10s", last)
		}
		st := m.Status()
		if st.Up != 0 || st.Known != 1 || st.Nodes[0].Down == nil || st.Nodes[0].Down.Cause != CauseRefused {
			t.Errorf("got status %+v", st)
		}
		x.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if st := m.Status(); st.Up != 1 || len(st.Serving) != 1 || st.Serving[0].Ready != 1 {
			t.Errorf("got status %+v after it came back", st)
		}
	})
}

func TestBrokenConnectionIsCheckedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = losing(CauseReset, "one")
		m, a := fleetOf(t, nil, x)
		before := x.probed()
		_, _ = ask(m, a, &fakeJob{})
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if x.probed() == before {
			t.Error("the node was not probed")
		}
		if st := m.Status(); st.Up != 1 {
			t.Error("one broken connection took a healthy node away")
		}
	})
}

func TestSilentNodeIsAskedWhetherItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, _ := fleetOf(t, nil, x)
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		time.Sleep(21 * time.Second)
		synctest.Wait()
		if st := m.Status(); st.Up != 0 {
			t.Error("an idle node that died is still called up after two retry times")
		}
	})
}

func TestLinkThatSaysItIsDownIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, _ := fleetOf(t, nil, x)
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseTimedOut} })
		x.tell(NodeState{Down: &NodeLost{Cause: CauseClosed}})
		synctest.Wait()
		if st := m.Status(); st.Up != 0 {
			t.Error("the node is still up")
		}
	})
}

func TestReloadKeepsTheLinksThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		x, y := serving("m", 1), serving("m", 1, "one.")
		x.run = blocking(end)
		m, old := fleetOf(t, nil, x, y)
		ended := make(chan error)
		go func() { _, err := ask(m, old, &fakeJob{}); ended <- err }()
		synctest.Wait()

		// The new configuration has b and c; a runs a request still.
		z := serving("m", 1, "one.")
		fresh := apply(t, m, func(p *Policy) {
			p.Nodes = p.Nodes[1:]
			p.Nodes = append(p.Nodes, NodeSpec{Name: "c", Identity: "c", Open: func() (Link, error) { return z, nil }})
		}, x, y)
		old.Withdraw()
		old.Release()
		synctest.Wait()
		if x.closed != "" {
			t.Error("a link was closed under a running request")
		}
		if y.closed != "" || y.probed() != 1 {
			t.Errorf("the node that stays was closed (%q) or probed anew (%d)", y.closed, y.probed())
		}
		for range 2 {
			if _, err := ask(m, fresh, &fakeJob{}); err != nil {
				t.Error(err)
			}
		}
		if x.ran() != 1 {
			t.Error("a node that is not wanted got a new request")
		}
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if x.closed == "" {
			t.Error("the link that nobody wants was not closed after its last request")
		}
		quietNow(t, m)
	})
}

func TestPolicyThatIsWithdrawnLeavesTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1, "one."), serving("n", 1, "one.")
		m, first := fleetOf(t, nil, x)
		second := apply(t, m, func(p *Policy) { p.Nodes[0].Name, p.Nodes[0].Identity = "b", "b" }, y)
		synctest.Wait()
		if m.InForce() != second || m.Status().Nodes[0].Name != "b" {
			t.Error("the newer policy is not in force")
		}
		second.Withdraw()
		second.Release()
		second.Release()
		synctest.Wait()
		if m.InForce() != first || m.Status().Nodes[0].Name != "a" || y.closed == "" {
			t.Error("the policy before is not in force again, or the other's node lives on")
		}
		if _, err := ask(m, first, &fakeJob{}); err != nil {
			t.Error(err)
		}
	})
}

func TestRequestGoesOnByItsOwnPolicyAfterWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one."))
		a.Withdraw()
		if got, err := ask(m, a, &fakeJob{}); got != "one. [done]" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestRejectedPolicyChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, a := fleetOf(t, nil, x)
		for name, p := range map[string]Policy{
			"two of a name":  {Nodes: []NodeSpec{{Name: "a"}, {Name: "a"}}},
			"strange policy": {Placement: "best"},
			"share":          {PoolHigh: 101},
			"negative":       {Attempts: -1},
		} {
			if _, err := m.Apply(p); err == nil {
				t.Errorf("%s: it was taken", name)
			}
		}
		if m.InForce() != a || x.closed != "" {
			t.Error("the policy in force was touched")
		}
	})
}

func TestRetiredManagerEndsWithItsLastRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		x := serving("m", 1)
		x.run = blocking(end)
		m, a := fleetOf(t, nil, x)
		ended := make(chan error)
		go func() { _, err := ask(m, a, &fakeJob{}); ended <- err }()
		synctest.Wait()
		a.Withdraw()
		a.Release()
		m.Retire()
		synctest.Wait()
		if x.closed != "" {
			t.Error("it ended under a running request")
		}
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if x.closed == "" {
			t.Error("it did not end with its last request")
		}
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonStopping)
	})
}

func TestConfigurationStandsAboveTheNodesWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.instances[0].Context = 4096
		m, _ := fleetOf(t, func(p *Policy) {
			p.Nodes[0].Lanes, p.Nodes[0].Context, p.Nodes[0].Rates = 3, 1000, Rates{Prefill: 900, Decode: 45}
		}, x)
		synctest.Wait()
		i := m.Status().Nodes[0].Instances[0]
		if i.Lanes != 3 || i.Context != 1000 || i.PrefillRate != 900 || i.DecodeRate != 45 {
			t.Errorf("got %+v", i)
		}
		apply(t, m, nil, x)
		i = m.Status().Nodes[0].Instances[0]
		if i.Lanes != 1 || i.Context != 4096 || i.DecodeRate != 0 {
			t.Errorf("got %+v once it is not stated any more", i)
		}
	})
}

func TestSpeedsAreLearnedFromAnswers(t *testing.T) {
	i := &instance{node: &node{}}
	for _, c := range []struct {
		timings Timings
		want    Rates
	}{
		{Timings{Prompt: 10, PromptPerSecond: 5, Predicted: 3, PredictedPerSecond: 900}, Rates{}},
		{Timings{Prompt: 100, PromptPerSecond: 800, Predicted: 100, PredictedPerSecond: 40}, Rates{800, 40}},
		{Timings{Prompt: 100, PromptPerSecond: 400, Predicted: 100, PredictedPerSecond: 80}, Rates{700, 50}},
		{Timings{Prompt: 100, PromptPerSecond: 1e300, Predicted: 100, PredictedPerSecond: -1}, Rates{700, 50}},
	} {
		i.measure(NodeSpec{}, c.timings)
		if i.Rates != c.want {
			t.Errorf("after %+v: got %+v, want %+v", c.timings, i.Rates, c.want)
		}
	}
}

func TestPatienceFollowsTheMeasuredSpeed(t *testing.T) {
	ready := Instance{State: StateReady, Lanes: 2}
	fast, slow := ready, ready
	fast.Rates.Prefill, slow.Rates.Prefill = 2000, 100
	loading := ready
	loading.State = StateLoading
	now := time.Now()
	full := ready
	full.Load.Active, full.Load.At = 2, now
	once := full
	once.Load.At = now.Add(-time.Minute)
	for _, c := range []struct {
		name   string
		i      Instance
		others int
		stall  time.Duration
		want   Patience
	}{
		{"unknown", ready, 0, 0, Patience{120 * time.Second, 120 * time.Second}},
		{"fast", fast, 1, 0, Patience{20 * time.Second, 15 * time.Second}},
		{"slow", slow, 0, 0, Patience{161440 * time.Millisecond, 61440 * time.Millisecond}},
		{"configured", ready, 0, time.Second, Patience{time.Second, time.Second}},
		{"no free lane of ours", fast, 2, 0, Patience{0, 15 * time.Second}},
		{"no free lane at all", full, 0, 0, Patience{0, 120 * time.Second}},
		{"full a while ago", once, 0, 0, Patience{120 * time.Second, 120 * time.Second}},
		{"loading", loading, 0, 0, Patience{0, 120 * time.Second}},
	} {
		if got := patience(&c.i, c.others, 10000, c.stall, now); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestPolicyThatIsReleasedWhileAnotherIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		m, old := fleetOf(t, nil, x)
		fresh := apply(t, m, func(p *Policy) {
			open := p.Nodes[1].Open
			p.Nodes[1].Open = func() (Link, error) {
				old.Release() // its last request ends just now
				return open()
			}
		}, x, serving("n", 1))
		synctest.Wait()
		if _, err := ask(m, fresh, &fakeJob{}); err != nil || x.closed != "" {
			t.Errorf("got %v, closed %q: want the node kept", err, x.closed)
		}
	})
}

func TestLinksOfAPolicyThatIsNotTakenAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("n", 1)
		m, old := fleetOf(t, nil, x)
		_, err := m.Apply(Policy{Nodes: []NodeSpec{
			{Name: "a", Identity: "a", Open: func() (Link, error) { return x, nil }},
			{Name: "b", Identity: "b", Open: func() (Link, error) { return y, nil }},
			{Name: "c", Identity: "c", Open: func() (Link, error) { return nil, errors.New("no such key") }},
		}})
		if err == nil || y.closed == "" || x.closed != "" || m.InForce() != old {
			t.Errorf("got %v, the new link closed %q, the old one %q", err, y.closed, x.closed)
		}
		old.Release()
		synctest.Wait()
		if x.closed == "" {
			t.Error("the policy that was not taken still holds the node")
		}
	})
}

func TestWhatARejectedPolicyStatedDoesNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 4)
		m, _ := fleetOf(t, nil, x)
		rejected := apply(t, m, func(p *Policy) { p.Nodes[0].Lanes = 1 }, x)
		rejected.Withdraw() // another app did not start
		if got := m.Status().Nodes[0].Instances[0].Lanes; got != 4 {
			t.Errorf("got %d lanes, want the 4 of the policy in force", got)
		}
		rejected.Release()
	})
}

func TestNodeThatStreamsToUsIsNotAskedWhetherItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.run = func(_ context.Context, _ Assignment, take func(Event) error) error {
			for range 120 {
				time.Sleep(time.Second)
				if err := take(Event{Kind: EventData, Data: []byte("word")}); err != nil {
					return err
				}
			}
			return take(Event{Kind: EventData, Data: []byte("end.")})
		}
		m, a := fleetOf(t, nil, x)
		before := x.probed()
		if _, err := ask(m, a, &fakeJob{}); err != nil {
			t.Fatal(err)
		}
		if n := x.probed() - before; n > 1 {
			t.Errorf("got %d questions during two minutes of answer, want none but at its end", n)
		}
	})
}

func TestFlappingNodeDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		x := serving("m", 1)
		x.run = losing(CauseReset)
		m, a := fleetOf(t, func(p *Policy) { p.Log = slog.New(slog.NewTextHandler(&out, nil)) }, x)
		for range 100 {
			_, _ = ask(m, a, &fakeJob{})
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n == 0 || n > 4 {
			t.Errorf("got %d lines for 100 losses in 5 s:\n%s", n, out.String())
		}
	})
}

// A rolling restart: the answer goes back to a server that failed it and came back
// since. One that did not come back is not waited for.
func TestServerThatWasRestartedMayGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.run = losing(CauseReset, "one")
		cut := make(chan struct{})
		y.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			if err := take(Event{Kind: EventData, Data: []byte("two")}); err != nil {
				return err
			}
			<-cut
			return &NodeLost{Cause: CauseReset}
		}
		m, a := fleetOf(t, nil, x, y)
		got := make(chan string)
		go func() { text, _ := ask(m, a, &fakeJob{}); got <- text }()
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		time.Sleep(2 * time.Second)
		x.set(func(l *fakeLink) { l.down, l.run = nil, saying("three.") })
		time.Sleep(10 * time.Second)
		close(cut)
		if text := <-got; text != "one two three. [done]" {
			t.Errorf("got %q", text)
		}

		x.set(func(l *fakeLink) { l.down, l.run = &NodeLost{Cause: CauseRefused}, losing(CauseReset, "one") })
		y.set(func(l *fakeLink) { l.run = losing(CauseReset, "two") })
		x.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(20 * time.Second)
		began := time.Now()
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonLost)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %s for servers that failed the request", took)
		}
	})
}

func TestOutageTellsTheOperatorWhatToChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.down = &RequestError{Reason: ReasonNoNode, Message: "for clients", Err: errors.New("the key is wrong")}
		m, _ := fleetOf(t, nil, x)
		d := m.Status().Nodes[0].Down
		if d == nil || d.Cause != CauseUnusable || d.Error != "the key is wrong" {
			t.Errorf("got %+v", d)
		}
	})
}
