package agent

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// BenchmarkFirstToken measures the time until the first token of a stand-in is there:
// asked by HTTP, and through an agent, in turns.
func BenchmarkFirstToken(b *testing.B) {
	s := simulate(b, llamasim.Options{Slots: 3})
	link, _ := joined(b, s)
	direct, err := llamacpp.New(llamacpp.Options{Name: "direct", URL: s.URL()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = direct.Close("over") }()
	first := func(l fleet.Link) time.Duration {
		began := time.Now()
		a := fleet.Assignment{Path: "/v1/chat/completions", Model: "sim-model", Body: []byte(body)}
		tokens := 0
		var took time.Duration
		err := l.Run(context.Background(), a, func(e fleet.Event) error {
			if e.Kind == fleet.EventData {
				if tokens++; tokens == 2 { // the first one has the role alone
					took = time.Since(began)
				}
			}
			return nil
		})
		if err != nil || took == 0 {
			b.Fatalf("got %d tokens, %v", tokens, err)
		}
		return took
	}
	var over, by, more []time.Duration
	for b.Loop() {
		d, l := first(direct), first(link)
		by, over, more = append(by, d), append(over, l), append(more, l-d)
	}
	for name, all := range map[string][]time.Duration{"direct": by, "linkf": over, "more": more} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2])/1e6, "ms-"+name)
	}
	b.ReportMetric(0, "ns/op")
}
