package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Session is one admitted request. It holds a lane from the start, and through
// all its moves never more than one.
type Session struct {
	m       *Manager
	policy  *Applied
	request Request
	began   time.Time

	claim     *claim
	failed    []failure
	delivered bool // the client got something
	record    Record
	once      sync.Once
}

// maxLost is how many nodes may be lost under one request before it ends: a fourth
// would be no accident.
const maxLost = 3

// maxTrying is after how long, besides the policy's wait, no further attempt begins.
// One that runs is never cut for its length.
const maxTrying = 10 * time.Minute

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

// work is what a session has a node do: a generation or a call.
type work interface {
	attempt(ctx context.Context) error // once, on the instance that is held
	needs() (Needs, error)             // as [Job.Needs]
}

// carryOn has the work done, on one instance after another, until it is whole.
func (s *Session) carryOn(ctx context.Context, w work) error {
	var said *RequestError // what the last server answered that would not serve
	lost := 0
	for try := 1; ; try++ {
		err := w.attempt(ctx)
		if ctx.Err() != nil || errors.Is(err, errClientGone) {
			return &RequestError{Reason: ReasonCancelled, Message: "the client left", Err: err}
		}
		needs, hopeless := w.needs()
		if hopeless == nil && needs.Done {
			return nil
		}
		n := s.claim.instance.node
		switch e := verdict(n.name, err).(type) {
		case *NodeLost:
			s.lostNode(n, e)
			if !e.untouched() {
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
		if err := s.move(ctx, needs, said, err); err != nil {
			return err
		}
		s.policy.Observer.Moved(n.name, why(err))
	}
}

// errClientGone: a write to the client failed.
var errClientGone = errors.New("the client does not read any more")

// generation is a job that is run for a client.
type generation struct {
	s     *Session
	job   Job
	write func([]byte) error
}

func (g *generation) needs() (Needs, error) { return g.job.Needs() }

func (g *generation) attempt(ctx context.Context) error {
	s := g.s
	i := s.claim.state
	a, err := g.job.Request(i)
	if err != nil {
		return err
	}
	a.Model = i.Model
	a.Patience = s.patience()
	var t meter
	n := s.claim.instance.node
	err = n.link.Run(ctx, a, func(e Event) error {
		n.hear()
		if t.saw(e) && s.record.FirstToken == 0 {
			s.record.FirstToken = max(1, time.Since(s.began))
		}
		return g.pass(e)
	})
	s.m.learn(s.claim.instance, t.Timings)
	if tokens := t.generated(); tokens > 0 {
		s.record.Generated += tokens
		s.policy.Observer.Generated(i.Node, i.Model, tokens)
	}
	return err
}

// pass hands on what the client may have of an event.
func (g *generation) pass(e Event) error {
	out, err := g.job.Take(e)
	if err != nil || len(out) == 0 {
		return err
	}
	if err := g.write(out); err != nil {
		return errors.Join(errClientGone, err)
	}
	g.s.delivered = true
	g.job.Delivered()
	return nil
}

// patience is how long the instance that is held may be silent.
func (s *Session) patience() Patience {
	return patience(&s.claim.state, s.claim.others, s.request.Prompt, s.policy.Stall, time.Now())
}

// verdict is what an attempt's error means for the request. A stream that ended
// without an error and without a whole answer is a node that was lost.
func verdict(node string, err error) error {
	if err == nil {
		return &NodeLost{Node: node, Cause: CauseClosed, Err: errors.New("the stream ended before the answer did")}
	}
	if lost, ok := errors.AsType[*NodeLost](err); ok {
		return lost
	}
	if re, ok := errors.AsType[*RequestError](err); ok {
		return re
	}
	return err
}

// final reports whether a server's answer is the client's answer: it is no matter
// of that server (what it can do, what room it has, whether it lets us in), or the
// last server said the same.
func final(e, before *RequestError) bool {
	switch e.Reason {
	case ReasonDeclined, ReasonOverloaded, ReasonNoNode:
		return false
	case ReasonTooLong:
		return e.Len == 0
	}
	return !e.Again || before != nil && before.Message == e.Message
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
	w := &waiter{Request: s.request, needs: needs, policy: s.policy, failed: slices.Clone(s.failed), first: true}
	w.Deadline = time.Time{} // that was for the beginning
	c, err := s.m.place(ctx, w)
	if err == nil {
		s.hold(c)
		s.record.Moves++
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

// untouched reports whether no node got anything of the request yet, so that it
// was not lost: there was nobody to give it to.
func (s *Session) untouched(last error) bool {
	lost, ok := errors.AsType[*NodeLost](last)
	return ok && lost.untouched() && len(s.failed) == 0 && !s.delivered
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

// finish hands out the closing bytes.
func finish(job Job, write func([]byte) error) error {
	if out := job.End(nil); len(out) > 0 {
		if err := write(out); err != nil {
			return &RequestError{Reason: ReasonCancelled, Message: "the client left", Err: err}
		}
	}
	return nil
}

func (s *Session) hold(c *claim) {
	s.claim = c
	s.record.Node, s.record.Model = c.state.Node, c.state.Model
}

// Instance is where the session runs, or ran last.
func (s *Session) Instance() Instance { return s.claim.state }

// Record is the account of the session so far; whole after Run.
func (s *Session) Record() Record { return s.record }

// Close ends a session that was not run. After Run it does nothing.
func (s *Session) Close() {
	s.end(&RequestError{Reason: ReasonCancelled, Message: "it was not run"})
}

// end gives the lane back, once, and makes the account.
func (s *Session) end(err error) {
	s.once.Do(func() {
		if s.claim != nil {
			s.m.giveBack(s.claim)
		}
		s.record.Took = time.Since(s.began)
		s.record.Outcome, s.record.Reason = outcome(err, s.delivered)
		s.m.leave()
	})
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

// why names the cause or reason of a move.
func why(err error) string {
	switch e := verdict("", err).(type) {
	case *NodeLost:
		return string(e.Cause)
	case *RequestError:
		return string(e.Reason)
	}
	return "other"
}
