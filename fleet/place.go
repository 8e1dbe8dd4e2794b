package fleet

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// candidate is an instance that a request may go to.
type candidate struct {
	*instance
	cached int       // leading blocks of the prompt that its cache is expected to hold
	goes   *instance // that has to go so that this one can be loaded; nil: none
}

// shape is what placement knows of a request.
type shape struct {
	prompt, out Tokens
	warm        *instance // that has the longest part of the prompt; nil: none known
}

// chooser ranks candidates by a policy. It has no state and does no I/O.
type chooser struct {
	placement Placement
	poolHigh  int
	now       time.Time
	cursor    int // of round_robin
	nodes     int // how many nodes there are, those that are down included
}

// rank returns the candidates best first. candidates come in the order of their
// index; equal ones keep it.
func (c chooser) rank(cand []candidate, s shape) []candidate {
	switch c.placement {
	case RoundRobin:
		n := max(1, c.nodes)
		turn := func(x candidate) int { return ((x.node.index-c.cursor)%n + n) % n }
		slices.SortStableFunc(cand, func(a, b candidate) int { return cmp.Compare(turn(a), turn(b)) })
		return cand
	case LeastLoaded:
		slices.SortStableFunc(cand, func(a, b candidate) int {
			return cmp.Compare(a.sessions+a.occupied(), b.sessions+b.occupied())
		})
	default:
		cand = c.withoutHot(cand, s.prompt)
		c.sortByTime(cand, s)
	}
	return preferWarm(cand, s.warm)
}

// withoutHot leaves out the instances whose KV pool is nearly full, unless all
// that can hold the prompt are.
func (c chooser) withoutHot(cand []candidate, prompt Tokens) []candidate {
	fits := func(x candidate) bool { return x.Context == 0 || prompt <= x.Context }
	judged := slices.ContainsFunc(cand, fits)
	hot := func(x candidate) bool {
		if judged && !fits(x) {
			return false // it is skipped anyway, and must not make the others look cool
		}
		l := x.Load
		return l.fresh(c.now) && l.KVTotal > 0 && l.KVUsed*100/l.KVTotal >= Tokens(c.poolHigh)
	}
	cool := func(x candidate) bool { return (!judged || fits(x)) && !hot(x) }
	if !slices.ContainsFunc(cand, cool) {
		return cand
	}
	return slices.DeleteFunc(cand, hot)
}

// sortByTime sorts by the estimated time until the whole answer is there. All
// figures are whole numbers and every division rounds down, so that ties are ties.
func (c chooser) sortByTime(cand []candidate, s shape) {
	decode := typical(cand, func(x candidate) float64 { return x.Rates.Decode })
	prefill := typical(cand, func(x candidate) float64 { return x.Rates.Prefill })
	type timed struct {
		candidate
		ms uint64
	}
	list := make([]timed, len(cand))
	for i, x := range cand {
		list[i] = timed{x, c.time(x, s, decode, prefill)}
	}
	slices.SortStableFunc(list, func(a, b timed) int {
		return cmp.Or(cmp.Compare(a.ms, b.ms), cmp.Compare(a.sessions, b.sessions))
	})
	for i := range list {
		cand[i] = list[i].candidate
	}
}

// Speeds to reckon with where no node ever told one, in tokens per second.
const (
	nominalDecode  = 20
	nominalPrefill = 200
)

// time estimates the milliseconds until a request of this shape would be whole.
// What we run there ourselves is in held and in the node's own figures: it counts
// twice on purpose, which spreads bursts before the nodes have spoken.
func (c chooser) time(x candidate, s shape, typicalDecode, typicalPrefill uint64) uint64 {
	ahead := uint64(x.occupied())
	if x.Load.fresh(c.now) {
		ahead += uint64(x.Load.Active) + uint64(x.Load.Queued)
	}
	decode := cmp.Or(whole(x.Rates.Decode), typicalDecode, nominalDecode)
	prefill := cmp.Or(whole(x.Rates.Prefill), typicalPrefill, nominalPrefill)
	queued := mul(mul(ahead, uint64(s.out)), 1000) / decode
	mine := add(mul(uint64(s.prompt), 1000)/prefill, mul(uint64(s.out), 1000)/decode)
	return add(queued, mine)
}

// typical is the mean of the rates that are known, rounded down; 0: none is.
func typical(cand []candidate, rate func(candidate) float64) uint64 {
	var sum, n uint64
	for _, x := range cand {
		if r := whole(rate(x)); r > 0 {
			sum += r
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// whole rounds a rate down, but a rate that is known never to 0.
func whole(rate float64) uint64 {
	if rate <= 0 {
		return 0
	}
	return max(1, uint64(rate))
}

// preferWarm moves the instance that has the prompt's beginning to the front,
// while one of its lanes is free.
func preferWarm(cand []candidate, warm *instance) []candidate {
	i := slices.IndexFunc(cand, func(x candidate) bool { return x.instance == warm })
	if i <= 0 || cand[i].full() {
		return cand
	}
	w := cand[i]
	copy(cand[1:i+1], cand[:i])
	cand[0] = w
	return cand
}

// mul multiplies and stops at the largest number.
func mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 {
		return ^uint64(0)
	}
	return lo
}

// add adds and stops at the largest number.
func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return ^uint64(0)
	}
	return sum
}
