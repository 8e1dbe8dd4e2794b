package fleet

import (
	"context"
	"slices"
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

// voucher is a link to a node that looks after its server itself.
type voucher struct {
	*fakeLink
	within time.Duration
	silent bool // the link hears nothing of the node any more
	at     time.Time
}

func (v *voucher) Vouched() (time.Time, time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.silent {
		v.at = time.Now().Add(-4 * time.Second)
	}
	return v.at, v.within
}

// vouched is a fleet of one node whose link vouches for it, asked every 10 seconds else.
func vouched(t *testing.T, within time.Duration) (*Manager, *voucher) {
	t.Helper()
	v := &voucher{fakeLink: serving("m", 1), within: within}
	m, _ := fleetOf(t, func(p *Policy) {
		p.Retry = 10 * time.Second
		p.Nodes = []NodeSpec{{Name: "a", Identity: "a", Open: func() (Link, error) { return v, nil }}}
	})
	return m, v
}

func TestNodeThatLooksAfterItsServerIsNotAskedWhetherThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, v := vouched(t, 5*time.Second)
		before := v.probed()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := v.probed() - before; n != 0 {
			t.Errorf("got %d questions in an hour, want none", n)
		}
		if heard := m.Status().Nodes[0].LastHeard; heard == nil || time.Since(*heard) > 15*time.Second {
			t.Errorf("it was heard of at %v, and it is %v: want what the link heard", heard, time.Now())
		}
		v.set(func(l *fakeLink) { v.silent, l.down = true, &NodeLost{Cause: CauseTimedOut} })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if st := m.Status(); st.Up != 0 {
			t.Error("nothing was heard of it for twice as long as a probe waits, and it is called up")
		}
	})
}

func TestNodeThatLooksTooSeldomIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, within := range []time.Duration{0, 10*time.Second + 1} {
			m, v := vouched(t, within)
			before := v.probed()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := v.probed() - before; n != 6 {
				t.Errorf("it looks within %v: got %d questions in a minute, want 6", within, n)
			}
			m.Close()
		}
	})
}
