package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

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

// naiveWarm is the index as one would write it without care for its cost.
type naiveWarm struct {
	held     map[warmID][]naivePair // oldest first
	trust    map[warmID]float64
	run      uint32
	capacity map[warmID]int
	room     map[warmID]int
}

type naivePair struct {
	hash uint64
	run  uint32
}

func (n *naiveWarm) has(id warmID, hash uint64) bool {
	return slices.ContainsFunc(n.held[id], func(p naivePair) bool { return p.hash == hash })
}

func (n *naiveWarm) expected(id warmID, blocks []uint64) int {
	for k, b := range blocks {
		if !n.has(id, b) {
			return k
		}
	}
	return len(blocks)
}

func (n *naiveWarm) ran(id warmID, blocks []uint64, capacity int) uint32 {
	n.run++
	if room := n.room[id]; room > 0 {
		capacity = min(capacity, room)
	}
	for _, b := range slices.Backward(blocks[:min(len(blocks), capacity)]) {
		was := len(n.held[id])
		n.held[id] = slices.DeleteFunc(n.held[id], func(p naivePair) bool { return p.hash == b })
		if len(n.held[id]) == was && was >= capacity {
			n.held[id] = n.held[id][was-capacity+1:]
		}
		n.held[id] = append(n.held[id], naivePair{b, n.run})
	}
	n.held[id] = n.held[id][max(0, len(n.held[id])-capacity):]
	return n.run
}

func (n *naiveWarm) undo(id warmID, blocks []uint64, keep int, run uint32) {
	n.held[id] = slices.DeleteFunc(n.held[id], func(p naivePair) bool {
		return p.run == run && slices.Contains(blocks[min(keep, len(blocks)):], p.hash)
	})
}

func (n *naiveWarm) correct(id warmID, blocks []uint64, expected, actual, prompt Tokens) {
	if expected < confidenceFrom {
		return
	}
	n.trust[id] += (min(1, float64(actual)/float64(expected)) - n.trust[id]) / 8
	if 2*actual < expected-expected%2 {
		missing := len(blocks) * int(expected-actual) / int(prompt)
		n.room[id] = max(1, len(n.held[id])-missing, len(blocks))
		n.held[id] = n.held[id][max(0, len(n.held[id])-n.room[id]):]
	} else if n.room[id] > 0 {
		n.room[id] += len(blocks) / 4
	}
}

// Whatever ran, was taken back, corrected or forgotten: what the index expects is
// what the naive one says, and the whole beginning of it is there.
func TestWarmIndexExpectsWhatANaiveOneDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWarmIndex(1 << 20)
		n := &naiveWarm{held: map[warmID][]naivePair{}, trust: map[warmID]float64{}, capacity: map[warmID]int{}, room: map[warmID]int{}}
		ids := make([]warmID, 3)
		for i := range ids {
			ids[i] = w.id(fmt.Sprint(i), "m")
			n.trust[ids[i]] = 1
			n.capacity[ids[i]] = rapid.IntRange(1, 40).Draw(rt, "capacity")
		}
		type ran struct {
			id     warmID
			blocks []uint64
			had    int
			run    uint32
		}
		var undoable []ran
		draw := func() (warmID, []uint64) {
			r := rand.New(rand.NewPCG(rapid.Uint64Range(0, 50).Draw(rt, "prompt"), 1))
			return rapid.SampledFrom(ids).Draw(rt, "instance"), prompt(r, rapid.IntRange(0, 12).Draw(rt, "length"))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"ran": func(*rapid.T) {
				id, blocks := draw()
				had := w.leading(id, blocks)
				run := w.ran(id, blocks, n.capacity[id])
				if other := n.ran(id, blocks, n.capacity[id]); run != other {
					rt.Fatalf("got run %d, want %d", run, other)
				}
				undoable = append(undoable, ran{id, blocks, had, run})
			},
			"undo": func(rt *rapid.T) {
				if len(undoable) == 0 {
					rt.Skip("nothing ran")
				}
				x := rapid.SampledFrom(undoable).Draw(rt, "run")
				keep := x.had + rapid.IntRange(0, 3).Draw(rt, "more")
				w.undo(x.id, x.blocks, keep, x.run)
				n.undo(x.id, x.blocks, keep, x.run)
			},
			"correct": func(rt *rapid.T) {
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
				n.held[id], n.trust[id], n.room[id] = nil, 1, 0
			},
			"": func(*rapid.T) {
				_, blocks := draw()
				w.look(blocks)
				pairs := 0
				for _, id := range ids {
					if got, want := w.expected(id), n.expected(id, blocks); got != want {
						rt.Fatalf("instance %d: got %d blocks expected, want %d", id, got, want)
					}
					if got, want := w.instances[id].held, len(n.held[id]); got != want {
						rt.Fatalf("instance %d: got %d blocks held, want %d", id, got, want)
					}
					if got, want := w.confidence(id), n.trust[id]; got != want {
						rt.Fatalf("instance %d: got confidence %v, want %v", id, got, want)
					}
					pairs += len(n.held[id])
				}
				if got, _ := w.size(); got != pairs {
					rt.Fatalf("got %d pairs, want %d", got, pairs)
				}
			},
		})
	})
}

// An index that is full forgets ends of prompts, never their beginnings, and never
// grows beyond its limit.
func TestFullWarmIndexForgetsEndsOnly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWarmIndex(pairBytes * int64(rapid.IntRange(1, 200).Draw(rt, "limit")))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 2))
		ids := []warmID{w.id("a", "m"), w.id("b", "m"), w.id("b", "n"), w.id("c", "m")}
		for range 200 {
			blocks := prompt(r, r.IntN(60))
			id := ids[r.IntN(len(ids))]
			w.ran(id, blocks, 1+r.IntN(100))
			w.look(blocks)
			for _, id := range ids {
				want := 0
				for want < len(blocks) && w.pair(id, blocks[want]) != 0 {
					want++
				}
				if got := w.expected(id); got != want {
					rt.Fatalf("got %d leading blocks, want %d", got, want)
				}
				for _, b := range blocks[want:] {
					if w.pair(id, b) != 0 {
						rt.Fatal("the end of a prompt is there and its beginning is not")
					}
				}
			}
			for _, b := range blocks {
				want := 0
				for _, id := range ids {
					if w.pair(id, b) != 0 {
						want++
					}
				}
				if got := w.blocks.holders(&w.pairs, b); got != want {
					rt.Fatalf("got %d holders of a block, want %d", got, want)
				}
			}
			if pairs, _ := w.size(); pairs > w.limit {
				rt.Fatalf("got %d pairs, want at most %d", pairs, w.limit)
			}
		}
	})
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

func TestServerThatForgetsSoonerLosesWhatItReadLongestAgo(t *testing.T) {
	w := newWarmIndex(1 << 20)
	id := w.id("a", "m")
	old, now := chain(1, 1, 1, 1, 1, 1, 1, 1), chain(2, 2, 2, 2, 2, 2, 2, 2)
	w.ran(id, old, 100)
	w.ran(id, now, 100)
	w.correct(id, now, 800, 200, 800)
	if got := w.leading(id, now); got != 8 {
		t.Errorf("got %d blocks of the prompt that was just read, want 8", got)
	}
	if got := w.leading(id, old); got != 2 {
		t.Errorf("got %d blocks of the older prompt, want 2: six are as many as were missing", got)
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
		page := int64(pairSize) << pageBits // the last one may be empty
		if bytes > size+page || pairs < w.limit-100 {
			t.Errorf("got %d bytes for %d pairs, want at most %d for about %d", bytes, pairs, size, w.limit)
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
	for i := 0; w.pairs.used < million-64; i++ {
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
