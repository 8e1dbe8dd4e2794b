package fleet

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever happens, in whatever order: the lanes held are those of the requests
// that run, never more than there are, and none when all is quiet.
func TestLanesAddUpUnderAnySchedule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		lanes := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 4).Draw(rt, "lanes")
		placement := rapid.SampledFrom([]Placement{LowestCost, LoadAware, LeastLoaded, RoundRobin}).Draw(rt, "placement")
		requests := rapid.IntRange(1, 40).Draw(rt, "requests")
		synctest.Test(t, func(t *testing.T) {
			links := make([]*fakeLink, len(lanes))
			for i, n := range lanes {
				links[i] = serving("m", n)
				links[i].run = moody(rand.New(rand.NewPCG(seed, uint64(i))), links[i])
			}
			m, a := fleetOf(t, func(p *Policy) { p.Placement, p.Wait, p.Waiting = placement, 20*time.Second, 16 }, links...)
			r := rand.New(rand.NewPCG(seed, 99))
			for range requests {
				leave := time.Duration(r.Int64N(int64(40 * time.Second)))
				rigid := r.IntN(4) == 0
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), leave)
					defer cancel()
					_, _ = askCtx(ctx, m, a, &fakeJob{rigid: rigid})
				}()
				time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
				heldIsRunning(t, m)
				if r.IntN(10) == 0 {
					next := apply(t, m, nil, links...)
					a.Withdraw()
					a.Release()
					a = next
				}
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			quietNow(t, m)
			for i, l := range links {
				if l.most > lanes[i] {
					t.Errorf("node %d ran %d generations at once on %d lanes", i, l.most, lanes[i])
				}
			}
		})
	})
}

// moody is a node that answers, dies, declines and dawdles as the dice fall. The
// dice are thrown under the link's lock.
func moody(r *rand.Rand, l *fakeLink) func(context.Context, Assignment, func(Event) error) error {
	roll := func(n int64) int64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return r.Int64N(n)
	}
	return func(ctx context.Context, a Assignment, take func(Event) error) error {
		for {
			if !pause(ctx, time.Duration(roll(int64(3*time.Second)))) {
				return context.Cause(ctx)
			}
			var err error
			switch roll(10) {
			case 0:
				return &NodeLost{Cause: CauseReset}
			case 1:
				return &NodeLost{Cause: CauseRefused}
			case 2:
				return &RequestError{Reason: ReasonDeclined}
			case 3:
				return nil
			case 4:
				err = take(Event{Kind: EventData, Data: []byte("end.")})
			default:
				err = take(Event{Kind: EventData, Data: []byte("word")})
			}
			if err != nil {
				return err
			}
		}
	}
}

// heldIsRunning compares the lanes held with the generations that run.
func heldIsRunning(t *testing.T, m *Manager) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		for _, i := range n.instances {
			l := n.link.(*fakeLink)
			l.mu.Lock()
			running := l.running
			l.mu.Unlock()
			if i.held != running {
				t.Errorf("node %s: got %d lanes held, want %d, as many as run", n.name, i.held, running)
			}
		}
	}
}
