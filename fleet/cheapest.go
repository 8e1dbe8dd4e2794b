package fleet

import (
	"math"
	"slices"
	"time"
)

// cheapest places where the cost is least.
type cheapest struct{}

const (
	// nearTie is the factor within which costs are equal, for speeds are not known
	// better than that: then the conversation decides, so that it comes back to where
	// it was.
	nearTie = 1.01

	// A prompt of which less is cached anywhere is cold: where to run it is decided
	// when there is a lane for it, not before. Cold ones wait like that for holdMost at
	// the longest, lest warm ones always pass them.
	cold     = 0.3
	holdMost = 2 * time.Second
)

// scratch is memory that decisions use one after the other.
type scratch struct {
	able     []candidate // of search
	unloaded []candidate // of loadable
	all      []candidate // both
	drawn    []candidate
	costs    []float64
}

func (cheapest) place(m *Manager, w *waiter, able, unloaded []candidate, now time.Time) *instance {
	all := able
	if len(unloaded) > 0 {
		all = append(append(m.scratch.all[:0], able...), unloaded...)
		m.scratch.all = all
	}
	figures := m.models[all[0].Model]
	q := query{
		now:    now,
		prompt: figures.promptOf(w),
		out:    figures.outOf(w),
		key:    tieKey(w),
	}
	if q.typical, q.fastest = speeds(all); q.typical == (speed{}) {
		rotate(able, w.cursor) // equal ones take turns
		return ranked{LoadAware}.place(m, w, able, unloaded, now)
	}
	if len(all) > scoredWhole {
		if i, ok := m.cheapestOf(w, &q, m.sample(w, &q, all)); ok {
			return i
		}
	}
	i, _ := m.cheapestOf(w, &q, all)
	return i
}

// query is what a decision knows of its request.
type query struct {
	now         time.Time
	prompt, out float64
	key         uint64
	typical     speed // of the instances whose speed is known
	fastest     speed // of these, by reading and by writing
}

// cheapestOf scores the candidates. false: none of them has a free lane, so that
// others should be looked at.
func (m *Manager) cheapestOf(w *waiter, q *query, able []candidate) (*instance, bool) {
	s := &m.scratch
	s.costs = s.costs[:0]
	least, warmest, free := math.Inf(1), 0.0, false
	some := slices.ContainsFunc(able, q.fits)
	for k := range able {
		if some && !q.fits(able[k]) {
			s.costs = append(s.costs, math.Inf(1))
			continue
		}
		o := m.outlook(w, q, &able[k])
		cost := o.cost().Total()
		s.costs = append(s.costs, cost)
		least = min(least, cost)
		warmest = max(warmest, 1-o.unread/o.prompt)
		free = free || able[k].instance.roomy()
	}
	best := m.among(q, able, least*nearTie)
	o := m.outlook(w, q, &able[best])
	w.share = share{
		unread: o.unread,
		kv:     Tokens(o.prompt + o.out),
	}
	m.explain(w, q, able, best)
	i := able[best].instance
	if !i.roomy() && warmest < cold && w.holds(q.now, o.cost().Wait) {
		return nil, free
	}
	return i, free
}

// fits reports whether the context seems large enough. The estimate may be wrong:
// where none seems so, all are tried.
func (q *query) fits(x candidate) bool { return x.Context <= 0 || q.prompt <= float64(x.Context) }

// holds reports whether a cold request goes on waiting for any lane.
func (w *waiter) holds(now time.Time, wait float64) bool {
	if w.held.IsZero() {
		w.held = now
	}
	w.again = w.held.Add(min(holdMost, seconds(min(wait, most))))
	return now.Before(w.again)
}

// outlook is what awaits the request on a candidate.
func (m *Manager) outlook(w *waiter, q *query, x *candidate) outlook {
	i := x.instance
	o := outlook{
		speed:  i.outlookSpeed(q),
		lanes:  min(i.lanes(), most),
		ahead:  i.ahead(q.now),
		queued: i.work.unread,
		prompt: q.prompt,
		unread: q.prompt,
		out:    q.out,
		pool:   i.pool(q.now),
	}
	if x.cached > 0 {
		o.unread = max(1, q.prompt-m.usable(w, q, x)*m.trust(i))
	}
	if i.State != StateReady {
		o.load = m.untilLoaded(i, q.now)
	}
	if x.goes != nil && x.goes.State == StateReady { // what sleeps has to be loaded in any case
		o.evicts = m.loadTime(x.goes)
	}
	return o
}

// usable is how many tokens of the prompt the request's lane on the candidate is expected
// to find. A free lane finds what is idle there. One that is waited for has itself what
// runs there now only if it is that one of the lanes.
func (m *Manager) usable(w *waiter, q *query, x *candidate) float64 {
	i, idle := x.instance, m.warm.index.idle(m.warmID(x.instance))
	n := m.has(w, q, i, idle)
	if idle < x.cached && i.full() {
		n += (m.has(w, q, i, x.cached) - n) / float64(max(1, i.lanes()))
	}
	return n
}

// has is how many tokens of the prompt the instance is expected to have, of which it has
// so many blocks.
func (m *Manager) has(w *waiter, q *query, i *instance, blocks int) float64 {
	if blocks == 0 {
		return 0
	}
	// The last block is not whole: half of it, on average, is text.
	n := q.prompt * float64(blocks) / (float64(len(w.blocks)) + 0.5)
	if len(w.Blocks) > 0 {
		n = max(n, min(q.prompt, m.endings.length(m.warmID(i), w.blocks[blocks-1])))
	}
	return n
}

// trust is how much of what is expected of the instance's cache counts. Half of it
// is found on a good day, too: what one lane of a server reads now, another has to
// read again. Only who has less than that is trusted less.
func (m *Manager) trust(i *instance) float64 {
	return min(1, 2*m.warm.index.confidence(m.warmID(i)))
}

// ahead is how many requests a new one would share the instance with or wait for:
// what is ours or was, and still has its lane, is certain, the node's word can only add
// to it.
func (i *instance) ahead(now time.Time) int {
	others := i.Leaving // that are not ours, or not any more
	if l := i.Load; l.fresh(now) {
		others = max(others, min(max(0, l.Active), most)+min(max(0, l.Queued), most)-min(max(0, l.Ours), most))
	}
	return min(i.ours()+others, most)
}

// pool is the share of the KV pool that is taken, or will be by what runs there.
func (i *instance) pool(now time.Time) float64 {
	total := i.Load.KVTotal
	switch {
	case total > 0:
	case i.Context <= 0:
		return 0
	case i.KVUnified:
		total = i.Context
	default:
		total = i.Context * Tokens(min(i.lanes(), most))
	}
	used := i.work.kv
	if i.Load.fresh(now) {
		used = max(used, i.Load.KVUsed)
	}
	return bounded(float64(used)/float64(total), 0, 1)
}

// outlookSpeed is the speed to reckon with. What only the configuration says of an
// instance may be far too low, and one that is never chosen never shows it: so while
// it is idle it is taken for as much faster as that may be wrong, if others are.
func (i *instance) outlookSpeed(q *query) speed {
	s := i.speed.or(q.typical)
	if i.speed.answers == 0 && i.ours() == 0 {
		s.prefill = max(s.prefill, min(q.fastest.prefill, s.prefill*wild))
		if f := max(q.fastest.step(1)/s.step(1), 1.0/wild); f < 1 {
			s.base, s.slope = s.base*f, s.slope*f
		}
	}
	return s
}

// or fills in what is not known of the speed.
func (s speed) or(typical speed) speed {
	if s.prefill == 0 {
		s.prefill = typical.prefill
	}
	if s.base == 0 {
		s.base, s.slope = typical.base, typical.slope
	}
	return s
}

// speeds returns the mean of the speeds that are known, zero if none is, and the best
// of them. Where only reading or only writing is known, the other follows from the
// usual ratio.
func speeds(able []candidate) (typical, fastest speed) {
	var sum speed
	var readers, writers float64
	for k := range able {
		s := &able[k].speed.speed
		if s.prefill > 0 {
			sum.prefill += s.prefill
			fastest.prefill = max(fastest.prefill, s.prefill)
			readers++
		}
		if s.base > 0 {
			sum.base += s.base
			sum.slope += s.slope
			if writers == 0 || s.step(1) < fastest.step(1) {
				fastest.base, fastest.slope = s.base, s.slope
			}
			writers++
		}
	}
	if readers+writers == 0 {
		return speed{}, speed{}
	}
	const ratio = nominalPrefill / nominalDecode
	if readers == 0 {
		sum.prefill, readers = ratio*writers/sum.base, 1
		fastest.prefill = sum.prefill
	}
	if writers == 0 {
		sum.base, writers = ratio*readers/sum.prefill, 1
		sum.slope = slopeShare * sum.base
		fastest.base, fastest.slope = sum.base, sum.slope
	}
	return speed{sum.prefill / readers, sum.base / writers, sum.slope / writers}, fastest
}
