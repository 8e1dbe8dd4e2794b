package linkf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// stormFor is how long a storm lasts.
const stormFor = 700 * time.Millisecond

// storm cuts the connections of a rig at any byte of the handshake, the greeting and what
// follows, and at any moment.
type storm struct {
	*rig
	cuts, streams, calls, left atomic.Int64
}

// Each stream is whole through a storm, each call that the link took is answered, and
// nothing is left on either side; whoever dials, and if three dial for one node.
func TestStreamsAreWholeThroughAStorm(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		s := &storm{rig: r}
		s.prepare()
		ctx, cancel := context.WithTimeout(t.Context(), stormFor)
		defer cancel()
		dialling, stop := context.WithCancel(t.Context())
		var users, winds, dialers sync.WaitGroup
		for range 8 {
			users.Go(func() {
				for went := false; ctx.Err() == nil || !went; {
					went = s.generate()
				}
			})
		}
		for range 4 {
			users.Go(func() {
				for went := false; ctx.Err() == nil || !went; {
					went = s.ask()
				}
			})
		}
		if r.dials != "" {
			for range 2 {
				dialers.Go(func() { s.dial(dialling) })
			}
		}
		winds.Go(func() {
			for pause(ctx, rand.N(150*time.Millisecond)) {
				r.way.cut()
				s.cuts.Add(1)
			}
		})
		winds.Wait()
		r.way.let(nil)
		r.way.cut()
		users.Wait()
		s.nothingLeft()
		stop()
		dialers.Wait()
		t.Logf("%d cuts, %d streams, %d of them left by their client, %d calls", s.cuts.Load(), s.streams.Load(), s.left.Load(), s.calls.Load())
	})
}

// let gives new connections another leash.
func (w *way) let(leash func() int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leash = leash
}

// anyLength is a leash that ends in the handshake or greeting now and then.
func anyLength() int64 {
	if rand.N(4) == 0 {
		return rand.N[int64](1200)
	}
	return rand.N[int64](100_000)
}

// prepare has the node's server say as many words as it is asked for, in as many lanes as
// there are users, and the connections be of any length from now on.
func (s *storm) prepare() {
	lanes := fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 64}}}
	s.server.mu.Lock()
	s.server.run = sayWords
	s.server.stood = lanes
	s.server.tell(lanes)
	s.server.mu.Unlock()
	s.until("has 64 lanes", func(x fleet.NodeState) bool { return x.Instances[0].Lanes == 64 })
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-s.states:
			case <-over:
				return
			}
		}
	}()
	s.t.Cleanup(func() { close(over); <-done })
	s.way.let(anyLength)
	s.way.cut()
}

// sayWords says 0, 1, 2 …, as many as its body says.
func sayWords(ctx context.Context, a fleet.Assignment, take func(fleet.Event) error) error {
	n, err := strconv.Atoi(string(a.Body))
	if err != nil {
		return err
	}
	if err := take(fleet.Event{Kind: fleet.EventOpen}); err != nil {
		return err
	}
	for i := range n {
		if !pause(ctx, rand.N(2*time.Millisecond)) {
			return context.Cause(ctx)
		}
		if err := take(fleet.Event{Kind: fleet.EventData, Data: []byte(strconv.Itoa(i))}); err != nil {
			return err
		}
	}
	return nil
}

// generate runs one stream, if there is a connection; one in five is left by its client on
// the way.
func (s *storm) generate() (went bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	left := errors.New("the client left")
	want, leaves, next := 1+rand.N(150), -1, 0
	if rand.N(5) == 0 {
		leaves = rand.N(want)
	}
	err := s.link.Run(ctx, fleet.Assignment{Model: "m", Path: "/x", Body: []byte(strconv.Itoa(want))}, func(e fleet.Event) error {
		if e.Kind != fleet.EventData {
			return nil
		}
		if got := string(e.Data); got != strconv.Itoa(next) {
			s.t.Errorf("got word %s, want %d of %d", got, next, want)
		}
		if next == leaves {
			cancel(left)
		}
		next++
		return nil
	})
	switch {
	case next == 0 && notConnected(err):
		return s.pauses()
	case leaves >= 0 && errors.Is(err, left):
		s.left.Add(1)
		s.streams.Add(1)
	case err != nil || next != want:
		s.t.Errorf("got %d of %d words, then %v", next, want, err)
	default:
		s.streams.Add(1)
	}
	return true
}

// pauses waits a little with the next request.
func (s *storm) pauses() (went bool) {
	pause(s.t.Context(), rand.N(10*time.Millisecond))
	return false
}

// notConnected reports whether the link did not take a request, for there was no connection.
func notConnected(err error) bool {
	var lost *fleet.NodeLost
	return errors.As(err, &lost) && lost.Cause == fleet.CauseRefused
}

// ask has the node answer with what it was asked, in a transfer or not, if there is a
// connection.
func (s *storm) ask() (went bool) {
	size := 1000
	if rand.N(3) == 0 {
		size = 150_000 // a transfer, perhaps
	}
	body := strings.Repeat("x", rand.N(size))
	got, err := s.link.Call(context.Background(), fleet.Call{Op: fleet.OpAsk, Path: "/x", Body: []byte(body)})
	switch {
	case notConnected(err):
		return s.pauses()
	case err != nil || string(got.Body) != "/x "+body:
		s.t.Errorf("asked with %d bytes: got %d, %v", len(body), len(got.Body), err)
	default:
		s.calls.Add(1)
	}
	return true
}

// dial has the node dial its head without the patience of Join.
func (s *storm) dial(ctx context.Context) {
	for pause(ctx, rand.N(20*time.Millisecond)) {
		_, _ = s.node.dial(ctx, s.dials) // most are spares, or cut
	}
}

// nothingLeft waits until neither side holds anything of the requests that are over, or of
// connections that were lost.
func (s *storm) nothingLeft() {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		left := s.held()
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("there are left: %s", left)
		}
	}
}

func (s *storm) held() string {
	l, n := s.link, s.node
	l.mu.Lock()
	defer l.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	idle := n.m.idle() && n.m.kept == 0 && len(n.runs)+len(n.calls) == 0
	if len(l.runs)+len(l.calls)+len(l.m.sessions)+len(l.m.calls) == 0 && idle && l.dialling == nil && l.conn != nil {
		return ""
	}
	return fmt.Sprintf("at the head %d runs, %d calls, %d sessions, connected %v, dialling %v; at the node %d runs, %d calls, %d bytes kept, idle %v",
		len(l.runs), len(l.calls)+len(l.m.calls), len(l.m.sessions), l.conn != nil, l.dialling != nil, len(n.runs), len(n.calls), n.m.kept, idle)
}

// A link that is closed at any moment of a storm ends what ran through it and leaves
// nothing, whoever dials.
func TestLinkClosesInAStorm(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		s := &storm{rig: r}
		s.prepare()
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(stormFor))
		defer cancel()
		ended := make(chan error, 8)
		for range cap(ended) {
			go func() {
				for {
					err := r.link.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x", Body: []byte("100")},
						func(fleet.Event) error { return nil })
					if r.link.life.Err() != nil {
						ended <- err
						return
					}
					s.pauses()
				}
			}()
		}
		for pause(ctx, rand.N(50*time.Millisecond)) {
			r.way.cut()
		}
		began := time.Now()
		_ = r.link.Close("the test is over")
		// A dial, a greeting, and the end of the one that was attached meanwhile.
		if took := time.Since(began); took > dialLimit+greetLimit+closeLimit {
			t.Errorf("it took %v to close", took)
		}
		for range cap(ended) {
			get(t, ended, "the end of a stream")
		}
		r.link.mu.Lock()
		defer r.link.mu.Unlock()
		if l := r.link; len(l.runs)+len(l.calls)+len(l.m.calls)+len(l.m.sessions) > 0 || l.conn != nil || l.dialling != nil {
			t.Errorf("there are left %d runs, %d calls, %d sessions, connected %v, dialling %v", len(l.runs), len(l.calls)+len(l.m.calls), len(l.m.sessions), l.conn != nil, l.dialling != nil)
		}
	})
}
