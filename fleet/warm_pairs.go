package fleet

import "math/bits"

// pair is a block that an instance is expected to hold. Its hash is cut in two so
// that a pair needs no padding.
type pair struct {
	high, low  uint32
	next       pairID     // with the same block
	parent     pairID     // the mark before it, of the same instance; 0: it is the first
	last       sequenceID // of the idle ones through it, the one that came last; 0: not known
	depth      uint32     // blocks up to it, itself counted
	held, idle uint16     // sequences through it, and those of them that are idle
	id         uint16     // of the instance
	holders    uint16     // of the first pair of a block: how many there are
}

// pairSize is how many bytes a pair takes in the store.
const pairSize = 32

// pairID is a pair in the store. The zero value is none.
type pairID uint32

// maxPairs is how many pairs an index has at most, so that its table, of which there
// may be three slots for each, is no larger than 2 GiB.
const maxPairs = 1 << 28

func (x *pair) hash() uint64 { return uint64(x.high)<<32 | uint64(x.low) }

func (x *pair) setHash(h uint64) { x.high, x.low = uint32(h>>32), uint32(h) }

// Of the first 128 blocks of a prompt each is a mark, of the next 128 every second
// one, of the next 256 every fourth, and so on. A long prompt takes little room and
// time that way, and where it parts from another is known to 1/64.
const (
	eachMarks = 128 // of the first part
	partMarks = 64  // of each further one
)

// maxBlocks is how long a prompt is looked at, in blocks.
const maxBlocks = 1 << 21

// marks is how many marks the first n blocks have.
func marks(n int) int {
	if n < eachMarks {
		return n
	}
	part := bits.Len(uint(n) / eachMarks)
	return eachMarks + (part-1)*partMarks + (n-eachMarks<<(part-1))>>part
}

// mark returns the block where the j-th mark stands, both counted from 0.
func mark(j int) int {
	if j < eachMarks {
		return j
	}
	part, nth := (j-eachMarks)/partMarks, (j-eachMarks)%partMarks
	return eachMarks<<part + (nth+1)*span(j) - 1
}

// span is how many blocks the j-th mark is from the one before.
func span(j int) int {
	if j < eachMarks {
		return 1
	}
	return 2 << ((j - eachMarks) / partMarks)
}

// blockTable finds the pairs of a block: open addressing with linear probing. It is
// made once, as large as the limit needs, so that no request waits for it to grow.
type blockTable struct {
	slots []pairID // the first pair of a block
	shift uint8
}

// make makes a table for so many blocks.
func (t *blockTable) make(limit int) {
	size := bits.Len(uint(limit + limit/2))
	t.slots, t.shift = make([]pairID, 1<<size), uint8(64-size)
}

func (t *blockTable) bytes() int64 { return int64(len(t.slots)) * 4 }

// home is the slot where a block belongs. Hashes are mixed once more, for they may
// come from anywhere.
func (t *blockTable) home(hash uint64) int { return int(hash * 0x9e3779b97f4a7c15 >> t.shift) }

// slot returns the slot of the block, or the free one where it would be put.
func (t *blockTable) slot(s *store[pairID, pair], hash uint64) int {
	i := t.home(hash)
	for t.slots[i] != 0 && s.at(t.slots[i]).hash() != hash {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// first returns the first pair of the block; 0: nobody holds it.
func (t *blockTable) first(s *store[pairID, pair], hash uint64) pairID {
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[t.slot(s, hash)]
}

// holders is how many instances hold the block.
func (t *blockTable) holders(s *store[pairID, pair], hash uint64) int {
	p := t.first(s, hash)
	if p == 0 {
		return 0
	}
	return int(s.at(p).holders)
}

// add puts a pair, whose hash is set, to those of its block.
func (t *blockTable) add(s *store[pairID, pair], limit int, p pairID) {
	if len(t.slots) == 0 {
		t.make(limit)
	}
	x := s.at(p)
	i := t.slot(s, x.hash())
	x.next, x.holders = t.slots[i], 1
	if x.next != 0 {
		x.holders += s.at(x.next).holders
	}
	t.slots[i] = p
}

// remove takes a pair from those of its block.
func (t *blockTable) remove(s *store[pairID, pair], p pairID) {
	x := s.at(p)
	i := t.slot(s, x.hash())
	if t.slots[i] != p {
		before := t.slots[i]
		s.at(before).holders--
		for s.at(before).next != p {
			before = s.at(before).next
		}
		s.at(before).next = x.next
		return
	}
	if t.slots[i] = x.next; x.next == 0 {
		t.close(s, i)
		return
	}
	s.at(x.next).holders = x.holders - 1
}

// close moves the blocks that follow a slot that became free, so that they are
// found without it.
func (t *blockTable) close(s *store[pairID, pair], gap int) {
	mask := len(t.slots) - 1
	for i := (gap + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		home := t.home(s.at(t.slots[i]).hash())
		if (i-home)&mask >= (i-gap)&mask {
			t.slots[gap], t.slots[i] = t.slots[i], 0
			gap = i
		}
	}
}

// pair returns the instance's pair of the block; 0: it does not hold it.
func (w *warmIndex) pair(id warmID, hash uint64) pairID {
	p := w.blocks.first(&w.pairs, hash)
	for p != 0 && warmID(w.pairs.at(p).id) != id {
		p = w.pairs.at(p).next
	}
	return p
}

// put adds the j-th mark of a sequence, after parent, to an instance that does not hold
// it yet.
func (w *warmIndex) put(id warmID, hash uint64, parent pairID, j int) pairID {
	p := w.pairs.take()
	x := w.pairs.at(p)
	x.setHash(hash)
	x.parent, x.depth, x.held, x.id = parent, uint32(mark(j)+1), 1, uint16(id)
	w.blocks.add(&w.pairs, w.limit, p)
	w.instances[id].blocks += span(j)
	return p
}

// span is how many blocks the pair stands for: itself and those since the mark before.
func (w *warmIndex) span(x *pair) int {
	if x.parent == 0 {
		return int(x.depth)
	}
	return int(x.depth - w.pairs.at(x.parent).depth)
}
