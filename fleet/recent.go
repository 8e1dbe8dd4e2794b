package fleet

// recentlyOn remembers on which node a conversation ran last: there its beginning
// is in the cache. Two halves bound it: when the young one is full, the old one is
// forgotten and they change places.
type recentlyOn struct {
	young, old map[recentKey]*node
}

type recentKey struct{ model, session string }

// recentMax is how many conversations each half holds.
const recentMax = 32768

func newRecentlyOn() *recentlyOn {
	return &recentlyOn{young: make(map[recentKey]*node)}
}

func (r *recentlyOn) ran(model, session string, n *node) {
	if session == "" {
		return
	}
	if len(r.young) >= recentMax {
		r.old, r.young = r.young, make(map[recentKey]*node)
	}
	r.young[recentKey{model, session}] = n
}

func (r *recentlyOn) node(model, session string) *node {
	if session == "" {
		return nil
	}
	k := recentKey{model, session}
	if n := r.young[k]; n != nil {
		return n
	}
	return r.old[k]
}
