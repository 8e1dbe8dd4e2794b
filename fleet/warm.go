package fleet

import (
	"math"
	"slices"
)

// warmIndex is what the caches of the instances are expected to hold.
//
// A llama-server keeps sequences, prompts with their answers: one in each lane, and
// those that lanes lost in the machine's memory. The index has the sequences of each
// instance, and the blocks of their prompts as a tree, in which a block is once
// however many sequences go through it. It takes room for each of them all the same,
// as it does on the server. A request that gets a free lane can use what an idle sequence
// has: what a lane reads or writes at present, another one has to read again. One that
// waits for a lane finds there what that lane has then.
//
// Blocks are named by chained hashes: a block's hash depends on all blocks before it,
// so of the blocks of a prompt those that an instance holds, or holds idle, come
// before all others. Of long prompts not every block is kept but marks, which stand
// further apart the further they are from the beginning (see marks): what is expected
// is up to 1/64 less than what is held.
//
// It has no lock: the manager's guards it. Its memory is bounded by the number of its
// entries, the pairs of a block and an instance and the sequences, each of which takes
// pairBytes at most.
type warmIndex struct {
	pairs     store[pairID, pair]
	blocks    blockTable
	sequences store[sequenceID, sequence]

	limit     int // of entries
	instances []warmInstance
	ids       map[warmKey]warmID
	run       uint32 // counts what began and ended, to tell what is older

	// What the last look found: of each instance the last of the leading blocks that it
	// is expected to hold, and the instances of which there is one.
	reach   []pairID
	holders []warmID
}

// warmID is an instance in the index. The zero value is none.
type warmID uint32

type warmKey struct{ node, model string }

// warmInstance is what the index knows of one instance.
type warmInstance struct {
	key     warmKey
	idle    sequenceList
	running sequenceList
	blocks  int  // of all sequences, each once
	held    int  // what all sequences take, in blocks of blockTokens
	room    int  // what it was seen to have room for, likewise; 0: it was never seen to forget
	changed bool // since it was last written

	confidence       float64 // EWMA of the real over the expected reuse
	expected, reused Tokens  // of all answers
	met              Tokens  // of what was expected, what was there
	answers          int     // that told what was reused
	misses           int     // of these, those that found less than half of what was expected
}

const (
	// pairBytes is the most that a pair takes where the index is full: in the store, and
	// 12 in the table, of which a third at least is filled then. A sequence takes less.
	pairBytes = pairSize + 12

	// confidenceStep is how far one answer moves the confidence in an instance.
	confidenceStep = 1.0 / 8

	// roomStep is the share of one answer's prompt, as a divisor, by which it moves
	// what is known of an instance's room.
	roomStep = 4

	// confidenceFrom is from how many expected tokens an answer tells something. Servers
	// read the last tokens of a prompt again in any case.
	confidenceFrom = 64
)

// newWarmIndex makes an index that takes up to size bytes, and room for one block
// of one sequence at least.
func newWarmIndex(size int64) *warmIndex {
	limit := int(min(max(2, size/pairBytes), maxPairs))
	return &warmIndex{
		limit:     limit,
		instances: []warmInstance{{confidence: 1}},
		ids:       make(map[warmKey]warmID),
		reach:     make([]pairID, 1),
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
		w.reach = append(w.reach, 0)
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
		w.reach[id] = 0
	}
	w.holders = w.holders[:0]
	if len(blocks) == 0 || w.pairs.used() == 0 {
		return
	}
	blocks = blocks[:min(len(blocks), maxBlocks)]
	w.between(blocks, 0, w.holds(blocks, 0), marks(len(blocks)), 0)
}

// expected is how many of the blocks that look was given last the instance is expected
// to hold, in any of its sequences.
func (w *warmIndex) expected(id warmID) int {
	p := w.reach[id]
	if p == 0 {
		return 0
	}
	return int(w.pairs.at(p).depth)
}

// idle is how many of them it is expected to hold in an idle sequence.
func (w *warmIndex) idle(id warmID) int {
	for p := w.reach[id]; p != 0; p = w.pairs.at(p).parent {
		if x := w.pairs.at(p); x.idle > 0 {
			return int(x.depth)
		}
	}
	return 0
}

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
	for p := w.blocks.first(&w.pairs, blocks[mark(j)]); p != 0; {
		x := w.pairs.at(p)
		if e := &w.reach[x.id]; *e == 0 {
			*e = p
			w.holders = append(w.holders, warmID(x.id))
		}
		p = x.next
	}
}

// correct compares what was expected of an answer with what its server found in its
// cache, of a prompt of so many tokens. Confidence in the instance follows. Where
// less than half was there, the server may have less room than we thought: of what it
// used longest ago we forget a quarter of what was missing, and take it for that much
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
			i.room += len(blocks) / roomStep
		}
		return
	}
	i.misses++
	missing := int(int64(len(blocks)) * int64(expected-actual) / int64(prompt))
	i.room = max(1, i.held-missing/roomStep, len(blocks))
	w.shrink(i, i.room)
}

// confidence is the share of what is expected of the instance that it had, from 0 to
// 1, over its last answers; 1 before the first.
func (w *warmIndex) confidence(id warmID) float64 { return w.instances[id].confidence }

// forget empties the instance's cache: it was restarted or went to sleep.
func (w *warmIndex) forget(id warmID) {
	i := &w.instances[id]
	for i.running.newest != 0 {
		w.drop(i, i.running.newest)
	}
	w.shrink(i, 0)
	i.confidence, i.room, i.changed = 1, 0, true
}

// size is the number of pairs and the memory in bytes that all takes.
func (w *warmIndex) size() (pairs int, bytes int64) {
	return w.pairs.used(), w.pairs.bytes(pairSize) + w.blocks.bytes() + w.sequences.bytes(sequenceSize)
}
