package fleet

import (
	"math"
	"slices"
	"time"
)

// The simulated llama-server. One iteration reads up to a batch of prompt tokens,
// first come first served among the slots that read, and writes one token for each
// slot that writes. What a slot holds of its last prompt is used again; whole
// sequences that a slot loses go to a store in the host's memory, as with
// --cache-ram, and come back from there.

// simSpec is one kind of node.
type simSpec struct {
	slots   int
	prefill float64       // prompt tokens/s
	base    time.Duration // of one iteration
	slope   time.Duration // that each writing slot adds
}

const (
	simBatch   = 512   // prompt tokens an iteration
	simBlock   = 32    // tokens of one hash of a sequence
	simStore   = 64000 // tokens in the host's memory
	simContext = 4096  // tokens a slot remembers, as the index reckons
	simCopy    = 7e-6  // seconds a token from the host's store
	simAlike   = 0.1   // least share in common for a slot to be chosen for it
	simKeepOld = 0.5   // a slot that keeps less of its sequence has it stored
)

// simTask is one request inside the server.
type simTask struct {
	prompt []uint64 // hashes of its sequence, chained
	whole  []uint64 // with the answer
	in     int      // tokens
	out    int

	cached int
	unread int // tokens, the time to copy from the store counted in
	left   int // tokens to write

	began, first, end time.Duration // -1: not yet
	token, over       chan struct{} // closed at the first token and at the end
}

type simSlot struct {
	seq  []uint64
	used time.Duration
	task *simTask
}

// simEngine is the server's state. Time is given to it.
type simEngine struct {
	simSpec
	slots   []simSlot
	waiting []*simTask
	store   [][]uint64
	stored  int

	// The iterations that run: many at once where nothing but writing happens.
	from     time.Duration
	each     time.Duration
	times    int // 0: idle
	reading  []*simSlot
	amounts  []int
	writing  []*simSlot
	occupied int

	news []chan struct{} // of what advance ended, still to be closed
}

func newSimEngine(s simSpec) *simEngine {
	return &simEngine{simSpec: s, slots: make([]simSlot, s.slots)}
}

// due is when something happens next.
func (e *simEngine) due() (at time.Duration, busy bool) {
	return e.from + time.Duration(e.times)*e.each, e.times > 0
}

// add takes a request in. Iterations that were planned together end at the next
// boundary, so that it is read from then on.
func (e *simEngine) add(t *simTask, now time.Duration) {
	t.began, t.first, t.end = -1, -1, -1
	e.waiting = append(e.waiting, t)
	switch {
	case e.times == 0:
		e.plan(now)
	case e.times > 1:
		e.times = min(e.times, max(1, int(math.Ceil(float64(now-e.from)/float64(e.each)))))
	}
}

// advance ends what was due.
func (e *simEngine) advance() {
	now, _ := e.due()
	for i, s := range e.reading {
		s.task.unread -= e.amounts[i]
		if s.task.unread <= 0 {
			s.task.first = now
			e.news = append(e.news, s.task.token)
			e.wrote(s, 1, now)
		}
	}
	for _, s := range e.writing {
		e.wrote(s, e.times, now)
	}
	e.plan(now)
}

func (e *simEngine) wrote(s *simSlot, n int, now time.Duration) {
	t := s.task
	t.left -= n
	if t.left <= 0 {
		t.end = now
		s.task, s.seq, s.used = nil, t.whole, now
		e.occupied--
		e.news = append(e.news, t.over)
	}
}

// plan begins the next iterations.
func (e *simEngine) plan(now time.Duration) {
	for len(e.waiting) > 0 && e.occupied < len(e.slots) {
		e.admit(e.waiting[0], now)
		e.waiting = e.waiting[1:]
	}
	e.reading, e.amounts, e.writing, e.times = e.reading[:0], e.amounts[:0], e.writing[:0], 0
	budget, fewest := simBatch, math.MaxInt
	for i := range e.slots {
		s := &e.slots[i]
		switch {
		case s.task == nil:
		case s.task.unread == 0:
			e.writing = append(e.writing, s)
			fewest = min(fewest, s.task.left)
		case budget > 0:
			if s.task.began < 0 {
				s.task.began = now
			}
			n := min(budget, s.task.unread)
			budget -= n
			e.reading, e.amounts = append(e.reading, s), append(e.amounts, n)
		}
	}
	if len(e.reading)+len(e.writing) == 0 {
		return
	}
	e.from, e.times = now, 1
	e.each = e.base + e.slope*time.Duration(len(e.writing)) + seconds(float64(simBatch-budget)/e.prefill)
	if len(e.reading) == 0 {
		e.times = fewest
	}
}

// admit gives the request a slot: the idle one with the most in common, else the one
// that was used longest ago.
func (e *simEngine) admit(t *simTask, now time.Duration) {
	var best *simSlot
	common := 0
	for i := range e.slots {
		s := &e.slots[i]
		if s.task != nil {
			continue
		}
		if n := inCommon(s.seq, t.prompt); float64(n) > simAlike*float64(len(t.prompt)) && n > common {
			best, common = s, n
		}
	}
	if best == nil {
		for i := range e.slots {
			if s := &e.slots[i]; s.task == nil && (best == nil || s.used < best.used) {
				best = s
			}
		}
		common = inCommon(best.seq, t.prompt)
	}
	var copied float64
	if len(best.seq) > 0 && float64(common) < simKeepOld*float64(len(best.seq)) {
		common, copied = e.swap(best.seq, t, common)
	}
	t.cached = min(common*simBlock, t.in-1)
	t.unread = t.in - t.cached + int(copied*e.prefill)
	t.left = t.out
	best.task, best.seq, best.used = t, t.prompt, now
	e.occupied++
}

// swap stores a sequence and takes out the one that has more in common with the
// request than its slot has, if one has.
func (e *simEngine) swap(seq []uint64, t *simTask, common int) (blocks int, seconds float64) {
	e.store = append(e.store, seq)
	e.stored += len(seq) * simBlock
	found := -1
	for i, s := range e.store {
		if n := inCommon(s, t.prompt); n > common {
			found, common = i, n
		}
	}
	if found >= 0 {
		seconds = float64(len(e.store[found])*simBlock) * simCopy
		e.stored -= len(e.store[found]) * simBlock
		e.store = slices.Delete(e.store, found, found+1)
	}
	for e.stored > simStore {
		e.stored -= len(e.store[0]) * simBlock
		e.store = slices.Delete(e.store, 0, 1)
	}
	return common, seconds
}

// inCommon counts the leading hashes that are equal; chained hashes can be searched.
func inCommon(a, b []uint64) int {
	lo, hi := 0, min(len(a), len(b))
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if a[mid-1] == b[mid-1] {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}
