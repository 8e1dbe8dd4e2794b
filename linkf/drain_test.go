package linkf

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// drains begins to drain the rig's node; the channel is closed when that is over.
func (r *rig) drains(ctx context.Context) chan struct{} {
	r.t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.node.Drain(ctx)
	}()
	r.until("that leaves", func(s fleet.NodeState) bool { return s.Leaving && len(s.Instances) == 1 })
	return over
}

func TestNodeThatDrainsFinishesAndTakesNothingNew(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, end := r.stream(context.Background(), "")
		r.says("one")
		over := r.drains(context.Background())
		var declined *fleet.RequestError
		_, late := r.stream(context.Background(), "")
		if err := get(t, late, "the end of a new one"); !errors.As(err, &declined) || declined.Reason != fleet.ReasonOverloaded || !declined.Again {
			t.Errorf("a new one: got %v, want it declined, for another node to take it", err)
		}
		r.way.cut() // it comes back for what it has to hand over
		r.says("two")
		select {
		case <-over:
			t.Error("it is drained while it runs something")
		default:
		}
		close(r.server.say)
		for _, want := range []string{"one", "two"} {
			if got := get(t, words, "a word"); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if err := get(t, end, "the end"); err != nil {
			t.Errorf("got %v, want a whole answer", err)
		}
		get(t, over, "the end of the drain")
	})
}

func TestDrainEndsAtItsLimit(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		_, end := r.stream(context.Background(), "")
		r.says("one")
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		over := r.drains(ctx)
		cancel()
		get(t, over, "the end of the drain")
		if err := r.node.Close(); err != nil {
			t.Fatal(err)
		}
		var lost *fleet.NodeLost
		if err := get(t, end, "the end"); !errors.As(err, &lost) {
			t.Errorf("got %v, want a lost node", err)
		}
	})
}

func TestIdleNodeIsDrainedAtOnce(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		get(t, r.drains(context.Background()), "the end of the drain")
	})
}
