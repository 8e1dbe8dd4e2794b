package fleet

import (
	"errors"
	"testing"
	"testing/synctest"
)

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
