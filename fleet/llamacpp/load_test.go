package llamacpp

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

var timeZero time.Time

// fakeLog is a log whose snapshot a test sets.
type fakeLog struct {
	mu      sync.Mutex
	s       slotlog.Snapshot
	looking bool // LookedAt is always now
	changed chan struct{}
	ended   bool
	looks   atomic.Int32 // at it
}

func (f *fakeLog) Snapshot(now time.Time) slotlog.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks.Add(1)
	s := f.s
	if f.looking {
		s.LookedAt = now
	}
	return s
}

func (f *fakeLog) Subscribe() (<-chan struct{}, func()) {
	f.changed <- struct{}{}
	return f.changed, func() { f.ended = true }
}

func (f *fakeLog) set(slots ...slotlog.Slot) {
	f.mu.Lock()
	f.s.Ports = []slotlog.PortState{{Port: 1, Slots: slots}}
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func slot(s slotlog.State, prompt, decoded int64) slotlog.Slot {
	return slotlog.Slot{State: s, PromptTokens: &prompt, Decoded: &decoded}
}

func TestLoadIsWhatTheLogShows(t *testing.T) {
	at := time.Unix(1000, 0)
	busy := []slotlog.Slot{
		slot(slotlog.Processing, 100, 20),
		{State: slotlog.Processing},
		slot(slotlog.Idle, 500, 9),
		slot(slotlog.Unknown, 500, 9),
	}
	want := fleet.Load{Active: 2, KVUsed: 120, At: at}
	none := fleet.Load{}
	for name, tt := range map[string]struct {
		s    slotlog.Snapshot
		port string
		want fleet.Load
	}{
		"the only server, forwarded": {slotlog.Snapshot{LookedAt: at, Ports: []slotlog.PortState{{Port: 1, Slots: busy}}}, "8080", want},
		"by its port":                {slotlog.Snapshot{LookedAt: at, Ports: []slotlog.PortState{{Port: 1}, {Port: 8080, Slots: busy}}}, "8080", want},
		"several, none ours":         {slotlog.Snapshot{LookedAt: at, Ports: []slotlog.PortState{{Port: 1, Slots: busy}, {Port: 2}}}, "8080", none},
		"nothing said yet":           {slotlog.Snapshot{LookedAt: at}, "8080", fleet.Load{At: at}},
		"with what was cached": {slotlog.Snapshot{LookedAt: at, Ports: []slotlog.PortState{{
			Port: 1, Slots: []slotlog.Slot{slot(slotlog.Processing, 100, 20)}, Details: []slotlog.Detail{{ContextUsed: new(int64(900))}},
		}}}, "", fleet.Load{Active: 1, KVUsed: 920, At: at}},
		"degraded":      {slotlog.Snapshot{LookedAt: at, Degraded: true, Ports: []slotlog.PortState{{Port: 1, Slots: busy}}}, "", none},
		"not looked at": {slotlog.Snapshot{}, "", none},
	} {
		if _, got := readLoad(tt.s, tt.port, false); got != tt.want {
			d := cmp.Diff(tt.want, got)
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestPoolIsKnownFromTheLogOnly(t *testing.T) {
	l, err := New(Options{Name: "n1", URL: "http://h"})
	if err != nil {
		t.Fatal(err)
	}
	l.offer = offerOf(fleet.Instance{Model: "m", Lanes: 4, Context: 1000})
	for _, tt := range []struct {
		unified *bool
		total   fleet.Tokens
	}{{nil, 0}, {new(false), 4000}, {new(true), 1000}} {
		l.source = fixedLog{slotlog.Snapshot{LookedAt: time.Now(), Ports: []slotlog.PortState{{Port: 1, KVUnified: tt.unified}}}}
		i, _ := only(l, time.Now())
		if i.Load.KVTotal != tt.total || i.KVUnified != (tt.total == 1000) {
			t.Errorf("got a pool of %d, shared %v, want %d", i.Load.KVTotal, i.KVUnified, tt.total)
		}
	}
}

// fixedLog is a log that always says the same.
type fixedLog struct{ says slotlog.Snapshot }

func (f fixedLog) Snapshot(time.Time) slotlog.Snapshot { return f.says }

func (f fixedLog) Subscribe() (<-chan struct{}, func()) { return nil, func() {} }

func TestWatchTellsALoadWhenItChangesAndBeforeItIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Options{Name: "n1", URL: "http://h"})
		if err != nil {
			t.Fatal(err)
		}
		source := &fakeLog{looking: true, changed: make(chan struct{}, 1)}
		l.source = source
		l.client.keep.DialContext = refuse
		l.offer = offerOf(fleet.Instance{Model: "m", Lanes: 2, Context: 100})
		states, stop := watching(t, l)

		begin := time.Now()
		told := func(active int, after time.Duration) {
			t.Helper()
			i := <-states
			if i.Load.Active != active || !i.Load.At.Equal(time.Now()) || time.Since(begin) != after || i.Load.KVTotal != 0 {
				t.Errorf("got %+v after %v, want %d active after %v", i.Load, time.Since(begin), active, after)
			}
		}
		told(0, 0)
		source.set(slot(slotlog.Processing, 10, 1))
		told(1, 20*time.Millisecond)
		source.set(slot(slotlog.Processing, 10, 1)) // the same again
		told(1, 5*time.Second)
		told(1, 10*time.Second)
		source.set()
		told(0, 10*time.Second+20*time.Millisecond)
		wait(20 * time.Millisecond)
		source.set(slot(slotlog.Processing, 10, 1))
		told(1, 10*time.Second+40*time.Millisecond)

		// Nobody looks any more: nothing is told.
		source.mu.Lock()
		source.looking, source.s.LookedAt = false, time.Now()
		source.mu.Unlock()
		wait(time.Minute)
		if n := len(states); n != 0 {
			t.Errorf("told %d times though nobody looked", n)
		}
		// The log is lost: that is told at once.
		source.mu.Lock()
		source.s.Degraded = true
		source.mu.Unlock()
		source.changed <- struct{}{}
		if i := <-states; !i.Load.At.IsZero() {
			t.Errorf("got %+v of a log that cannot be read", i.Load)
		}
		stop()
		if !source.ended {
			t.Error("the subscription was not ended")
		}
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestManyLinesOfALogMakeFewLooksAndFewerReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Options{Name: "n1", URL: "http://h"})
		if err != nil {
			t.Fatal(err)
		}
		source := &fakeLog{looking: true, changed: make(chan struct{}, 1)}
		l.source = source
		l.client.keep.DialContext = refuse
		l.offer = offerOf(fleet.Instance{Model: "m", Lanes: 2, Context: 100})
		states, stop := watching(t, l)
		<-states
		begin := time.Now()
		last := func() (all []fleet.Load) {
			for len(states) > 0 {
				all = append(all, (<-states).Load)
			}
			return all
		}
		for n := range int64(100) { // one a millisecond
			source.set(slot(slotlog.Processing, 10, n))
			wait(time.Millisecond)
		}
		wait(20 * time.Millisecond)
		told := last()
		if len(told) != 5 || source.looks.Load() != 6 {
			t.Errorf("100 lines in 100 ms: told %d times, looked %d times, want 5, 6", len(told), source.looks.Load())
		}
		if end := told[len(told)-1]; end.KVUsed != 109 || end.At.Sub(begin) > 120*time.Millisecond {
			t.Errorf("last told %+v, want the last line at once", end)
		}
		source.looks.Store(0)
		for range 100 { // that change nothing
			source.set(slot(slotlog.Processing, 10, 99))
			wait(time.Millisecond)
		}
		wait(20 * time.Millisecond)
		if told := last(); len(told) != 0 || source.looks.Load() > 6 {
			t.Errorf("100 lines that change nothing: told %d times, looked %d times", len(told), source.looks.Load())
		}
		stop()
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestOursAreCountedInTheLoad(t *testing.T) {
	l := newLink(t, Options{URL: "http://h"})
	l.source = &fakeLog{s: slotlog.Snapshot{Ports: []slotlog.PortState{{Slots: []slotlog.Slot{slot(slotlog.Processing, 1, 1)}}}}}
	l.offer = offerOf(fleet.Instance{})
	l.open[""] = 3
	if i, _ := only(l, timeZero); i.Load.Ours != 1 {
		t.Fatalf("got %+v, want no more of ours than there are", i.Load)
	}
}
