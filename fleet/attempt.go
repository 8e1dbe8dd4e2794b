package fleet

import (
	"context"
	"errors"
	"time"
)

// generation is a job that is run for a client.
type generation struct {
	s     *Session
	job   Job
	write func([]byte) error

	waits []byte // what goes to the client together with the event that follows at once
}

func (g *generation) needs() (Needs, error) { return g.job.Needs() }

// attempt runs the job once, on the instance that is held.
func (g *generation) attempt(ctx context.Context) error {
	s := g.s
	i := s.claim.state
	if s.home != "" {
		i.Fingerprint = s.home // another build of the model passes for the same
	}
	a, err := g.job.Request(i)
	if err != nil {
		return err
	}
	a.Model, a.Unload = i.Model, s.claim.unloads()
	a.Patience = s.patience()
	var t meter
	var heard time.Duration
	a.Measured = func(last Timings) { t.Timings = last }
	n := s.claim.instance.node
	err = n.link.Run(ctx, a, func(e Event) error {
		// A sign of life with every token would be more than anybody needs to know.
		if now := time.Since(s.began); heard == 0 || now-heard > hearEvery {
			heard = now
			n.hear()
			s.spoke.Store(true)
		}
		switch {
		case t.saw(e) && t.chunks == 1:
			s.decodes()
		case e.Progress != nil:
			s.m.reads(s.claim, *e.Progress)
		}
		return g.pass(ctx, e)
	})
	if e := g.flush(); e != nil {
		err = e
	}
	s.m.learn(s.claim, &s.request, t.Timings)
	if expected, actual, ok := s.m.learnCache(s.claim, &t); ok {
		s.policy.Observer.Reused(i.Node, i.Model, expected, actual)
	}
	if tokens := t.generated(); tokens > 0 {
		s.generated(tokens)
	}
	return err
}

// hearEvery is how often the events of an attempt count as signs of life.
const hearEvery = 100 * time.Millisecond

// errClientGone: a write to the client failed.
var errClientGone = errors.New("the client does not read any more")

// pass hands on what the client may have of an event.
func (g *generation) pass(ctx context.Context, e Event) error {
	s := g.s
	s.gate <- struct{}{}
	defer func() { <-s.gate }()
	if ctx.Err() != nil {
		return context.Cause(ctx) // a command came between; what it saw is what counts
	}
	out, err := g.job.Take(e)
	if err != nil || len(out) == 0 && len(g.waits) == 0 {
		return err
	}
	if e.More || len(g.waits) > 0 {
		g.waits = append(g.waits, out...)
		if !e.More || len(g.waits) > maxTogether {
			err = g.flush()
		}
	} else {
		err = g.hand(out)
	}
	if err != nil || len(out) == 0 {
		return err
	}
	s.events.Add(1)
	g.job.Delivered()
	return nil
}

// maxTogether bounds what is written at once.
const maxTogether = 32 << 10

// flush writes what waits for an event that did not come.
func (g *generation) flush() error {
	if len(g.waits) == 0 {
		return nil
	}
	out := g.waits
	g.waits = g.waits[:0]
	return g.hand(out)
}

// hand gives the client bytes.
func (g *generation) hand(out []byte) error {
	if err := g.write(out); err != nil {
		return errors.Join(errClientGone, err)
	}
	g.s.delivered.Store(true)
	g.s.bytes.Add(int64(len(out)))
	return nil
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

// decodes notes that an attempt said its first word.
func (s *Session) decodes() {
	s.phase.Store(int32(PhaseDecode))
	s.m.writes(s.claim)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.record.FirstToken == 0 {
		s.record.FirstToken = max(1, time.Since(s.began))
	}
}

// generated counts what an attempt generated.
func (s *Session) generated(tokens Tokens) {
	s.m.mu.Lock()
	s.record.Generated += tokens
	s.m.mu.Unlock()
	s.policy.Observer.Generated(s.claim.state.Node, s.claim.state.Model, tokens)
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
