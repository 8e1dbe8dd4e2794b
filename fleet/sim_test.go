package fleet

import (
	"testing"
	"time"
)

func TestSimTry(t *testing.T) {
	loads := []simLoad{
		{"W1 1.3", simEqual, 1200 * time.Second, simChat(1.3)},
		{"W2 6", simEqual, 600 * time.Second, simShared(6)},
		{"W2 9", simEqual, 600 * time.Second, simShared(9)},
		{"W1 1.2 mixed", simMixed, 1200 * time.Second, simChat(1.2)},
	}
	for _, l := range loads {
		for _, p := range append([]simPolicy{{name: "lowest_cost", placement: LowestCost}}, simOthers[:0]...) {
			began := time.Now()
			f := simStudy(t, l, p, 3)
			t.Logf("%-14s %-26s mean %.3f p50 %.3f p99 %.2f hits %.1f good %.3f e99 %.1f n %d (%.1fs)", l.name, p.name, f.mean, f.median, f.p99, 100*f.hits, f.goodput, f.end99, f.answers, time.Since(began).Seconds())
		}
	}
}
