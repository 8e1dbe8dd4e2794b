package fleet

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// node is one node and what is known of it. The fields above index never change;
// the others are guarded by the manager's mutex.
type node struct {
	name, address, identity string

	link   Link
	life   context.Context // ends with it
	cancel context.CancelFunc
	lost   chan struct{} // has room for one: somebody saw the node fail
	doubt  chan struct{} // likewise: it may let a request lie

	index     int // in the manager's list
	wanted    int // policies that name it
	instances []*instance

	learned bool // it said once what it offers
	lives   int  // how often it came back from an outage that a probe saw
	added   time.Time
	down    *downtime // nil: nothing is wrong with it, as far as is known
	told    time.Time // when an outage was last logged
	drain   *drain    // nil: it is in service
	peer    string    // host that it dialled in from; empty: the configuration names it
	away    time.Time // when its link lost the connection; zero: it did not

	places int  // how many instances it can have loaded; 0: no limit
	loads  bool // it loads what a request asks for

	outcomes  tally // of attempts
	outages   tally // those that are bad
	restUntil time.Time
	restFor   time.Duration
	victims   []*Session // that were lost with it early, and may be why

	heard atomic.Int64 // last sign of life, in Unix nanoseconds; needs no lock
}

// downtime is an outage.
type downtime struct {
	since     time.Time
	cause     Cause
	why       string // for an operator
	nextProbe time.Time
	told      bool // it was logged
	seen      bool // a probe found it so
}

// instance is an Instance with what we do there.
type instance struct {
	Instance          // what the node said, with what the configuration states
	said     Instance // what the node said
	node     *node
	held     int         // lanes we hold
	sessions int         // sessions placed there and not ended
	light    int         // light requests that run there
	gone     bool        // the node does not offer it any more
	owed     []*standing // calls that it must get before a request
	measured Rates       // from answers of ours; 0: none yet
	service  float64     // seconds that a lane is held, on average; 0: unknown
	work     work
	speed    estimate
	warm     warmID
	reading  []uint32 // runs, as the index counts them, of those that have a lane
	seed     uint64   // of ties

	used    time.Time // when a request of ours ended there last
	evicted bool      // it goes so that another is loaded, and the node did not say yet that it is gone
}

func newNode(spec NodeSpec, link Link) *node {
	return &node{
		name:     spec.Name,
		address:  spec.Address,
		identity: spec.Identity,
		link:     link,
		lost:     make(chan struct{}, 1),
		doubt:    make(chan struct{}, 1),
		added:    time.Now(),
	}
}

// state applies what the configuration states about the node's instances.
func (n *node) state(spec NodeSpec) {
	for _, i := range n.instances {
		i.settle(spec)
	}
}

// settle makes one picture of what the node said, what the configuration states
// and what we measured ourselves.
func (i *instance) settle(spec NodeSpec) {
	i.Instance = i.said
	i.Node = i.node.name
	i.Lanes = cmp.Or(spec.Lanes, i.said.Lanes)
	i.Context = cmp.Or(spec.Context, i.said.Context)
	i.Rates.Prefill = cmp.Or(i.measured.Prefill, i.said.Rates.Prefill, spec.Rates.Prefill)
	i.Rates.Decode = cmp.Or(i.measured.Decode, i.said.Rates.Decode, spec.Rates.Decode)
	i.speed.start(Rates{
		Prefill: cmp.Or(i.said.Rates.Prefill, spec.Rates.Prefill),
		Decode:  cmp.Or(i.said.Rates.Decode, spec.Rates.Decode),
	})
}

// busy reports whether a session still counts on the node.
func (n *node) busy() bool {
	return slices.ContainsFunc(n.instances, (*instance).busy)
}

// loaded: a process has the model, though it may have to wake.
func (i *instance) loaded() bool { return i.State == StateReady || i.State == StateSleeping }

func (i *instance) busy() bool { return i.held > 0 || i.sessions > 0 || i.light > 0 }

// start runs the node's goroutines until its context ends: one that listens to the
// link, one that probes.
func (m *Manager) start(n *node) {
	ctx := m.lifetime(n)
	m.wg.Go(func() {
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			n.link.Watch(ctx, func(s NodeState) { m.report(n, s) })
		}()
		m.tend(ctx, n)
		<-watching
		_ = n.link.Close("the node is no longer wanted")
	})
}

const (
	firstRetry  = 250 * time.Millisecond
	probeLimit  = 30 * time.Second // for all that a link asks in one probe
	healthLimit = 5 * time.Second
)

// tend probes the node when it is new, when it was lost, and when nothing was
// heard of it for long.
func (m *Manager) tend(ctx context.Context, n *node) {
	var wait time.Duration // before the next probe
	for ctx.Err() == nil {
		if !pause(ctx, wait) {
			return
		}
		if m.call(ctx, n, OpProbe, probeLimit) != nil {
			wait = m.probeLater(n, wait)
			continue
		}
		if wait = m.untilLost(ctx, n); wait > 0 {
			m.probeIn(n, wait)
		}
	}
}

// untilLost returns when the node needs a probe, and how long that should wait.
func (m *Manager) untilLost(ctx context.Context, n *node) time.Duration {
	for {
		idle := time.NewTimer(m.retryOf(n))
		select {
		case <-ctx.Done():
			idle.Stop()
			return 0
		case <-n.lost:
			idle.Stop()
			return m.firstWait(n)
		case <-n.doubt:
			idle.Stop()
			m.examine(ctx, n)
			m.catchUp(ctx, n)
			continue
		case <-idle.C:
		}
		if m.quiet(n) && m.call(ctx, n, OpHealth, healthLimit) != nil {
			return firstRetry
		}
	}
}

// call makes a call and lets its outcome speak for the node.
func (m *Manager) call(ctx context.Context, n *node, op Op, limit time.Duration) error {
	limited, cancel := context.WithTimeoutCause(ctx, limit, errors.New("no answer within "+limit.String()))
	defer cancel()
	_, err := n.link.Call(limited, Call{Op: op})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		m.markDown(n, err)
		m.outageSeen(n)
		return err
	}
	m.markUp(n)
	return nil
}

// outageSeen notes that the node is really away, and not only that one connection
// to it broke.
func (m *Manager) outageSeen(n *node) {
	m.mu.Lock()
	if n.down == nil || n.down.seen {
		m.mu.Unlock()
		return
	}
	n.down.seen = true
	banned := slices.DeleteFunc(n.victims, func(s *Session) bool { return !m.charge(n, s) })
	n.victims = nil
	log := m.logger()
	m.mu.Unlock()
	for _, s := range banned {
		logQuarantine(log, s, n)
	}
	m.cameAndWent(n)
}

// probeLater doubles the wait for the next probe, up to the policy's limit, and
// spreads it, so that a whole rack that comes back is not probed at one moment.
func (m *Manager) probeLater(n *node, last time.Duration) time.Duration {
	next := min(max(firstRetry, 2*last), m.retryOf(n))
	next -= time.Duration(rand.Int64N(int64(next)/4 + 1))
	m.probeIn(n, next)
	return next
}

func (m *Manager) probeIn(n *node, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n.down != nil {
		n.down.nextProbe = time.Now().Add(wait)
	}
}

// firstWait is how long the first probe after a loss waits. A port that refuses
// needs a moment, and one that comes and goes more and more; any other loss may have
// been one connection only.
func (m *Manager) firstWait(n *node) time.Duration {
	retry := m.retryOf(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := n.flaps(time.Now()); f > 0 {
		return min(firstRetry<<min(f, 8), retry)
	}
	if n.down != nil && (n.down.cause == CauseRefused || n.down.cause == CauseLoading) {
		return firstRetry
	}
	return time.Millisecond
}

// retryOf is the longest wait between probes of the node.
func (m *Manager) retryOf(n *node) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, _ := m.policyOf(n); a != nil {
		return a.Retry
	}
	return 10 * time.Second // nobody wants it, and it goes with its last request
}

// quiet reports whether nothing was heard of the node for as long as a probe waits.
func (m *Manager) quiet(n *node) bool {
	retry := m.retryOf(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.down == nil && time.Since(n.lastHeard()) >= retry
}

// report takes what a link says of its node.
func (m *Manager) report(n *node, s NodeState) {
	if s.Down != nil {
		if m.markDown(n, s.Down) {
			m.cameAndWent(n)
		}
		n.nudge()
		return
	}
	if s.Away != nil {
		m.goesAway(n, s.Away)
		return
	}
	m.leaves(n, s.Leaving)
	m.mu.Lock()
	defer m.mu.Unlock()
	n.learned = true
	n.away = time.Time{}
	n.places, n.loads = s.Places, s.Loads
	n.hear()
	spec := m.specOf(n)
	for _, i := range n.instances {
		i.gone = true
	}
	var fresh []*instance // another process than before has it
	before := n.contexts()
	for _, said := range s.Instances {
		i := n.instance(said.Model)
		said = plausible(said, time.Now())
		if !i.loaded() || i.said.Port != said.Port {
			fresh = append(fresh, i)
		}
		m.heardOfCache(i, said)
		i.said, i.gone = said, false
		i.settle(spec)
		if !i.loaded() {
			i.evicted, i.owed = false, nil
		}
	}
	m.owes(n, fresh)
	if len(m.suspicious(n, time.Now())) > 0 {
		signal(n.doubt)
	}
	n.instances = slices.DeleteFunc(n.instances, func(i *instance) bool {
		return i.gone && !i.busy()
	})
	if !slices.Equal(before, n.contexts()) {
		m.regroup()
	}
	m.pump()
}

// contexts are those of its instances.
func (n *node) contexts() []Tokens {
	list := make([]Tokens, len(n.instances))
	for at, i := range n.instances {
		list[at] = i.Context
	}
	return list
}

// instance returns the node's instance of a model, a new one if need be.
func (n *node) instance(model string) *instance {
	for _, i := range n.instances {
		if i.Model == model {
			return i
		}
	}
	i := &instance{node: n, seed: mix(hash(n.name), hash(model))}
	n.instances = append(n.instances, i)
	return i
}

// policyOf returns the policy by which the node is kept, and its place there: the
// newest in force that wants it, else the newest that still has requests on it.
func (m *Manager) policyOf(n *node) (*Applied, int) {
	var found *Applied
	at := -1
	for _, a := range slices.Backward(m.applied) {
		i := slices.Index(a.nodes, n)
		if i < 0 {
			continue
		}
		if !a.withdrawn {
			return a, i
		}
		if found == nil {
			found, at = a, i
		}
	}
	return found, at
}

// specOf is what the configuration states about the node.
func (m *Manager) specOf(n *node) NodeSpec {
	if a, i := m.policyOf(n); a != nil {
		if i < len(a.Nodes) {
			return a.Nodes[i]
		}
	}
	return NodeSpec{} // it dialled in
}

// nudge wakes the prober.
func (n *node) nudge() { signal(n.lost) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hear notes a sign of life.
func (n *node) hear() { n.heard.Store(time.Now().UnixNano()) }

// lastHeard is when the last sign of life came; zero: none did.
func (n *node) lastHeard() time.Time {
	ns := n.heard.Load()
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// tellAgain is how often outages of one node are logged at most: a node that comes
// and goes with each request must not fill the log.
const tellAgain = 10 * time.Second

// markDown notes that the node failed, and reports whether that is news. Only the
// change is logged.
func (m *Manager) markDown(n *node, err error) (fresh bool) {
	cause, why := outage(err)
	m.mu.Lock()
	now := time.Now()
	fresh = n.down == nil
	worse := fresh || n.down.cause != cause
	if fresh {
		n.down = &downtime{since: now, nextProbe: now.Add(firstRetry)}
		if !n.learned {
			n.down.since = n.added
		}
	}
	n.down.cause, n.down.why = cause, why
	tell := worse && (n.told.IsZero() || now.Sub(n.told) >= tellAgain)
	if tell {
		n.told = now
		n.down.told = true
	}
	log := m.logger()
	m.pump()
	m.mu.Unlock()
	if tell {
		log.Warn("node is down", "node", n.name, "cause", string(cause), "error", why)
		m.tell(Change{Kind: ChangeDown, Node: n.name, Why: string(cause)})
	}
	return fresh
}

// outage is what an error says of a node, for an operator.
func outage(err error) (cause Cause, why string) {
	if lost, ok := errors.AsType[*NodeLost](err); ok {
		return lost.Cause, err.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return CauseTimedOut, err.Error()
	}
	// Its message is for clients; what an operator has to change stands below.
	if re, ok := errors.AsType[*RequestError](err); ok && re.Err != nil {
		return CauseUnusable, re.Err.Error()
	}
	return CauseUnusable, err.Error()
}

// markUp notes that the node answered.
func (m *Manager) markUp(n *node) {
	n.hear()
	m.mu.Lock()
	was := n.down
	n.down, n.victims = nil, nil
	log := m.logger()
	if was != nil {
		if was.seen {
			n.lives++
			m.forgetCaches(n)
			m.owes(n, n.instances)
		}
		m.pump()
	}
	m.mu.Unlock()
	if was != nil && was.told {
		m.tell(Change{Kind: ChangeUp, Node: n.name})
		log.Info("node is up", "node", n.name, "down_for", time.Since(was.since).Round(time.Millisecond))
	}
}

// pause waits; false: the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
