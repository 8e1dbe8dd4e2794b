package caddymodule

import (
	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// bounded is a job that holds no more than there is memory for. Where none is left,
// it first gives up being able to go on after the loss of its node; one whose answer is
// itself what it holds ends.
type bounded struct {
	*openai.Job
	mem *share

	lean bool  // it gave that up, and is not asked again
	out  error // it ends with this
}

// Request takes the memory for a body before that is made.
func (j *bounded) Request(i fleet.Instance) (fleet.Assignment, error) {
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
func (j *bounded) Take(e fleet.Event) ([]byte, error) {
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

// Needs says that nobody needs to go on, if that is for want of memory.
func (j *bounded) Needs() (fleet.Needs, error) {
	if j.out != nil {
		return fleet.Needs{}, j.out
	}
	return j.Job.Needs()
}

// Interface guards.
var _ fleet.Job = (*bounded)(nil)
