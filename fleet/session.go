package fleet

import (
	"cmp"
	"context"
	"errors"
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

	exact  Tokens    // length of the prompt, as a server counted it; 0: none was asked
	failed []failure // added by the goroutine that runs it, with the gate held
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
	for t := (trial{s: s, tries: 1}); ; {
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
			err = s.follow(ctx, o, needs)
		} else {
			err = t.another(ctx, err, needs, hopeless)
		}
		if err != nil {
			return err
		}
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

// waiter is the rest of the request, as it looks for a lane. It is called by the
// goroutine that runs the session, or with the gate held.
func (s *Session) waiter(needs Needs) *waiter {
	needs.Prompt = cmp.Or(needs.Prompt, s.exact)
	w := &waiter{Request: s.request, needs: needs, policy: s.policy, failed: slices.Clone(s.failed)}
	w.Deadline = time.Time{} // that was for the beginning
	return w
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
