package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// The limits of the queue that a request may meet, as metrics name them.
const (
	refusedRequests = "requests" // so many wait already
	refusedBytes    = "bytes"    // their bodies are that large
	refusedExpired  = "expired"  // it waited too long
)

// classSteps is how many classes a request rises in all while it waits as long as it
// may: the lowest one is the highest before it would be refused.
const classSteps = 10

// pump settles every waiting request that can be settled, in their order. Whoever
// changes what placement sees calls it under the lock.
func (m *Manager) pump() {
	if m.queue.len == 0 {
		return
	}
	now, step := time.Now(), m.classStep()
	m.queue.begin()
	for w := m.queue.next(now, step); w != nil; w = m.queue.next(now, step) {
		was := w.stands.kind
		if m.ask(w) || w.stands.kind != was && w.stands.passes != m.queue.search {
			w.stands.passes = m.queue.search
			continue
		}
		m.queue.pass(w)
	}
}

// regroup looks anew at who serves what, and lets those that wait stand with their like
// again. It is called under the lock, after that or contexts changed.
func (m *Manager) regroup() {
	m.offers++
	if m.queue.len == 0 {
		return
	}
	all := make([]*waiter, 0, m.queue.len)
	m.queue.each(func(w *waiter) { all = append(all, w) })
	for _, w := range all {
		m.rosterFor(w)
		m.queue.move(w)
	}
}

// classStep is after how long a request counts as one class higher.
func (m *Manager) classStep() time.Duration {
	if a := m.inForce(); a != nil {
		return a.Wait / classSteps
	}
	return 60 * time.Second / classSteps
}

// ask asks placement for a lane for one that waits. true: it is settled, and does not
// wait any more.
func (m *Manager) ask(w *waiter) bool {
	if m.settled(w) {
		m.queue.remove(w, w.claim != nil)
		return true
	}
	m.queue.move(w)
	return false
}

// settled asks placement for a lane. true: w has one, or its answer.
func (m *Manager) settled(w *waiter) bool {
	w.asked = true
	again := w.again
	c, err := m.choose(w)
	if c != nil || err != nil {
		w.settle(c, err)
		return true
	}
	if w.settled == nil {
		w.settled, w.asks = make(chan struct{}), make(chan time.Time, 1)
	}
	if w.again != again {
		select {
		case <-w.asks:
		default:
		}
		w.asks <- w.again
	}
	return false
}

// askAgain asks placement for one that it wanted to be asked about again.
func (m *Manager) askAgain(w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !w.isSettled() {
		m.ask(w)
	}
}

// dequeue takes w out, which has no lane.
func (m *Manager) dequeue(w *waiter) {
	m.unbind(w)
	m.queue.remove(w, false)
}

// tooMany returns the limit of the queue that w goes beyond, and the answer.
func (m *Manager) tooMany(w *waiter) (limit string, err error) {
	q := m.queue
	e := &RequestError{Reason: ReasonOverloaded}
	switch {
	case q.len-q.moving > w.policy.Waiting:
		limit = refusedRequests
		e.Message = fmt.Sprintf("all lanes are taken and %d requests wait already; try again later", w.policy.Waiting)
	case q.bytes > w.policy.WaitingBytes:
		limit = refusedBytes
		e.Message = "all lanes are taken and the requests that wait already are too large together; try again later"
	default:
		return "", nil
	}
	e.RetryAfter = m.retryAfter(w)
	return limit, e
}

// inVain is the answer to one that waited too long, with the time after which trying
// again makes sense.
func (m *Manager) inVain(w *waiter, why error) error {
	e, ok := errors.AsType[*RequestError](why)
	if !ok || e.Reason != ReasonExpired {
		return why
	}
	again := *e
	again.RetryAfter = m.retryAfter(w)
	return &again
}

// toRead is how much of the prompt has to be read where most of it is cached: what w
// costs its tenant.
func (m *Manager) toRead(w *waiter, able []candidate) Tokens {
	size := cmp.Or(w.size(), Tokens(w.Bytes/4))
	if len(w.blocks) == 0 || len(w.Blocks) == 0 {
		return size
	}
	m.expect(w, able)
	held := 0
	for i := range able {
		held = max(held, able[i].cached)
	}
	return size - Tokens(int64(size)*int64(held)/int64(len(w.blocks)))
}

// Official clients do as Retry-After says up to a minute; what is longer they take for
// no advice.
const (
	leastRetry = time.Second
	mostRetry  = time.Minute
)

// retryAfter is when a request like w could be served that comes last.
func (m *Manager) retryAfter(w *waiter) time.Duration {
	wait, ok := m.estimate(w.policy, w.Model, m.ahead(w))
	if !ok {
		return busyRetry
	}
	return min(max(leastRetry, wait), mostRetry)
}

// ahead is how many wait for the same model in the same class or a higher one.
func (m *Manager) ahead(w *waiter) (n int) {
	for kind, k := range m.queue.kinds {
		if kind.model != w.Model {
			continue
		}
		for class, l := range k.lines {
			if l != nil && class >= w.Class {
				n += l.waiting.Len()
			}
		}
	}
	return n
}

// estimate is how long it takes until so many requests for the model have got a lane
// and one more: by how many lanes there are, and how long they are held. false:
// nothing is known of that.
func (m *Manager) estimate(a *Applied, model string, ahead int) (time.Duration, bool) {
	if a == nil {
		return 0, false
	}
	rate := 0.0 // lanes given back in a second
	for _, n := range a.nodes {
		if !n.up() {
			continue
		}
		for _, i := range n.instances {
			if i.usable() && i.service > 0 && (model == "" || i.Serves(model)) {
				rate += float64(i.lanes()) / i.service
			}
		}
	}
	if rate == 0 {
		return 0, false
	}
	return seconds(min(float64(ahead+1)/rate, mostEstimate)), true
}

const (
	// mostEstimate bounds an estimate, in seconds.
	mostEstimate = 24 * 60 * 60

	// serviceStep is how far one request moves what is known of how long lanes are
	// held.
	serviceStep = 1.0 / 8

	// leastService is the least time in seconds that a lane counts as held.
	leastService = 1e-3
)

// served notes how long a lane was held.
func (i *instance) served(took time.Duration) {
	s := max(leastService, took.Seconds())
	if i.service == 0 {
		i.service = s
		return
	}
	i.service += (s - i.service) * serviceStep
}
