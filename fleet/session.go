package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Session is one admitted request. It holds a lane from the start and, but for the
// moment of a move, never more than one.
type Session struct {
	m       *Manager
	id      string
	policy  *Applied
	request Request
	began   time.Time

	// gate has one place, taken while an event is handed on and while a command is
	// given: so a command finds the job between two events, and none comes after it.
	gate chan struct{}
	task task // guarded by gate; nil before it runs

	phase     atomic.Int32
	bytes     atomic.Int64 // that the client got
	events    atomic.Int64 // of which it got something
	delivered atomic.Bool  // the client got something
	spoke     atomic.Bool  // something came of this attempt

	failed []failure // of the goroutine that runs it
	home   string    // fingerprint that the answer began with, where another went on with it

	// Guarded by the manager's mutex.
	claim   *claim
	next    *claim                  // reserved for a move
	quit    error                   // it is to end with this
	leave   context.CancelCauseFunc // ends what it does now, for good; nil: it does nothing
	stop    context.CancelCauseFunc // ends the attempt only; nil: none runs
	command *command                // not followed yet
	parked  chan struct{}           // closed to resume; nil: it is not parked
	tried   time.Time               // when the attempt began
	crashed []*node                 // under it
	ended   bool
	record  Record
}

// maxLost is how many nodes may be lost under one request before it ends: a fourth
// would be no accident.
const maxLost = 3

// maxTrying is after how long, besides the policy's wait, no further attempt begins.
// One that runs is never cut for its length.
const maxTrying = 10 * time.Minute

func newSession(m *Manager, a *Applied, r Request) *Session {
	return &Session{m: m, policy: a, request: r, began: time.Now(), gate: make(chan struct{}, 1)}
}

// Run runs the job to its end. Bytes for the client go to write, which hands them
// out at once; while write is stuck, nothing is read from the node.
//
// It returns nil when the client has the whole answer. After an error the client
// still needs the job's error end. The session is over in any case.
func (s *Session) Run(ctx context.Context, job Job, write func([]byte) error) error {
	err := errors.New("it was interrupted by a fault of this program") // should something panic
	defer func() { s.end(err) }()
	if err = s.carryOn(ctx, &generation{s: s, job: job, write: write}); err == nil {
		err = finish(job, write)
	}
	return err
}

// task is what a session has a node do: a generation or a call.
type task interface {
	attempt(ctx context.Context) error // once, on the instance that is held
	needs() (Needs, error)             // as [Job.Needs]
}

// carryOn has the work done, on one instance after another, until it is whole.
func (s *Session) carryOn(outer context.Context, w task) error {
	ctx, done := s.bind(outer)
	defer done()
	s.gate <- struct{}{}
	s.task = w
	<-s.gate
	var said *RequestError // what the last server answered that would not serve
	lost := 0
	for try := 1; ; {
		err := s.once(ctx, w)
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		if errors.Is(err, errClientGone) {
			return &RequestError{Reason: ReasonCancelled, Message: "the client left", Err: err}
		}
		needs, hopeless := w.needs()
		if hopeless == nil && needs.Done {
			s.m.judge(s.claim.instance.node, false)
			return nil
		}
		if o, ok := errors.AsType[*command](err); ok {
			if err := s.follow(ctx, o, needs); err != nil {
				return err
			}
			continue
		}
		n := s.claim.instance.node
		switch e := verdict(n.name, err).(type) {
		case *NodeLost:
			s.lostNode(n, e)
			if !e.untouched() {
				s.m.judge(n, true)
				s.m.blame(s, n, e.Cause)
				lost++
				s.failed = append(s.failed, failure{node: n, life: s.claim.life})
			}
			said = nil
		case *RequestError:
			if final(e, said) && !needs.Anew { // else it is about our words, not the client's
				return e
			}
			said = e
			f := failure{node: n, life: s.claim.life}
			if e.Reason == ReasonTooLong {
				f.max = max(1, e.Max)
				needs.Prompt = max(needs.Prompt, e.Len)
			}
			s.failed = append(s.failed, f)
		default:
			return err
		}
		if hopeless != nil {
			if said != nil {
				return said // its words tell more
			}
			return hopeless
		}
		if try >= s.policy.Attempts || lost >= maxLost || time.Since(s.began) > s.policy.Wait+maxTrying {
			return s.outOf(said, err)
		}
		if ctx.Err() != nil {
			return cancelled(ctx)
		}
		if lost > 0 && !s.m.mayMove(s.policy) {
			return s.outOf(said, fmt.Errorf("too many requests moved in the last minute: %w", err))
		}
		try++
		if err := s.move(ctx, needs, said, err); err != nil {
			return err
		}
		s.policy.Observer.Moved(n.name, why(err))
	}
}

// once makes an attempt that a command may end. What ended it is its error, whatever
// the link made of that.
func (s *Session) once(ctx context.Context, w task) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o := s.starts(stop); o != nil {
		return o
	}
	err := w.attempt(ctx)
	s.stopped()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// lostNode marks the node down, unless only this one generation failed on it.
func (s *Session) lostNode(n *node, e *NodeLost) {
	if e.Cause == CauseCrashed {
		return
	}
	s.m.markDown(n, e)
	n.nudge()
}

// move gives the lane back and takes one of an instance that can go on.
func (s *Session) move(ctx context.Context, needs Needs, said *RequestError, last error) error {
	s.m.giveBack(s.claim)
	s.phase.Store(int32(PhaseQueued))
	w := s.waiter(needs)
	w.first = true
	c, err := s.m.place(ctx, w)
	if err == nil {
		s.hold(c, needs)
		return nil
	}
	re, ok := errors.AsType[*RequestError](err)
	if ok && re.Reason == ReasonNoNode && !s.untouched(last) {
		if said != nil && said.Reason == ReasonTooLong {
			said = nil // one that could hold it was lost
		}
		return s.outOf(said, last)
	}
	return err
}

// waiter is the rest of the request, as it looks for a lane.
func (s *Session) waiter(needs Needs) *waiter {
	w := &waiter{Request: s.request, needs: needs, policy: s.policy, failed: slices.Clone(s.failed)}
	w.Deadline = time.Time{} // that was for the beginning
	return w
}

// untouched reports whether no node got anything of the request yet, so that it
// was not lost: there was nobody to give it to.
func (s *Session) untouched(last error) bool {
	lost, ok := errors.AsType[*NodeLost](last)
	return ok && lost.untouched() && len(s.failed) == 0 && !s.delivered.Load()
}

// outOf is the answer when nobody is left to try: what the last server said, if it
// said something, else that it was lost.
func (s *Session) outOf(said *RequestError, last error) error {
	if said != nil {
		return said
	}
	return &RequestError{
		Reason:     ReasonLost,
		Message:    "the server that answered was lost, and no other could go on",
		RetryAfter: busyRetry,
		Err:        last,
	}
}

// begin takes the first lane.
func (s *Session) begin(c *claim) {
	s.m.mu.Lock()
	s.claim = c
	c.instance.node.changes()
	s.record.Session, s.record.Node, s.record.Model = s.id, c.state.Node, c.state.Model
	s.record.Waited = time.Since(s.began)
	s.phase.Store(int32(PhasePrefill))
	s.m.mu.Unlock()
	s.m.tell(Change{Kind: ChangePlaced, Session: s.id, Node: c.state.Node, Model: c.state.Model})
}

// hold takes the lane that was found for the rest of the request.
func (s *Session) hold(c *claim, needs Needs) {
	s.m.mu.Lock()
	s.claim = c
	c.instance.node.changes()
	s.record.Node, s.record.Model = c.state.Node, c.state.Model
	s.record.Moves++
	if needs.Fingerprint != "" && needs.Fingerprint != c.state.Fingerprint && s.delivered.Load() {
		s.home, s.record.Mixed = needs.Fingerprint, true
	}
	s.m.mu.Unlock()
	s.m.tell(Change{Kind: ChangeMoved, Session: s.id, Node: c.state.Node, Model: c.state.Model})
}

// Instance is where the session runs, or ran last.
func (s *Session) Instance() Instance {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.claim.state
}

// Record is the account of the session so far; whole after Run.
func (s *Session) Record() Record {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.record
}

// Close ends a session that was not run. After Run it does nothing.
func (s *Session) Close() {
	s.end(&RequestError{Reason: ReasonCancelled, Message: "it was not run"})
}

// end gives the lane back, once, and makes the account.
func (s *Session) end(err error) {
	s.m.mu.Lock()
	if s.ended {
		s.m.mu.Unlock()
		return
	}
	s.ended = true
	s.stop, s.leave = nil, nil
	s.phase.Store(int32(PhaseDone))
	s.record.Took = time.Since(s.began)
	s.record.Outcome, s.record.Reason = outcome(err, s.delivered.Load())
	o := s.command
	s.command = nil
	held := []*claim{s.claim, s.next}
	s.m.mu.Unlock()
	if o != nil {
		close(o.followed)
	}
	for _, c := range held {
		if c != nil {
			s.m.giveBack(c)
		}
	}
	s.m.tell(Change{Kind: ChangeEnded, Session: s.id, Node: s.record.Node, Model: s.record.Model, Why: string(s.record.Outcome)})
	s.m.leave(s)
}

func outcome(err error, delivered bool) (Outcome, Reason) {
	if err == nil {
		return OutcomeWhole, ""
	}
	reason := ReasonLost
	if re, ok := errors.AsType[*RequestError](err); ok {
		reason = re.Reason
	}
	switch {
	case reason == ReasonCancelled:
		return OutcomeCancelled, reason
	case delivered:
		return OutcomeBroken, reason
	default:
		return OutcomeRefused, reason
	}
}
