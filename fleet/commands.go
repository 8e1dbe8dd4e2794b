package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What a command to a session may be answered with, besides nil.
var (
	// ErrUnknownSession: there is no such session, or it has ended.
	ErrUnknownSession = errors.New("no session that runs has this id")

	// ErrFixed: the answer cannot go on elsewhere exactly.
	ErrFixed = errors.New("it cannot go on elsewhere exactly")

	// ErrNowhere: no other instance can take it now.
	ErrNowhere = errors.New("no other instance can take it now")

	// ErrWrongState: that is not possible with a session in its state.
	ErrWrongState = errors.New("not possible in its state")

	// ErrBusy: the session could not be reached in time, for its client does not read.
	ErrBusy = errors.New("its client does not read what it got, so that nobody knows how far it is")

	// ErrSlow: the session was told, and has not left its node yet.
	ErrSlow = errors.New("it was told, and has not left its node yet")
)

// commandLimit is how long a command waits until a session that is just writing to its
// client can be reached, and until it has left its node.
const commandLimit = 5 * time.Second

// command is what ends an attempt that did not fail: the request goes on by it.
type command struct {
	kind     commandKind
	followed chan struct{} // closed when the lane is free, or the session over
	drain    *drain        // that gave it, and counts who follows; nil: none
}

type commandKind string

const (
	commandPark    commandKind = "parked"    // until it is resumed
	commandPreempt commandKind = "preempted" // to the queue, behind those of its class
	commandMove    commandKind = "moved"     // to the lane that was reserved for it
	commandLeave   commandKind = "drained"   // to whoever has a lane first
)

func (o *command) Error() string { return "the request was " + string(o.kind) }

func newCommand(kind commandKind) *command {
	return &command{kind: kind, followed: make(chan struct{})}
}

// Cancel ends a session, wherever it is: in the queue, before its start, between two
// nodes, while it runs or is parked. Its client gets the error end. Only a session
// that has ended is an error: [ErrUnknownSession].
func (m *Manager) Cancel(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.live[id]
	if s == nil {
		return ErrUnknownSession
	}
	s.abort(&RequestError{Reason: ReasonAborted, Message: "the request was ended by an operator"})
	return nil
}

// abort ends the session for good, the first reason given being the one that counts.
// Called under the manager's mutex.
func (s *Session) abort(why *RequestError) {
	if s.quit == nil {
		s.quit = why
	}
	if s.leave != nil {
		s.leave(s.quit)
	}
}

// Park frees the session's lane and keeps what was delivered, until [Manager.Resume].
// A session that is parked already stays so. One that nobody resumes ends as expired,
// ten minutes and the policy's wait after it began.
//
// Errors: [ErrUnknownSession], [ErrWrongState] (it waits for a lane), [ErrFixed],
// [ErrBusy], and [ErrSlow], after which it is parked all the same.
func (m *Manager) Park(ctx context.Context, id string) error {
	s := m.session(id)
	if s == nil {
		return ErrUnknownSession
	}
	if s.isParked() {
		return nil
	}
	return s.give(ctx, newCommand(commandPark), nil)
}

// Resume places a parked session again. It returns at once; the session may have to
// wait for a lane. Errors: [ErrUnknownSession], [ErrWrongState] (it is not parked).
func (m *Manager) Resume(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.live[id]
	switch {
	case s == nil:
		return ErrUnknownSession
	case s.parked == nil:
		return fmt.Errorf("%w: it is not parked", ErrWrongState)
	}
	close(s.parked)
	s.parked = nil
	s.phase.Store(int32(PhaseQueued))
	return nil
}

// Move lets another instance go on with the session, without a gap: the lane there is
// reserved before the one here is left. Errors: those of Park, and [ErrNowhere].
func (m *Manager) Move(ctx context.Context, id string) error {
	s := m.session(id)
	if s == nil {
		return ErrUnknownSession
	}
	return s.give(ctx, newCommand(commandMove), s.reserve)
}

// give gives a command, if the answer can go on exactly, and waits until it was
// followed. prepare is called under the manager's mutex.
func (s *Session) give(ctx context.Context, o *command, prepare func(Needs) error) error {
	limited, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	select {
	case s.gate <- struct{}{}:
	case <-limited.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ErrBusy
	}
	err := s.accept(o, prepare)
	<-s.gate
	if err != nil {
		return err
	}
	select {
	case <-o.followed:
		return nil
	case <-limited.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ErrSlow
	}
}

// accept takes a command and ends the attempt. Called with the gate held.
func (s *Session) accept(o *command, prepare func(Needs) error) error {
	needs, err := s.portable()
	if err != nil {
		return err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	switch {
	case s.ended:
		return ErrUnknownSession
	case s.parked != nil:
		return fmt.Errorf("%w: it is parked, resume it first", ErrWrongState)
	case s.claim == nil || s.claim.given:
		return fmt.Errorf("%w: it waits for a lane", ErrWrongState)
	case s.command != nil:
		return fmt.Errorf("%w: it is about to be %s", ErrWrongState, s.command.kind)
	}
	if prepare != nil {
		if err := prepare(needs); err != nil {
			return err
		}
	}
	s.command = o
	if s.stop != nil {
		s.stop(o)
	}
	return nil
}

// portable returns what an instance needs to go on exactly with what the client has.
// Called with the gate held.
func (s *Session) portable() (Needs, error) {
	if s.task == nil {
		return Needs{}, nil // it did not begin
	}
	needs, err := s.task.needs()
	switch {
	case err != nil:
		return Needs{}, fmt.Errorf("%w: %w", ErrFixed, err)
	case needs.Done:
		return Needs{}, fmt.Errorf("%w: its answer is whole", ErrWrongState)
	case needs.Anew && s.delivered.Load():
		return Needs{}, fmt.Errorf("%w: it would begin anew", ErrFixed)
	}
	return needs, nil
}

// waiterNow is the rest of the request, if it can go on exactly, as soon as the session
// can be reached.
func (s *Session) waiterNow(ctx context.Context) (*waiter, error) {
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.gate }()
	needs, err := s.portable()
	if err != nil {
		return nil, err
	}
	return s.waiter(needs), nil
}

// reserve takes a lane on another node. Called under the manager's mutex.
func (s *Session) reserve(needs Needs) error {
	w := s.waiter(needs)
	w.failed = append(w.failed, failure{node: s.claim.instance.node, life: s.claim.instance.node.lives})
	c, err := s.m.choose(w)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNowhere, err)
	case c == nil:
		return ErrNowhere
	}
	s.next = c
	return nil
}

// starts notes that an attempt begins, unless a command came before it.
func (s *Session) starts(stop context.CancelCauseFunc) *command {
	s.phase.Store(int32(PhasePrefill))
	s.spoke.Store(false)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.command != nil {
		return s.command
	}
	s.stop, s.tried = stop, time.Now()
	return nil
}

// stopped notes that an attempt ended.
func (s *Session) stopped() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.stop = nil
}

// follow leaves the lane as commanded, and returns when the request has one again.
func (s *Session) follow(ctx context.Context, o *command, needs Needs) error {
	from := s.claim.state.Node
	next := s.obey(o)
	s.m.giveBack(s.claim)
	close(o.followed)
	if next != nil {
		s.hold(next, needs)
		s.policy.Observer.Moved(from, string(o.kind))
		return nil
	}
	s.m.tell(Change{Kind: ChangeKind(o.kind), Session: s.id, Node: from})
	end := s.began.Add(s.policy.Wait + maxTrying)
	if o.kind == commandPark {
		if err := s.rest(ctx, end); err != nil {
			return err
		}
	}
	w := s.waiter(needs)
	switch o.kind {
	case commandPreempt:
		w.kept, w.Deadline = true, end
	default:
		w.first = true
	}
	s.phase.Store(int32(PhaseQueued))
	c, err := s.m.place(ctx, w)
	if err != nil {
		return err
	}
	s.hold(c, needs)
	s.policy.Observer.Moved(from, string(o.kind))
	return nil
}

// obey takes the command off the session, with the lane that was reserved for it.
func (s *Session) obey(o *command) (next *claim) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	next, s.next, s.command = s.next, nil, nil
	if o.drain != nil {
		o.drain.moved++
	}
	if o.kind == commandPark {
		s.parked = make(chan struct{})
		s.phase.Store(int32(PhaseParked))
	}
	return next
}

// rest waits until the session is resumed, at the longest until end.
func (s *Session) rest(ctx context.Context, end time.Time) error {
	s.m.mu.Lock()
	resumed := s.parked
	s.m.mu.Unlock()
	if resumed == nil {
		return nil // already
	}
	expired := time.NewTimer(time.Until(end))
	defer expired.Stop()
	select {
	case <-resumed:
		return nil
	case <-ctx.Done():
		return cancelled(ctx)
	case <-expired.C:
		return &RequestError{Reason: ReasonExpired, Message: "the request was parked, and nobody resumed it in time"}
	}
}

func (s *Session) isParked() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.parked != nil
}
