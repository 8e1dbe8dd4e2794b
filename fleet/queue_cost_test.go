package fleet

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"
)

// BenchmarkQueue is what a request costs that comes while all lanes are taken and leaves
// again, or gets the lane that another gives back, with so many that wait already: all of
// one size; or each of another size, on nodes with two contexts.
func BenchmarkQueue(b *testing.B) {
	for _, waiting := range []int{100, 10_000} {
		for _, mixed := range []bool{false, true} {
			for _, served := range []bool{false, true} {
				name := fmt.Sprintf("waiting=%d/mixed=%t/served=%t", waiting, mixed, served)
				b.Run(name, func(b *testing.B) { benchmarkQueue(b, waiting, mixed, served) })
			}
		}
	}
}

func benchmarkQueue(b *testing.B, waiting int, mixed, served bool) {
	m, a := calibrated(16, LowestCost)
	a.Waiting, a.WaitingBytes, a.Wait, a.Log = 2*waiting, 1<<40, time.Hour, slog.New(slog.DiscardHandler)
	m.applied = []*Applied{a}
	for k, n := range a.nodes {
		if mixed && k%2 == 0 {
			n.instances[0].Context = 4096
		}
	}
	at := 0
	come := func() *waiter {
		at++
		w := &waiter{Request: Request{Model: "m", Tenant: strconv.Itoa(at % 10), Prompt: 2048, Out: 256}, policy: a}
		if mixed && !served {
			w.Prompt = Tokens(32000 - at%31000)
		}
		if _, err := m.enqueue(w); err != nil {
			b.Fatal(err)
		}
		return w
	}
	var held []*claim
	for m.queue.len < waiting {
		if w := come(); w.claim != nil {
			held = append(held, w.claim)
		}
	}
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		w := come()
		if !served {
			m.withdraw(w)
			continue
		}
		m.queue.begin()
		next := m.queue.next(time.Now(), m.classStep())
		m.giveBack(held[k%len(held)])
		if next.claim == nil {
			b.Fatal("a lane became free, and who was next did not get it")
		}
		held[k%len(held)] = next.claim
	}
}
