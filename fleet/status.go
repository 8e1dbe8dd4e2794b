package fleet

import (
	"cmp"
	"slices"
	"time"
)

// NodeStatus is what is known of a node, for operators.
type NodeStatus struct {
	Name      string           `json:"name"`
	Address   string           `json:"address,omitempty"`
	Up        bool             `json:"up"`
	Down      *DownStatus      `json:"down,omitempty"`
	Joined    bool             `json:"joined,omitempty"`      // it dialled in
	Away      *time.Time       `json:"away,omitempty"`        // since when its link has no connection; it may come back
	Namesake  *NamesakeStatus  `json:"namesake,omitempty"`    // another one that dials in with its name is turned away
	Drain     *DrainStatus     `json:"drain,omitempty"`       // it takes nothing new
	RestsTo   *time.Time       `json:"rests_until,omitempty"` // until then it is used only if nobody else is there
	LastHeard *time.Time       `json:"last_heard,omitempty"`
	StatusAge *float64         `json:"status_age_seconds,omitempty"` // since it, or its log, said what it offers and carries
	Instances []InstanceStatus `json:"instances"`
}

// NamesakeStatus is a node that was turned away for its name, which another one has.
type NamesakeStatus struct {
	Address string    `json:"address"` // the host that it dialled from
	At      time.Time `json:"at"`      // when it came last
}

// DownStatus is an outage.
type DownStatus struct {
	Since     time.Time `json:"since"`
	Cause     Cause     `json:"cause"`
	Error     string    `json:"error"`
	NextProbe time.Time `json:"next_probe"`
}

// InstanceStatus is one model on a node. Figures that are unknown are absent.
type InstanceStatus struct {
	Model       string   `json:"model"`
	Aliases     []string `json:"aliases,omitempty"`
	State       State    `json:"state"`
	Lanes       int      `json:"lanes,omitempty"`
	LanesActive int      `json:"lanes_active"`    // that we hold
	Light       int      `json:"light,omitempty"` // requests of ours that need no lane
	Context     Tokens   `json:"context,omitempty"`

	Load *LoadStatus `json:"load,omitempty"`

	PrefillRate float64 `json:"prefill_tokens_per_second,omitempty"`
	DecodeRate  float64 `json:"decode_tokens_per_second,omitempty"`

	Continues bool `json:"continues"` // it can go on with an interrupted answer
}

// LoadStatus is the node's own word on what it carries.
type LoadStatus struct {
	Active  int       `json:"active"`
	KVUsed  Tokens    `json:"kv_used"`
	KVTotal Tokens    `json:"kv_total,omitempty"`
	At      time.Time `json:"at"`
	Fresh   bool      `json:"fresh"`
}

// ModelStatus is one model over all nodes that offer it.
type ModelStatus struct {
	Model   string   `json:"model"`
	Aliases []string `json:"aliases,omitempty"`
	State   State    `json:"-"`                 // the best of those that are up; failed: none is
	Context Tokens   `json:"context,omitempty"` // the widest that is up
	Nodes   int      `json:"nodes"`             // that offer it
	Ready   int      `json:"ready"`             // of these, up and ready
	Lanes   int      `json:"lanes"`             // of the ready ones
}

// Status is the whole fleet at one moment.
type Status struct {
	Up      int           `json:"up"`
	Known   int           `json:"known"`
	Waiting int           `json:"waiting"` // requests that look for a lane
	Serving []ModelStatus `json:"serving"`
	Nodes   []NodeStatus  `json:"nodes"`
}

// Status returns what is known of the nodes of the policy in force; nothing, where
// none is.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{Serving: []ModelStatus{}, Nodes: []NodeStatus{}, Waiting: m.queue.len}
	a := m.inForce()
	if a == nil {
		return s
	}
	now := time.Now()
	for _, n := range a.nodes {
		st := m.nodeStatus(n, now)
		s.Known++
		if st.Up {
			s.Up++
		}
		s.Nodes = append(s.Nodes, st)
	}
	s.Serving = models(a.nodes)
	return s
}

// NodeLink is a node of the policy in force with its link, for those who know of which
// kind that is.
type NodeLink struct {
	Node string
	Link Link
	Down bool
}

// Links returns the links to the nodes of the policy in force.
func (m *Manager) Links() []NodeLink {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []NodeLink
	if a := m.inForce(); a != nil {
		for _, n := range a.nodes {
			all = append(all, NodeLink{n.name, n.link, n.down != nil})
		}
	}
	return all
}

// Models returns what the policy's nodes offer, by name.
func (m *Manager) Models(a *Applied) []ModelStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return models(a.nodes)
}

func models(nodes []*node) []ModelStatus {
	list := []ModelStatus{}
	for _, n := range nodes {
		for _, i := range n.instances {
			if i.gone {
				continue
			}
			at := slices.IndexFunc(list, func(m ModelStatus) bool { return m.Model == i.Model })
			if at < 0 {
				at = len(list)
				list = append(list, ModelStatus{Model: i.Model, State: StateFailed})
			}
			list[at].add(n, i)
		}
	}
	slices.SortFunc(list, func(a, b ModelStatus) int { return cmp.Compare(a.Model, b.Model) })
	return list
}

func (s *ModelStatus) add(n *node, i *instance) {
	s.Nodes++
	for _, alias := range i.Aliases {
		if alias != s.Model && !slices.Contains(s.Aliases, alias) {
			s.Aliases = append(s.Aliases, alias)
		}
	}
	if n.up() && n.drain == nil {
		s.State = better(s.State, i.State)
	}
	if n.up() && n.drain == nil && i.loaded() {
		s.Ready++
		s.Lanes += i.lanes()
		s.Context = max(s.Context, i.Context)
	}
}

// better returns the state in which a request is answered sooner.
func better(a, b State) State {
	for _, s := range []State{StateReady, StateSleeping, StateLoading, StateUnloaded} {
		if a == s || b == s {
			return s
		}
	}
	return StateFailed
}

// up: it said once what it offers, and nothing is wrong with it since.
func (n *node) up() bool { return n.learned && n.down == nil }

func (m *Manager) nodeStatus(n *node, now time.Time) NodeStatus {
	s := NodeStatus{Name: n.name, Address: n.address, Up: n.up(), Drain: m.drainStatus(n), Instances: []InstanceStatus{}}
	if d := n.down; d != nil {
		s.Down = &DownStatus{Since: d.since, Cause: d.cause, Error: d.why, NextProbe: d.nextProbe}
	}
	s.Joined = n.peer != ""
	if away := n.away; !away.IsZero() {
		s.Away = &away
	}
	if x := n.namesake; !x.At.IsZero() && now.Sub(x.At) < namesakeKept {
		s.Namesake = &x
	}
	if n.rests(now) {
		until := n.restUntil
		s.RestsTo = &until
	}
	if heard := n.lastHeard(); !heard.IsZero() {
		s.LastHeard = &heard
	}
	if !n.stated.IsZero() {
		s.StatusAge = new(now.Sub(n.stated).Seconds())
	}
	for _, i := range n.instances {
		if !i.gone {
			s.Instances = append(s.Instances, i.status(now))
		}
	}
	return s
}

func (i *instance) status(now time.Time) InstanceStatus {
	s := InstanceStatus{
		Model:       i.Model,
		Aliases:     i.Aliases,
		State:       i.State,
		Lanes:       i.Lanes,
		LanesActive: i.held,
		Light:       i.light,
		Context:     i.Context,
		PrefillRate: i.Rates.Prefill,
		DecodeRate:  i.Rates.Decode,
		Continues:   i.Features.Has(ContinueContent),
	}
	if l := i.Load; !l.At.IsZero() {
		s.Load = &LoadStatus{Active: l.Active, KVUsed: l.KVUsed, KVTotal: l.KVTotal, At: l.At, Fresh: l.fresh(now)}
	}
	return s
}
