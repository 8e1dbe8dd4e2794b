package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// trial is what the attempts of a session came to so far.
type trial struct {
	s     *Session
	tries int
	lost  int           // nodes, under it
	said  *RequestError // what the last server answered that would not serve; nil: it was lost
}

// maxLost is how many nodes may be lost under one request before it ends: a fourth
// would be no accident.
const maxLost = 3

// maxTrying is after how long, besides the policy's wait, no further attempt begins.
// One that runs is never cut for its length.
const maxTrying = 10 * time.Minute

// another finds a lane for the next attempt after one failed. An error is the answer.
func (t *trial) another(ctx context.Context, err error, needs Needs, hopeless error) error {
	from := t.s.claim.instance.node
	if over := t.weigh(err, &needs); over != nil {
		return over
	}
	if over := t.enough(err, hopeless); over != nil {
		return over
	}
	if ctx.Err() != nil {
		return cancelled(ctx)
	}
	if t.lost > 0 && !t.s.m.mayMove(t.s.policy) {
		return t.outOf(fmt.Errorf("too many requests moved in the last minute: %w", err))
	}
	t.tries++
	if err := t.move(ctx, needs, err); err != nil {
		return err
	}
	t.s.policy.Observer.Moved(from.name, why(err))
	return nil
}

// weigh notes whose fault a failed attempt was, and what it taught of the needs. An
// error is the answer.
func (t *trial) weigh(err error, needs *Needs) error {
	s := t.s
	n := s.claim.instance.node
	f := failure{node: n, life: s.claim.life}
	switch e := verdict(n.name, err).(type) {
	case *NodeLost:
		t.said = nil
		s.lostNode(n, e)
		if e.untouched() {
			return nil
		}
		s.m.judge(n, true)
		s.m.blame(s, n, e.Cause)
		t.lost++
	case *RequestError:
		if final(e, t.said) && !needs.Anew { // else it is about our words, not the client's
			return e
		}
		t.said = e
		if e.Reason == ReasonTooLong {
			f.max = max(1, e.Max)
			needs.Prompt = max(needs.Prompt, e.Len)
		}
	default:
		return err
	}
	s.gate <- struct{}{}
	s.failed = append(s.failed, f)
	<-s.gate
	return nil
}

// enough returns the answer where no further attempt makes sense: nobody can go on, or
// too much was tried.
func (t *trial) enough(err, hopeless error) error {
	switch {
	case hopeless != nil && t.said != nil:
		return t.said // its words tell more
	case hopeless != nil:
		return hopeless
	case t.tries >= t.s.policy.Attempts, t.lost >= maxLost, time.Since(t.s.began) > t.s.policy.Wait+maxTrying:
		return t.outOf(err)
	}
	return nil
}

// move gives the lane back and takes one of an instance that can go on.
func (t *trial) move(ctx context.Context, needs Needs, last error) error {
	s := t.s
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
		if t.said != nil && t.said.Reason == ReasonTooLong {
			t.said = nil // one that could hold it was lost
		}
		return t.outOf(last)
	}
	return err
}

// outOf is the answer when nobody is left to try: what the last server said, if it
// said something, else that it was lost.
func (t *trial) outOf(last error) error {
	if t.said != nil {
		return t.said
	}
	return &RequestError{
		Reason:     ReasonLost,
		Message:    "the server that answered was lost, and no other could go on",
		RetryAfter: busyRetry,
		Err:        last,
	}
}

// lostNode marks the node down, unless only this one generation failed on it.
func (s *Session) lostNode(n *node, e *NodeLost) {
	if e.Cause == CauseCrashed {
		return
	}
	if e.Anew {
		s.m.beganAnew(n, s.claim.life)
		return
	}
	s.m.markDown(n, e)
	n.nudge()
}

// untouched reports whether no node got anything of the request yet, so that it
// was not lost: there was nobody to give it to.
func (s *Session) untouched(last error) bool {
	lost, ok := errors.AsType[*NodeLost](last)
	return ok && lost.untouched() && len(s.failed) == 0 && !s.delivered.Load()
}
