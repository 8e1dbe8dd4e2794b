package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// chain makes the hashes of a prompt from what its blocks say, each depending on
// those before it, as those of real prompts do.
func chain(words ...uint64) []uint64 {
	h := uint64(7)
	blocks := make([]uint64, len(words))
	for i, word := range words {
		h = (h ^ word + 1) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		blocks[i] = h
	}
	return blocks
}

// prompt draws one of a few prompts of n blocks that begin alike in part.
func prompt(r *rand.Rand, n int) []uint64 {
	words := make([]uint64, n)
	for i := range words {
		words[i] = uint64(r.IntN(2))
	}
	return chain(words...)
}

func (w *warmIndex) leading(id warmID, blocks []uint64) int {
	w.look(blocks)
	return w.expected(id)
}

// ran is a request that was read and answered before anything else happened.
func (w *warmIndex) ran(id warmID, blocks []uint64, capacity int) {
	w.ends(w.begins(id, blocks, capacity), 0, 0)
}

// naiveWarm is the index as one would write it without care for its cost.
type naiveWarm struct {
	sequences map[warmID][]*naiveSequence // those that idle in the order in which they ended, among others
	trust     map[warmID]float64
	room      map[warmID]int
}

type naiveSequence struct {
	blocks       []uint64
	takes, whole int
	idle         bool
}

// longest is how many leading blocks the instance has in one sequence.
func (n *naiveWarm) longest(id warmID, blocks []uint64, running bool) (most int) {
	for _, s := range n.sequences[id] {
		if s.idle || running {
			most = max(most, inCommon(s.blocks, blocks))
		}
	}
	return most
}

func (n *naiveWarm) held(id warmID) (sum int) {
	for _, s := range n.sequences[id] {
		sum += s.takes
	}
	return sum
}

func (n *naiveWarm) begins(id warmID, blocks []uint64, capacity int) *naiveSequence {
	if room := n.room[id]; room > 0 {
		capacity = min(capacity, room)
	}
	blocks = blocks[:min(len(blocks), capacity)]
	if len(blocks) == 0 {
		return nil
	}
	common := n.longest(id, blocks, false)
	for k, s := range slices.Backward(n.sequences[id]) {
		if common > 0 && s.idle && inCommon(s.blocks, blocks) == common {
			if 2*common >= s.whole {
				n.sequences[id] = slices.Delete(n.sequences[id], k, k+1)
			}
			break
		}
	}
	s := &naiveSequence{blocks, len(blocks), len(blocks), false}
	n.sequences[id] = append(n.sequences[id], s)
	n.shrink(id, capacity)
	return s
}

func (n *naiveWarm) shrink(id warmID, most int) {
	for n.held(id) > most {
		at := slices.IndexFunc(n.sequences[id], func(s *naiveSequence) bool { return s.idle })
		if at < 0 {
			return
		}
		n.sequences[id] = slices.Delete(n.sequences[id], at, at+1)
	}
}

func (n *naiveWarm) runs(id warmID, s *naiveSequence) bool {
	return s != nil && !s.idle && slices.Contains(n.sequences[id], s)
}

func (n *naiveWarm) ends(id warmID, s *naiveSequence, takes, whole int) {
	if !n.runs(id, s) {
		return
	}
	at := slices.Index(n.sequences[id], s)
	n.sequences[id] = append(slices.Delete(n.sequences[id], at, at+1), s)
	s.idle, s.whole = true, max(s.whole, whole)
	if takes > 0 {
		s.takes = takes
	}
}

func (n *naiveWarm) cut(id warmID, s *naiveSequence, keep int) {
	if !n.runs(id, s) {
		return
	}
	s.blocks = s.blocks[:min(keep, len(s.blocks))]
	s.takes = min(s.takes, keep)
	s.whole = s.takes
	if len(s.blocks) == 0 {
		at := slices.Index(n.sequences[id], s)
		n.sequences[id] = slices.Delete(n.sequences[id], at, at+1)
	}
}

func (n *naiveWarm) correct(id warmID, blocks []uint64, expected, actual, prompt Tokens) {
	if expected < confidenceFrom {
		return
	}
	n.trust[id] += (min(1, float64(actual)/float64(expected)) - n.trust[id]) / 8
	if 2*actual < expected-expected%2 {
		missing := len(blocks) * int(expected-actual) / int(prompt)
		n.room[id] = max(1, n.held(id)-missing/4, len(blocks))
		n.shrink(id, n.room[id])
	} else if n.room[id] > 0 {
		n.room[id] += len(blocks) / 4
	}
}

// Whatever began, ended, was cut short, corrected or forgotten: what the index expects is
// what the naive one says.
func TestWarmIndexExpectsWhatANaiveOneDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWarmIndex(1 << 20)
		n := &naiveWarm{map[warmID][]*naiveSequence{}, map[warmID]float64{}, map[warmID]int{}}
		capacity := make(map[warmID]int)
		ids := make([]warmID, 3)
		for i := range ids {
			ids[i] = w.id(fmt.Sprint(i), "m")
			n.trust[ids[i]] = 1
			capacity[ids[i]] = rapid.IntRange(1, 60).Draw(rt, "capacity")
		}
		type run struct {
			id    warmID
			ours  sequenceRun
			naive *naiveSequence
		}
		var runs []run
		draw := func() (warmID, []uint64) {
			r := rand.New(rand.NewPCG(rapid.Uint64Range(0, 50).Draw(rt, "prompt"), 1))
			return rapid.SampledFrom(ids).Draw(rt, "instance"), prompt(r, rapid.IntRange(0, 12).Draw(rt, "length"))
		}
		drawRun := func(rt *rapid.T) run {
			if len(runs) == 0 {
				rt.Skip("nothing ran")
			}
			return rapid.SampledFrom(runs).Draw(rt, "run") // maybe one that is over
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begins": func(*rapid.T) {
				id, blocks := draw()
				runs = append(runs, run{id, w.begins(id, blocks, capacity[id]), n.begins(id, blocks, capacity[id])})
			},
			"ends": func(rt *rapid.T) {
				x := drawRun(rt)
				takes, whole := rapid.IntRange(0, 30).Draw(rt, "takes"), rapid.IntRange(0, 30).Draw(rt, "whole")
				w.ends(x.ours, float64(takes), float64(whole))
				n.ends(x.id, x.naive, takes, whole)
			},
			"cut": func(rt *rapid.T) {
				x, keep := drawRun(rt), rapid.IntRange(0, 12).Draw(rt, "keep")
				w.cut(x.ours, keep)
				n.cut(x.id, x.naive, keep)
			},
			"correct": func(*rapid.T) {
				id, blocks := draw()
				whole := Tokens(64*len(blocks) + 1)
				expected := Tokens(rapid.Int64Range(0, int64(whole)).Draw(rt, "expected"))
				actual := Tokens(rapid.Int64Range(0, int64(whole)).Draw(rt, "actual"))
				w.correct(id, blocks, expected, actual, whole)
				n.correct(id, blocks, expected, actual, whole)
			},
			"forget": func(*rapid.T) {
				id, _ := draw()
				w.forget(id)
				n.sequences[id], n.trust[id], n.room[id] = nil, 1, 0
			},
			"": func(*rapid.T) {
				_, blocks := draw()
				w.look(blocks)
				for _, id := range ids {
					if got, want := w.expected(id), n.longest(id, blocks, true); got != want {
						rt.Fatalf("instance %d: got %d blocks expected, want %d", id, got, want)
					}
					if got, want := w.idle(id), n.longest(id, blocks, false); got != want {
						rt.Fatalf("instance %d: got %d blocks expected in an idle sequence, want %d", id, got, want)
					}
					if got, want := w.instances[id].held, n.held(id); got != want {
						rt.Fatalf("instance %d: got room for %d blocks taken, want %d", id, got, want)
					}
					if got, want := w.confidence(id), n.trust[id]; got != want {
						rt.Fatalf("instance %d: got confidence %v, want %v", id, got, want)
					}
				}
				sound(rt, w)
			},
		})
	})
}

// sound checks that what the index counts is what it has.
func sound(t interface{ Fatalf(string, ...any) }, w *warmIndex) {
	through, idle := make(map[pairID]int), make(map[pairID]int)
	sequences := 0
	for id := range w.instances {
		i, takes := &w.instances[id], 0
		for _, l := range []*sequenceList{&i.idle, &i.running} {
			len := 0
			for n := l.newest; n != 0; n = w.sequences.at(n).older {
				x := w.sequences.at(n)
				len++
				takes += int(x.takes)
				for p := x.leaf; p != 0; p = w.pairs.at(p).parent {
					through[p]++
					if x.idle {
						idle[p]++
					}
				}
			}
			if len != l.len {
				t.Fatalf("got %d sequences in a list, it says %d", len, l.len)
			}
			sequences += len
		}
		if takes != i.held {
			t.Fatalf("got sequences that take %d blocks, it says %d", takes, i.held)
		}
	}
	if sequences != w.sequences.used() || len(through) != w.pairs.used() {
		t.Fatalf("got %d sequences of %d pairs, it says %d and %d", sequences, len(through), w.sequences.used(), w.pairs.used())
	}
	blocks := make(map[uint16]int)
	for p, n := range through {
		x := w.pairs.at(p)
		if int(x.held) != n || int(x.idle) != idle[p] {
			t.Fatalf("got %d sequences through a pair, %d of them idle, it says %d and %d", n, idle[p], x.held, x.idle)
		}
		if x.last != 0 && !w.sequences.at(x.last).idle {
			t.Fatalf("got a sequence that runs as the last idle one through a pair")
		}
		holders := 0
		for id := range w.instances {
			if w.pair(warmID(id), x.hash()) != 0 {
				holders++
			}
		}
		if got := w.blocks.holders(&w.pairs, x.hash()); got != holders {
			t.Fatalf("got %d holders of a block, it says %d", holders, got)
		}
		blocks[x.id] += w.span(x)
	}
	for id := range w.instances {
		if got := w.instances[id].blocks; got != blocks[uint16(id)] {
			t.Fatalf("got %d blocks of instance %d, it says %d", blocks[uint16(id)], id, got)
		}
	}
}

// An index that is full forgets whole sequences, and never grows beyond its limit.
func TestFullWarmIndexForgetsWholeSequences(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWarmIndex(pairBytes * int64(rapid.IntRange(1, 200).Draw(rt, "limit")))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		ids := []warmID{w.id("a", "m"), w.id("b", "m"), w.id("b", "n"), w.id("c", "m")}
		var runs []sequenceRun
		for range 200 {
			blocks := prompt(r, r.IntN(60))
			runs = append(runs, w.begins(ids[r.IntN(len(ids))], blocks, 1+r.IntN(100)))
			for len(runs) > r.IntN(4) {
				at := r.IntN(len(runs))
				w.ends(runs[at], float64(r.IntN(80)), 0)
				runs = slices.Delete(runs, at, at+1)
			}
			if n := w.pairs.used() + w.sequences.used(); n > w.limit {
				rt.Fatalf("got %d entries, want at most %d", n, w.limit)
			}
		}
		sound(rt, w)
	})
}

// What a lane reads is of no use to another one. When it is idle, it is.
func TestSequenceThatRunsIsNoCacheForOthers(t *testing.T) {
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	system := chain(1, 2, 3, 4)
	first := w.begins(id, append(system[:4:4], 100), 100)
	want := func(idle int) {
		t.Helper()
		w.look(system)
		if got := w.idle(id); got != idle {
			t.Errorf("got %d blocks that are idle, want %d", got, idle)
		}
		if got := w.expected(id); got != 4 {
			t.Errorf("got %d blocks expected, want 4", got)
		}
	}
	want(0)
	second := w.begins(id, append(system[:4:4], 200), 100) // reads it all again
	w.ends(first, 0, 0)
	want(4)
	third := w.begins(id, append(system[:4:4], 300), 100) // in the lane of the first
	want(0)
	w.ends(second, 0, 0)
	want(4)
	w.ends(third, 0, 0)
	want(4)
	sound(t, w)
}

// Conversations that begin alike take room for that each of them, as on the server.
func TestCommonBeginningTakesRoomInEachSequence(t *testing.T) {
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	common := longPrompt(rand.New(rand.NewPCG(1, 1)), 10)
	talk := func(k uint64) []uint64 {
		return append(common[:10:10], longPrompt(rand.New(rand.NewPCG(2, k)), 20)...)
	}
	for k := range uint64(5) {
		w.ran(id, talk(k), 100)
	}
	if got := w.leading(id, talk(4)); got != 30 {
		t.Errorf("got %d blocks of the last conversation, want all 30", got)
	}
	if got := w.leading(id, talk(1)); got != 10 {
		t.Errorf("got %d blocks of the second of five conversations in room for three, want the 10 in common", got)
	}
}

// The next turn takes the lane of the turn before: there is one sequence of both.
func TestNextTurnReplacesTheOneBefore(t *testing.T) {
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	talk := longPrompt(rand.New(rand.NewPCG(1, 1)), 50)
	for n := 10; n <= 50; n += 10 {
		w.ran(id, talk[:n], 1000)
	}
	if i := &w.instances[id]; i.held != 50 || i.idle.len != 1 {
		t.Errorf("got %d blocks taken by %d sequences, want 50 by one", i.held, i.idle.len)
	}
	// One that parts from it early leaves it as it is.
	w.ran(id, append(talk[:5:5], longPrompt(rand.New(rand.NewPCG(2, 2)), 5)...), 1000)
	if got := w.leading(id, talk); got != 50 {
		t.Errorf("got %d blocks of the conversation, want 50", got)
	}
}

func TestMarksOfAPromptStandEverFurtherApart(t *testing.T) {
	for n := range 5000 {
		at := marks(n)
		if at > 0 && mark(at-1) >= n || mark(at) < n {
			t.Fatalf("got %d marks in %d blocks: the last stands at %d, the next at %d", at, n, mark(at-1), mark(at))
		}
		if at > 0 && n-1-mark(at-1) > n/64 {
			t.Fatalf("got the last mark of %d blocks at %d, want it within a 64th of the end", n, mark(at-1))
		}
	}
	for j := 1; j < marks(maxBlocks); j++ {
		if got := mark(j) - mark(j-1); got != span(j) || got > 1<<15 {
			t.Fatalf("got %d blocks from mark %d to the next, want %d, and 32768 at most", got, j-1, span(j))
		}
	}
}

func TestLongPromptIsExpectedNearlyWhole(t *testing.T) {
	w := newWarmIndex(1 << 20)
	a, b := w.id("a", "m"), w.id("b", "m")
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		blocks := longPrompt(r, 1+r.IntN(3000))
		part := r.IntN(len(blocks))
		w.ran(a, blocks, 5000)
		w.ran(b, blocks[:part], 5000)
		for id, want := range map[warmID]int{a: len(blocks), b: part} {
			if got := w.leading(id, blocks); got > want || got < want-want/64 {
				t.Fatalf("got %d blocks expected, want %d or up to a 64th less", got, want)
			}
		}
		if got := w.instances[a].held; got > 5000 {
			t.Fatalf("got %d blocks held, want at most 5000", got)
		}
	}
}

func TestWarmIndexForgetsTheInstancesThatAreGone(t *testing.T) {
	w := newWarmIndex(1 << 20)
	blocks := chain(1, 2, 3)
	a, b := w.id("a", "m"), w.id("b", "m")
	w.ran(a, blocks, 10)
	w.ran(b, blocks, 10)
	w.retain(func(id warmID) bool { return id == b })
	if got := w.leading(b, blocks); got != 3 {
		t.Errorf("got %d blocks on the instance that stays, want 3", got)
	}
	c := w.id("c", "m")
	if c != a {
		t.Errorf("got id %d for a new instance, want that of the one that left, %d", c, a)
	}
	if got := w.leading(c, blocks); got != 0 {
		t.Errorf("got %d blocks on a new instance, want 0", got)
	}
}

func TestServerThatForgetsSoonerLosesWhatItUsedLongestAgo(t *testing.T) {
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	old, now := chain(1, 1, 1, 1, 1, 1, 1, 1), chain(2, 2, 2, 2, 2, 2, 2, 2)
	w.ran(id, old, 100)
	w.ran(id, now, 100)
	w.correct(id, now, 800, 200, 800)
	if got := w.leading(id, now); got != 8 {
		t.Errorf("got %d blocks of the prompt that was just read, want 8", got)
	}
	if got := w.leading(id, old); got != 0 {
		t.Errorf("got %d blocks of the older prompt, want 0: the server had not room for both", got)
	}
	if got := w.instances[id].room; got != 15 {
		t.Errorf("got room for %d blocks, want 15: one less than both took, a quarter of the six that were missing", got)
	}
	if got := w.confidence(id); got >= 1 || got < 0.9 {
		t.Errorf("got confidence %v after one miss, want a bit less than 1", got)
	}
}

func TestFullIndexTakesWhatItSays(t *testing.T) {
	for _, size := range []int64{100 << 10, 1 << 20, 3 << 20} {
		w := newWarmIndex(size)
		r := rand.New(rand.NewPCG(6, 6))
		ids := []warmID{w.id("a", "m"), w.id("b", "m")}
		for n := range 2 * w.limit / 50 {
			w.ran(ids[n%2], longPrompt(r, 50), w.limit)
		}
		pairs, bytes := w.size()
		pages := int64(pairSize+sequenceSize) << pageBits // the last ones may be empty
		if entries := pairs + w.sequences.used(); bytes > size+pages || entries < w.limit-200 {
			t.Errorf("got %d bytes for %d entries, want at most %d for about %d", bytes, entries, size, w.limit)
		}
		if a, b := unsafe.Sizeof(pair{}), unsafe.Sizeof(sequence{}); a != pairSize || b != sequenceSize {
			t.Errorf("got a pair of %d bytes and a sequence of %d, want %d and %d", a, b, pairSize, sequenceSize)
		}
	}
}

func TestLookUpAllocatesNothing(t *testing.T) {
	w := newWarmIndex(1 << 20)
	ids := []warmID{w.id("a", "m"), w.id("b", "m")}
	blocks := somePrompt(1, 1600)
	w.ran(ids[0], blocks, 2000)
	w.ran(ids[1], blocks[:700], 2000)
	if n := testing.AllocsPerRun(100, func() { w.look(blocks) }); n > 0 {
		t.Errorf("got %v allocations a look-up, want none", n)
	}
}

// The figures that the design promises, at a million blocks.
func BenchmarkWarmExpected(b *testing.B) {
	for _, nodes := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("%d instances", nodes), func(b *testing.B) {
			w, ids, r := fullWarm(nodes)
			blocks := longPrompt(r, 1600)
			for i, id := range ids { // each has another part of it
				w.ran(id, blocks[:1600*(i%8+1)/9], 1<<20)
			}
			pairs, bytes := w.size()
			b.ReportAllocs()
			for b.Loop() {
				w.look(blocks)
			}
			b.ReportMetric(float64(bytes)/float64(pairs), "B/pair")
		})
	}
}

func BenchmarkWarmRan(b *testing.B) {
	for _, n := range []int{16, 1600} {
		b.Run(fmt.Sprintf("%d blocks", n), func(b *testing.B) {
			w, ids, r := fullWarm(8)
			prompts := make([][]uint64, 64)
			for i := range prompts {
				prompts[i] = longPrompt(r, n)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				w.ran(ids[i%len(ids)], prompts[i%len(prompts)], 1<<17)
				i++
			}
		})
	}
}

// fullWarm is an index of a million pairs, as many as it takes.
func fullWarm(nodes int) (*warmIndex, []warmID, *rand.Rand) {
	const million = 1 << 20
	w := newWarmIndex(million * pairBytes)
	ids := make([]warmID, nodes)
	for i := range ids {
		ids[i] = w.id(fmt.Sprint(i), "m")
	}
	r := rand.New(rand.NewPCG(3, 4))
	for i := 0; w.pairs.used()+w.sequences.used() < million-65; i++ {
		w.ran(ids[i%nodes], longPrompt(r, 64), million)
	}
	return w, ids, r
}

func longPrompt(r *rand.Rand, n int) []uint64 {
	words := make([]uint64, n)
	for i := range words {
		words[i] = r.Uint64()
	}
	return chain(words...)
}
