package fleet

import "math"

// sequence is what a server keeps of one request: its prompt and its answer.
type sequence struct {
	leaf         pairID // the last of its prompt's blocks that is a mark
	run          uint32 // when it began or, idle, ended
	takes        uint32 // room on the server, in blocks of blockTokens
	whole        uint32 // its length with the answer, in blocks of its own prompt
	newer, older sequenceID
	id           uint16 // of the instance
	idle         bool
}

// sequenceID is a sequence in the store. The zero value is none.
type sequenceID uint32

// sequenceRun is a sequence that is being read or written. The zero value is none.
type sequenceRun struct {
	sequence sequenceID
	run      uint32
}

// mostSequences is how many an instance has at most: pairs count those through them.
const mostSequences = math.MaxUint16

// sequenceSize is how many bytes a sequence takes in the store.
const sequenceSize = 28

// sequenceList is some of an instance's sequences, in the order in which they were put
// there.
type sequenceList struct {
	newest, oldest sequenceID
	len            int
}

func (l *sequenceList) put(s *store[sequenceID, sequence], n sequenceID) {
	x := s.at(n)
	x.older, x.newer = l.newest, 0
	if l.newest != 0 {
		s.at(l.newest).newer = n
	} else {
		l.oldest = n
	}
	l.newest = n
	l.len++
}

func (l *sequenceList) remove(s *store[sequenceID, sequence], n sequenceID) {
	x := s.at(n)
	if x.newer != 0 {
		s.at(x.newer).older = x.older
	} else {
		l.newest = x.older
	}
	if x.older != 0 {
		s.at(x.older).newer = x.newer
	} else {
		l.oldest = x.newer
	}
	l.len--
}

// begins notes that the instance is given a prompt of these blocks. What was used
// longest ago has to go where its cache, of so many blocks, cannot hold that too.
func (w *warmIndex) begins(id warmID, blocks []uint64, capacity int) sequenceRun {
	i := &w.instances[id]
	if i.room > 0 {
		capacity = min(capacity, i.room)
	}
	capacity = max(1, capacity)
	blocks = blocks[:min(len(blocks), capacity, maxBlocks)]
	if id == 0 || len(blocks) == 0 {
		return sequenceRun{}
	}
	n, found := w.plant(id, marks(len(blocks)), func(j int) uint64 { return blocks[mark(j)] })
	if n == 0 {
		return sequenceRun{}
	}
	x := w.sequences.at(n)
	x.takes, x.whole = uint32(len(blocks)), uint32(len(blocks))
	i.running.put(&w.sequences, n)
	i.held += len(blocks)
	i.changed = true
	w.replace(i, found)
	w.shrink(i, capacity)
	return sequenceRun{n, x.run}
}

// plant makes a sequence of the blocks whose marks have these hashes, in no list yet. It
// returns the last pair of it that idle ones go through, too.
func (w *warmIndex) plant(id warmID, marks int, hash func(j int) uint64) (n sequenceID, idle pairID) {
	i := &w.instances[id]
	if i.idle.len > 0 && i.idle.len+i.running.len >= mostSequences {
		w.drop(i, i.idle.oldest)
	}
	if i.running.len >= mostSequences || !w.makeRoom() {
		return 0, 0
	}
	n = w.sequences.take()
	leaf, j := w.deepest(id, marks, hash)
	for p := leaf; p != 0; {
		x := w.pairs.at(p)
		x.held++
		if idle == 0 && x.idle > 0 {
			idle = p
		}
		p = x.parent
	}
	for ; j < marks && w.makeRoom(); j++ {
		leaf = w.put(id, hash(j), leaf, j)
	}
	w.run++
	*w.sequences.at(n) = sequence{leaf: leaf, run: w.run, id: uint16(id)}
	return n, idle
}

// deepest returns the last mark that the instance holds, idle or not, and how many it
// holds.
func (w *warmIndex) deepest(id warmID, marks int, hash func(j int) uint64) (p pairID, n int) {
	lo, hi := 0, marks // it holds lo, and fewer than hi+1
	for lo < hi {
		mid := int(uint(lo+hi+1) / 2)
		if q := w.pair(id, hash(mid-1)); q != 0 {
			p, lo = q, mid
		} else {
			hi = mid - 1
		}
	}
	return p, lo
}

// ends notes that the sequence is idle from now on. With its answer it takes so much room,
// and is that long in blocks of its own prompt; 0: as long as the prompt.
func (w *warmIndex) ends(r sequenceRun, takes, whole float64) {
	if !w.is(r) {
		return
	}
	x := w.sequences.at(r.sequence)
	i := &w.instances[x.id]
	i.running.remove(&w.sequences, r.sequence)
	w.settle(i, r.sequence)
	if takes > 0 {
		i.held -= int(x.takes)
		x.takes = uint32(bounded(takes, 1, maxBlocks))
		i.held += int(x.takes)
	}
	x.whole = uint32(bounded(whole, float64(x.whole), maxBlocks))
}

// settle makes a sequence that is in no list the newest of the idle ones.
func (w *warmIndex) settle(i *warmInstance, n sequenceID) {
	w.run++
	x := w.sequences.at(n)
	x.idle, x.run = true, w.run
	i.idle.put(&w.sequences, n)
	i.changed = true
	for p := x.leaf; p != 0; {
		y := w.pairs.at(p)
		y.last = n
		y.idle++
		p = y.parent
	}
}

// is reports whether r is a sequence that runs.
func (w *warmIndex) is(r sequenceRun) bool {
	if r.sequence == 0 {
		return false
	}
	x := w.sequences.at(r.sequence)
	return x.run == r.run && !x.idle
}

// cut takes back what the sequence has beyond its first blocks, which the instance did
// not come to read.
func (w *warmIndex) cut(r sequenceRun, keep int) {
	if !w.is(r) {
		return
	}
	x := w.sequences.at(r.sequence)
	i := &w.instances[x.id]
	for x.leaf != 0 && w.pairs.at(x.leaf).depth > uint32(keep) {
		p := x.leaf
		x.leaf = w.pairs.at(p).parent
		w.leave(i, p)
	}
	i.held -= int(x.takes)
	x.takes = uint32(min(int(x.takes), max(0, keep)))
	x.whole = x.takes
	i.held += int(x.takes)
	if x.leaf == 0 {
		w.drop(i, r.sequence)
	}
	i.changed = true
}

// mostTried is how many sequences are looked at for one that goes through a block.
const mostTried = 32

// replace drops the idle sequence that gives its lane to a new one: of those that have
// most in common with it, up to block p, the newest. Where that is less than half of it,
// the server keeps what it was.
func (w *warmIndex) replace(i *warmInstance, p pairID) {
	if p == 0 {
		return
	}
	y := w.pairs.at(p)
	n := y.last
	if n == 0 {
		n = w.through(i, p)
	}
	if n != 0 && 2*y.depth >= w.sequences.at(n).whole {
		w.drop(i, n)
	}
}

// through finds a sequence among the newest of the idle ones that goes through the block;
// 0: none of them does.
func (w *warmIndex) through(i *warmInstance, p pairID) sequenceID {
	depth := w.pairs.at(p).depth
	n := i.idle.newest
	for range mostTried {
		if n == 0 {
			break
		}
		q := w.sequences.at(n).leaf
		for q != 0 && w.pairs.at(q).depth > depth {
			q = w.pairs.at(q).parent
		}
		if q == p {
			return n
		}
		n = w.sequences.at(n).older
	}
	return 0
}

// drop forgets a sequence.
func (w *warmIndex) drop(i *warmInstance, n sequenceID) {
	x := w.sequences.at(n)
	for p := x.leaf; p != 0; {
		y := w.pairs.at(p)
		parent := y.parent
		if y.last == n {
			y.last = 0
		}
		if x.idle {
			y.idle--
		}
		w.leave(i, p)
		p = parent
	}
	i.held -= int(x.takes)
	if x.idle {
		i.idle.remove(&w.sequences, n)
	} else {
		i.running.remove(&w.sequences, n)
	}
	w.sequences.giveBack(n)
}

// leave notes that one sequence less goes through the pair.
func (w *warmIndex) leave(i *warmInstance, p pairID) {
	x := w.pairs.at(p)
	if x.held--; x.held > 0 {
		return
	}
	i.blocks -= w.span(x)
	w.blocks.remove(&w.pairs, p)
	w.pairs.giveBack(p)
}

// shrink forgets what was used longest ago until the instance's sequences take no more
// than most. What runs stays.
func (w *warmIndex) shrink(i *warmInstance, most int) {
	for i.held > most && i.idle.len > 0 {
		w.drop(i, i.idle.oldest)
	}
}

// makeRoom forgets what was used longest ago of all where the index is full. false:
// there is nothing to forget.
func (w *warmIndex) makeRoom() bool {
	const atOnce = 64 // to look for the oldest instance not for each
	if w.pairs.used()+w.sequences.used() < w.limit {
		return true
	}
	i := w.longestAgo()
	if i == nil {
		return false
	}
	for least := w.pairs.used() - atOnce; i.idle.len > 0 && w.pairs.used() > least; {
		w.drop(i, i.idle.oldest)
	}
	return true
}

// longestAgo returns the instance whose oldest sequence was used longest ago.
func (w *warmIndex) longestAgo() *warmInstance {
	var found *warmInstance
	var age uint32
	for n := range w.instances {
		i := &w.instances[n]
		if i.idle.len == 0 {
			continue
		}
		if a := w.run - w.sequences.at(i.idle.oldest).run; found == nil || a > age {
			found, age = i, a
		}
	}
	return found
}
