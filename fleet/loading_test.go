package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// says lets the node say that an instance is in a state now.
func (l *fakeLink) says(instance int, s State) {
	l.mu.Lock()
	l.instances = append([]Instance(nil), l.instances...)
	l.instances[instance].State = s
	tell, state := l.tell, l.state()
	l.mu.Unlock()
	tell(state)
}

func TestTimeOfALoadIsLearnedAndPassesForThatOfItsLike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := router(2, map[string]State{"x": StateUnloaded, "y": StateUnloaded})
		b := router(2, map[string]State{"x": StateUnloaded, "z": StateUnloaded})
		m, _ := fleetOf(t, nil, &a.fakeLink, &b.fakeLink)
		want := func(what string, node, instance int, want float64) {
			t.Helper()
			m.mu.Lock()
			defer m.mu.Unlock()
			if got := m.loadTime(m.nodes[node].instances[instance]); !near(got, want, 1e-9) {
				t.Errorf("%s: got %v s, want %v s", what, got, want)
			}
		}
		want("nothing was seen", 0, 0, usualLoad)
		load := func(took time.Duration) {
			a.says(0, StateLoading)
			time.Sleep(took / 2)
			a.says(0, StateLoading) // its load changed, not its state
			time.Sleep(took / 2)
			a.says(0, StateReady)
		}
		load(30 * time.Second)
		want("its first load", 0, 0, 30)
		want("the model on another node", 1, 0, 30)
		want("another model of the node", 0, 1, 30)
		want("another model of another node", 1, 1, usualLoad)
		a.says(0, StateUnloaded)
		load(50 * time.Second)
		want("a slower one", 0, 0, 35)

		a.says(0, StateUnloaded)
		a.says(0, StateLoading)
		time.Sleep(time.Hour)
		a.says(0, StateFailed)
		a.says(0, StateReady)
		want("one that failed", 0, 0, 35)
	})
}

func TestLoadThatWasUnderWayAtFirstTeachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := router(1, map[string]State{"x": StateLoading})
		m, _ := fleetOf(t, nil, &a.fakeLink)
		time.Sleep(time.Second)
		a.says(0, StateReady)
		m.mu.Lock()
		defer m.mu.Unlock()
		if got := m.loadTime(m.nodes[0].instances[0]); got != usualLoad {
			t.Errorf("got %v s, want %v s: nobody saw it begin", got, float64(usualLoad))
		}
	})
}

func TestWhatIsLeftOfALoadCounts(t *testing.T) {
	m, a := calibrated(1, LowestCost)
	i := a.nodes[0].instances[0]
	now := time.Now()
	i.loadTook, i.loading = 20, now.Add(-15*time.Second)
	if got := m.untilLoaded(i, now); !near(got, 5, 1e-9) {
		t.Errorf("got %v s after 15 of 20 s, want 5 s", got)
	}
	if got := m.untilLoaded(i, now.Add(time.Hour)); !near(got, 2, 1e-9) {
		t.Errorf("got %v s long after 20 s, want 2 s: it cannot be much more", got)
	}
}

// unloadedBeside makes a node that has the model loaded and all lanes taken, and a router
// that could load it, on which another model idles.
func unloadedBeside(places int) (m *Manager, a *Applied, busy, unloaded, other *instance) {
	m, a = calibrated(2, LowestCost)
	busy, unloaded = a.nodes[0].instances[0], a.nodes[1].instances[0]
	busy.held, busy.sessions = busy.lanes(), busy.lanes()
	n := a.nodes[1]
	n.loads, n.places = true, places
	unloaded.State = StateUnloaded
	other = n.instance("other")
	other.said = Instance{Model: "other", State: StateReady, Lanes: 1}
	other.settle(NodeSpec{})
	return m, a, busy, unloaded, other
}

// What a request would wait for a lane, and what loading the model elsewhere takes, are
// seconds of the same cost, and both are told.
func TestLoadIsWeighedAgainstTheWait(t *testing.T) {
	for name, c := range map[string]struct {
		load  float64
		loads bool
	}{"quick to load": {1, true}, "slow to load": {300, false}} {
		t.Run(name, func(t *testing.T) {
			m, a, busy, unloaded, _ := unloadedBeside(2)
			unloaded.loadTook = c.load
			w := &waiter{policy: a, held: time.Now().Add(-holdMost), Request: Request{Model: "m", Prompt: 500, Out: 256}}
			got, err := m.choose(w)
			if err != nil || (got != nil) != c.loads || got == nil && w.bound != busy {
				t.Fatalf("got %v, %v, want it loaded: %v", got, err, c.loads)
			}
			if got != nil && (got.instance != unloaded || unloaded.State != StateLoading || got.unload != nil) {
				t.Errorf("got %s for %v in state %s, want the one that is not loaded, and none to go", got.state.Node, got.unload, unloaded.State)
			}
			terms := map[string]Terms{}
			for _, x := range w.lane.choices {
				terms[x.Node] = x.Terms
			}
			if got := terms[unloaded.Node].Load; got != c.load {
				t.Errorf("got a load of %v s told, want %v s", got, c.load)
			}
			if terms[busy.Node].Wait <= 0 {
				t.Errorf("got terms %+v of the busy one, want a wait", terms[busy.Node])
			}
		})
	}
}

// A model that idles goes for one that others wait for, if loading it again costs less
// than that; one that answers never does.
func TestWhatGoesForALoadIsPartOfItsCost(t *testing.T) {
	for name, c := range map[string]struct {
		again  float64 // seconds to load the other again
		answer bool    // it answers
		loads  bool
	}{
		"it is back soon":    {again: 1, loads: true},
		"it takes long":      {again: 300},
		"it answers":         {again: 1, answer: true},
		"it answers for all": {again: 300, answer: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, a, _, unloaded, other := unloadedBeside(1)
			unloaded.loadTook, other.loadTook = 1, c.again
			if c.answer {
				other.held, other.sessions = 1, 1
			}
			w := &waiter{policy: a, held: time.Now().Add(-holdMost), Request: Request{Model: "m", Prompt: 500, Out: 256}}
			got, err := m.choose(w)
			if err != nil || (got != nil) != c.loads {
				t.Fatalf("got %v, %v, want it loaded: %v", got, err, c.loads)
			}
			if got != nil && (got.unload != other || !other.evicted) {
				t.Errorf("got %v to go, want the other model", got.unload)
			}
			if !c.loads && other.evicted {
				t.Error("the other model goes, and nothing is loaded for it")
			}
		})
	}
}
