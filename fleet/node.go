package fleet

import (
	"cmp"
	"context"
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
	back   chan struct{} // likewise: it is down, and dialled in again

	index     int // in the manager's list
	wanted    int // policies that name it
	instances []*instance

	// What each decision looks at.
	down      *downtime // nil: nothing is wrong with it, as far as is known
	drain     *drain    // nil: it is in service
	away      time.Time // when its link lost the connection; zero: it did not
	restUntil time.Time
	loads     bool // it loads what a request asks for
	lives     int  // how often it came back from an outage that a probe saw

	learned bool // it said once what it offers
	added   time.Time
	stated  time.Time // when it said last what it offers and carries
	told    time.Time // when an outage was last logged
	peer    string    // host that it dialled in from; empty: the configuration names it

	namesake NamesakeStatus // who was turned away for its name last; zero: nobody

	places int // how many instances it can have loaded; 0: no limit

	outcomes tally // of attempts
	outages  tally // those that are bad
	restFor  time.Duration
	loadTook float64    // seconds, on average, until a model is in memory; 0: never seen
	victims  []*Session // that were lost with it early, and may be why

	heard atomic.Int64 // last sign of life, in Unix nanoseconds; needs no lock
}

// instance is an Instance with what we do there. What each decision looks at stands
// together.
type instance struct {
	Instance // what the node said, with what the configuration states

	node     *node
	owed     []*standing // calls that it must get before a request
	speed    estimate
	held     int // lanes we hold
	work     work
	warm     warmID
	evicted  bool   // it goes so that another is loaded, and the node did not say yet that it is gone
	gone     bool   // the node does not offer it any more
	seed     uint64 // of ties
	sessions int    // sessions placed there and not ended
	light    int    // light requests that run there

	said     Instance  // what the node said
	measured Rates     // from answers of ours; 0: none yet
	service  float64   // seconds that a lane is held, on average; 0: unknown
	loadTook float64   // seconds until it is in memory, on average; 0: never seen
	loading  time.Time // since when it is loaded; zero: it is not
	used     time.Time // when a request of ours ended there last
}

func newNode(spec NodeSpec, link Link) *node {
	return &node{
		name:     spec.Name,
		address:  spec.Address,
		identity: spec.Identity,
		link:     link,
		lost:     make(chan struct{}, 1),
		doubt:    make(chan struct{}, 1),
		back:     make(chan struct{}, 1),
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
	before := n.offers()
	m.owes(n, m.takeIn(n, s))
	if len(m.suspicious(n, time.Now())) > 0 {
		signal(n.doubt)
	}
	n.instances = slices.DeleteFunc(n.instances, func(i *instance) bool {
		return i.gone && !i.busy()
	})
	if !slices.EqualFunc(before, n.offers(), offer.equal) {
		m.regroup()
	}
	m.pump()
}

// takeIn notes what the node says, and returns the instances that another process has
// than before.
func (m *Manager) takeIn(n *node, s NodeState) (fresh []*instance) {
	n.learned = true
	n.away = time.Time{}
	n.places, n.loads, n.stated = s.Places, s.Loads, time.Now()
	n.hear()
	spec := m.specOf(n)
	for _, i := range n.instances {
		i.gone = true
	}
	for _, said := range s.Instances {
		i := n.instance(said.Model)
		said = plausible(said, time.Now())
		said.Rates.Prefill = cmp.Or(said.Rates.Prefill, i.said.Rates.Prefill) // they outlive the log
		said.Rates.Decode = cmp.Or(said.Rates.Decode, i.said.Rates.Decode)
		if !i.loaded() || i.said.Port != said.Port {
			fresh = append(fresh, i)
		}
		m.heardOfCache(i, said)
		was := i.said
		i.said, i.gone = said, false
		i.settle(spec)
		m.followLoad(i, was, time.Now())
		if !i.loaded() {
			i.evicted, i.owed = false, nil
		}
	}
	return fresh
}

// offer is what is known of an instance, but for its state: who waits for what goes by
// that.
type offer struct {
	model   string
	aliases []string
	context Tokens
}

func (o offer) equal(p offer) bool {
	return o.model == p.model && o.context == p.context && slices.Equal(o.aliases, p.aliases)
}

// offers are those of the node's instances.
func (n *node) offers() []offer {
	list := make([]offer, 0, len(n.instances))
	for _, i := range n.instances {
		if !i.gone {
			list = append(list, offer{i.Model, i.Aliases, i.Context})
		}
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

// hearOf notes what the link heard of a node that looks after its server itself, as often
// as we would ask it.
func (n *node) hearOf(every time.Duration) {
	v, ok := n.link.(Voucher)
	if !ok {
		return
	}
	if at, within := v.Vouched(); within > 0 && within <= every && at.After(n.lastHeard()) {
		n.heard.Store(at.UnixNano())
	}
}

// lastHeard is when the last sign of life came; zero: none did.
func (n *node) lastHeard() time.Time {
	ns := n.heard.Load()
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}
