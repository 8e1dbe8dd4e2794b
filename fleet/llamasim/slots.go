package llamasim

import (
	"slices"
	"time"
)

// slot is one of the places where a generation runs. Guarded by instance.mu, but
// for cached, which belongs to whoever holds the slot.
type slot struct {
	id     int
	cached []int32   // the tokens it holds: prompt and answer of its last request
	busy   bool      // someone holds it
	freed  time.Time // when it last became free; zero: never used

	// For /slots.
	task             int
	params           fieldList
	promptN          int // tokens held
	promptProcessed  int
	promptFromCache  int
	decoded, remains int
	newline          bool
}

// similarity is the least share of a prompt a slot must hold to be chosen for it
// (--slot-prompt-similarity, section 3.1).
const similarity = 0.10

// waiter is a request in the queue.
type waiter struct {
	job   *job
	ready chan struct{} // closed when job.gens have their slots
}

// acquire waits, first come first served, until as many slots as the job has
// generations are free, and gives them to it. That a client left meanwhile shows only
// when nobody gets results, as with the real server (section 3.5): where others are
// answered its request keeps its place.
func (in *instance) acquire(rp *reply, j *job) error {
	w := &waiter{job: j, ready: make(chan struct{})}
	in.mu.Lock()
	for _, g := range j.gens {
		g.task = in.nextTask
		in.nextTask++
	}
	in.queue = append(in.queue, w)
	in.dispatch()
	in.mu.Unlock()
	look := time.NewTimer(unheard)
	defer look.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-in.ctx.Done():
			return errClientGone
		case <-in.term:
			return errClientGone
		case <-look.C:
		}
		left := unheard - in.silence()
		if left <= 0 && rp.unwanted() && in.withdraw(w) {
			return errClientGone
		}
		if left <= 0 {
			left = unheard
		}
		look.Reset(left)
	}
}

// withdraw takes a request out of the queue; false: it has its slots.
func (in *instance) withdraw(w *waiter) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	i := slices.Index(in.queue, w)
	if i < 0 {
		return false
	}
	in.queue = slices.Delete(in.queue, i, i+1)
	for _, g := range w.job.gens {
		in.log.write('W', "srv          stop: cancel task, id_task = %d", g.task)
		g.released = true
	}
	in.dispatch()
	return true
}

// dispatch gives free slots to the head of the queue. The caller holds in.mu.
func (in *instance) dispatch() {
	for len(in.queue) > 0 {
		w := in.queue[0]
		if !in.grant(w.job) {
			return
		}
		in.queue = in.queue[1:]
		close(w.ready)
	}
}

func (in *instance) grant(j *job) bool {
	free := 0
	for _, s := range in.slots {
		if !s.busy {
			free++
		}
	}
	if free < len(j.gens) {
		return false
	}
	if j.q.slot >= 0 && in.slots[j.q.slot%len(in.slots)].busy {
		return false
	}
	in.running[j] = true
	for i, g := range j.gens {
		var s *slot
		if i == 0 {
			s = in.choose(j)
		} else {
			s = in.anyFree()
		}
		s.busy, s.task = true, g.task
		s.params = j.params
		s.promptN, s.promptProcessed, s.promptFromCache, s.decoded, s.remains, s.newline = 0, 0, 0, 0, j.q.limit, false
		g.slot = s
		if !j.q.cachePrompt {
			s.cached = nil
		}
	}
	in.saveIdle()
	// Children are launched before their parent.
	for i, g := range slices.Backward(j.gens) {
		in.log.slot('I', "launch_slot_", g.slot.id, g.task, "processing task, is_child = %d", min(i, 1))
	}
	return true
}

// choose picks the slot of a job: the one asked for, else the one that holds most of
// the prompt, else the one that was used least recently.
func (in *instance) choose(j *job) *slot {
	if j.q.slot >= 0 {
		s := in.slots[j.q.slot%len(in.slots)]
		in.log.slot('I', "get_available_slot", s.id, -1, "selected slot by id (%d)", s.id)
		return s
	}
	var best *slot
	bestLen := 0
	for _, s := range in.slots {
		if s.busy {
			continue
		}
		if n := common32(s.cached, j.ids); float64(n) > similarity*float64(len(j.ids)) && n > bestLen {
			best, bestLen = s, n
		}
	}
	if best != nil {
		in.log.slot('I', "get_available_slot", best.id, -1,
			"selected slot by LCP similarity, f_sim_best = %.3f (> %.3f thold), f_keep = %.3f",
			float64(bestLen)/float64(len(j.ids)), similarity, float64(bestLen)/float64(len(best.cached)))
		in.restore(best, j.ids)
		return best
	}
	s := in.anyFree()
	last := int64(-1)
	if !s.freed.IsZero() {
		last = s.freed.Sub(in.start).Microseconds()
	}
	in.log.slot('I', "get_available_slot", s.id, -1, "selected slot by LRU, t_last = %d", last)
	in.restore(s, j.ids)
	return s
}

// anyFree is the free slot used least recently; of those never used the last, as
// the real one takes it.
func (in *instance) anyFree() *slot {
	var oldest *slot
	for _, s := range in.slots {
		if !s.busy && (oldest == nil || !s.freed.After(oldest.freed)) {
			oldest = s
		}
	}
	return oldest
}

// common32 is the length of the common beginning of two token lists.
func common32(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// release frees the slot of g, which holds tokens from now on.
func (in *instance) release(g *gen) {
	if g.released {
		return
	}
	g.released = true
	in.mu.Lock()
	defer in.mu.Unlock()
	s := g.slot
	truncated := 0
	if g.truncated {
		truncated = 1
	}
	in.log.slot('I', "release", s.id, g.task, "stop processing: n_tokens = %d, truncated = %d", len(s.cached), truncated)
	s.busy, s.freed = false, time.Now()
	in.counters.released(g)
	if !slices.ContainsFunc(g.job.gens, func(g *gen) bool { return !g.released }) {
		delete(in.running, g.job)
	}
	in.dispatch()
}

// load is how many slots generate and how many requests wait.
func (in *instance) load() (active, queued int) {
	if in.router != nil {
		return in.router.loads()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range in.slots {
		if s.busy {
			active++
		}
	}
	return active, len(in.queue)
}
