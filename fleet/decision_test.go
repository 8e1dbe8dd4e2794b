package fleet

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// calibrated makes a manager with n instances whose speeds are known.
func calibrated(n int, placement Placement) (*Manager, *Applied) {
	m := New()
	a := &Applied{m: m, placer: newPlacer(placement)}
	a.Placement = placement
	a.Policy.defaults()
	for k := range n {
		x := &node{name: "n" + strconv.Itoa(k), index: k, learned: true, wanted: 1}
		i := &instance{node: x, seed: hash(strconv.Itoa(k))}
		i.said = Instance{Model: "m", State: StateReady, Lanes: 4, Context: 32768}
		i.settle(NodeSpec{Rates: Rates{900 + float64(k%7), 30 + float64(k%5)}})
		x.instances = []*instance{i}
		a.nodes = append(a.nodes, x)
	}
	m.nodes = a.nodes
	return m, a
}

// BenchmarkDecision is what happens under the lock for one request: search, score and
// reserve, and giving back; with blocks, the index of caches is asked and told, too,
// which holds little besides or a million of others.
func BenchmarkDecision(b *testing.B) {
	for _, c := range []struct {
		blocks  int
		million bool
	}{{0, false}, {64, false}, {64, true}} {
		for _, n := range []int{8, 64, 256, 1000} {
			name := fmt.Sprintf("blocks=%d/million=%t/nodes=%d", c.blocks, c.million, n)
			b.Run(name, func(b *testing.B) { benchmarkDecision(b, n, c.blocks, c.million) })
		}
	}
}

func benchmarkDecision(b *testing.B, nodes, blocks int, million bool) {
	m, a := calibrated(nodes, LowestCost)
	r := rand.New(rand.NewPCG(1, 2))
	if million {
		fillWarm(m, a, r)
	}
	prompts := make([][]uint64, 64)
	for p := range prompts {
		prompts[p] = blocksOf(blocks, uint64(p))
		for range 4 {
			i := a.nodes[r.IntN(nodes)].instances[0]
			m.warm.index.ran(m.warmID(i), prompts[p], i.cacheBlocks())
		}
	}
	at := 0
	var w waiter
	b.ReportAllocs()
	for b.Loop() {
		at++
		w = waiter{Request: Request{Model: "m", Prompt: 4096, Out: 256, Blocks: prompts[at%len(prompts)]}, policy: a, cursor: at}
		w.blocks = w.Blocks
		c, err := m.choose(&w)
		if c == nil {
			b.Fatal(err)
		}
		m.endRun(c)
		c.instance.held--
		c.instance.work.readers--
		c.instance.remove(c.share)
	}
	if pairs, _ := m.warm.index.size(); million && pairs < 1<<20 {
		b.Fatalf("got %d warm blocks, want a million", pairs)
	}
}

// fillWarm lets the instances hold a million blocks, and gives them the room for it.
func fillWarm(m *Manager, a *Applied, r *rand.Rand) {
	const million = 1 << 20
	for _, n := range a.nodes {
		i := n.instances[0]
		i.Context, i.KVUnified = 2*million*blockTokens/Tokens(len(a.nodes)), true
	}
	for at := 0; m.warm.index.pairs.used() <= million; at++ {
		i := a.nodes[at%len(a.nodes)].instances[0]
		m.warm.index.ran(m.warmID(i), longPrompt(r, 64), i.cacheBlocks())
	}
}

// BenchmarkScore is the scoring alone.
func BenchmarkScore(b *testing.B) {
	for _, n := range []int{8, 64, 256, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m, a := calibrated(n, LowestCost)
			w := &waiter{Request: Request{Model: "m", Prompt: 4096, Out: 256}, policy: a}
			now := time.Now()
			able := m.search(w, now).able
			b.ReportAllocs()
			for b.Loop() {
				w.cursor++
				cheapest{}.place(m, w, able, nil, now)
			}
		})
	}
}

// BenchmarkAdmit is all of the way of a request to a free lane, and back.
func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{8, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m, a := calibrated(n, LowestCost)
			r := Request{Model: "m", Prompt: 4096, Out: 256, Blocks: blocksOf(64, 1)}
			b.ReportAllocs()
			for b.Loop() {
				s, err := m.Admit(b.Context(), a, r)
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}
