package fleet

import (
	"math"
	"slices"
)

// warmIndex is what the caches of the instances are expected to hold: for each
// block of a prompt, the instances that read it and did not forget it since.
//
// Blocks are named by chained hashes: a block's hash depends on all blocks before
// it, so an instance that has a block has the whole beginning of the prompt up to
// there. Two rules keep that true, and with it the binary search in expected. Of a
// chain the last block is touched first and the first one last, so that what is
// forgotten as the oldest is always an end. And what is taken back is only what the
// same run brought in and no other touched since.
//
// Of long prompts not every block is kept but marks, which stand further apart the
// further they are from the beginning (see marks): what is expected is up to 1/64
// less than what is held.
//
// It has no lock: the manager's guards it. Its memory is bounded by the number of
// pairs of a block and an instance, each of which takes pairBytes at most.
type warmIndex struct {
	pairs  pairStore
	blocks blockTable

	limit     int // of pairs
	instances []warmInstance
	ids       map[warmKey]warmID
	run       uint32 // counts what ran, to tell what is older

	// What the last look found: of each instance the leading blocks that it is expected
	// to hold, and the instances of which that is not 0.
	depth   []int32
	holders []warmID
}

// warmID is an instance in the index. The zero value is none.
type warmID uint32

type warmKey struct{ node, model string }

// warmInstance is what the index knows of one instance.
type warmInstance struct {
	key            warmKey
	newest, oldest pairID
	held           int  // blocks
	room           int  // blocks that it was seen to have room for; 0: it was never seen to forget
	changed        bool // since it was last written

	confidence       float64 // EWMA of the real over the expected reuse
	expected, reused Tokens  // of all answers
	met              Tokens  // of what was expected, what was there
	answers          int     // that told what was reused
	misses           int     // of these, those that found less than half of what was expected
}

const (
	// pairBytes is the most that a pair takes where the index is full: in the store, and
	// 12 in the table, of which a third at least is filled then.
	pairBytes = pairSize + 12

	// confidenceStep is how far one answer moves the confidence in an instance.
	confidenceStep = 1.0 / 8

	// confidenceFrom is from how many expected tokens an answer tells something. Servers
	// read the last tokens of a prompt again in any case.
	confidenceFrom = 64
)

// newWarmIndex makes an index that takes up to size bytes, and room for one block
// at least.
func newWarmIndex(size int64) *warmIndex {
	limit := int(min(max(1, size/pairBytes), maxPairs))
	return &warmIndex{
		limit:     limit,
		instances: []warmInstance{{confidence: 1}},
		ids:       make(map[warmKey]warmID),
		depth:     make([]int32, 1),
	}
}

// id returns the name of an instance in the index, the same one each time; none
// where there are more instances than names.
func (w *warmIndex) id(node, model string) warmID {
	k := warmKey{node, model}
	if id, ok := w.ids[k]; ok {
		return id
	}
	id := warmID(slices.IndexFunc(w.instances[1:], func(i warmInstance) bool { return i.key == warmKey{} }) + 1)
	if id == 0 {
		if len(w.instances) > math.MaxUint16 {
			return 0
		}
		id = warmID(len(w.instances))
		w.instances = append(w.instances, warmInstance{})
		w.depth = append(w.depth, 0)
	}
	w.instances[id] = warmInstance{key: k, confidence: 1}
	w.ids[k] = id
	return id
}

// retain forgets the instances for which it is false, and that they were there.
// Their ids are given to others.
func (w *warmIndex) retain(stays func(warmID) bool) {
	for k, id := range w.ids {
		if !stays(id) {
			w.forget(id)
			w.instances[id] = warmInstance{}
			delete(w.ids, k)
		}
	}
}

// look finds out how many leading blocks each instance is expected to hold, for
// expected to tell. It allocates nothing.
func (w *warmIndex) look(blocks []uint64) {
	for _, id := range w.holders {
		w.depth[id] = 0
	}
	w.holders = w.holders[:0]
	if len(blocks) == 0 || w.pairs.used == 0 {
		return
	}
	blocks = blocks[:min(len(blocks), maxBlocks)]
	w.between(blocks, 0, w.holds(blocks, 0), marks(len(blocks)), 0)
}

// expected is how many of the blocks that look was given last the instance is expected
// to hold.
func (w *warmIndex) expected(id warmID) int { return int(w.depth[id]) }

// between finds who ends at mark lo, which n of them have, or after it and before mark
// hi, which m have. Who has a mark has those before it: where n and m are equal, nobody
// ends in between. Only where some end are they looked at one by one.
func (w *warmIndex) between(blocks []uint64, lo, n, hi, m int) {
	if n <= m {
		return
	}
	if hi-lo <= 1 {
		w.note(blocks, lo)
		return
	}
	mid := int(uint(lo+hi) / 2)
	k := w.holds(blocks, mid)
	w.between(blocks, mid, k, hi, m) // first, for note
	w.between(blocks, lo, n, mid, k)
}

// holds is how many instances have the j-th mark.
func (w *warmIndex) holds(blocks []uint64, j int) int {
	return w.blocks.holders(&w.pairs, blocks[mark(j)])
}

// note notes that who has the j-th mark ends there, but for those that were seen to have
// a later one.
func (w *warmIndex) note(blocks []uint64, j int) {
	k := mark(j)
	for p := w.blocks.first(&w.pairs, blocks[k]); p != 0; {
		x := w.pairs.at(p)
		if d := &w.depth[x.id]; *d == 0 {
			*d = int32(k + 1)
			w.holders = append(w.holders, warmID(x.id))
		}
		p = x.next
	}
}

// ran notes that the instance is given a prompt of these blocks. It is expected to
// hold the newest ones up to its capacity in blocks; the returned number is for undo.
func (w *warmIndex) ran(id warmID, blocks []uint64, capacity int) (run uint32) {
	w.run++
	if id == 0 {
		return w.run
	}
	i := &w.instances[id]
	if i.room > 0 {
		capacity = min(capacity, i.room)
	}
	capacity = max(1, capacity)
	blocks = blocks[:min(len(blocks), capacity, maxBlocks)]
	// Who touched a mark last touched the one before it right after, mostly: it is
	// found without a search then.
	var near pairID
	for j := marks(len(blocks)) - 1; j >= 0; j-- {
		hash := blocks[mark(j)]
		p := near
		if p == 0 || w.pairs.at(p).hash() != hash {
			p = w.pair(id, hash)
		}
		if p == 0 {
			w.shrink(i, capacity-span(j))
			w.put(id, hash, span(j))
			near = 0
			continue
		}
		near = w.pairs.at(p).newer
		w.unlink(i, p)
		w.pairs.at(p).run = w.run
		w.link(i, p)
	}
	w.shrink(i, capacity) // it was larger
	i.changed = true
	return w.run
}

// undo takes back what the run brought to the instance beyond the first keep blocks,
// which the instance did not come to read. keep counts those that it had before.
func (w *warmIndex) undo(id warmID, blocks []uint64, keep int, run uint32) {
	blocks = blocks[:min(len(blocks), maxBlocks)]
	for j := marks(len(blocks)) - 1; j >= marks(max(0, keep)); j-- {
		if p := w.pair(id, blocks[mark(j)]); p != 0 && w.pairs.at(p).run == run {
			w.drop(p)
		}
	}
	w.instances[id].changed = true
}

// correct compares what was expected of an answer with what its server found in its
// cache, of a prompt of so many tokens. Confidence in the instance follows. Where
// less than half was there, the server has less room than we thought: of what it
// read longest ago we forget as much as was missing, and take it for that much
// smaller, until answers that find what was expected let it grow again. The blocks of
// the prompt itself stay, for it has read them now.
func (w *warmIndex) correct(id warmID, blocks []uint64, expected, actual, prompt Tokens) {
	i := &w.instances[id]
	expected, actual = max(0, min(expected, prompt)), max(0, min(actual, prompt))
	i.answers++
	i.expected += expected
	i.reused += actual
	i.met += min(actual, expected)
	if expected < confidenceFrom {
		return
	}
	i.confidence += (min(1, float64(actual)/float64(expected)) - i.confidence) * confidenceStep
	i.changed = true
	if actual >= expected/2 {
		if i.room > 0 {
			i.room += len(blocks) / 4
		}
		return
	}
	i.misses++
	missing := int(int64(len(blocks)) * int64(expected-actual) / int64(prompt))
	i.room = max(1, i.held-missing, len(blocks))
	w.shrink(i, i.room)
}

// confidence is the share of what is expected of the instance that it had, from 0 to
// 1, over its last answers; 1 before the first.
func (w *warmIndex) confidence(id warmID) float64 { return w.instances[id].confidence }

// forget empties the instance's cache: it was restarted or went to sleep.
func (w *warmIndex) forget(id warmID) {
	i := &w.instances[id]
	w.shrink(i, 0)
	i.confidence, i.room, i.changed = 1, 0, true
}

// size is the number of pairs and the memory in bytes that they take.
func (w *warmIndex) size() (pairs int, bytes int64) {
	return w.pairs.used, w.pairs.bytes() + w.blocks.bytes()
}
