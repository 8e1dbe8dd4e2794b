package caddymodule

import (
	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// clientJob is a client's job within what the configuration allows. It holds no more than
// there is memory for: where none is left, it first gives up being able to go on after the
// loss of its node; one whose answer is itself what it holds ends.
type clientJob struct {
	*openai.Job
	mem  *share
	ends func() // told before the last bytes
	once bool   // nobody goes on with it on another node

	lean bool  // it gave up going on for want of memory, and is not asked again
	out  error // it ends with this
}

// Request takes the memory for a body before that is made.
func (j *clientJob) Request(i fleet.Instance) (fleet.Assignment, error) {
	if !j.lean && !j.mem.keep(j.Held()+j.Asking()) {
		j.out = errNoMemory
		return fleet.Assignment{}, j.out
	}
	a, err := j.Job.Request(i)
	if err == nil && !j.lean {
		j.mem.keep(j.Held()) // the body of the last attempt is not needed any more
	}
	return a, err
}

// Take takes the memory for what an event left to be kept.
func (j *clientJob) Take(e fleet.Event) ([]byte, error) {
	out, err := j.Job.Take(e)
	if err != nil || j.lean || j.mem.keep(j.Held()) {
		return out, err
	}
	if !j.LetGo() {
		j.out = errNoMemory
		return nil, j.out
	}
	j.lean = true
	j.mem.keep(j.Held())
	return out, nil
}

// Needs says that nobody needs to go on, if that is for want of memory, or that nobody may.
func (j *clientJob) Needs() (fleet.Needs, error) {
	if j.out != nil {
		return fleet.Needs{}, j.out
	}
	needs, err := j.Job.Needs()
	if !j.once || err != nil || needs.Done {
		return needs, err
	}
	return fleet.Needs{}, &fleet.RequestError{
		Reason:  fleet.ReasonLost,
		Message: "the server that answered was lost",
	}
}

// End returns what closes the answer.
func (j *clientJob) End(err error) []byte {
	j.ends()
	return j.Job.End(err)
}

// Interface guards.
var _ fleet.Job = (*clientJob)(nil)
