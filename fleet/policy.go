package fleet

import (
	"fmt"
	"log/slog"
	"time"
)

// Placement names the rule by which an instance is chosen.
type Placement string

// The placements; docs/placement.md has their formulas.
const (
	LowestCost  Placement = "lowest_cost"  // the least delay to the request and to those beside it
	LoadAware   Placement = "load_aware"   // the least estimated time until the answer is whole
	LeastLoaded Placement = "least_loaded" // the fewest sessions and open generations of ours
	RoundRobin  Placement = "round_robin"  // in turn
)

// Policy is what a configuration wants. It does not change once it is applied; a
// session keeps the one it began with.
type Policy struct {
	Nodes []NodeSpec

	// Placement chooses among the instances. Default: LowestCost.
	Placement Placement

	// PoolHigh is the share of a unified KV pool, in percent, from which an
	// instance gets new requests only if all others are as full. Default: 90.
	PoolHigh int

	// Retry is the longest time between two probes of a node that is down, and
	// after which a silent node is asked whether it still answers. Default: 10s.
	Retry time.Duration

	// Attempts is how often one request may be started. Default: 4.
	Attempts int

	// Moves is the share, in percent of the requests of the last minute, that may go on
	// elsewhere after their node was lost; as many as the largest node has lanes, or 256, may do so
	// besides. Default: 10.
	Moves int

	// Stall is the longest silence of a running generation. Default: what
	// follows from the node's measured prefill speed, at least 15s, 120s while
	// that is unknown.
	Stall time.Duration

	// Wait is how long a request may wait for a lane, and how long an outage of
	// everything that serves its model is waited out. Default: 60s.
	Wait time.Duration

	// Waiting is how many requests may wait. Default: 512.
	Waiting int

	// Joins says that nodes which dial in are taken, by [Manager.Adopt].
	Joins bool

	// Relink is how long a node whose link lost its connection may stay away before
	// what runs there is lost. Default: 5s.
	Relink time.Duration

	// DrainTimeout is how long what runs on a drained node may finish there.
	// Default: 2m.
	DrainTimeout time.Duration

	// WaitingBytes is how large their bodies may be together. Default: 256 MiB.
	WaitingBytes int64

	// Warm says what is remembered of the servers' caches.
	Warm WarmSpec

	// Preempt lets a request that would have to wait take the lane of one of a lower
	// class, which goes on when it gets one again. Default: false.
	Preempt bool

	// Log gets what an operator wants to know. Default: nothing is logged.
	Log *slog.Logger

	// Observer hears of requests and nodes. Default: none.
	Observer Observer
}

// NodeSpec is one node of a policy.
type NodeSpec struct {
	// Name is the node's name in the configuration; unique in a policy.
	Name string

	// Address is what an operator calls its place. Not used to reach it.
	Address string

	// Identity stands for the name and all that the link is made from: where two
	// policies have the same one, the node keeps its link, state and counts.
	Identity string

	// Open makes the link. It does no I/O.
	Open func() (Link, error)

	// What the configuration states about each instance; 0: as the node says.
	Lanes   int
	Context Tokens
	Rates   Rates
}

func (p *Policy) defaults() {
	if p.Placement == "" {
		p.Placement = LowestCost
	}
	if p.PoolHigh == 0 {
		p.PoolHigh = 90
	}
	if p.Retry == 0 {
		p.Retry = 10 * time.Second
	}
	if p.Attempts == 0 {
		p.Attempts = 4
	}
	if p.Moves == 0 {
		p.Moves = 10
	}
	if p.Wait == 0 {
		p.Wait = 60 * time.Second
	}
	if p.Waiting == 0 {
		p.Waiting = 512
	}
	if p.Relink == 0 {
		p.Relink = DefaultRelink
	}
	if p.DrainTimeout == 0 {
		p.DrainTimeout = 2 * time.Minute
	}
	if p.WaitingBytes == 0 {
		p.WaitingBytes = 256 << 20
	}
	if p.Warm.Size == 0 {
		p.Warm.Size = defaultWarmSize
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Observer == nil {
		p.Observer = deaf{}
	}
}

// Check says what is wrong with a policy, in the words of the configuration.
func (p *Policy) Check() error {
	switch p.Placement {
	case "", LowestCost, LoadAware, LeastLoaded, RoundRobin:
	default:
		return fmt.Errorf("unknown policy %q: one of %s, %s, %s, %s", p.Placement, LowestCost, LoadAware, LeastLoaded, RoundRobin)
	}
	if p.PoolHigh < 0 || p.PoolHigh > 100 {
		return fmt.Errorf("pool_high is %d: a percentage from 1 to 100", p.PoolHigh)
	}
	if p.Moves < 0 || p.Moves > 300 {
		return fmt.Errorf("moves is %d: a percentage from 1 to 300", p.Moves)
	}
	if min(p.Retry, p.Stall, p.Wait, p.DrainTimeout, p.Relink) < 0 || p.Attempts < 0 || p.Waiting < 0 || p.WaitingBytes < 0 {
		return fmt.Errorf("retry, stall, attempts, relink, drain_timeout and the queue's limits cannot be negative")
	}
	if p.Warm.Size < 0 || p.Warm.Size > MaxWarmSize {
		return fmt.Errorf("warm: size is %d: a number of bytes from 1 to %d (10 GiB)", p.Warm.Size, int64(MaxWarmSize))
	}
	seen := make(map[string]bool)
	for _, n := range p.Nodes {
		if n.Name == "" {
			return fmt.Errorf("a node has no name")
		}
		if seen[n.Name] {
			return fmt.Errorf("node %s is there twice: give each node its own name", n.Name)
		}
		seen[n.Name] = true
	}
	return nil
}
