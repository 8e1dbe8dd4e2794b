package fleet

import (
	"context"
	"errors"
	"time"
)

// Admit takes a request in: it waits for a lane of an instance that serves the
// model, and holds it for the session that it returns. Errors are *[RequestError].
func (m *Manager) Admit(ctx context.Context, a *Applied, r Request) (*Session, error) {
	s := newSession(m, a, r)
	if err := m.enter(s); err != nil {
		return nil, err
	}
	if err := m.checkQuarantine(r.Digest); err != nil {
		s.end(err)
		return nil, err
	}
	ctx, done := s.bind(ctx)
	defer done()
	s.exact = m.count(ctx, a, &r)
	w := s.waiter(Needs{})
	w.Deadline = r.Deadline
	c, err := m.place(ctx, w)
	if err != nil {
		s.end(err)
		return nil, err
	}
	s.begin(c)
	return s, nil
}

// place finds a lane for w, now or when one is free.
func (m *Manager) place(ctx context.Context, w *waiter) (*claim, error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx)
	}
	limit := w.policy.Wait
	switch {
	case w.kept:
		limit = time.Until(w.Deadline)
	case !w.Deadline.IsZero():
		limit = min(limit, time.Until(w.Deadline))
	}
	w.blocks = w.remembered()
	if full, err := m.enqueue(w); err != nil {
		if full != "" {
			w.policy.Observer.Refused(full)
		}
		return nil, err
	}
	if w.settled == nil {
		return w.claim, w.err
	}
	expired, again := time.NewTimer(limit), time.NewTimer(limit)
	defer expired.Stop()
	defer again.Stop()
	for {
		select {
		case <-w.settled:
			return w.claim, w.err
		case at := <-w.asks:
			again.Reset(time.Until(at))
		case <-again.C:
			m.askAgain(w)
		case <-ctx.Done():
			if m.withdraw(w) && w.claim != nil {
				m.giveBack(w.claim)
			}
			return nil, cancelled(ctx)
		case <-expired.C:
			if m.withdraw(w) {
				return w.claim, w.err
			}
			w.policy.Observer.Refused(refusedExpired)
			return nil, w.why
		}
	}
}

// enqueue places w at once, or lets it wait. An error is its answer; full says which
// limit of the queue it met, if it was one.
func (m *Manager) enqueue(w *waiter) (full string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return "", stopping()
	}
	w.cursor = m.cursor
	m.cursor++
	now := time.Now()
	if (w.Light || m.queue.len == 0) && m.settled(w) {
		return "", nil
	}
	m.queue.push(w, m.toRead(w, m.search(w, now).able), now)
	if !w.asked {
		m.pump()
	}
	if !w.isSettled() && !w.asked {
		m.ask(w) // others found no lane, but whether to wait for a certain one is its own matter
	}
	m.preempt(w)
	if w.first || w.kept || w.isSettled() {
		return "", nil
	}
	if full, err = m.tooMany(w); err != nil {
		m.dequeue(w)
	}
	return full, err
}

// withdraw takes w out of the queue; true: it was settled before.
func (m *Manager) withdraw(w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.isSettled() {
		return true
	}
	w.why = m.inVain(w, w.why)
	m.dequeue(w)
	return false
}

// busyRetry is after how long a caller is told to come back when all is busy and
// nothing is known of how long that takes.
const busyRetry = 2 * time.Second

func cancelled(ctx context.Context) error {
	if why, ok := errors.AsType[*RequestError](context.Cause(ctx)); ok {
		return why // it was ended from here
	}
	return &RequestError{Reason: ReasonCancelled, Message: "the client left", Err: context.Cause(ctx)}
}
