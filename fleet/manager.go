package fleet

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
)

// Manager decides who waits, where a request runs and when it moves. One serves a
// whole process and outlives configurations: what it knows stays, what is wanted
// comes with each [Policy].
type Manager struct {
	ctx  context.Context // ends the goroutines of all nodes
	stop context.CancelFunc
	wg   sync.WaitGroup // of nodes

	applying sync.Mutex // one Apply at a time; taken before mu

	mu       sync.Mutex
	nodes    []*node // in the order they were learned
	applied  []*Applied
	queue    *queue
	cursor   int       // of round_robin, over all requests
	offers   uint64    // counts changes of what nodes offer, but for their state
	warm     warmth    // what caches are expected to hold
	warmFile *warmFile // that keeps it; nil: it is not kept
	endings  endings
	models   map[string]*modelFigures
	scratch  scratch
	live     map[string]*Session // admitted or being admitted, not ended
	done     []SessionStatus     // the last that ended, in a ring
	oldest   int                 // of these
	retired  bool                // closes with the last session
	closed   bool

	standing   []*standing // what all instances of a model get, the later ones, too
	quarantine quarantine
	came       counts // requests
	moved      counts // of them, those that went on elsewhere after a loss

	watchers watchers
	seed     maphash.Seed // of what is shown instead of a tenant
}

// New makes a manager with no nodes. It does nothing until a policy is applied.
func New() *Manager {
	ctx, stop := context.WithCancel(context.Background())
	return &Manager{
		ctx: ctx, stop: stop, queue: newQueue(), warm: newWarmth(), models: make(map[string]*modelFigures),
		live: make(map[string]*Session), seed: maphash.MakeSeed(),
	}
}

// Applied is one policy that a manager works by, next to others: those of a
// configuration that is leaving and of the one that takes its place.
type Applied struct {
	Policy
	m         *Manager
	placer    placer
	nodes     []*node // of the policy, in its order, then those that dialled in
	rosters   map[string]*roster
	withdrawn bool
	released  bool
}

// Apply makes a policy the one in force. Nodes that an earlier policy named with
// the same identity are kept as they are. On an error nothing has changed.
func (m *Manager) Apply(p Policy) (*Applied, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	p.defaults()
	m.applying.Lock()
	defer m.applying.Unlock()
	a := &Applied{Policy: p, m: m, placer: newPlacer(p.Placement), nodes: make([]*node, len(p.Nodes))}
	if err := m.holdKnown(a); err != nil {
		return nil, err
	}
	for i, spec := range p.Nodes {
		if a.nodes[i] != nil {
			continue
		}
		link, err := spec.Open()
		if err != nil {
			m.letGo(a)
			return nil, fmt.Errorf("node %s: %w", spec.Name, err)
		}
		a.nodes[i] = newNode(spec, link)
	}
	m.remember(p.Warm, p.Log)
	return a, m.enforce(a)
}

// holdKnown takes hold of the policy's nodes that are there, so that they stay while
// the others are opened.
func (m *Manager) holdKnown(a *Applied) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errEnded
	}
	for i, spec := range a.Nodes {
		if n := m.known(spec.Identity); n != nil {
			n.wanted++
			a.nodes[i] = n
		}
	}
	m.holdJoined(a)
	return nil
}

// enforce puts the policy in force.
func (m *Manager) enforce(a *Applied) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		m.letGo(a)
		return errEnded
	}
	defer m.mu.Unlock()
	m.applied = append(m.applied, a)
	for _, n := range a.nodes {
		if n.cancel == nil {
			n.wanted, n.index = 1, len(m.nodes)
			m.nodes = append(m.nodes, n)
			m.start(n)
		}
	}
	m.restate(a.nodes)
	return nil
}

// letGo undoes what was done for a policy that is not taken.
func (m *Manager) letGo(a *Applied) {
	m.mu.Lock()
	var fresh []*node
	for _, n := range a.nodes {
		switch {
		case n == nil:
		case n.cancel == nil:
			fresh = append(fresh, n)
		default:
			n.wanted--
		}
	}
	m.dropUnwanted()
	m.mu.Unlock()
	for _, n := range fresh {
		_ = n.link.Close("its configuration was not taken")
	}
}

var errEnded = errors.New("the fleet has ended")

// restate applies to nodes what the policy in force states about them.
func (m *Manager) restate(nodes []*node) {
	for _, n := range nodes {
		n.state(m.specOf(n))
	}
	m.regroup()
	m.pump()
}

// known returns the node with that identity which some policy still wants.
func (m *Manager) known(identity string) *node {
	i := slices.IndexFunc(m.nodes, func(n *node) bool { return n.identity == identity && n.wanted > 0 })
	if i < 0 {
		return nil
	}
	return m.nodes[i]
}

// InForce returns the policy that was applied last and not withdrawn, or nil.
func (m *Manager) InForce() *Applied {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inForce()
}

// logger is where an operator reads what happens now.
func (m *Manager) logger() *slog.Logger {
	if a := m.inForce(); a != nil {
		return a.Log
	}
	return slog.New(slog.DiscardHandler)
}

func (m *Manager) inForce() *Applied {
	for _, a := range slices.Backward(m.applied) {
		if !a.withdrawn {
			return a
		}
	}
	return nil
}

// Withdraw takes the policy out of force: the one before it, if there is one,
// holds again. Requests that came with this one go on by it.
func (a *Applied) Withdraw() {
	m := a.m
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	a.withdrawn = true
	m.restate(a.nodes)
	now := m.inForce()
	m.mu.Unlock()
	if now != nil {
		m.remember(now.Warm, now.Log)
	}
}

// Release gives the policy's nodes back. Those that no other policy wants take no
// further request and are closed when their last one has ended.
func (a *Applied) Release() {
	m := a.m
	m.mu.Lock()
	if a.released {
		m.mu.Unlock()
		return
	}
	a.withdrawn, a.released = true, true
	m.applied = slices.DeleteFunc(m.applied, func(x *Applied) bool { return x == a })
	for _, n := range a.nodes {
		n.wanted--
	}
	m.dropUnwanted()
	m.restate(a.nodes)
	m.mu.Unlock()
}

// dropUnwanted lets go of nodes that no policy wants and no request uses.
func (m *Manager) dropUnwanted() {
	kept := m.nodes[:0]
	for _, n := range m.nodes {
		if n.wanted > 0 || n.busy() {
			n.index = len(kept)
			kept = append(kept, n)
			continue
		}
		n.cancel()
	}
	clear(m.nodes[len(kept):])
	m.nodes = kept
}

// Retire lets the manager end with its last session. Its file is free at once, for
// the next one.
func (m *Manager) Retire() {
	m.mu.Lock()
	m.retired = true
	idle, size := len(m.live) == 0, m.warm.size
	m.mu.Unlock()
	if idle {
		m.Close()
		return
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	m.remember(WarmSpec{Size: size}, slog.New(slog.DiscardHandler))
}

// Close ends all nodes and waits for their goroutines. Requests that still run
// end as lost.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	m.queue.each(func(w *waiter) {
		m.dequeue(w)
		w.settle(nil, stopping())
	})
	m.mu.Unlock()
	m.stop()
	m.wg.Wait()
}
