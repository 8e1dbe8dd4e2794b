package fleet

import "time"

// Outcome says how a request ended.
type Outcome string

// The outcomes.
const (
	OutcomeWhole     Outcome = "whole"     // the client has the whole answer
	OutcomeCancelled Outcome = "cancelled" // the client left
	OutcomeRefused   Outcome = "refused"   // refused before anything was delivered
	OutcomeBroken    Outcome = "broken"    // ended with an error after something was delivered
)

// Record is the account of one request, made when it ends.
type Record struct {
	Session string // id of the session
	Model   string // as served; empty: it was never placed
	Node    string // that answered last; empty: it was never placed
	Outcome Outcome
	Reason  Reason // why, unless whole

	Waited     time.Duration // until the first lane was had
	FirstToken time.Duration // from admission to the first data; 0: none came
	Took       time.Duration // from admission to the end

	Moves     int    // attempts after the first
	Mixed     bool   // another build of the model went on with it
	Generated Tokens // by all nodes
}

// Observer hears what happens while requests run; what became of one in the end is in
// its [Record]. Its methods are called outside all locks, must not block, and come
// from many goroutines.
type Observer interface {
	// Moved: a running request left a node, for a cause or a reason.
	Moved(node, why string)

	// Generated: a node generated so many tokens for a request of ours.
	Generated(node, model string, n Tokens)

	// Reused: of a prompt, so many tokens were expected to be in the node's cache,
	// and so many were.
	Reused(node, model string, expected, actual Tokens)

	// Refused: a request met a limit of the queue: requests, bytes, or expired, for
	// it waited too long.
	Refused(limit string)
}

type deaf struct{}

func (deaf) Moved(string, string)             {}
func (deaf) Generated(string, string, Tokens) {}

func (deaf) Refused(string) {}

func (deaf) Reused(string, string, Tokens, Tokens) {}
