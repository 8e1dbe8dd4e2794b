package fleet

import (
	"slices"
	"time"
)

// waiter is a request, or the rest of one, that looks for a lane.
type waiter struct {
	Request
	needs  Needs
	policy *Applied
	failed []failure
	first  bool // somebody reads its answer already
	kept   bool // it began and gave way: no limit of the queue holds for it but its Deadline
	cursor int  // of round_robin, drawn once
	blocks []uint64

	bound *instance // whose lane it waits for; nil: any
	share share     // of the work there
	held  time.Time // since when it waits for any lane; zero: it does not

	again  time.Time // when choose is to be asked again, though nothing happened; zero: not
	asked  bool      // it was asked once
	room   room      // it needs, as search saw last
	stands position  // in the queue

	settled chan struct{}  // closed when claim or err is set; nil: it never had to wait
	asks    chan time.Time // that again was set
	claim   *claim
	lane    claim // what claim points to
	err     error
	why     error // why it has to wait, as the answer when it waited too long
}

// failure is a node that failed a request and does not get it again, unless it was
// away since: then it is another process.
type failure struct {
	node *node
	life int    // of the node
	max  Tokens // the context that it said is too small; 0: it failed otherwise
}

// failedOn returns how the request failed on the node that is there now; nil: it did
// not.
func (w *waiter) failedOn(n *node) *failure {
	for i := range w.failed {
		if f := &w.failed[i]; f.node == n && f.life == n.lives {
			return f
		}
	}
	return nil
}

func (w *waiter) everFailedOn(n *node) bool {
	return slices.ContainsFunc(w.failed, func(f failure) bool { return f.node == n })
}

func (w *waiter) settle(c *claim, err error) {
	w.claim, w.err = c, err
	if w.settled != nil {
		close(w.settled)
	}
}

func (w *waiter) isSettled() bool { return w.claim != nil || w.err != nil }

// alike is what requests have in common that can run on the same instances: where
// one of them found no lane, the others find none.
type alike struct {
	policy      *Applied
	model       string
	fingerprint string
	features    Features
	anew, mixed bool
	light       bool
	repeat      bool
	failed      failure
	bound       *instance
	room        room
	alone       *waiter // that failed on several nodes: few do
}

func (w *waiter) alike() alike {
	a := alike{
		policy: w.policy, model: w.Model, bound: w.bound,
		fingerprint: w.needs.Fingerprint, features: w.needs.Features,
		anew: w.needs.Anew, repeat: w.needs.Repeat, mixed: w.Mixed,
		light: w.Light, room: w.room,
	}
	switch len(w.failed) {
	case 0:
	case 1:
		a.failed = w.failed[0]
	default:
		a.alone = w
	}
	return a
}

// size is how long the prompt is, as far as known.
func (w *waiter) size() Tokens { return max(w.Prompt, w.needs.Prompt) }
