package fleet

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The worked example of docs/placement.md.
func TestCostAddsUp(t *testing.T) {
	o := outlook{
		speed: speed{prefill: 1000, base: 0.02, slope: 0.005},
		lanes: 4, ahead: 5, queued: 500, prompt: 2000, unread: 800, out: 100,
		pool: 0.5, load: 3,
	}
	got := o.cost()
	want := Terms{
		Load:   3,
		Wait:   1.5 * (100*0.04 + 1) / 4,
		Queued: 0.5,
		Read:   0.8,
		Write:  0.1 * 100 * 0.04,
		Others: 0.5 * (5*0.8 + 4*0.005*100),
		Pool:   0.15,
	}
	if math.Abs(got.Total()-want.Total()) > 1e-9 || math.Abs(got.Wait-want.Wait) > 1e-9 || math.Abs(got.Others-want.Others) > 1e-9 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	o.ahead, o.pool, o.load = 3, 0, 0
	if got := o.cost(); got.Wait != 0 || got.Pool != 0 || got.Load != 0 {
		t.Errorf("got %+v with a free lane, want no wait, pool and load", got)
	}
}

func TestPoolHasNoCliff(t *testing.T) {
	o := outlook{speed: speed{1000, 0.02, 0}, lanes: 1, prompt: 1, out: 1}
	var last float64
	for _, k := range []float64{0.1, 0.5, 0.89, 0.9, 0.97, 1} {
		o.pool = k
		p := o.cost().Pool
		if p <= last || p > 8 {
			t.Errorf("at %.2f: got %.3f s, want more than %.3f s and at most 8 s", k, p, last)
		}
		last = p
	}
}

// Whatever a node says, costs are numbers, and some instance is found.
func TestNonsenseIsBounded(t *testing.T) {
	figure := rapid.SampledFrom([]float64{0, -1, 1e-300, 1, 900, 1e12, 1e300, math.Inf(1), math.Inf(-1), math.NaN()})
	count := rapid.SampledFrom([]int{math.MinInt, -1, 0, 1, 4, 1 << 40, math.MaxInt})
	rapid.Check(t, func(t *rapid.T) {
		m, a := calibrated(3, LowestCost)
		now := placeNow
		for _, n := range a.nodes {
			i := n.instances[0]
			i.said = Instance{
				Model: "m", State: State(rapid.IntRange(0, 5).Draw(t, "state")), Lanes: count.Draw(t, "lanes"),
				Context: Tokens(count.Draw(t, "context")), KVUnified: rapid.Bool().Draw(t, "unified"),
				Rates: Rates{figure.Draw(t, "prefill"), figure.Draw(t, "decode")},
				Load: Load{
					Active: count.Draw(t, "active"), Queued: count.Draw(t, "queued"), Ours: count.Draw(t, "ours"),
					KVUsed: Tokens(count.Draw(t, "used")), KVTotal: Tokens(count.Draw(t, "total")),
					At: now.Add(time.Duration(rapid.Int64().Draw(t, "at"))), // clocks jump
				},
			}
			i.speed = estimate{}
			i.settle(NodeSpec{Rates: Rates{figure.Draw(t, "stated"), figure.Draw(t, "stated")}})
			i.speed.read(figure.Draw(t, "own"), figure.Draw(t, "tokens"), figure.Draw(t, "seconds"))
			i.speed.wrote(figure.Draw(t, "running"), figure.Draw(t, "seconds"))
		}
		w := &waiter{policy: a, cursor: 3, Request: Request{
			Model: "m", Prompt: Tokens(count.Draw(t, "prompt")), Out: Tokens(count.Draw(t, "out")),
		}}
		var able []candidate
		for _, n := range a.nodes {
			able = append(able, candidate{instance: n.instances[0]})
		}
		got := cheapest{}.place(m, w, able, nil, now)
		if got == nil && w.held.IsZero() {
			for _, x := range able {
				if !x.full() {
					t.Fatalf("got no instance, want one: node %s has a free lane", x.Node)
				}
			}
		}
		if u := w.share.unread; math.IsNaN(u) || u < 0 || u > most {
			t.Fatalf("got %v tokens to read, want a number from 0 to %g", u, float64(most))
		}
		for _, c := range w.lane.choices {
			if math.IsNaN(c.Cost) || math.IsInf(c.Cost, 0) || c.Cost < 0 || math.IsNaN(c.Terms.Total()) {
				t.Fatalf("got the cost %+v, want a number", c)
			}
		}
	})
}
