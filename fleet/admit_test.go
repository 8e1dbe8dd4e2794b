package fleet

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLaneIsTakenInOneStepWithTheChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		x, y := serving("m", 2), serving("m", 3)
		x.run, y.run = blocking(end), blocking(end)
		m, a := fleetOf(t, nil, x, y)
		const n = 40
		errs := make(chan error, n)
		for range n {
			go func() { _, err := ask(m, a, &fakeJob{}); errs <- err }()
		}
		synctest.Wait()
		if x.running != 2 || y.running != 3 {
			t.Errorf("got %d and %d generations, want all 2 and 3 lanes", x.running, y.running)
		}
		close(end)
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if x.most != 2 || y.most != 3 {
			t.Errorf("got up to %d and %d generations at once, want 2 and 3", x.most, y.most)
		}
		quietNow(t, m)
	})
}

func TestRequestsWaitInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, step := holding(t, 1, nil)
		served := make(chan int, 10)
		for i := range 5 {
			go func() {
				if _, err := ask(m, a, &fakeJob{}); err == nil {
					served <- i
				}
			}()
			synctest.Wait() // the next one comes later
		}
		for want := range 5 {
			step <- struct{}{}
			if got := <-served; got != want {
				t.Errorf("got request %d served, want %d", got, want)
			}
		}
	})
}

func TestMovingRequestGoesBeforeWaitingOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		cut, end := make(chan struct{}), make(chan struct{})
		var order []string
		x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			<-cut
			return losing(CauseReset, "one")(ctx, a, take)
		}
		y.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			order = append(order, string(a.Body))
			return blocking(end)(ctx, a, take)
		}
		m, a := fleetOf(t, nil, x, y)
		errs := make(chan error, 3)
		for range 3 { // on x, on y, waiting
			go func() { _, err := ask(m, a, &fakeJob{}); errs <- err }()
			synctest.Wait()
		}
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		close(cut)
		synctest.Wait()
		for range 3 {
			end <- struct{}{}
			synctest.Wait()
		}
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if want := []string{"", "one", ""}; !slices.Equal(order, want) {
			t.Errorf("got %q on the second node, want %q: the one that has a reader first", order, want)
		}
	})
}

func TestFullQueueRefusesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, end := holding(t, 1, func(p *Policy) { p.Waiting = 2 })
		errs := make(chan error, 3)
		for range 3 {
			go func() { _, err := ask(m, a, &fakeJob{}); errs <- err }()
		}
		synctest.Wait()
		_, err := ask(m, a, &fakeJob{})
		if re := wantReason(t, err, ReasonOverloaded); re.RetryAfter <= 0 {
			t.Error("no time to come back was given")
		}
		close(end)
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		quietNow(t, m)
	})
}

func TestWaitingEndsAtTheLimitAndAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, end := holding(t, 1, nil)
		go ask(m, a, &fakeJob{})
		synctest.Wait()
		began := time.Now()
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonExpired)
		if took := time.Since(began); took != 60*time.Second {
			t.Errorf("waited %s, want the policy's 60s", took)
		}
		began = time.Now()
		_, err = m.Admit(t.Context(), a, Request{Model: "m", Deadline: began.Add(5 * time.Second)})
		wantReason(t, err, ReasonExpired)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("waited %s, want the request's 5s", took)
		}
		close(end)
		synctest.Wait()
		quietNow(t, m)
	})
}

func TestClientThatLeavesTheQueueIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, x, end := holding(t, 1, nil)
		go ask(m, a, &fakeJob{})
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error)
		synctest.Wait()
		go func() { _, err := askCtx(ctx, m, a, &fakeJob{}); ended <- err }()
		synctest.Wait()
		leave()
		wantReason(t, <-ended, ReasonCancelled)
		close(end)
		synctest.Wait()
		if x.ran() != 1 {
			t.Errorf("the node was asked %d times, want once: who left is not served", x.ran())
		}
		quietNow(t, m)
	})
}

func TestUnknownModelIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		x.instances[0].Aliases = []string{"alias"}
		m, a := fleetOf(t, nil, x)
		for _, c := range []struct {
			model string
			want  Reason
		}{{"m", ""}, {"alias", ""}, {"", ""}, {"x", ReasonUnknownModel}, {"M", ReasonUnknownModel}} {
			s, err := m.Admit(t.Context(), a, Request{Model: c.model})
			if c.want == "" {
				if err != nil {
					t.Errorf("%q: %v", c.model, err)
					continue
				}
				s.Close()
				continue
			}
			wantReason(t, err, c.want)
		}
	})
}

func TestNoModelNamedAndManyServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1), serving("n", 1))
		_, err := m.Admit(t.Context(), a, Request{})
		wantReason(t, err, ReasonUnknownModel)
	})
}

func TestNoNodeIsConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil)
		began := time.Now()
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonNoNode)
		if time.Since(began) != 0 {
			t.Error("it waited for nothing")
		}
	})
}

func TestNewNodeIsWaitedForUntilItsFirstProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 1, "one."))
		if got, err := ask(m, a, &fakeJob{}); got != "one. [done]" || err != nil {
			t.Errorf("got %q, %v from a node not heard of yet", got, err)
		}
	})
}

func TestOutageIsWaitedOutFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "one.")
		m, a := fleetOf(t, nil, x)
		gone := &NodeLost{Cause: CauseRefused}
		x.set(func(l *fakeLink) { l.down, l.run = gone, losing(CauseRefused) })
		ended := make(chan error)
		began := time.Now()
		go func() { _, err := ask(m, a, &fakeJob{}); ended <- err }()
		time.Sleep(20 * time.Second)
		x.set(func(l *fakeLink) { l.down, l.run = nil, saying("one.") })
		if err := <-ended; err != nil {
			t.Errorf("got %v from an outage of 20s, want an answer", err)
		}
		if took := time.Since(began); took > 31*time.Second {
			t.Errorf("took %s", took)
		}

		x.set(func(l *fakeLink) { l.down, l.run = gone, losing(CauseRefused) })
		began = time.Now()
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonNoNode)
		if took := time.Since(began); took < 50*time.Second || took > 60*time.Second {
			t.Errorf("gave up after %s, want about 60s", took)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		_, err = ask(m, a, &fakeJob{})
		if re := wantReason(t, err, ReasonNoNode); re.RetryAfter <= 0 {
			t.Error("no time to come back was given")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %s for what is down for long", took)
		}
		quietNow(t, m)
	})
}

func TestConversationStaysWhereItRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 2, "one."), serving("m", 2, "one.")
		m, a := fleetOf(t, nil, x, y)
		on := func(session string) string {
			s, err := m.Admit(t.Context(), a, Request{Model: "m", Session: session})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			return s.Instance().Node
		}
		first := on("s")
		busy, err := m.Admit(t.Context(), a, Request{Model: "m", Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if again := on("s"); again != first {
			t.Errorf("got node %s while a lane of %s is free, want %s", again, first, first)
		}
		more, err := m.Admit(t.Context(), a, Request{Model: "m", Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		if elsewhere := on("s"); elsewhere == first {
			t.Errorf("got node %s, whose lanes are all taken", elsewhere)
		}
		busy.Close()
		more.Close()
	})
}

func TestOldPolicysWaiterDoesNotHoldUpTheNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "one.")
		end := make(chan struct{})
		x.run = blocking(end)
		m, old := fleetOf(t, nil, x)
		errs := make(chan error, 2)
		for range 2 { // one runs, one waits
			go func() { _, err := ask(m, old, &fakeJob{}); errs <- err }()
			synctest.Wait()
		}
		fresh := apply(t, m, func(p *Policy) { p.Nodes[0].Name, p.Nodes[0].Identity = "y", "y" }, y)
		synctest.Wait()
		for range 3 {
			began := time.Now()
			if _, err := ask(m, fresh, &fakeJob{}); err != nil || time.Since(began) > 0 {
				t.Errorf("got %v after %s while the node is idle", err, time.Since(began))
			}
		}
		close(end)
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestMovingRequestsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 3), serving("m", 1)
		cut, end := make(chan string), make(chan struct{})
		x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			return losing(CauseReset, <-cut)(ctx, a, take)
		}
		var order []string
		y.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			if len(a.Body) > 0 {
				order = append(order, string(a.Body))
			}
			return blocking(end)(ctx, a, take)
		}
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		errs := make(chan error, 4)
		for range 4 { // on x, on y, on x, on x
			go func() { _, err := ask(m, a, &fakeJob{}); errs <- err }()
			synctest.Wait()
		}
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		for _, first := range []string{"1", "2", "3"} {
			cut <- first
			synctest.Wait()
		}
		for range 4 {
			end <- struct{}{}
			synctest.Wait()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if want := []string{"1", "2", "3"}; !slices.Equal(order, want) {
			t.Errorf("got %v on the second node, want %v", order, want)
		}
	})
}

// A model that no reachable server has may be one of a server that was not reached.
func TestModelOfAServerNotReachedYetIsNotCalledUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1, "one."), serving("n", 1)
		y.down = &NodeLost{Cause: CauseRefused}
		m, a := fleetOf(t, nil, x, y)
		time.Sleep(5 * time.Minute)
		_, err := m.Admit(t.Context(), a, Request{Model: "n"})
		wantReason(t, err, ReasonNoNode)
		y.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(time.Minute)
		_, err = m.Admit(t.Context(), a, Request{Model: "o"})
		wantReason(t, err, ReasonUnknownModel)
	})
}

// BenchmarkPump is what each end of a request costs while many others wait.
func BenchmarkPump(b *testing.B) {
	for name, needs := range map[string]Needs{
		"new":    {},
		"moving": {Fingerprint: "f", Features: ContinueContent, Left: 7},
	} {
		b.Run(name, func(b *testing.B) {
			m := New()
			defer m.Close()
			a := &Applied{m: m}
			a.Policy.defaults()
			a.placer = newPlacer(a.Placement)
			for i := range 200 {
				n := &node{index: i, wanted: 1, learned: true}
				full := Instance{Model: "m", State: StateReady, Lanes: 1, Fingerprint: "f", Features: ContinueContent}
				n.instances = []*instance{{Instance: full, node: n, held: 1}}
				a.nodes = append(a.nodes, n)
			}
			m.nodes = a.nodes
			for range 10000 {
				m.queue.push(&waiter{Request: Request{Model: "m"}, needs: needs, policy: a, asks: make(chan time.Time, 1)}, 1, time.Now())
			}
			b.ReportAllocs()
			for b.Loop() {
				m.pump()
			}
			m.queue = newQueue()
		})
	}
}
