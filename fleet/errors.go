package fleet

import (
	"fmt"
	"time"
)

// Cause says how a node was lost.
type Cause string

// The causes of a loss.
const (
	CauseRefused  Cause = "refused"   // no connection: nothing of the request was sent
	CauseReset    Cause = "reset"     // the connection broke
	CauseClosed   Cause = "closed"    // the stream ended before the answer did
	CauseTimedOut Cause = "timed_out" // no connection within the limit, or no answer to a probe
	CauseStalled  Cause = "stalled"   // the connection stands, but nothing came for too long
	CauseCrashed  Cause = "crashed"   // the server said itself that its engine failed
	CauseLoading  Cause = "loading"   // the server is up, its model is not
	CauseUnusable Cause = "unusable"  // it answers, but not as a server that we can use
)

// NodeLost says that a node failed in the middle of something, and that another
// one may go on with it.
type NodeLost struct {
	Node  string
	Cause Cause
	Err   error // what was seen; never shown to a client

	// Anew: the node that is there now is another run than the one that was lost, and can
	// be asked for what that failed at.
	Anew bool
}

func (e *NodeLost) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("node %s lost: %s", e.Node, e.Cause)
	}
	return fmt.Sprintf("node %s lost: %s: %v", e.Node, e.Cause, e.Err)
}

func (e *NodeLost) Unwrap() error { return e.Err }

// untouched reports whether the node got nothing of the request, so that the same
// node may be asked again.
func (e *NodeLost) untouched() bool {
	return e.Cause == CauseRefused || e.Cause == CauseLoading
}

// Reason says why a request has no answer.
type Reason string

// The reasons.
const (
	ReasonTooLong      Reason = "too_long"      // Len tokens, and no instance holds more than Max
	ReasonNoNode       Reason = "no_node"       // nothing that is up serves the model
	ReasonUnknownModel Reason = "unknown_model" // nothing serves the model at all
	ReasonOverloaded   Reason = "overloaded"    // the queue is full
	ReasonExpired      Reason = "expired"       // no lane became free in time
	ReasonDeclined     Reason = "declined"      // this server cannot do it, another one may
	ReasonRefused      Reason = "refused"       // the model server says that the request is wrong
	ReasonCancelled    Reason = "cancelled"     // the client left
	ReasonBroken       Reason = "broken_output" // the model's output did not have the form asked for
	ReasonLost         Reason = "lost"          // its node was lost and nobody could go on
	ReasonStopping     Reason = "stopping"      // the process is ending
	ReasonAborted      Reason = "aborted"       // an operator ended it
	ReasonQuarantined  Reason = "quarantined"   // two servers crashed under it
)

// RequestError says why a request has no answer; the node is not to blame.
type RequestError struct {
	Reason  Reason
	Message string // for the client: names no node, address or key

	Len, Max   Tokens        // with ReasonTooLong; 0: unknown
	RetryAfter time.Duration // when trying again makes sense; 0: unknown

	// Reply is the model server's own answer, where that is what the client
	// should get.
	Reply *Reply

	// Again: another server may answer otherwise. If it says the same, that is
	// the answer.
	Again bool

	Err error
}

func (e *RequestError) Error() string {
	s := string(e.Reason)
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *RequestError) Unwrap() error { return e.Err }
