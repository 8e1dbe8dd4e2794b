package llamasim

import "slices"

// What slots share: one pool of context, with Options.KVUnified, and the prompts kept
// in memory outside of them (section 3.1). The caller of all of it holds in.mu.

// fit makes room in a shared pool after a slot grew: idle slots lose what they hold,
// and if that is not enough every generation fails.
func (in *instance) fit() {
	if !in.o.KVUnified {
		return
	}
	total := 0
	for _, s := range in.slots {
		total += len(s.cached)
	}
	for _, s := range in.slots {
		if total <= in.o.Context {
			return
		}
		if !s.busy && len(s.cached) > 0 {
			in.log.write('W', "srv  try_clear_id: purging slot %d with %d tokens", s.id, len(s.cached))
			total -= len(s.cached)
			s.cached, s.promptN = nil, 0
		}
	}
	if total <= in.o.Context {
		return
	}
	in.log.write('W', "srv        decode: failed to find free space in the KV cache, retrying with smaller batch size, off = 0, n_batch = 1, ret = 1")
	in.log.write('E', "srv        decode: Context size has been exceeded. off = 0, n_batch = 1, ret = 1")
	for j := range in.running {
		j.doomed = true
	}
}

// poolFull is the error of a generation that fit sentenced, else nil.
func (in *instance) poolFull(j *job) error {
	in.mu.Lock()
	doomed := j.doomed
	in.mu.Unlock()
	if !doomed {
		return nil
	}
	return in.taskFailed(j, serverError("Context size has been exceeded."))
}

// save keeps a copy of a prompt in memory, unless a longer one holds it.
func (in *instance) save(tokens []int32) {
	if in.o.CacheRAM < 0 || len(tokens) == 0 {
		return
	}
	total := len(tokens)
	kept := in.ram[:0:0]
	for _, old := range in.ram {
		switch n := common32(old, tokens); {
		case n == len(tokens):
			return
		case n < len(old): // else the new one holds it
			kept = append(kept, old)
			total += len(old)
		}
	}
	kept = append(kept, slices.Clone(tokens))
	for total > in.o.CacheRAM && len(kept) > 0 {
		total -= len(kept[0])
		kept = kept[1:]
	}
	in.ram = kept
}

// Shares of a saved prompt that must be of use for it to come back, and of a slot's
// content that must stay for it not to be saved first.
const (
	useful  = 0.25
	staying = 0.5
)

// restore saves what a slot holds, of which little would stay, and takes back the
// prompt from memory that suits ids better.
func (in *instance) restore(s *slot, ids []int32) {
	n := common32(s.cached, ids)
	if in.o.CacheRAM < 0 || len(s.cached) > 0 && float64(n) >= staying*float64(len(s.cached)) {
		return
	}
	in.save(s.cached)
	keep, best := 0.0, -1
	if len(s.cached) > 0 {
		keep = float64(n) / float64(len(s.cached))
	}
	for i, old := range in.ram {
		m := common32(old, ids)
		share := float64(m) / float64(len(old))
		if share >= useful && share > keep && m > n {
			n, keep, best = m, share, i
		}
	}
	if best < 0 {
		return
	}
	s.cached = in.ram[best]
	in.ram = slices.Delete(slices.Clone(in.ram), best, best+1)
}

// saveIdle keeps what idle slots hold when a task begins; in a shared pool they make
// room for it, too (--cache-idle-slots).
func (in *instance) saveIdle() {
	if in.o.CacheRAM < 0 {
		return
	}
	for _, s := range in.slots {
		if s.busy || len(s.cached) == 0 {
			continue
		}
		in.save(s.cached)
		if in.o.KVUnified {
			s.cached, s.promptN = nil, 0
		}
	}
}
