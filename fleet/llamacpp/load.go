package llamacpp

import (
	"context"
	"maps"
	"slices"
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
// from this goroutine. It asks the server itself only when something says that what was
// learned is so no more (a generation has woken a server that slept, or a router tells
// of its models), and for what its log does not tell, as a [Seeder] does.
func (l *Link) Watch(outer context.Context, f func(fleet.NodeState)) {
	ctx, cancel := l.bind(outer)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel(nil)
	if l.seeds != nil {
		following.Go(func() { newSeeder(l, l.seeds).run(ctx) })
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
	follows := false
	for {
		var due func(told, now []fleet.Instance) bool
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
			if err := l.probe(ctx); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "learning a node again", "node", l.name, "error", err)
			}
		case <-w.learned:
			due = always
			if !follows && l.isRouter() {
				follows = true
				following.Go(func() { l.follow(ctx) })
			}
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

func (l *Link) isRouter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offer != nil && l.offer.router
}

func (l *Link) addWatcher() *watcher {
	w := &watcher{learned: make(chan struct{}, 1), woken: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[w] = struct{}{}
	if l.offer != nil {
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
	told    []fleet.Instance
}

// The loads that are worth telling after the last ones.

func always(_, _ []fleet.Instance) bool { return true }

func newer(told, now []fleet.Instance) bool {
	return differ(told, now, func(told, now fleet.Load) bool { return now.At.After(told.At) })
}

func other(told, changed []fleet.Instance) bool {
	return differ(told, changed, func(told, changed fleet.Load) bool { return !sameLoad(told, changed) })
}

// differ reports whether the load of some instance differs from what was told of it.
// Instances come and go only with what is learned, which is told always.
func differ(told, now []fleet.Instance, by func(told, now fleet.Load) bool) bool {
	for k := range now {
		if k >= len(told) || by(told[k].Load, now[k].Load) {
			return true
		}
	}
	return false
}

// settle returns what is due now that the log changed: nothing, where it was looked
// at just now. One look at the end of that time then stands for all its changes.
func (s *sight) settle(now time.Time) func(told, now []fleet.Instance) bool {
	if s.settled != nil {
		return nil
	}
	if d := settleFor - now.Sub(s.looked); d > 0 {
		s.settled = time.After(d)
		return nil
	}
	return other
}

// tell looks at the log and tells the instances with their load, if that is due.
func (s *sight) tell(now time.Time, due func(told, now []fleet.Instance) bool) {
	state, ok := s.link.current(now)
	s.looked = now
	if !ok || !due(s.told, state.Instances) {
		return
	}
	s.told = state.Instances
	s.f(state)
}

// sameLoad reports whether two loads say the same, but for when they said it.
func sameLoad(a, b fleet.Load) bool {
	if a.At.IsZero() != b.At.IsZero() {
		return false
	}
	a.At, b.At = time.Time{}, time.Time{}
	return a == b
}

// current is what was learned with the load that the log shows, if anything was
// learned yet.
func (l *Link) current(now time.Time) (fleet.NodeState, bool) {
	l.mu.Lock()
	o := l.offer
	open, leaving := maps.Clone(l.open), maps.Clone(l.leaving)
	l.mu.Unlock()
	if o == nil {
		return fleet.NodeState{}, false
	}
	s := fleet.NodeState{Instances: slices.Clone(o.instances), Places: o.places, Loads: o.loads}
	var seen *slotlog.Snapshot
	if l.source != nil {
		snapshot := l.source.Snapshot(now)
		seen = &snapshot
	}
	for k := range s.Instances {
		i := &s.Instances[k]
		i.Leaving = count(leaving, i)
		if seen == nil {
			continue
		}
		port := l.client.port
		if i.Routed {
			port = strconv.Itoa(i.Port)
		}
		addLoad(i, *seen, port, count(open, i))
	}
	return s, true
}

// count is how many of the generations are the instance's: all of them, where the
// server has no other.
func count(generations map[string]int, i *fleet.Instance) (n int) {
	if i.Routed {
		return generations[i.Model]
	}
	for _, k := range generations {
		n += k
	}
	return n
}

// addLoad sets the load and the speeds that the log shows of an instance. What is loaded
// by nobody carries nothing, and no line says so.
func addLoad(i *fleet.Instance, s slotlog.Snapshot, port string, open int) {
	if i.Routed && i.Port == 0 {
		return
	}
	p, load := readLoad(s, port, i.Routed)
	i.Load = load
	i.Load.Ours = min(open, i.Load.Active)
	i.Rates = logRates(p.Details)
	if p.KVUnified != nil { // else nobody tells how much there is in all
		i.KVUnified = *p.KVUnified
		i.Load.KVTotal = i.Context
		if !i.KVUnified {
			i.Load.KVTotal *= fleet.Tokens(max(1, i.Lanes))
		}
	}
}

// readLoad is the load that a log shows, and what it says of our server besides.
// Where the log lost track or cannot be read, it was not looked at: the figures are
// no word of the server then.
func readLoad(s slotlog.Snapshot, port string, routed bool) (slotlog.PortState, fleet.Load) {
	var l fleet.Load
	p, ok := portOf(s.Ports, port, routed)
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
// there. A forwarded port is not the one that the server prints; that of a model behind
// a router is.
func portOf(ports []slotlog.PortState, port string, exact bool) (slotlog.PortState, bool) {
	for _, p := range ports {
		if strconv.Itoa(p.Port) == port {
			return p, true
		}
	}
	if len(ports) == 1 && !exact {
		return ports[0], true
	}
	return slotlog.PortState{}, len(ports) == 0
}
