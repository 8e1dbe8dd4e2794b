package fleet

// endings remembers how long sequences are that instances hold, beyond what the
// index of caches knows: the rest of a prompt after its last whole block, and the
// answer. The next turn of a conversation repeats both.
//
// Two halves bound it: when the young one is full, the old one is forgotten and they
// change places.
type endings struct {
	young, old map[endingKey]float64
}

// endingKey is an instance and the last block of a prompt that the index tells apart.
type endingKey struct {
	id   warmID
	last uint64
}

// endingsMost is how many each half holds.
const endingsMost = 32768

// shared is the length where several prompts parted after the same block: none of
// them speaks for the next.
const shared = -1

// ended notes that the instance holds a sequence of that many tokens, the prompt of
// which has these blocks.
func (e *endings) ended(id warmID, blocks []uint64, length Tokens) {
	if len(blocks) == 0 || id == 0 {
		return
	}
	k := endingKey{id, blocks[mark(marks(len(blocks))-1)]}
	n := float64(length)
	if e.length(id, k.last) != 0 {
		n = shared
	}
	if len(e.young) >= endingsMost {
		e.old, e.young = e.young, nil
	}
	if e.young == nil {
		e.young = make(map[endingKey]float64)
	}
	e.young[k] = n
}

// length is that of the sequence that goes on after the block; 0 or less: unknown.
func (e *endings) length(id warmID, last uint64) float64 {
	k := endingKey{id, last}
	if n, ok := e.young[k]; ok {
		return n
	}
	return e.old[k]
}
