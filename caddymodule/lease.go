package caddymodule

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// fleetRun is one FleetApp at work. The configuration and each request hold it;
// the last one that leaves gives everything back.
type fleetRun struct {
	state  *state
	policy fleet.Policy
	buffer int64         // what requests may take up
	ping   time.Duration // 0: never
	joins  joins
	tails  []*tail
	logs   []namedLog        // that nodes brought themselves
	reads  map[string]string // by source of the slotlog app: the node it belongs to

	behind  background     // from Start to Stop
	applied *fleet.Applied // set before ready is closed
	ready   chan struct{}  // closed by Start
	gone    chan struct{}  // closed by Cleanup
	cleaned sync.Once

	mu    sync.Mutex
	users int // 0: nothing is left to use
}

// namedLog is a log as a configuration calls it.
type namedLog struct {
	name string
	node string // that writes it; empty: not said
	tail *tail
}

func (r *fleetRun) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 {
		return false
	}
	r.users++
	return true
}

func (r *fleetRun) leave() error {
	r.mu.Lock()
	r.users--
	last := r.users == 0
	r.mu.Unlock()
	if !last {
		return nil
	}
	if r.applied != nil {
		r.applied.Release()
	}
	return errors.Join(dropTails(r.tails), dropState())
}

// lease is a request's part in an app: what it needs stays until end is called.
type lease struct {
	*fleet.Applied
	manager *fleet.Manager
	run     *fleetRun
}

func (l lease) end() { _ = l.run.leave() }

// errGone: the configuration went away before it ever worked.
var errGone = &fleet.RequestError{
	Reason:  fleet.ReasonStopping,
	Message: "the configuration that this request came to is gone; try again",
}

// lease waits until the app has started: Caddy starts apps in no certain order, so
// requests may come before. A connection that the old server accepted may bring its
// first request after the app ended; such a request goes by the policy in force.
func (a *FleetApp) lease(ctx context.Context) (lease, error) {
	run := a.run
	if !run.enter() {
		next := run.state.apps.last()
		if next == nil || !next.run.enter() {
			return lease{}, errGone
		}
		run = next.run
	}
	l := lease{manager: run.state.manager, run: run}
	select {
	case <-run.ready:
		l.Applied = run.applied
		return l, nil
	default:
	}
	select {
	case <-run.ready:
		l.Applied = run.applied
		return l, nil
	case <-run.gone:
		l.end()
		return lease{}, errGone
	case <-ctx.Done():
		l.end()
		return lease{}, &fleet.RequestError{Reason: fleet.ReasonCancelled, Message: "the client left", Err: context.Cause(ctx)}
	}
}
