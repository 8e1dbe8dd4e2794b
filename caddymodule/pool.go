package caddymodule

import (
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/linkf"
)

// What outlives a configuration. All configurations of a process share one state,
// one tail for each log file, one door for each address that nodes dial and one
// announcement of it, and one agent for all that say the same of it.
var (
	states = caddy.NewUsagePool()
	tails  = caddy.NewUsagePool()
	doors  = caddy.NewUsagePool()
	signs  = caddy.NewUsagePool()
	agents = caddy.NewUsagePool()
)

const stateKey = "slotfleet"

// state is what is known, as opposed to what is wanted. It lives as long as a
// configuration or a request holds it.
type state struct {
	manager *fleet.Manager
	fleet   *fleetMetrics
	slotlog *slotlogMetrics
	memory  memory // for requests and what is held of their answers

	linking sync.Mutex
	head    *linkf.Head // of nodes that dial in; nil: none could

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
var _ caddy.Destructor = (*state)(nil)
