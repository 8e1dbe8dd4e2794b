package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever comes, leaves, ends, dies and comes back: nobody waits while a lane is
// free that could take them, no lane is given twice, and in the end nobody waits.
func TestNobodyWaitsWhileALaneIsFree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		lanes := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 4).Draw(rt, "lanes")
		placement := rapid.SampledFrom([]Placement{LoadAware, LeastLoaded, LowestCost}).Draw(rt, "placement")
		requests := rapid.IntRange(1, 60).Draw(rt, "requests")
		synctest.Test(t, func(t *testing.T) {
			links := make([]*fakeLink, len(lanes))
			for i, n := range lanes {
				links[i] = serving("m", n)
				if i%2 == 1 {
					links[i].instances = append(links[i].instances, Instance{Model: "n", State: StateReady, Lanes: 1, Context: 1000})
				}
				links[i].run = moody(rand.New(rand.NewPCG(seed, uint64(i))), links[i])
			}
			m, a := fleetOf(t, func(p *Policy) {
				p.Placement, p.Wait, p.Waiting, p.WaitingBytes = placement, 20*time.Second, 32, 4000
			}, links...)
			synctest.Wait()
			r := rand.New(rand.NewPCG(seed, 98))
			var all sync.WaitGroup
			for range requests {
				ask := Request{
					Model: []string{"m", "n", ""}[r.IntN(3)], Tenant: fmt.Sprint(r.IntN(3)), Class: r.IntN(12) - 1,
					Prompt: Tokens(r.IntN(2000)), Bytes: r.Int64N(1000), Blocks: somePrompt(r.Uint64N(5), r.IntN(30)),
				}
				leave := time.Duration(r.Int64N(int64(40 * time.Second)))
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), leave)
					defer cancel()
					s, err := m.Admit(ctx, a, ask)
					if err == nil {
						_ = s.Run(ctx, &fakeJob{}, func([]byte) error { return nil })
					}
				})
				time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
				if r.IntN(8) == 0 {
					l := links[r.IntN(len(links))]
					l.set(func(l *fakeLink) {
						if l.down == nil {
							l.down = &NodeLost{Cause: CauseRefused}
						} else {
							l.down = nil
						}
					})
				}
				noLaneIsWasted(t, m)
			}
			for _, l := range links {
				l.set(func(l *fakeLink) { l.down = nil })
			}
			all.Wait()
			synctest.Wait()
			quietNow(t, m)
		})
	})
}

// noLaneIsWasted fails if somebody waits who could run, or a lane is given twice.
func noLaneIsWasted(t *testing.T, m *Manager) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		for _, i := range n.instances {
			if i.held > i.lanes() || i.held < 0 {
				t.Errorf("node %s: got %d lanes held of %d", n.name, i.held, i.lanes())
			}
		}
	}
	m.queue.each(func(w *waiter) {
		for _, x := range m.search(w, time.Now()).able {
			if w.bound != nil && w.bound != x.instance {
				continue // it is to be answered sooner where it waits
			}
			if !x.full() {
				t.Errorf("a request of class %d for %q waits, and node %s has %d of %d lanes free",
					w.Class, w.Model, x.Node, x.lanes()-x.occupied(), x.lanes())
			}
		}
	})
}

// lineUp lets requests wait, and says in which order they are served.
type lineUp struct {
	t      *testing.T
	m      *Manager
	a      *Applied
	mu     sync.Mutex
	served []string
	all    sync.WaitGroup
}

func (l *lineUp) wait(name string, r Request) {
	l.all.Go(func() {
		r.Model = "m"
		s, err := l.m.Admit(context.Background(), l.a, r)
		if err != nil {
			l.t.Errorf("%s: %v", name, err)
			return
		}
		l.mu.Lock()
		l.served = append(l.served, name)
		l.mu.Unlock()
		_ = s.Run(context.Background(), &fakeJob{}, func([]byte) error { return nil })
	})
	synctest.Wait()
}

func TestWaitingRequestsGoByClassThenByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, step := holding(t, 1, nil)
		l := &lineUp{t: t, m: m, a: a}
		l.wait("runs", Request{})
		l.wait("a1", Request{Class: 5, Tenant: "a", Prompt: 100})
		l.wait("a2", Request{Class: 5, Tenant: "a", Prompt: 100})
		l.wait("a3", Request{Class: 5, Tenant: "a", Prompt: 100})
		l.wait("low", Request{Class: -3, Tenant: "b", Prompt: 1})
		l.wait("b1", Request{Class: 5, Tenant: "b", Prompt: 300})
		l.wait("b2", Request{Class: 5, Tenant: "b", Prompt: 100})
		l.wait("high", Request{Class: 99, Tenant: "a", Prompt: 1})
		s := m.Queue()
		if s.Waiting != 7 || len(s.Classes) != 3 || s.Classes[0].Class != 9 || s.Classes[1].Waiting != 5 {
			t.Errorf("got %+v, want 7 waiting in the classes 9, 5 and 0", s)
		}
		for range 8 {
			step <- struct{}{}
			synctest.Wait()
		}
		l.all.Wait()
		want := []string{"runs", "high", "a1", "b1", "a2", "a3", "b2", "low"}
		if !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
		quietNow(t, m)
	})
}

// What is cached need not be read, and is not paid for.
func TestTenantPaysForWhatHasToBeReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, step := holding(t, 1, nil)
		l := &lineUp{t: t, m: m, a: a}
		known := somePrompt(1, 40)
		l.wait("runs", Request{Blocks: known, Prompt: 4000})
		for _, name := range []string{"warm1", "warm2", "warm3"} {
			l.wait(name, Request{Tenant: "warm", Blocks: known, Prompt: 4000})
		}
		l.wait("cold1", Request{Tenant: "cold", Blocks: somePrompt(2, 40), Prompt: 2000})
		l.wait("cold2", Request{Tenant: "cold", Blocks: somePrompt(3, 40), Prompt: 2000})
		for range 6 {
			step <- struct{}{}
			synctest.Wait()
		}
		l.all.Wait()
		want := []string{"runs", "warm1", "cold1", "warm2", "warm3", "cold2"}
		if !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
	})
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused refusals
		m, a, _, end := holding(t, 1, func(p *Policy) { p.WaitingBytes, p.Observer = 1000, &refused })
		l := &lineUp{t: t, m: m, a: a}
		l.wait("runs", Request{Bytes: 1 << 30}) // what runs does not wait
		l.wait("waits", Request{Bytes: 600})
		_, err := m.Admit(t.Context(), a, Request{Model: "m", Bytes: 500})
		wantReason(t, err, ReasonOverloaded)
		l.wait("fits", Request{Bytes: 400})
		if got := m.Queue(); got.Bytes != 1000 || got.Waiting != 2 {
			t.Errorf("got %d bytes of %d requests, want 1000 of 2", got.Bytes, got.Waiting)
		}
		if want := []string{"bytes"}; !slices.Equal(refused.limits, want) {
			t.Errorf("got %v refused, want %v", refused.limits, want)
		}
		close(end)
		l.all.Wait()
		quietNow(t, m)
	})
}

// refusals is an observer of the queue's limits.
type refusals struct {
	deaf
	limits []string
}

func (r *refusals) Refused(limit string) { r.limits = append(r.limits, limit) }

// The time after which to come back follows from how long lanes are held and how
// many wait.
func TestRetryAfterIsTheEstimatedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused refusals
		x := serving("m", 2)
		x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			time.Sleep(8 * time.Second)
			return saying("end.")(ctx, a, take)
		}
		m, a := fleetOf(t, func(p *Policy) { p.Waiting, p.Observer = 4, &refused }, x)
		if _, err := ask(m, a, &fakeJob{}); err != nil { // shows how long it takes
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() { _, _ = ask(m, a, &fakeJob{}) })
		}
		synctest.Wait()
		_, err := ask(m, a, &fakeJob{})
		re := wantReason(t, err, ReasonOverloaded)
		if want := 24 * time.Second; re.RetryAfter != want { // the sixth place of two lanes
			t.Errorf("got Retry-After %s, want %s", re.RetryAfter, want)
		}
		if s := m.Queue(); len(s.Models) != 1 || s.Models[0].EstimatedWait == nil || *s.Models[0].EstimatedWait != 20 {
			t.Errorf("got %+v, want an estimate of 20 s for the fifth", s.Models)
		}
		_, err = m.Admit(t.Context(), a, Request{Model: "m", Class: 9, Deadline: time.Now().Add(time.Second)})
		wantReason(t, err, ReasonOverloaded)
		all.Wait()
		all.Go(func() { _, _ = ask(m, a, &fakeJob{}) })
		all.Go(func() { _, _ = ask(m, a, &fakeJob{}) })
		synctest.Wait()
		_, err = m.Admit(t.Context(), a, Request{Model: "m", Deadline: time.Now().Add(time.Second)})
		re = wantReason(t, err, ReasonExpired)
		if re.RetryAfter < 4*time.Second || re.RetryAfter > 8*time.Second {
			t.Errorf("got Retry-After %s after waiting in vain, want about what a lane takes", re.RetryAfter)
		}
		if want := []string{"requests", "requests", "expired"}; !slices.Equal(refused.limits, want) {
			t.Errorf("got %v refused, want %v", refused.limits, want)
		}
		all.Wait()
	})
}

func TestRequestsWaitWhileNoNodeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1, "end.")
		x.down = &NodeLost{Cause: CauseRefused}
		m, a := fleetOf(t, nil, x)
		l := &lineUp{t: t, m: m, a: a}
		l.wait("low", Request{Class: 1})
		l.wait("high", Request{Class: 8})
		x.set(func(l *fakeLink) { l.down = nil })
		l.all.Wait()
		if want := []string{"high", "low"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
		quietNow(t, m)
	})
}

// A long request that waits for a large context does not keep a short one from a
// small one.
func TestShortRequestTakesTheSmallContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		end, free := make(chan struct{}), make(chan struct{})
		x.instances[0].Context, x.run = 100000, blocking(end)
		y.instances[0].Context, y.run = 1000, blocking(free)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = LoadAware }, x, y)
		l := &lineUp{t: t, m: m, a: a}
		l.wait("on x", Request{Prompt: 50000})
		l.wait("on y", Request{Prompt: 500})
		go func() { // it was told that it is too long for y
			_, _ = m.place(t.Context(), &waiter{
				Request: Request{Model: "m"}, needs: Needs{Prompt: 50000}, policy: a,
				failed: []failure{{node: m.nodes[1], max: 1000}},
			})
		}()
		l.wait("long", Request{Prompt: 500, Class: 9})
		l.wait("short", Request{Prompt: 400})
		free <- struct{}{}
		synctest.Wait()
		if want := []string{"on x", "on y", "long"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
		close(free)
		synctest.Wait()
		if want := []string{"on x", "on y", "long", "short"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v: y is free and large enough", l.served, want)
		}
		close(end)
		l.all.Wait()
	})
}

// A request that placement binds to an instance waits for that one, and for another
// when it is lost.
func TestBoundRequestWaitsForItsInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "end.")
		end := make(chan struct{})
		x.run = blocking(end)
		m, a := fleetOf(t, nil, x, y)
		to := m.nodes[0].instances[0]
		a.placer = placing(func(*waiter) *instance { return to })
		l := &lineUp{t: t, m: m, a: a}
		l.wait("runs", Request{})
		l.wait("bound", Request{})
		l.wait("bound, too", Request{})
		if want := []string{"runs"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
		end <- struct{}{}
		synctest.Wait()
		if want := []string{"runs", "bound"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v", l.served, want)
		}
		m.mu.Lock()
		to = m.nodes[1].instances[0]
		m.mu.Unlock()
		m.markDown(m.nodes[0], &NodeLost{Cause: CauseRefused})
		synctest.Wait()
		if want := []string{"runs", "bound", "bound, too"}; !slices.Equal(l.served, want) {
			t.Errorf("got %v served, want %v: its instance is lost, another is free", l.served, want)
		}
		close(end)
		l.all.Wait()
		quietNow(t, m)
	})
}

// A request that placement holds for any lane is asked about again when it said.
func TestHeldRequestIsAskedAboutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, end := holding(t, 1, nil)
		began := time.Now()
		var asked []time.Duration
		a.placer = placing(func(w *waiter) *instance {
			i := m.nodes[0].instances[0]
			if i.held == 0 {
				return i
			}
			asked = append(asked, time.Since(began))
			if w.again.IsZero() {
				w.again = time.Now().Add(2 * time.Second)
				return nil
			}
			return i
		})
		l := &lineUp{t: t, m: m, a: a}
		l.wait("runs", Request{})
		l.wait("held", Request{})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []time.Duration{0, 2 * time.Second}; !slices.Equal(asked, want) {
			t.Errorf("asked at %v, want %v", asked, want)
		}
		close(end)
		l.all.Wait()
		quietNow(t, m)
	})
}

// placing places as a test says.
type placing func(*waiter) *instance

func (p placing) place(_ *Manager, w *waiter, _, _ []candidate, _ time.Time) *instance { return p(w) }

// A context that grew is of use to those that fit it now, whoever stands before them.
func TestGrownContextTakesThoseThatFitIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "end.")
		end := make(chan struct{})
		x.instances[0].Context, x.run = 1000, blocking(end)
		y.instances[0].Context = 50
		m, a := fleetOf(t, nil, x, y)
		wait := func(prompt Tokens) *waiter {
			w := &waiter{Request: Request{Model: "m", Prompt: prompt}, needs: Needs{Prompt: prompt}, policy: a}
			if _, err := m.enqueue(w); err != nil {
				t.Fatal(err)
			}
			return w
		}
		first, long, short := wait(900), wait(900), wait(100)
		if first.claim == nil || long.isSettled() || short.isSettled() {
			t.Fatal("want the first to run, and the others to wait")
		}
		y.set(func(l *fakeLink) {
			l.instances = []Instance{{Model: "m", State: StateReady, Lanes: 1, Context: 200, Fingerprint: "f"}}
		})
		if err := m.Probe(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if short.claim == nil || short.claim.state.Node != "b" || long.isSettled() {
			t.Errorf("got a lane for the short one: %t, for the long one: %t; want it for the short one alone", short.claim != nil, long.claim != nil)
		}
		m.giveBack(first.claim)
		if long.claim == nil {
			t.Fatal("the long one got no lane")
		}
		m.giveBack(long.claim)
		m.giveBack(short.claim)
		quietNow(t, m)
	})
}

func TestTenThousandThatLeaveAtOnceLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, _, end := holding(t, 4, func(p *Policy) { p.Waiting = 20000 })
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for n := range 10000 {
			all.Go(func() {
				_, err := m.Admit(ctx, a, Request{Model: "m", Tenant: fmt.Sprint(n % 100), Class: n % 10, Prompt: Tokens(n)})
				if n >= 4 && err == nil {
					t.Error("more were admitted than there are lanes")
				}
			})
			if n == 3 {
				synctest.Wait() // these have the lanes
			}
		}
		synctest.Wait()
		if got := m.Queue().Waiting; got != 9996 {
			t.Errorf("got %d waiting, want 9996", got)
		}
		leave()
		all.Wait()
		if got := m.Queue(); got.Waiting != 0 || got.Bytes != 0 || len(got.Classes) != 0 {
			t.Errorf("got %+v, want nobody", got)
		}
		close(end)
	})
}

// A light request needs no lane: it goes as soon as a node is up, whoever waits there.
func TestLightRequestDoesNotWaitBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		end := make(chan struct{})
		x.run = blocking(end)
		x.down = &NodeLost{Cause: CauseRefused}
		m, a := fleetOf(t, nil, x)
		l := &lineUp{t: t, m: m, a: a}
		l.wait("one", Request{})
		l.wait("two", Request{})
		light := make(chan error)
		go func() {
			s, err := m.Admit(t.Context(), a, Request{Model: "m", Light: true})
			if err == nil {
				s.Close()
			}
			light <- err
		}()
		synctest.Wait()
		x.set(func(l *fakeLink) { l.down = nil })
		if err := <-light; err != nil {
			t.Error(err)
		}
		if got := m.Queue().Waiting; got != 1 {
			t.Errorf("got %d waiting, want one: the lane is taken", got)
		}
		close(end)
		l.all.Wait()
	})
}
