package fleet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// routing is a fake of a node that loads what is asked for: models by name with their
// state. It notes which models went for which.
type routing struct {
	fakeLink
	asked []string // "model" or "model for other"
}

func router(places int, states map[string]State) *routing {
	r := &routing{}
	r.places = places
	names := make([]string, 0, len(states))
	for name := range states {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		r.instances = append(r.instances, Instance{
			Model: name, State: states[name], Lanes: 1, Routed: true, Fingerprint: "f", Features: ContinueContent,
		})
	}
	r.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
		r.loads(a)
		return saying("done.")(ctx, a, take)
	}
	return r
}

// loads does what a router does: the model that goes is unloaded, the one that is asked
// for loaded, and both told.
func (r *routing) loads(a Assignment) {
	r.mu.Lock()
	note := a.Model
	if a.Unload != "" {
		note = a.Model + " for " + a.Unload
	}
	r.asked = append(r.asked, note)
	r.instances = slices.Clone(r.instances)
	for k := range r.instances {
		switch i := &r.instances[k]; i.Model {
		case a.Model:
			i.State = StateReady
		case a.Unload:
			i.State = StateUnloaded
		}
	}
	tell, s := r.tell, r.state()
	r.mu.Unlock()
	tell(s)
}

func askModel(m *Manager, a *Applied, model string) error {
	s, err := m.Admit(context.Background(), a, Request{Model: model})
	if err != nil {
		return err
	}
	return s.Run(context.Background(), &fakeJob{}, func([]byte) error { return nil })
}

func TestModelIsLoadedWhereThereIsAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := router(2, map[string]State{"x": StateReady, "y": StateUnloaded})
		m, a := fleetOf(t, nil, &r.fakeLink)
		if err := askModel(m, a, "y"); err != nil {
			t.Fatal(err)
		}
		if want := []string{"y"}; !slices.Equal(r.asked, want) {
			t.Errorf("got %q, want %q", r.asked, want)
		}
		quietNow(t, m)
	})
}

func TestIdleModelGoesForAnotherTheOneUsedLongestAgoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := router(2, map[string]State{"x": StateReady, "y": StateReady, "z": StateUnloaded})
		m, a := fleetOf(t, nil, &r.fakeLink)
		for _, model := range []string{"y", "x", "z", "y"} {
			time.Sleep(time.Second)
			if err := askModel(m, a, model); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"y", "x", "z for y", "y for x"}; !slices.Equal(r.asked, want) {
			t.Errorf("got %q, want %q", r.asked, want)
		}
		quietNow(t, m)
	})
}

func TestModelThatAnswersNeverGoes(t *testing.T) {
	for name, busy := range map[string]func(*routing, *Manager, *Applied) (end func()){
		"for us": func(r *routing, m *Manager, a *Applied) func() {
			end := make(chan struct{})
			r.set(func(l *fakeLink) { l.run = blocking(end) })
			done := make(chan struct{})
			go func() { defer close(done); _ = askModel(m, a, "x") }()
			synctest.Wait()
			return func() { close(end); <-done }
		},
		"for others": func(r *routing, _ *Manager, _ *Applied) func() {
			told := func(active int) {
				r.mu.Lock()
				r.instances = slices.Clone(r.instances)
				r.instances[0].Load = Load{Active: active, At: time.Now()}
				tell, s := r.tell, r.state()
				r.mu.Unlock()
				tell(s)
			}
			told(1)
			return func() { told(0) }
		},
		"for one that left": func(r *routing, _ *Manager, _ *Applied) func() {
			told := func(leaving int) {
				r.mu.Lock()
				r.instances = slices.Clone(r.instances)
				r.instances[0].Leaving = leaving
				tell, s := r.tell, r.state()
				r.mu.Unlock()
				tell(s)
			}
			told(1)
			return func() { told(0) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := router(1, map[string]State{"x": StateReady, "y": StateUnloaded})
				run := r.run
				m, a := fleetOf(t, nil, &r.fakeLink)
				end := busy(r, m, a)
				got := make(chan error, 1)
				go func() { got <- askModel(m, a, "y") }()
				time.Sleep(time.Second)
				synctest.Wait()
				if slices.Contains(r.asked, "y for x") || len(got) > 0 {
					t.Fatalf("got %q while x was answering, want y to wait", r.asked)
				}
				r.set(func(l *fakeLink) { l.run = run })
				end()
				if err := <-got; err != nil {
					t.Fatal(err)
				}
				if last := r.asked[len(r.asked)-1]; last != "y for x" {
					t.Errorf("got %q at last, want y for x", last)
				}
				quietNow(t, m)
			})
		})
	}
}

func TestNobodyIsPlacedOnAModelThatGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := router(1, map[string]State{"x": StateReady, "y": StateUnloaded})
		end := make(chan struct{})
		r.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			if a.Model == "y" {
				<-end // it loads, and the node says nothing yet
			}
			r.loads(a)
			return saying("done.")(ctx, a, take)
		}
		m, a := fleetOf(t, nil, &r.fakeLink)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- askModel(m, a, "y") }()
		synctest.Wait()
		go func() { second <- askModel(m, a, "x") }()
		synctest.Wait()
		if len(second) > 0 {
			t.Fatal("x was asked though it goes")
		}
		close(end)
		if err := errors.Join(<-first, <-second); err != nil {
			t.Fatal(err)
		}
		if want := []string{"y for x", "x for y"}; !slices.Equal(r.asked, want) {
			t.Errorf("got %q, want %q", r.asked, want)
		}
		quietNow(t, m)
	})
}

func TestNothingIsLoadedWhereRequestsDoNotLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := router(0, map[string]State{"y": StateUnloaded})
		m, a := fleetOf(t, nil, &r.fakeLink)
		var re *RequestError
		if err := askModel(m, a, "y"); !errors.As(err, &re) || re.Reason != ReasonNoNode {
			t.Errorf("got %v, want no_node", err)
		}
		quietNow(t, m)
	})
}
