package fleet

import (
	"context"
	"time"
)

// A Link reaches one node. fleet/llamacpp and linkf implement it.
//
// All methods may be called from several goroutines at once.
type Link interface {
	// Run runs one generation. It calls take for each event in order, from this
	// goroutine, and returns nil when the server ended its answer, take's error
	// if that was not nil, and otherwise a [*NodeLost] or a [*RequestError].
	//
	// A nil error is not proof of a whole answer: only the [Job], which reads the
	// events, knows whether a finish reason came. When ctx ends, Run closes the
	// connection, so that the server frees the lane, and returns ctx's cause.
	Run(ctx context.Context, a Assignment, take func(Event) error) error

	// Call does something short and idempotent.
	Call(ctx context.Context, c Call) (Reply, error)

	// Watch tells f what the node offers and carries, as soon as that is known and
	// whenever it changes, until ctx ends. A link that has to ask for it does so
	// only on [OpProbe]; when to ask, and when again, is the manager's decision.
	Watch(ctx context.Context, f func(NodeState))

	// Close ends the link. Generations that run through it end as lost.
	Close(reason string) error
}

// A Voucher is a [Link] to a node that looks after its server itself, and has Watch tell
// at once when that does not answer: who hears of the node need not ask.
type Voucher interface {
	// Vouched returns when the node was last heard of, and how long its server may have
	// been silent by then without the node's looking. Zero: it does not look.
	Vouched() (at time.Time, within time.Duration)
}

// A Job is what one client asked for: it writes the request for an instance,
// reads the events, and knows what is still missing. It is one state machine,
// never used by two goroutines at once. Needs may be asked between any two events.
type Job interface {
	// Request returns what to send to this instance now: at first the client's
	// request, after a failure the request for the rest.
	Request(Instance) (Assignment, error)

	// Take reads one event and returns the bytes that the client may have now:
	// none while something is held back. The bytes are valid until the next call.
	// An error ends the attempt.
	Take(Event) (out []byte, err error)

	// Delivered says that the client has the bytes of the last Take, or gets them
	// before any others.
	Delivered()

	// Needs says what an instance must be able to do to go on from what was
	// delivered, or the reason why nobody can.
	Needs() (Needs, error)

	// End returns the closing bytes (nil error), or the error end in the form of
	// the path that was asked.
	End(error) []byte
}

// Assignment is one generation for one instance.
type Assignment struct {
	// Path, ContentType and Body are the request in the language of the model server.
	// fleet does not look into them. Body must not be changed while Run runs. An empty
	// ContentType is application/json.
	Path        string
	ContentType string
	Body        []byte

	// Model is the instance's model. The manager sets it.
	Model string

	// Unload names another model of the node that has to go first, because all of its
	// places are taken. The manager sets it.
	Unload string

	// Patience bounds silence. The manager sets it.
	Patience Patience

	// Measured, if not nil, may be told the last timings once, before Run returns and
	// however it ended; events need not carry them then. The manager sets it: of the
	// figures that come with every token it needs the last.
	Measured func(Timings)
}

// EventKind says what an [Event] is.
type EventKind uint8

// The kinds of events.
const (
	EventOpen  EventKind = iota + 1 // the server accepted the request: it has a lane
	EventData                       // one SSE payload
	EventAlive                      // a sign of life without data: a ping
)

// Event is one thing that a node said during a generation.
type Event struct {
	Kind EventKind

	// Data is one SSE payload, opaque to fleet, valid until take returns.
	Data []byte

	// Progress is set on an event that only tells how far the prefill is.
	Progress *Progress

	// Timings are the server's own figures, where the event carried them and
	// [Assignment.Measured] is not told them.
	Timings *Timings

	// More says that the next event is here already and follows at once: what the
	// client may have of this one may be written together with that.
	More bool
}

// Progress is how much of the prompt is in the cache of the server.
type Progress struct {
	Total     Tokens // of the prompt
	Cached    Tokens // found in the cache
	Processed Tokens // in the cache now, those found there included
}

// Timings are llama-server's figures for one generation so far. Cached + Prompt
// is the length of the prompt; Predicted counts the end-of-text token too.
type Timings struct {
	Cached    Tokens
	Prompt    Tokens
	Predicted Tokens

	PromptPerSecond    float64 // tokens/s; 0: not said
	PredictedPerSecond float64 // tokens/s; 0: not said
}

// Op names what a [Call] is for.
type Op uint8

// The operations of a [Call].
const (
	OpProbe  Op = iota + 1 // learn what the node offers, and have Watch tell it
	OpHealth               // only see whether it answers
	OpAsk                  // one request of the model server's API, answered whole
)

// Call is a short, idempotent request to a node.
type Call struct {
	Op Op

	// The request of an [OpAsk], in the language of the model server. fleet does not
	// look into it. Body must not be changed while Call runs.
	Method      string
	Path        string
	ContentType string
	Body        []byte

	// Model is the instance's model. The manager sets it.
	Model string

	// Unload names another model of the node that has to go first. The manager sets it.
	Unload string

	// Patience bounds silence. The manager sets it.
	Patience Patience

	// Room, if not nil, is asked before the answer takes n bytes of memory in all, from
	// the goroutine of Call. Its error ends the call, which is not made again.
	Room func(n int64) error
}

// Reply is what a model server answered, for the layer that asked.
type Reply struct {
	Status      int // in the protocol of the link; HTTP's for llama-server
	ContentType string
	Body        []byte
}

// NodeState is all that a node offers and carries.
type NodeState struct {
	Instances []Instance

	// Places is how many instances the node can have loaded at once; 0: no limit.
	Places int

	// Loads: a request for an instance that is not loaded has the node load it.
	Loads bool

	// Leaving: the node takes nothing new, for it is about to stop. The manager drains it
	// until the next state without it, which is one of another run.
	Leaving bool

	// Down is why the node cannot be used, where the link itself noticed that.
	Down error

	// Away is how the link lost its connection, where the node may go on with what it
	// has and come back. The next state without it says that it did; generations that
	// run through the link must bear the gap until the manager ends them.
	Away error
}
