package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

// FleetApp is the fleet of llama.cpp servers that the `fleet` handlers of all sites
// share.
//
// Nodes, models, load and running requests survive a reload: a node that the new
// configuration describes in the same words keeps its connections and what is
// known of it. One that was removed gets no new request and ends its last one.
type FleetApp struct {
	// The servers. Each needs a name and an address of its own. A configuration
	// without nodes loads, and answers 503.
	Nodes []*Node `json:"nodes,omitempty"`

	// How an instance is chosen for a request: `lowest_cost` (the least delay to the
	// request and to those beside it), `load_aware` (the least estimated
	// time until the answer is whole), `least_loaded` (the fewest requests of ours)
	// or `round_robin` (in turn). Default: `lowest_cost`.
	Policy string `json:"policy,omitempty"`

	// The share of a unified KV cache, in percent from 1 to 100, from which an
	// instance gets new requests only if all others are as full. Default: 90.
	PoolHigh int `json:"pool_high,omitempty"`

	// The longest time between two probes of a node that is down, and after which a
	// silent node is asked whether it still answers. Default: 10s.
	Retry caddy.Duration `json:"retry,omitempty"`

	// How often one request may be started, the first time included. Default: 4.
	Attempts int `json:"attempts,omitempty"`

	// The longest silence of a node that generates for us before the request goes to
	// another one. Default: what follows from the node's measured prefill speed, at
	// least 15s, and 120s while that is unknown (`auto` in a Caddyfile).
	Stall caddy.Duration `json:"stall,omitempty"`

	// The memory in bytes for all requests together: their bodies, as they came,
	// unpacked and as a node was sent them, and what is held of their answers. A request
	// that finds none left, or whose answer is not streamed and finds none, is answered
	// 503 `overloaded`; a stream goes on, and ends if its node is lost. At most 1 TiB.
	// Default: 1073741824 (1 GiB).
	Buffer int64 `json:"buffer,omitempty"`

	// The share, in percent from 1 to 300 of the requests of the last minute, that may go
	// on elsewhere after their node was lost. As many as the largest node has lanes, or
	// 256, may do so besides. Default: 10.
	Moves int `json:"moves,omitempty"`

	// Let a request that would have to wait take the lane of one of a lower class, which
	// goes on when it gets one again. Default: false.
	Preempt bool `json:"preempt,omitempty"`

	// Where nodes dial in that run an agent (the `fleet_node` app of another Caddy):
	// `:port` or `host:port`. Default: none may.
	Listen string `json:"listen,omitempty"`

	// Announce the fleet on the local network by DNS-SD, as `_slotfleet._tcp`, for nodes
	// whose `head` is `auto`. Default: false.
	Announce bool `json:"announce,omitempty"`

	// The tokens that nodes may dial in with, under any name, 64 hexadecimal digits each,
	// best as `{env.FLEET_TOKEN}`. Two while one takes the place of the other. Default:
	// none.
	Tokens []string `json:"tokens,omitempty"`

	// A file with more of them: a token a line, and behind it the identities that nodes
	// may have with it, if not any. It is read when the configuration is loaded. Without
	// any token, `listen` must be on loopback, or the fleet `insecure`.
	TokensFile string `json:"tokens_file,omitempty"`

	// How long a node whose link was lost may stay away before its requests go on
	// elsewhere. Nodes that are dialled are given up after 5s at the latest. Default: 5s.
	Relink caddy.Duration `json:"relink,omitempty"`

	// How long a node with an agent goes on with a request while it hears nothing of this
	// Caddy: longer than `relink` and the 3s after which a silent link counts as lost, and
	// at most 10m. Default: 30s.
	Lease caddy.Duration `json:"lease,omitempty"`

	// Take agents on other machines without a token: whoever is at their address, or
	// dials in, gets the requests. Default: false.
	Insecure bool `json:"insecure,omitempty"`

	// How long requests on a node that is drained may finish there. Default: 2m.
	DrainTimeout caddy.Duration `json:"drain_timeout,omitempty"`

	// How requests wait for a free lane.
	Queue *Queue `json:"queue,omitempty"`

	// What is remembered of the servers' caches, so that a prompt goes where its
	// beginning was read.
	Warm *Warm `json:"warm,omitempty"`

	run *fleetRun
}

// Warm says how it is remembered which server read which prompt.
type Warm struct {
	// The most memory in bytes for it; 64 MiB are 1.6 million blocks of 256 bytes.
	// What was used longest ago is forgotten first. At most 10 GiB.
	// Default: 67108864 (64 MiB).
	Size int64 `json:"size,omitempty"`

	// Do not write it to Caddy's data folder, from where a restart takes it up. What
	// is written are keyed hashes, and the key: nobody but the owner of the process
	// may read them. Default: false.
	MemoryOnly bool `json:"memory_only,omitempty"`
}

// Queue says how requests wait.
type Queue struct {
	// How many requests may wait. One more is answered 503 `overloaded`.
	// Default: 512.
	Requests int `json:"requests,omitempty"`

	// How large the bodies of those that wait may be together, in bytes. One more is
	// answered 503 `overloaded`. At most 1 TiB. Default: 268435456 (256 MiB).
	Bytes int64 `json:"bytes,omitempty"`

	// How long a request may wait for a lane, and how long an outage of everything
	// that serves its model is waited out. Default: 60s.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long a stream may be silent before a comment tells its client that it lives:
	// while it waits for a lane or is prepared, while a tool call is held, while it
	// moves. The first comment sends the status 200; an error after it is an error
	// event. Negative: never. Default: 15s.
	Ping caddy.Duration `json:"ping,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (FleetApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "fleet",
		New: func() caddy.Module { return new(FleetApp) },
	}
}

// Provision checks the configuration, expands placeholders and takes its part in
// the shared state. It reads the files that tls_ca names and does nothing else.
func (a *FleetApp) Provision(ctx caddy.Context) error {
	s, err := holdState()
	if err != nil {
		return err
	}
	a.run = &fleetRun{
		state: s,
		ready: make(chan struct{}),
		gone:  make(chan struct{}),
		users: 1,
	}
	if err := registerMetrics(ctx, s.fleet, s.slotlog); err != nil {
		return err
	}
	if err := a.check(); err != nil {
		return err
	}
	nodes, err := a.provisionNodes(ctx)
	if err != nil {
		return err
	}
	if a.run.joins, err = a.provisionJoins(); err != nil {
		return err
	}
	a.run.buffer = cmp.Or(a.Buffer, defaultBuffer)
	a.run.ping = max(0, cmp.Or(time.Duration(a.queue().Ping), defaultPing))
	a.run.policy = a.policy(nodes)
	a.run.policy.Log = ctx.Slogger()
	a.run.policy.Observer = s.fleet
	return a.run.policy.Check()
}

// check refuses what no policy can be made of.
func (a *FleetApp) check() error {
	if err := checkPlacement(a.Policy); err != nil {
		return err
	}
	for _, n := range a.Nodes {
		if err := n.check(); err != nil {
			return err
		}
	}
	q := a.queue()
	if a.Buffer < 0 || a.Buffer > maxSize {
		return fmt.Errorf("buffer %d: want a number of bytes from 1 to %d (1 TiB)", a.Buffer, int64(maxSize))
	}
	if q.Bytes < 0 || q.Bytes > maxSize {
		return fmt.Errorf("queue: bytes %d: want a number of bytes from 1 to %d (1 TiB)", q.Bytes, int64(maxSize))
	}
	if a.PoolHigh < 0 || a.Attempts < 0 || a.Retry < 0 || a.Stall < 0 || a.DrainTimeout < 0 || q.Requests < 0 || q.Timeout < 0 {
		return errors.New("pool_high, retry, attempts, stall, drain_timeout and the queue's limits cannot be negative")
	}
	return nil
}

func (a *FleetApp) queue() Queue {
	if a.Queue == nil {
		return Queue{}
	}
	return *a.Queue
}

// policy is what the manager is told. It knows the defaults of what is zero here.
func (a *FleetApp) policy(nodes []fleet.NodeSpec) fleet.Policy {
	q := a.queue()
	return fleet.Policy{
		Nodes:     nodes,
		Placement: fleet.Placement(a.Policy),
		PoolHigh:  a.PoolHigh,
		Retry:     time.Duration(a.Retry),
		Attempts:  a.Attempts,
		Stall:     time.Duration(a.Stall),
		Wait:      time.Duration(q.Timeout),
		Waiting:   q.Requests,

		Joins:  a.run.joins.any(),
		Relink: time.Duration(a.Relink),

		Moves:        a.Moves,
		Preempt:      a.Preempt,
		DrainTimeout: time.Duration(a.DrainTimeout),
		Warm:         a.warm(),
		WaitingBytes: q.Bytes,
	}
}

// warm is what the manager is told of the index. Its folder is one for all
// configurations.
func (a *FleetApp) warm() fleet.WarmSpec {
	w := fleet.WarmSpec{Dir: filepath.Join(caddy.AppDataDir(), "slotfleet")}
	if a.Warm != nil {
		w.Size = a.Warm.Size
		if a.Warm.MemoryOnly {
			w.Dir = ""
		}
	}
	return w
}

// placements are the values of `policy`.
var placements = []string{string(fleet.LowestCost), string(fleet.LoadAware), string(fleet.LeastLoaded), string(fleet.RoundRobin)}

func checkPlacement(name string) error {
	if name == "" || slices.Contains(placements, name) {
		return nil
	}
	return fmt.Errorf("unknown policy %q: one of %s", name, list(placements))
}

// Start makes the policy the one in force. From now on its nodes are reached.
func (a *FleetApp) Start() error {
	for _, t := range a.run.tails {
		t.start()
	}
	applied, err := a.run.state.manager.Apply(a.run.policy)
	if err != nil {
		return err
	}
	a.run.applied = applied
	if err := a.run.state.admit(a.run); err != nil {
		applied.Withdraw()
		return err
	}
	a.run.behind.begin(func(ctx context.Context) { keepEye(ctx, a.run.policy.Log, a.run.logs) })
	a.run.state.apps.add(a)
	close(a.run.ready)
	return nil
}

// Stop takes the policy out of force. Requests that came with it go on by it.
func (a *FleetApp) Stop() error {
	a.run.behind.stop()
	a.run.applied.Withdraw()
	a.run.state.apps.remove(a)
	return a.run.state.dismiss(a.run)
}

// Cleanup leaves the app. With the last request that came to it, it ends.
func (a *FleetApp) Cleanup() error {
	if a.run == nil {
		return nil
	}
	var err error
	a.run.cleaned.Do(func() {
		close(a.run.gone)
		err = a.run.leave()
	})
	return err
}

// Interface guards.
var (
	_ caddy.App          = (*FleetApp)(nil)
	_ caddy.Provisioner  = (*FleetApp)(nil)
	_ caddy.CleanerUpper = (*FleetApp)(nil)
)
