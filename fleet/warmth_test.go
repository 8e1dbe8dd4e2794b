package fleet

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// reading answers as a server that found so much of the prompt in its cache.
func reading(prompt, cached Tokens) func(context.Context, Assignment, func(Event) error) error {
	return func(_ context.Context, _ Assignment, take func(Event) error) error {
		return take(Event{
			Kind: EventData, Data: []byte("end."),
			Timings: &Timings{Cached: cached, Prompt: prompt - cached, Predicted: 1},
		})
	}
}

// reuse is an observer that adds up what was expected and what was there.
type reuse struct {
	deaf
	mu               sync.Mutex
	expected, actual Tokens
}

func (r *reuse) Reused(_, _ string, expected, actual Tokens) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expected += expected
	r.actual += actual
}

// askOf runs a request with these blocks and returns the node that answered.
func askOf(t *testing.T, m *Manager, a *Applied, blocks []uint64) string {
	t.Helper()
	s, err := m.Admit(t.Context(), a, Request{Model: "m", Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context(), &fakeJob{}, func([]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return s.Record().Node
}

// blocksOn is how many of the blocks the node's only instance is expected to hold.
func blocksOn(m *Manager, name string, blocks []uint64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		if n.name == name {
			return m.warm.index.leading(m.warmID(n.instances[0]), blocks)
		}
	}
	return -1
}

func wantBlocks(t *testing.T, m *Manager, name string, blocks []uint64, want int) {
	t.Helper()
	if got := blocksOn(m, name, blocks); got != want {
		t.Errorf("got %d blocks expected on node %s, want %d", got, name, want)
	}
}

func somePrompt(seed uint64, n int) []uint64 { return longPrompt(rand.New(rand.NewPCG(seed, 9)), n) }

func TestPromptGoesWhereItsBeginningWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a := fleetOf(t, nil, serving("m", 2, "end."), serving("m", 2, "end."), serving("m", 2, "end."))
		whole := somePrompt(1, 40)
		first := askOf(t, m, a, whole[:20])
		for n := 20; n <= 40; n += 5 {
			if got := askOf(t, m, a, whole[:n]); got != first {
				t.Errorf("got node %s for a longer prompt, want %s, which has its beginning", got, first)
			}
		}
	})
}

// A system prompt that is in every request says little of where one should go.
func TestShortCommonBeginningDoesNotDrawARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 4, "end."), serving("m", 4)
		end := make(chan struct{})
		x.run = blocking(end)
		m, a := fleetOf(t, nil, x, y)
		y.set(func(l *fakeLink) { l.run = saying("end.") })
		synctest.Wait()
		common := somePrompt(1, 3)
		done := make(chan struct{})
		go func() {
			askOf(t, m, a, append(common[:3:3], somePrompt(2, 37)...))
			close(done)
		}()
		synctest.Wait()
		if got := askOf(t, m, a, append(common[:3:3], somePrompt(3, 37)...)); got != "b" {
			t.Errorf("got node %s, which is busy and has 3 of 40 blocks; want the idle one", got)
		}
		close(end)
		<-done
	})
}

func TestAnswerTellsWhatWasReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sum reuse
		x := serving("m", 1)
		x.run = reading(4000, 0)
		m, a := fleetOf(t, func(p *Policy) { p.Observer = &sum }, x)
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt)
		x.set(func(l *fakeLink) { l.run = reading(4000, 3900) })
		askOf(t, m, a, prompt)
		x.set(func(l *fakeLink) { l.run = reading(4000, 1000) })
		askOf(t, m, a, prompt)
		if sum.expected != 8000 || sum.actual != 4900 {
			t.Errorf("got %d tokens expected and %d reused, want 8000 and 4900", sum.expected, sum.actual)
		}
		s := m.Warm()
		if len(s.Instances) != 1 {
			t.Fatalf("got %d instances, want 1", len(s.Instances))
		}
		i := s.Instances[0]
		if i.Node != "a" || i.Model != "m" || i.Blocks != 40 || i.Answers != 3 || i.ExpectedTokens != 8000 || i.ReusedTokens != 4900 {
			t.Errorf("got %+v, want 40 blocks and the same sums of 3 answers", i)
		}
		if i.Accuracy == nil || *i.Accuracy != 4900.0/8000 {
			t.Errorf("got accuracy %v, want 0.6125", i.Accuracy)
		}
		if i.Confidence >= 1 || i.Confidence < 0.5 {
			t.Errorf("got confidence %v, want less than 1 after one miss", i.Confidence)
		}
		if s.Entries != 40 || s.Bytes == 0 || s.Kept {
			t.Errorf("got %+v, want 40 entries that are not kept", s)
		}
	})
}

func TestServerThatLostItsCacheIsExpectedToHoldNothing(t *testing.T) {
	prompt := somePrompt(1, 10)
	for name, restart := range map[string]func(*fakeLink){
		"restart": func(l *fakeLink) {
			l.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
			time.Sleep(30 * time.Second) // a probe finds out
			l.set(func(l *fakeLink) { l.down = nil })
			time.Sleep(30 * time.Second)
		},
		"sleep": func(l *fakeLink) {
			l.set(func(l *fakeLink) { l.instances[0].State = StateSleeping })
			l.tell(NodeState{Instances: l.instances})
		},
		"another model behind the same name": func(l *fakeLink) {
			l.set(func(l *fakeLink) { l.instances[0].Fingerprint = "g" })
			l.tell(NodeState{Instances: l.instances})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := serving("m", 1, "end.")
				m, a := fleetOf(t, nil, x)
				askOf(t, m, a, prompt)
				wantBlocks(t, m, "a", prompt, 10)
				restart(x)
				synctest.Wait()
				wantBlocks(t, m, "a", prompt, 0)
			})
		})
	}
}

// What a server did not come to read is not in its cache.
func TestPromptThatWasNotReadIsNotExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 2, "end.")
		m, a := fleetOf(t, nil, x)
		prompt := somePrompt(1, 40)
		askOf(t, m, a, prompt[:10])
		x.set(func(l *fakeLink) {
			l.run = func(ctx context.Context, _ Assignment, take func(Event) error) error {
				if err := take(Event{Kind: EventAlive, Progress: &Progress{Total: 4000, Cached: 1000, Processed: 2500}}); err != nil {
					return err
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}
		})
		leave := func(blocks []uint64) {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := m.Admit(ctx, a, Request{Model: "m", Blocks: blocks})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- s.Run(ctx, &fakeJob{}, func([]byte) error { return nil }) }()
			synctest.Wait()
			wantBlocks(t, m, "a", blocks, len(blocks)) // while it may be reading
			cancel()
			wantReason(t, <-ended, ReasonCancelled)
		}
		leave(prompt)
		wantBlocks(t, m, "a", prompt, 25)
		x.set(func(l *fakeLink) {
			l.run = func(ctx context.Context, _ Assignment, _ func(Event) error) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}
		})
		other := somePrompt(2, 40)
		leave(other)
		wantBlocks(t, m, "a", other, 0)
	})
}

func TestIndexOfAnotherSizeKeepsWhatItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1, "end."), serving("m", 1, "end.")
		m, a := fleetOf(t, nil, x, y)
		prompt := somePrompt(1, 40)
		on := askOf(t, m, a, prompt)
		next := apply(t, m, func(p *Policy) { p.Warm.Size = 1 << 20 }, x, y)
		wantBlocks(t, m, on, prompt, 40)
		if got := m.Warm().Limit; got != 1<<20/pairBytes {
			t.Errorf("got a limit of %d entries, want %d", got, 1<<20/pairBytes)
		}
		if got := askOf(t, m, next, prompt); got != on {
			t.Errorf("got node %s, want %s, which has it", got, on)
		}
		apply(t, m, func(p *Policy) { p.Warm.Size = 1 }, x, y)
		if got := m.Warm(); got.Entries > 1 {
			t.Errorf("got %d entries in an index of the smallest size, want one at most", got.Entries)
		}
	})
}

// An answer that began before the index was made anew speaks of the old one.
func TestAnswerThatOutlivesItsIndexChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		end := make(chan struct{})
		x.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			<-end
			return reading(4000, 0)(ctx, a, take)
		}
		m, a := fleetOf(t, nil, x)
		prompt, done := somePrompt(1, 40), make(chan struct{})
		go func() {
			askOf(t, m, a, prompt)
			close(done)
		}()
		synctest.Wait()
		apply(t, m, func(p *Policy) { p.Warm.Size = 1 << 20 }, x)
		close(end)
		<-done
		wantBlocks(t, m, "a", prompt, 40)
		if got := m.Warm().Instances[0].Answers; got != 0 {
			t.Errorf("got %d answers counted, want none", got)
		}
	})
}
