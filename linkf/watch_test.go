package linkf

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// ailing is a model server that can die and hang.
type ailing struct {
	*server

	mu    sync.Mutex
	err   error // what it answers
	hangs bool
	asked map[fleet.Op]int
}

func newAiling() *ailing { return &ailing{server: newServer(), asked: make(map[fleet.Op]int)} }

func (a *ailing) Call(ctx context.Context, c fleet.Call) (fleet.Reply, error) {
	a.mu.Lock()
	a.asked[c.Op]++
	err, hangs := a.err, a.hangs
	a.mu.Unlock()
	switch {
	case hangs:
		<-ctx.Done()
		return fleet.Reply{}, context.Cause(ctx)
	case err != nil:
		return fleet.Reply{}, err
	}
	return a.server.Call(ctx, c)
}

func (a *ailing) become(err error, hangs bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.hangs = err, hangs
}

func (a *ailing) times(op fleet.Op) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[op]
}

// No head has to ask: the node looks after its server, and tells within a heartbeat that
// it died, within the limit of a look more that it hangs, and within a heartbeat that it
// is back, with what it offers then.
func TestServerThatDiesOrHangsIsToldWithoutBeingAsked(t *testing.T) {
	refused := &fleet.NodeLost{Node: "box-a", Cause: fleet.CauseRefused, Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		err   error
		hangs bool
		limit time.Duration
		cause fleet.Cause
	}{
		"died":  {refused, false, watchEvery, fleet.CauseRefused},
		"hangs": {nil, true, watchEvery + watchLimit, fleet.CauseTimedOut},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newAiling()
				x := newCouple(t, s)
				state := x.watched(t)
				time.Sleep(time.Minute)
				if got := state(); got.Down != nil || len(got.Instances) != 1 {
					t.Fatalf("got %+v, want a node that is well", got)
				}
				if at, within := x.link.Vouched(); within != watchEvery || time.Since(at) > heartbeatIdle {
					t.Errorf("the link vouches for what was %v ago, within %v; want at most %v and %v", time.Since(at), within, heartbeatIdle, watchEvery)
				}
				s.become(c.err, c.hangs)
				time.Sleep(c.limit)
				var lost *fleet.NodeLost
				if got := state(); !errors.As(got.Down, &lost) || lost.Cause != c.cause {
					t.Errorf("after %v: got %v, want the node down as %s", c.limit, got.Down, c.cause)
				}
				if at, within := x.link.Vouched(); within != 0 {
					t.Errorf("the link vouches for a server that does not answer: %v, %v", at, within)
				}
				s.server.mu.Lock()
				s.stood.Instances[0].Model = "n"
				s.server.mu.Unlock()
				s.become(nil, false)
				time.Sleep(c.limit + statusGap)
				if got := state(); got.Down != nil || len(got.Instances) != 1 || got.Instances[0].Model != "n" {
					t.Errorf("it is back: got %+v, want the node well, with the model of now", got)
				}
			})
		})
	}
}

// While a server answers, that is its sign of life.
func TestServerThatSpeaksIsNotAskedWhetherItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAiling()
		c := newCouple(t, s)
		ended := make(chan error)
		go func() {
			ended <- c.link.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error { return nil })
		}()
		for range 60 {
			s.say <- "word"
			time.Sleep(time.Second)
		}
		if n := s.times(fleet.OpHealth); n != 0 {
			t.Errorf("it was asked %d times during a minute of answer, want never", n)
		}
		close(s.say)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n, want := s.times(fleet.OpHealth), int(time.Minute/watchEvery); n < want-1 || n > want {
			t.Errorf("it was asked %d times in a minute of silence, want about %d", n, want)
		}
	})
}
