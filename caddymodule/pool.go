package caddymodule

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

// What outlives a configuration. All configurations of a process share one state,
// and one tail for each log file.
var (
	states = caddy.NewUsagePool()
	tails  = caddy.NewUsagePool()
)

const stateKey = "slotfleet"

// state is what is known, as opposed to what is wanted. It lives as long as a
// configuration or a request holds it.
type state struct {
	manager *fleet.Manager
	fleet   *fleetMetrics
	slotlog *slotlogMetrics
	memory  memory // for the bodies of requests

	apps    inForce[*FleetApp]   // that started and did not stop
	sources inForce[*slotlogRun] // likewise
}

// holdState takes a reference to the state. It starts nothing. Each call needs one
// of dropState.
func holdState() (*state, error) {
	v, _, err := states.LoadOrNew(stateKey, func() (caddy.Destructor, error) {
		s := &state{manager: fleet.New()}
		s.fleet, s.slotlog = newFleetMetrics(s), newSlotlogMetrics(s)
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*state), nil
}

func dropState() error {
	_, err := states.Delete(stateKey)
	return err
}

// currentState returns the state if some configuration holds it, else nil.
func currentState() *state {
	var s *state
	states.Range(func(_, v any) bool {
		s = v.(*state)
		return false
	})
	return s
}

// Destruct lets the fleet end with its last request.
func (s *state) Destruct() error {
	s.manager.Retire()
	return nil
}

// tail is one log file, followed once, whatever it is called.
type tail struct {
	path string

	mu        sync.Mutex
	source    *slotlog.Source // nil: not started
	generated int64           // tokens counted since it was started
}

// holdTail takes a reference to the tail of a file. It does not touch the file.
// Each call needs one of dropTail.
func holdTail(path string) (*tail, error) {
	v, _, err := tails.LoadOrNew(path, func() (caddy.Destructor, error) {
		return &tail{path: path}, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*tail), nil
}

func dropTails(held []*tail) error {
	var failed error
	for _, t := range held {
		if _, err := tails.Delete(t.path); err != nil && failed == nil {
			failed = fmt.Errorf("closing log %s: %w", t.path, err)
		}
	}
	return failed
}

// start begins to follow the file, the first time it is called.
func (t *tail) start() *slotlog.Source {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		t.source = slotlog.Open(slotlog.SourceOptions{Path: t.path})
	}
	return t.source
}

// look returns what the log says and how many tokens it counted so far. false: it
// is not followed yet.
func (t *tail) look(now time.Time) (s slotlog.Snapshot, generated int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return slotlog.Snapshot{}, 0, false
	}
	t.generated += t.source.TakeGeneratedTokens()
	return t.source.Snapshot(now), t.generated, true
}

// Destruct stops following the file.
func (t *tail) Destruct() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return nil
	}
	return t.source.Close()
}

// inForce is what started configurations brought. During a reload there are two,
// and either may leave first: the old one, or the new one because another of its
// apps could not start.
type inForce[T comparable] struct {
	mu  sync.Mutex
	all []T
}

func (f *inForce[T]) add(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, v)
}

func (f *inForce[T]) remove(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(f.all, func(x T) bool { return x == v })
}

// last returns what was added last; the zero value if nothing is left.
func (f *inForce[T]) last() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	var none T
	if len(f.all) == 0 {
		return none
	}
	return f.all[len(f.all)-1]
}

// Interface guards.
var (
	_ caddy.Destructor = (*state)(nil)
	_ caddy.Destructor = (*tail)(nil)
)
