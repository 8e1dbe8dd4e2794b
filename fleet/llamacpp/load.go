package llamacpp

import (
	"context"
	"strconv"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

// retellAfter is how often a load that did not change is told again, so that it
// does not grow old while its source is looked at.
const retellAfter = 5 * time.Second

// logSource is what a link needs of a [slotlog.Source].
type logSource interface {
	Snapshot(now time.Time) slotlog.Snapshot
	Subscribe() (changed <-chan struct{}, cancel func())
}

// Watch tells f what a [fleet.OpProbe] learned, and again when the log shows another
// load. f is called from this goroutine. It asks the server itself only once a
// generation has woken one that slept when it was learned.
func (l *Link) Watch(outer context.Context, f func(fleet.NodeState)) {
	ctx, cancel := l.bind(outer)
	defer cancel(nil)
	w := &watcher{learned: make(chan struct{}, 1), woken: make(chan struct{}, 1)}
	l.mu.Lock()
	l.watchers[w] = struct{}{}
	if l.instance != nil {
		signal(w.learned)
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, w)
	}()

	var changed <-chan struct{}
	var tick <-chan time.Time
	if l.source != nil {
		var unsubscribe func()
		changed, unsubscribe = l.source.Subscribe()
		defer unsubscribe()
		t := time.NewTicker(retellAfter)
		defer t.Stop()
		tick = t.C
	}
	var told fleet.Load
	for {
		var due func(i *fleet.Instance) bool
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
			if err := l.probe(ctx); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "learning a node that woke", "node", l.name, "error", err)
			}
			continue
		case <-w.learned:
			due = func(*fleet.Instance) bool { return true }
		case <-tick:
			due = func(i *fleet.Instance) bool { return i.Load.At.After(told.At) }
		case <-changed:
			due = func(i *fleet.Instance) bool { return !sameLoad(told, i.Load) }
		}
		if len(w.learned) > 0 {
			continue // what was learned is told with this load in it
		}
		i, ok := l.current(time.Now())
		if ctx.Err() != nil || !ok || !due(&i) {
			continue
		}
		told = i.Load
		f(fleet.NodeState{Instances: []fleet.Instance{i}})
	}
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
		if slot.PromptTokens != nil {
			l.KVUsed += fleet.Tokens(*slot.PromptTokens)
		}
		if slot.Decoded != nil {
			l.KVUsed += fleet.Tokens(*slot.Decoded)
		}
	}
	return p, l
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
