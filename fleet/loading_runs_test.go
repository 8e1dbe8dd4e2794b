package fleet

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// loadingNode is a fake of a router that takes its time to load, and notes what it would
// have had to decide for itself.
type loadingNode struct {
	*routing
	t       *testing.T
	r       *rand.Rand
	answers map[string]int // that are written, by model
}

func newLoadingNode(t *testing.T, r *rand.Rand, places int) *loadingNode {
	n := &loadingNode{
		routing: router(places, map[string]State{"x": StateUnloaded, "y": StateUnloaded, "z": StateUnloaded}),
		t:       t, r: r, answers: make(map[string]int),
	}
	n.run = n.answer
	return n
}

func (n *loadingNode) answer(ctx context.Context, a Assignment, take func(Event) error) error {
	n.mu.Lock()
	takes := time.Duration(n.r.Int64N(int64(20 * time.Second)))
	first := n.state(a.Model) == StateUnloaded
	if first {
		n.begin(a)
	}
	n.mu.Unlock()
	if first {
		pause(ctx, 3*time.Second)
		n.set(func(*fakeLink) { n.put(a.Model, StateReady) })
		n.tellAll()
	}
	for !n.has(a.Model) {
		if !pause(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	n.set(func(*fakeLink) { n.answers[a.Model]++ })
	defer n.set(func(*fakeLink) { n.answers[a.Model]-- })
	pause(ctx, takes)
	return saying("done.")(ctx, a, take)
}

// begin loads the model, with the mutex held.
func (n *loadingNode) begin(a Assignment) {
	if a.Unload != "" {
		if k := n.answers[a.Unload]; k > 0 {
			n.t.Errorf("%s has to go for %s while it writes %d answers", a.Unload, a.Model, k)
		}
		n.put(a.Unload, StateUnloaded)
	}
	n.put(a.Model, StateLoading)
	loaded := 0
	for _, i := range n.instances {
		if i.State != StateUnloaded {
			loaded++
		}
	}
	if loaded > n.places {
		n.t.Errorf("%s is to be loaded for nobody, and there are %d places", a.Model, n.places)
	}
}

func (n *loadingNode) state(model string) State {
	return n.instances[slices.IndexFunc(n.instances, func(i Instance) bool { return i.Model == model })].State
}

func (n *loadingNode) put(model string, s State) {
	n.instances = slices.Clone(n.instances)
	for k := range n.instances {
		if n.instances[k].Model == model {
			n.instances[k].State = s
		}
	}
}

func (n *loadingNode) has(model string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state(model) == StateReady
}

func (n *loadingNode) tellAll() {
	n.mu.Lock()
	tell, s := n.tell, n.fakeLink.state()
	n.mu.Unlock()
	tell(s)
}

// Whatever is asked for, and when: no load drives out a model that answers, no router has
// to choose what goes, and everybody is served.
func TestLoadsDriveOutNobodyWhoAnswers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		places := rapid.SliceOfN(rapid.IntRange(1, 2), 1, 3).Draw(rt, "places")
		known := rapid.Bool().Draw(rt, "speeds are known")
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			var links []*fakeLink
			for k, p := range places {
				links = append(links, &newLoadingNode(t, rand.New(rand.NewPCG(seed, uint64(k))), p).fakeLink)
			}
			m, a := fleetOf(t, func(p *Policy) {
				p.Wait = time.Hour
				if known {
					stated(p)
				}
			}, links...)
			var all sync.WaitGroup
			for range 30 {
				model := string("xyz"[r.IntN(3)])
				all.Go(func() {
					if err := askModel(m, a, model); err != nil {
						t.Errorf("%s: %v", model, err)
					}
				})
				time.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))))
				synctest.Wait()
			}
			all.Wait()
			quietNow(t, m)
		})
	})
}
