package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// counter reads the answer of a fake server that says nothing but the number.
type counter struct{}

func (counter) Count(i Instance) (Call, bool) {
	return Call{Op: OpAsk, Path: "/count", Body: []byte(i.Node)}, true
}

func (counter) Counted(r Reply) (Tokens, bool) { return Tokens(r.Status), r.Status > 0 }

// says answers each question with the length of a prompt.
func says(n Tokens) func(context.Context, Call) (Reply, error) {
	return func(context.Context, Call) (Reply, error) { return Reply{Status: int(n)}, nil }
}

// narrowAndWide are two nodes with contexts of 1,000 and 4,000 tokens, of which the
// second runs a request until end is closed.
func narrowAndWide(t *testing.T) (m *Manager, p *Applied, narrow, wide *fakeLink, end chan struct{}) {
	t.Helper()
	narrow, wide = serving("m", 1, "whole."), serving("m", 1, "whole.")
	narrow.instances[0].Context, wide.instances[0].Context = 1000, 4000
	m, p = fleetOf(t, stated, narrow, wide)
	end = make(chan struct{})
	wide.set(func(l *fakeLink) { l.run = blocking(end) })
	go func() { _, _ = run(m, p, Request{Prompt: 3000}) }()
	synctest.Wait()
	if wide.ran() != 1 {
		t.Fatalf("got %d requests on the wide node, want the long one", wide.ran())
	}
	return m, p, narrow, wide, end
}

func TestServerCountsAPromptThatNearlyFills(t *testing.T) {
	for name, c := range map[string]struct {
		estimate, real Tokens
		fits           bool
	}{
		"seems too long and fits":      {1100, 950, true},
		"seems to fit and is too long": {950, 1100, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, p, narrow, wide, end := narrowAndWide(t)
				narrow.ask, wide.ask = says(c.real), says(c.real)
				ended := make(chan error, 1)
				go func() {
					_, err := run(m, p, Request{Prompt: c.estimate, Counter: counter{}})
					ended <- err
				}()
				synctest.Wait()
				if n := narrow.ran(); (n == 1) != c.fits {
					t.Errorf("got %d requests on the narrow node, want it there: %v", n, c.fits)
				}
				if n := narrow.asks + wide.asks; n != 1 {
					t.Errorf("got %d questions, want 1", n)
				}
				close(end)
				if err := <-ended; err != nil {
					t.Error(err)
				}
				synctest.Wait()
				quietNow(t, m)
			})
		})
	}
}

func TestEstimateDecidesWhereNobodyCounts(t *testing.T) {
	for name, ask := range map[string]func(context.Context, Call) (Reply, error){
		"it does not know how": func(context.Context, Call) (Reply, error) { return Reply{}, nil },
		"it fails":             func(context.Context, Call) (Reply, error) { return Reply{}, errors.New("closed") },
		"it does not answer": func(ctx context.Context, _ Call) (Reply, error) {
			<-ctx.Done()
			return Reply{}, context.Cause(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, p, narrow, wide, end := narrowAndWide(t)
				narrow.ask, wide.ask = ask, ask
				began := time.Now()
				if _, err := run(m, p, Request{Prompt: 950, Counter: counter{}}); err != nil || narrow.ran() != 1 {
					t.Errorf("got %v and %d requests on the narrow node, want it there", err, narrow.ran())
				}
				if took := time.Since(began); took > countLimit {
					t.Errorf("got it after %s, want %s at most", took, countLimit)
				}
				close(end)
				synctest.Wait()
				quietNow(t, m)
			})
		})
	}
}

func TestNothingIsCountedWhereItDoesNotMatter(t *testing.T) {
	for name, c := range map[string]struct {
		estimate      Tokens
		narrow, wide  Tokens
		state         State
		withoutMethod bool
	}{
		"far from the limit":      {estimate: 500, narrow: 1000, wide: 4000, state: StateReady},
		"near the largest":        {estimate: 3900, narrow: 1000, wide: 4000, state: StateReady},
		"all are as large":        {estimate: 1000, narrow: 1000, wide: 1000, state: StateReady},
		"all are asleep":          {estimate: 1000, narrow: 1000, wide: 4000, state: StateSleeping},
		"nobody knows how to ask": {estimate: 1000, narrow: 1000, wide: 4000, state: StateReady, withoutMethod: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := serving("m", 1, "whole."), serving("m", 1, "whole.")
				a.instances[0].Context, b.instances[0].Context = c.narrow, c.wide
				a.instances[0].State, b.instances[0].State = c.state, c.state
				a.ask, b.ask = says(1), says(1)
				m, p := fleetOf(t, stated, a, b)
				r := Request{Prompt: c.estimate, Counter: counter{}}
				if c.withoutMethod {
					r.Counter = nil
				}
				if _, err := run(m, p, r); err != nil {
					t.Fatal(err)
				}
				if a.asks+b.asks != 0 {
					t.Errorf("got %d questions, want none", a.asks+b.asks)
				}
			})
		})
	}
}
