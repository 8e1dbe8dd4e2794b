package llamacpp

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

const (
	// retellAfter is how often a load that did not change is told again, so that it
	// does not grow old while its source is looked at.
	retellAfter = 5 * time.Second

	// settleFor is how long a load stands before the log is looked at again: a busy
	// server writes a line for each slot and each few tokens.
	settleFor = 20 * time.Millisecond
)

// logSource is what a link needs of a [slotlog.Source].
type logSource interface {
	Snapshot(now time.Time) slotlog.Snapshot
	Subscribe() (changed <-chan struct{}, cancel func())
}

// Watch tells f what a [fleet.OpProbe] learned, and again when the log shows another
// load: at once, but no sooner than 20 ms after it last looked at the log. f is called
// from this goroutine. It asks the server itself once a generation has woken one that
// slept when it was learned, and for what its log does not tell, as a [Seeder] does.
func (l *Link) Watch(outer context.Context, f func(fleet.NodeState)) {
	ctx, cancel := l.bind(outer)
	var seeding sync.WaitGroup
	defer func() {
		cancel(nil)
		seeding.Wait()
	}()
	if l.seeds != nil {
		seeding.Go(func() { newSeeder(l, l.seeds).run(ctx) })
	}
	w := l.addWatcher()
	defer l.dropWatcher(w)
	s := &sight{link: l, f: f}
	if l.source != nil {
		var unsubscribe func()
		s.changed, unsubscribe = l.source.Subscribe()
		defer unsubscribe()
		t := time.NewTicker(retellAfter)
		defer t.Stop()
		s.retell = t.C
	}
	for {
		var due func(told, now fleet.Load) bool
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
			if err := l.probe(ctx); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "learning a node that woke", "node", l.name, "error", err)
			}
		case <-w.learned:
			due = always
		case <-s.retell:
			due = newer
		case <-s.changed:
			due = s.settle(time.Now())
		case <-s.settled:
			s.settled, due = nil, other
		}
		// What was learned is told next, with this load in it.
		if due != nil && len(w.learned) == 0 && ctx.Err() == nil {
			s.tell(time.Now(), due)
		}
	}
}

func (l *Link) addWatcher() *watcher {
	w := &watcher{learned: make(chan struct{}, 1), woken: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[w] = struct{}{}
	if l.instance != nil {
		signal(w.learned)
	}
	return w
}

func (l *Link) dropWatcher(w *watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watchers, w)
}

// sight is what one Watch saw of the load, and what it waits for.
type sight struct {
	link *Link
	f    func(fleet.NodeState)

	changed <-chan struct{}  // the log
	retell  <-chan time.Time // the load, before it is old
	settled <-chan time.Time // nil: the log did not change since it was looked at
	looked  time.Time        // at the log
	told    fleet.Load
}

// The loads that are worth telling after the last one.

func always(_, _ fleet.Load) bool         { return true }
func newer(told, now fleet.Load) bool     { return now.At.After(told.At) }
func other(told, changed fleet.Load) bool { return !sameLoad(told, changed) }

// settle returns what is due now that the log changed: nothing, where it was looked
// at just now. One look at the end of that time then stands for all its changes.
func (s *sight) settle(now time.Time) func(told, now fleet.Load) bool {
	if s.settled != nil {
		return nil
	}
	if d := settleFor - now.Sub(s.looked); d > 0 {
		s.settled = time.After(d)
		return nil
	}
	return other
}

// tell looks at the log and tells the instance with its load, if that is due.
func (s *sight) tell(now time.Time, due func(told, now fleet.Load) bool) {
	i, ok := s.link.current(now)
	s.looked = now
	if !ok || !due(s.told, i.Load) {
		return
	}
	s.told = i.Load
	s.f(fleet.NodeState{Instances: []fleet.Instance{i}})
}

// sameLoad reports whether two loads say the same, but for when they said it.
func sameLoad(a, b fleet.Load) bool {
	if a.At.IsZero() != b.At.IsZero() {
		return false
	}
	a.At, b.At = time.Time{}, time.Time{}
	return a == b
}

// current is the instance with its load, if anything was learned yet.
func (l *Link) current(now time.Time) (fleet.Instance, bool) {
	l.mu.Lock()
	learned := l.instance
	l.mu.Unlock()
	if learned == nil {
		return fleet.Instance{}, false
	}
	i := *learned
	if l.source == nil {
		return i, true
	}
	p, load := readLoad(l.source.Snapshot(now), l.client.port)
	i.Load = load
	i.Load.Ours = min(int(l.open.Load()), i.Load.Active)
	if p.KVUnified != nil { // else nobody tells how much there is in all
		i.KVUnified = *p.KVUnified
		i.Load.KVTotal = i.Context
		if !i.KVUnified {
			i.Load.KVTotal *= fleet.Tokens(max(1, i.Lanes))
		}
	}
	return i, true
}

// readLoad is the load that a log shows, and what it says of our server besides.
// Where the log lost track or cannot be read, it was not looked at: the figures are
// no word of the server then.
func readLoad(s slotlog.Snapshot, port string) (slotlog.PortState, fleet.Load) {
	var l fleet.Load
	p, ok := portOf(s.Ports, port)
	if s.Degraded || s.Err != nil || !ok {
		return slotlog.PortState{}, l
	}
	l.At = s.LookedAt
	for _, slot := range p.Slots {
		if slot.State != slotlog.Processing {
			continue
		}
		l.Active++
		if held := held(slot, p.Details); held != nil {
			l.KVUsed += fleet.Tokens(*held)
		}
		if slot.Decoded != nil {
			l.KVUsed += fleet.Tokens(*slot.Decoded)
		}
	}
	return p, l
}

// held is how much of its prompt a slot holds. What a slot says of it leaves out the
// cached part in later builds, where the details may have it.
func held(slot slotlog.Slot, details []slotlog.Detail) *int64 {
	for _, d := range details {
		if d.Slot == slot.Slot && d.ContextUsed != nil {
			return d.ContextUsed
		}
	}
	return slot.PromptTokens
}

// portOf finds our server in a log: by the port of its URL, or as the only one
// there. A forwarded port is not the one that the server prints.
func portOf(ports []slotlog.PortState, port string) (slotlog.PortState, bool) {
	for _, p := range ports {
		if strconv.Itoa(p.Port) == port {
			return p, true
		}
	}
	if len(ports) == 1 {
		return ports[0], true
	}
	return slotlog.PortState{}, len(ports) == 0
}
