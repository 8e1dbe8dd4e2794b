package fleet

import (
	"container/heap"
	"container/list"
	"time"
)

// queue is the order in which requests wait. It does not know of lanes or clocks: it
// is told what cannot be placed, and says who is next among the others.
//
// The order, from the first rule to the last:
//
//  1. Requests whose answers are read already go before all others, in the order in
//     which they came.
//  2. Higher classes go first. A request that waits counts as one class higher after
//     each step of its wait, up to the highest, where the one that came first goes
//     first: so the lowest comes to its turn, too, however many high ones come.
//  3. Within a class tenants share what is served in tokens that have to be read, as
//     with deficit round robin: next is the tenant that was served least since they
//     all wait. A tenant that comes later begins with what the others have had.
//  4. A tenant's requests go in the order in which they came.
//
// A lane that becomes free is of use to some of the waiting only. Therefore those
// that can run on the same instances stand in lines of their own, one for each class,
// and a line that found no lane is passed over as a whole.
type queue struct {
	kinds   map[alike]*kindLines
	classes [classMoving + 1]class
	len     int
	bytes   int64 // of the requests' bodies
	moving  int   // of rule 1, which no limit counts
	came    uint64
	search  uint64 // which search goes on; see pass
}

// classMoving is above the classes of requests, for those of rule 1.
const classMoving = 10

// kindLines are the lines of one kind, by class.
type kindLines struct {
	kind   alike
	lines  [classMoving + 1]*line
	used   int    // lines
	passed uint64 // the last search that passes it over
}

// class is what its tenants were served.
type class struct {
	tenants map[string]*tenant
	waiting int
	served  Tokens // what the tenant that was served last had before
}

// tenant is one that requests of a class wait for, or lately did.
type tenant struct {
	name   string
	served Tokens
	flows  []*flow
}

// line are the requests of a class that can run on the same instances.
type line struct {
	of      *kindLines
	class   int
	flows   flowHeap
	waiting list.List // all of the line, in the order in which they came
}

// flow are the requests of one tenant in a line, in the order in which they came.
type flow struct {
	tenant  *tenant
	line    *line
	waiting list.List
	start   Tokens // what the tenant was served before the first of them
	at      int    // in the heap
}

// standing is where a waiter stands in the queue.
type standing struct {
	flow   *flow // nil: it does not wait
	inFlow *list.Element
	inLine *list.Element
	came   uint64
	since  time.Time
	cost   Tokens // tokens to read
	kind   alike
	class  int
	passes uint64 // the last search in which it moved to another line
}

// flowHeap has the flow on top whose tenant was served least.
type flowHeap []*flow

func (h flowHeap) Len() int { return len(h) }

func (h flowHeap) Less(a, b int) bool {
	if h[a].start != h[b].start {
		return h[a].start < h[b].start
	}
	return h[a].head().stands.came < h[b].head().stands.came
}

func (h flowHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].at, h[b].at = a, b
}

func (h *flowHeap) Push(x any) {
	f := x.(*flow)
	f.at = len(*h)
	*h = append(*h, f)
}

func (h *flowHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return f
}

func (f *flow) head() *waiter { return f.waiting.Front().Value.(*waiter) }

func newQueue() *queue { return &queue{kinds: make(map[alike]*kindLines)} }

// push lets w wait behind those of its tenant. cost is how many tokens it is expected
// to have read.
func (q *queue) push(w *waiter, cost Tokens, now time.Time) {
	q.came++
	w.stands = standing{came: q.came, since: now, cost: max(1, cost), kind: w.alike()}
	w.stands.class = min(max(0, w.Class), classMoving-1)
	if w.first {
		w.stands.class = classMoving
		q.moving++
	}
	q.len++
	q.bytes += w.Bytes
	q.enter(w)
}

// enter puts w where it belongs, by when it came.
func (q *queue) enter(w *waiter) {
	s := &w.stands
	k := q.kinds[s.kind]
	if k == nil {
		k = &kindLines{kind: s.kind}
		q.kinds[s.kind] = k
	}
	l := k.lines[s.class]
	if l == nil {
		l = &line{of: k, class: s.class}
		k.lines[s.class] = l
		k.used++
	}
	f := q.flow(l, w.tenant())
	s.flow = f
	s.inLine = insert(&l.waiting, w)
	s.inFlow = insert(&f.waiting, w)
	q.classes[s.class].waiting++
	if f.waiting.Len() == 1 {
		f.start = max(q.classes[l.class].served, f.tenant.served)
		heap.Push(&l.flows, f)
	} else {
		heap.Fix(&l.flows, f.at)
	}
}

// tenant is who shares with others; those of rule 1 do not.
func (w *waiter) tenant() string {
	if w.first {
		return ""
	}
	return w.Tenant
}

// insert puts w into a list that is in the order in which they came.
func insert(l *list.List, w *waiter) *list.Element {
	for e := l.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).stands.came < w.stands.came {
			return l.InsertAfter(w, e)
		}
	}
	return l.PushFront(w)
}

// flow returns that of the tenant in the line, a new one if need be.
func (q *queue) flow(l *line, name string) *flow {
	c := &q.classes[l.class]
	t := c.tenants[name]
	if t == nil {
		if c.tenants == nil {
			c.tenants = make(map[string]*tenant)
		}
		c.tidy()
		t = &tenant{name: name}
		c.tenants[name] = t
	}
	for _, f := range t.flows {
		if f.line == l {
			return f
		}
	}
	f := &flow{tenant: t, line: l}
	t.flows = append(t.flows, f)
	return f
}

// tidy forgets tenants that do not wait any more: those that are owed nothing, and,
// where many come and go, all of them.
func (c *class) tidy() {
	const few = 64
	if len(c.tenants) < few || len(c.tenants) < 2*c.waiting {
		return
	}
	for name, t := range c.tenants {
		if len(t.flows) == 0 {
			delete(c.tenants, name)
		}
	}
}

// remove takes w out; served: it has got a lane, for which its tenant pays.
func (q *queue) remove(w *waiter, served bool) {
	q.len--
	q.bytes -= w.Bytes
	if w.first {
		q.moving--
	}
	t, c := w.stands.flow.tenant, &q.classes[w.stands.class]
	if served {
		start := w.stands.flow.start
		c.served = max(c.served, start)
		t.served = max(t.served, start) + w.stands.cost
	}
	q.leave(w)
	if !served {
		return
	}
	for _, f := range t.flows {
		f.start = max(f.start, t.served)
		heap.Fix(&f.line.flows, f.at)
	}
}

// leave takes w from where it stands, and lines away where nobody stands any more.
func (q *queue) leave(w *waiter) {
	s := &w.stands
	f, l := s.flow, s.flow.line
	first := f.waiting.Front() == s.inFlow
	f.waiting.Remove(s.inFlow)
	l.waiting.Remove(s.inLine)
	s.flow, s.inFlow, s.inLine = nil, nil, nil
	c := &q.classes[s.class]
	c.waiting--
	switch {
	case f.waiting.Len() == 0:
		// Its head is gone, by which the heap compares.
		f.waiting.PushFront(w)
		heap.Remove(&l.flows, f.at)
		f.waiting.Init()
		f.tenant.dropFlow(f)
	case first:
		heap.Fix(&l.flows, f.at)
	}
	if c.waiting == 0 {
		*c = class{} // what was served in a rush does not count in the next one
	}
	if l.waiting.Len() == 0 {
		k := l.of
		k.lines[l.class] = nil
		if k.used--; k.used == 0 {
			delete(q.kinds, k.kind)
		}
	}
}

func (t *tenant) dropFlow(f *flow) {
	for i := range t.flows {
		if t.flows[i] == f {
			last := len(t.flows) - 1
			t.flows[i], t.flows[last] = t.flows[last], nil
			t.flows = t.flows[:last]
			return
		}
	}
}

// move puts w where it belongs now: what it can run on has changed. It keeps its
// place in time.
func (q *queue) move(w *waiter) {
	k := w.alike()
	if k == w.stands.kind {
		return
	}
	q.leave(w)
	w.stands.kind = k
	q.enter(w)
}

// begin begins a search for those that can be placed. Nothing is passed over yet.
func (q *queue) begin() { q.search++ }

// pass passes over all that wait for what w waits for, until the next search.
func (q *queue) pass(w *waiter) { w.stands.flow.line.of.passed = q.search }

// next returns who is next, of those that are not passed over; nil: nobody. A request
// counts as one class higher for each step that it has waited.
func (q *queue) next(now time.Time, step time.Duration) *waiter {
	var best *line
	var rank int64
	for _, k := range q.kinds {
		if k.passed == q.search {
			continue
		}
		for _, l := range k.lines {
			if l == nil {
				continue
			}
			r := l.rank(now, step)
			if best == nil || r > rank || r == rank && l.before(best) {
				best, rank = l, r
			}
		}
	}
	if best == nil {
		return nil
	}
	return best.flows[0].head()
}

// oldest is who waits longest in the line.
func (l *line) oldest() *waiter { return l.waiting.Front().Value.(*waiter) }

// rank is the class that the line counts as.
func (l *line) rank(now time.Time, step time.Duration) int64 {
	if l.class == classMoving {
		return 1 << 40
	}
	waited := int64(now.Sub(l.oldest().stands.since) / max(1, step))
	return min(int64(l.class)+waited, classMoving-1)
}

// before says which of two lines goes first that count as the same class.
func (l *line) before(o *line) bool {
	if l.class != o.class || l.class == classMoving {
		return l.oldest().stands.came < o.oldest().stands.came
	}
	a, b := l.flows[0], o.flows[0]
	if a.start != b.start {
		return a.start < b.start
	}
	return a.head().stands.came < b.head().stands.came
}

// each calls f for all that wait, in no certain order. f may take w out of the queue,
// but put nothing in.
func (q *queue) each(f func(w *waiter)) {
	for _, k := range q.kinds {
		q.eachOf(k, f)
	}
}

// eachOf is each for one kind: from the highest class to the lowest, in the order in
// which they came.
func (q *queue) eachOf(k *kindLines, f func(w *waiter)) {
	for c := len(k.lines) - 1; c >= 0; c-- {
		l := k.lines[c]
		if l == nil {
			continue
		}
		for e := l.waiting.Front(); e != nil; {
			next := e.Next()
			f(e.Value.(*waiter))
			e = next
		}
	}
}
