package fleet

import (
	"math"
	"math/rand"
	"time"
)

// Policies that other routers are known for, in the form that llama.cpp's slots give
// them: a request is given to a node at once and waits there. Each has the figures
// that lowest_cost has, the right speeds included.

// simView is what such a policy sees of a node.
type simView struct {
	*instance
	cached float64 // prompt tokens it is expected to have
	unread float64 // those it has to read
}

// simPlacer makes a placer of a rule that picks among the nodes.
type simPlacer struct {
	r    *rand.Rand
	pick func(p *simPlacer, w *waiter, nodes []simView) int
	turn int

	given  map[*waiter]*instance // at once, for good
	polled map[*instance]simPolled
	at     int64
	out    float64 // tokens that answers had so far
}

// simPolled is what a node said last: nodes of the study speak each second.
type simPolled struct{ active, waiting int }

func (p *simPlacer) place(m *Manager, w *waiter, able, _ []candidate, now time.Time) *instance {
	if at := now.Unix(); at != p.at { // the figures of the second that began
		p.at = at
		for _, x := range able {
			p.polled[x.instance] = simPolled{x.instance.held, x.instance.work.bound}
		}
	}
	if i := p.given[w]; i != nil {
		return i
	}
	views := make([]simView, len(able))
	prompt := float64(w.Prompt)
	for i, x := range able {
		views[i] = simView{instance: x.instance}
		if x.cached > 0 {
			views[i].cached = m.has(w, &query{prompt: prompt}, x.instance, x.cached)
		}
		views[i].unread = max(1, prompt-views[i].cached)
	}
	p.out = m.models[w.Model].outOf(w)
	best := views[p.pick(p, w, views)]
	w.share = share{unread: best.unread}
	p.given[w] = best.instance
	return best.instance
}

func simPick(pick func(p *simPlacer, w *waiter, nodes []simView) int) func(*rand.Rand) placer {
	return func(r *rand.Rand) placer {
		return &simPlacer{r: r, pick: pick, given: make(map[*waiter]*instance), polled: make(map[*instance]simPolled)}
	}
}

// least picks the node of the least value, any of equal ones.
func (p *simPlacer) least(nodes []simView, value func(simView) float64) int {
	best, least := 0, math.Inf(1)
	from := p.r.Intn(len(nodes))
	for k := range nodes {
		i := (k + from) % len(nodes)
		if v := value(nodes[i]); v < least {
			best, least = i, v
		}
	}
	return best
}

func simRoundRobin(p *simPlacer, _ *waiter, nodes []simView) int {
	p.turn++
	return p.turn % len(nodes)
}

// simPerLane: the fewest requests for each lane.
func simPerLane(p *simPlacer, _ *waiter, nodes []simView) int {
	return p.least(nodes, func(x simView) float64 { return float64(x.ours()) / float64(x.lanes()) })
}

// simTwoChoices: the better of two that are drawn by what they can carry.
func simTwoChoices(p *simPlacer, _ *waiter, nodes []simView) int {
	carry := func(x simView) float64 { return float64(x.lanes()) / x.speed.step(x.lanes()) }
	var total float64
	for _, x := range nodes {
		total += carry(x)
	}
	draw := func() int {
		at := p.r.Float64() * total
		for i, x := range nodes {
			if at -= carry(x); at <= 0 {
				return i
			}
		}
		return len(nodes) - 1
	}
	a, b := draw(), draw()
	for b == a && len(nodes) > 1 {
		b = draw()
	}
	if float64(nodes[a].ours()+1)/carry(nodes[a]) <= float64(nodes[b].ours()+1)/carry(nodes[b]) {
		return a
	}
	return b
}

// simBoundedHash: a rendezvous hash of the first 256 tokens, with no node more than
// a quarter above its share.
func simBoundedHash(_ *simPlacer, w *waiter, nodes []simView) int {
	key := uint64(1)
	if n := min(4, len(w.Blocks)); n > 0 {
		key = w.Blocks[n-1]
	}
	var ours, lanes int
	for _, x := range nodes {
		ours += x.ours()
		lanes += x.lanes()
	}
	best, high := -1, uint64(0)
	first, top := 0, uint64(0)
	for i, x := range nodes {
		h := mix(key, uint64(i)*7919+13)
		if h >= top {
			first, top = i, h
		}
		room := math.Ceil(1.25 * float64(ours+1) * float64(x.lanes()) / float64(lanes))
		if float64(x.ours()+1) <= max(1, room) && (best < 0 || h >= high) {
			best, high = i, h
		}
	}
	if best < 0 {
		return first
	}
	return best
}

// simCacheAware is SGLang's: the longest prefix if it is 30 % of the prompt, else
// the fewest requests; the latter always, once the nodes are unequally loaded.
func simCacheAware(p *simPlacer, w *waiter, nodes []simView) int {
	few, many := math.MaxInt, 0
	for _, x := range nodes {
		few, many = min(few, x.ours()), max(many, x.ours())
	}
	fewest := func() int { return p.least(nodes, func(x simView) float64 { return float64(x.ours()) }) }
	if many-few > 64 && float64(many) > 1.5*float64(few) {
		return fewest()
	}
	best := p.least(nodes, func(x simView) float64 { return -x.cached })
	if nodes[best].cached > 0.3*float64(w.Prompt) {
		return best
	}
	return fewest()
}

// simLMetric: unread tokens, those of others included, times the batch.
func simLMetric(p *simPlacer, _ *waiter, nodes []simView) int {
	return p.least(nodes, func(x simView) float64 { return (x.work.unread + x.unread) * float64(x.ours()+1) })
}

// simSeed is load_aware where a request is given to a node at once: the longest
// prefix first while its node had a free lane when it spoke last, and what runs
// there counts both as ours and as the node says.
func simSeed(p *simPlacer, _ *waiter, nodes []simView) int {
	warm, longest := -1, 0.0
	for i, x := range nodes {
		if x.cached > longest {
			warm, longest = i, x.cached
		}
	}
	if warm >= 0 && p.polled[nodes[warm].instance].active < nodes[warm].lanes() {
		return warm
	}
	best, least := 0, math.Inf(1)
	for i, x := range nodes {
		polled := p.polled[x.instance]
		ahead := float64(x.ours() + polled.active + polled.waiting)
		if v := (ahead+1)*p.out*x.speed.step(1) + (x.cached+x.unread)/x.speed.prefill; v < least {
			best, least = i, v
		}
	}
	return best
}

var simOthers = []simPolicy{
	{name: "round robin, at once", placer: simPick(simRoundRobin)},
	{name: "fewest per lane, at once", placer: simPick(simPerLane)},
	{name: "two choices, weighted", placer: simPick(simTwoChoices)},
	{name: "bounded hash", placer: simPick(simBoundedHash)},
	{name: "cache_aware (SGLang)", placer: simPick(simCacheAware)},
	{name: "LMetric", placer: simPick(simLMetric)},
	{name: "load_aware, at once", placer: simPick(simSeed)},
}
