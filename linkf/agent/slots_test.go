package agent

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/slotlog"
)

// logOfTest is a log that shows how often it changed.
type logOfTest struct {
	changed chan struct{}
	held    atomic.Int64
}

func (l *logOfTest) Subscribe() (<-chan struct{}, func()) { return l.changed, func() {} }

func (l *logOfTest) Snapshot(now time.Time) slotlog.Snapshot {
	return slotlog.Snapshot{LookedAt: now, Ports: []slotlog.PortState{{
		Port: 1, Slots: []slotlog.Slot{{State: slotlog.Processing, PromptTokens: new(l.held.Load())}},
	}}}
}

func (l *logOfTest) changes() {
	l.held.Add(1)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func TestSlotsAreShownWithin20msOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logOfTest{changed: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var shown []int64
		var at []time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			showSlots(ctx, log, func(l linkf.Log) {
				mu.Lock()
				defer mu.Unlock()
				shown, at = append(shown, *l.Servers[0].Slots[0].Held), append(at, time.Now())
			})
		}()
		last := func() (held int64, looked time.Time) {
			mu.Lock()
			defer mu.Unlock()
			return shown[len(shown)-1], at[len(at)-1]
		}
		synctest.Wait()
		for i := range 2000 { // changes, 1 to 45 ms apart
			time.Sleep(time.Duration(1+i%45) * time.Millisecond)
			log.changes()
			changed := log.held.Load()
			synctest.Wait()
			held, looked := last()
			if held == changed {
				continue
			}
			if time.Since(looked) >= settleFor {
				t.Fatalf("change %d was not shown at once, though the last look was %v ago", changed, time.Since(looked))
			}
		}
		time.Sleep(settleFor)
		synctest.Wait()
		held, looked := last()
		if held != log.held.Load() {
			t.Errorf("20 ms after the last change: got %d, want %d", held, log.held.Load())
		}
		time.Sleep(retellAfter + settleFor)
		synctest.Wait()
		if _, again := last(); again.Equal(looked) {
			t.Errorf("a silent log was not shown again within %v", retellAfter)
		}
		cancel()
		<-done
		for i := 1; i < len(at); i++ {
			if d := at[i].Sub(at[i-1]); d < settleFor {
				t.Fatalf("shown again after %v, want at least %v", d, settleFor)
			}
		}
	})
}

// What a head shows of a node is what a log that it reads itself would show.
func TestSlotsAreTheSameAtTheHead(t *testing.T) {
	p := slotlog.PortState{
		Port: 8081, Model: "m", Lanes: 2, LaneContext: 4096, KVUnified: new(false),
		Server: slotlog.ServerDetail{
			Port: 8081, Model: "m", State: slotlog.ServerLoading, LoadProgress: new(0.5),
			Lanes: 2, LaneContext: 4096, KVUnified: new(false), Restarts: 3, Backend: slotlog.FailureKilled,
		},
		Slots: []slotlog.Slot{
			{Slot: 0, State: slotlog.Processing, Task: new(7), PromptTokens: new(int64(10)), Decoded: new(int64(3)), RateTps: new(31.5)},
			{Slot: 1, State: slotlog.Idle},
		},
		Details: []slotlog.Detail{
			{
				Slot: 0, Phase: slotlog.PhaseDecode, Task: new(7), PromptTokens: new(int64(12)), PromptProcessed: new(int64(8)), Progress: new(1.0),
				CachedTokens: new(int64(4)), Generated: new(int64(3)), Rate: new(31.5), RateNow: new(30.0), ContextUsed: new(int64(15)), ContextSize: new(int64(4096)),
				ContextShifts: 1, Truncated: true, CancelPending: true, Failure: slotlog.FailureMedia,
			},
			{Slot: 1, Phase: slotlog.PhaseIdle},
		},
	}
	if diff := cmp.Diff([]slotlog.PortState{p}, Ports(logOf(slotlog.Snapshot{Ports: []slotlog.PortState{p}}))); diff != "" {
		t.Errorf("(-at the node +at the head):\n%s", diff)
	}
}

func TestWordsThatNoLogHasAreUnknown(t *testing.T) {
	got := Ports(linkf.Log{Servers: []linkf.Server{{State: "\x1b[2J", Failure: "the prompt", Slots: []linkf.Slot{{State: "x", Phase: "y", Failure: "z"}}}}})
	want := []slotlog.PortState{{
		Server:  slotlog.ServerDetail{State: slotlog.ServerUnknown, Backend: slotlog.FailureOther},
		Slots:   []slotlog.Slot{{State: slotlog.Unknown}},
		Details: []slotlog.Detail{{Phase: slotlog.PhaseLost, Failure: slotlog.FailureOther}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// pipes is a listener whose only connection is one in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// server is one that offers a model and does nothing.
type server struct{}

func (server) Run(context.Context, fleet.Assignment, func(fleet.Event) error) error { return nil }
func (server) Call(context.Context, fleet.Call) (fleet.Reply, error)                { return fleet.Reply{}, nil }
func (server) Close(string) error                                                   { return nil }

func (server) Watch(ctx context.Context, f func(fleet.NodeState)) {
	f(fleet.NodeState{Instances: []fleet.Instance{{Model: "m", State: fleet.StateReady, Lanes: 1}}})
	<-ctx.Done()
}

func TestChangeInTheLogIsKnownAtTheHeadWithin20ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, ring := newToken(t)
		h, err := linkf.NewHead(linkf.HeadOptions{Identity: "edge", Tokens: ring})
		if err != nil {
			t.Fatal(err)
		}
		n, err := linkf.NewNode(linkf.NodeOptions{Identity: "box-a", Upstream: server{}, Tokens: []linkf.Token{k}})
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		ln := &pipes{make(chan net.Conn, 1), make(chan struct{})}
		ln.conns <- there
		served := make(chan error, 1)
		go func() { served <- n.Serve(ln) }()
		link := h.Joined("box-a")
		h.Accept(here, "box-a", func(j *linkf.Joiner) error { return j.Attach(link) })

		log := &logOfTest{changed: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			showSlots(ctx, log, n.Show)
		}()
		time.Sleep(time.Second)
		for i := range 500 {
			for range 1 + i%5 { // changes, 1 to 45 ms apart
				time.Sleep(time.Duration(1+i%45) * time.Millisecond)
				log.changes()
			}
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			l, _ := link.Log()
			if len(l.Servers) != 1 || *l.Servers[0].Slots[0].Held != log.held.Load() {
				t.Fatalf("at %v, 20 ms after change %d, the head has %d of %v", time.Now(), log.held.Load(), *l.Servers[0].Slots[0].Held, l.At)
			}
		}
		cancel()
		<-done
		_ = ln.Close()
		_ = link.Close("the test is over")
		_ = n.Close()
		<-served
	})
}
