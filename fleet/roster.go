package fleet

import (
	"math"
	"slices"
)

// roster are the instances of a policy's nodes that serve a name, in the order of the
// nodes. Who serves what changes seldom, and is not looked up for each request.
type roster struct {
	offers    uint64 // when it was made
	model     string // of the first
	instances []*instance
	contexts  []Tokens // of these that are known, ascending
}

// roster returns who serves a name; empty: the only model that is served. It is good
// until the next change of what nodes offer. Names that nobody serves are not kept, for
// they come from clients.
func (m *Manager) roster(a *Applied, name string) *roster {
	if r := a.rosters[name]; r != nil && r.offers == m.offers {
		return r
	}
	r := newRoster(a.nodes, name)
	r.offers = m.offers
	if len(r.instances) == 0 {
		delete(a.rosters, name)
		return r
	}
	if a.rosters == nil {
		a.rosters = make(map[string]*roster)
	}
	a.rosters[name] = r
	return r
}

// rosterFor returns who serves the request's model, and notes which room it needs there.
func (m *Manager) rosterFor(w *waiter) *roster {
	r := m.roster(w.policy, w.Model)
	w.room = r.room(w.size(), Tokens(math.Ceil(m.models[r.model].promptOf(w))))
	return r
}

func newRoster(nodes []*node, name string) *roster {
	r := &roster{}
	if name == "" {
		name = onlyModel(nodes)
	}
	if name == "" {
		return r
	}
	for _, n := range nodes {
		for _, i := range n.instances {
			if i.gone || !i.Serves(name) {
				continue
			}
			r.instances = append(r.instances, i)
			if i.Context > 0 {
				r.contexts = append(r.contexts, i.Context)
			}
		}
	}
	slices.Sort(r.contexts)
	r.contexts = slices.Compact(r.contexts)
	if len(r.instances) > 0 {
		r.model = r.instances[0].Model
	}
	return r
}

// onlyModel is the model of a fleet that serves one; empty: it serves none or many.
func onlyModel(nodes []*node) string {
	var only string
	for _, n := range nodes {
		for _, i := range n.instances {
			if i.gone || i.Model == only {
				continue
			}
			if only != "" {
				return ""
			}
			only = i.Model
		}
	}
	return only
}

// room is the smallest context that is there and large enough for a request, by its
// length as estimated and by what is learned of such estimates; 0: none is.
type room struct{ estimated, learned Tokens }

func (r *roster) room(estimated, learned Tokens) room {
	return room{r.narrowest(estimated), r.narrowest(learned)}
}

func (r *roster) narrowest(length Tokens) Tokens {
	for _, c := range r.contexts {
		if c >= length {
			return c
		}
	}
	return 0
}
