package caddymodule

import (
	"context"
	commandline "flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

var manyBreaks = commandline.Int("breaks", 300, "how many losses of nodes TestNothingIsLostOrRepeatedInManyBreaks waits for")

// Many clients, nodes that break at random, and every kind of answer: each is the one
// of a server that was left alone, or ends honestly, and in the end nothing is held.
func TestNothingIsLostOrRepeatedInManyBreaks(t *testing.T) {
	const site = `
	handle /stream/* {
		uri strip_prefix /stream
		fleet {
			tool_calls stream
		}
	}
	handle {
		fleet
	}`
	for _, thinking := range []bool{false, true} {
		t.Run(fmt.Sprintf("thinking %t", thinking), func(t *testing.T) {
			o := llamasim.Options{
				Model: "sim", Slots: 4, Thinking: thinking,
				Audio: true, Embeddings: true, Reranking: true, Infill: true,
			}
			var sims []*llamasim.Server
			for range 8 {
				sims = append(sims, startSim(t, o))
			}
			e := startEdge(t, nodes("moves 300\n\t\tretry 100ms", sims...), site)
			e.allUp(len(sims))
			s := &soak{t: t, e: e, sims: sims, askings: allAskings(thinking), breaks: *manyBreaks * 3 / 4}
			if thinking {
				s.breaks = *manyBreaks - s.breaks
			}
			s.run()
		})
	}
}

// soak is one run of requests under breaks.
type soak struct {
	t       *testing.T
	e       *edge
	sims    []*llamasim.Server
	askings []asking
	breaks  int // how many shall happen

	want         []told
	asked, ended atomic.Int64 // ended: honestly, not whole
	most         atomic.Int64 // nanoseconds that one request took
}

// soakTokens bounds the answers that would not end by themselves.
const soakTokens = 40

// breaksThatShow are faults that a client of the node sees at once.
var breaksThatShow = []llamasim.FaultKind{
	llamasim.FaultReset, llamasim.FaultFin, llamasim.FaultCut, llamasim.FaultCleanEOF,
	llamasim.FaultError, llamasim.FaultKVFull, llamasim.FaultGarbage,
}

func (s *soak) run() {
	for _, a := range s.askings {
		want := s.e.ask(s.t.Context(), a, soakTokens, nil)
		if want.Fault != "" || want.Status != http.StatusOK || want.Content+want.Reasoning+want.Calls+want.Plain == "" {
			s.t.Fatalf("%s, uninterrupted: %+v", a.name, want)
		}
		s.want = append(s.want, want)
	}
	s.e.quiet(s.sims)
	idle := s.steady()

	const clients = 8
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() { s.client(rand.New(rand.NewPCG(uint64(c), 7))) })
	}
	wg.Wait()
	for _, sim := range s.sims {
		sim.SetFault(llamasim.Fault{})
	}
	s.e.allUp(len(s.sims))
	s.e.quiet(s.sims)
	s.e.wantFree()
	await(s.t, "the goroutines and connections of all requests to end", func() bool {
		s.e.Client.CloseIdleConnections()
		return runtime.NumGoroutine() <= idle+2
	})
	broke, asked, ended := s.broke(), s.asked.Load(), s.ended.Load()
	s.t.Logf("%d losses of nodes in %d requests of %d kinds: %d ended honestly, all others whole; the longest took %s",
		broke, asked, len(s.askings), ended, time.Duration(s.most.Load()).Round(time.Millisecond))
	if broke < s.breaks {
		s.t.Errorf("got %d losses of nodes, want %d", broke, s.breaks)
	}
	if ended > asked/5 {
		s.t.Errorf("%d of %d answers were not whole", ended, asked)
	}
}

// steady waits until the count of goroutines stays, and returns it. Without it what
// the first requests left to be used again would count as leaked.
func (s *soak) steady() (n int) {
	await(s.t, "a steady count of goroutines", func() bool {
		s.e.Client.CloseIdleConnections()
		n = runtime.NumGoroutine()
		pause()
		return runtime.NumGoroutine() == n
	})
	return n
}

// broke counts the nodes that were lost under a request.
func (s *soak) broke() int {
	return s.e.moves() + int(s.ended.Load())
}

// client asks at random until enough broke.
func (s *soak) client(r *rand.Rand) {
	for n := 0; n%10 != 0 || s.broke() < s.breaks; n++ {
		if s.t.Failed() || s.asked.Load() > int64(10*s.breaks+1000) {
			return
		}
		i := r.IntN(len(s.askings))
		a := s.askings[i]
		fault := llamasim.Fault{Kind: breaksThatShow[r.IntN(len(breaksThatShow))], Token: r.IntN(soakTokens), Times: 1}
		if s.want[i].Plain != "" {
			fault.Kind, fault.Path = llamasim.FaultReset, a.path
		}
		for _, k := range r.Perm(len(s.sims))[:len(s.sims)/2] {
			s.sims[k].SetFault(fault)
		}
		s.one(a, s.want[i])
	}
}

// one asks once.
func (s *soak) one(a asking, want told) {
	const hung = 30 * time.Second
	ctx, cancel := context.WithTimeout(s.t.Context(), hung)
	defer cancel()
	began := time.Now()
	// A request that crashes servers is known again by its body; this one is another.
	a = a.with(a.name, map[string]any{"user": fmt.Sprint(s.asked.Add(1))})
	got := s.e.ask(ctx, a, soakTokens, nil)
	took := int64(time.Since(began))
	for most := s.most.Load(); took > most && !s.most.CompareAndSwap(most, took); most = s.most.Load() {
	}
	if ctx.Err() != nil {
		s.t.Errorf("%s: no end within %s: %+v", a.name, hung, got)
		return
	}
	if got.endedHonestly() {
		s.ended.Add(1)
		if diff := got.partOf(want); diff != "" {
			s.t.Errorf("%s, which ended with an error: %s", a.name, diff)
		}
		return
	}
	if diff := got.equal(want); diff != "" {
		s.t.Errorf("%s: %s", a.name, diff)
	}
}

// endedHonestly: the client was told, by an error and no clean end, that there is no
// more. Which error it is depends on what the last of three nodes said.
func (a told) endedHonestly() bool {
	if a.Done > 0 || a.Status == http.StatusOK && !a.Cut {
		return false
	}
	for _, code := range []string{"node_lost", "overloaded", "quarantined", "broken_output"} {
		if strings.Contains(a.Fault, `"code":"`+code) {
			return true
		}
	}
	return false
}
