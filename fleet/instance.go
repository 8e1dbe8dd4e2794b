package fleet

import (
	"slices"
	"time"
)

// Tokens counts tokens of a model.
type Tokens int64

// State says whether an instance can take a request.
type State uint8

// The states of an instance.
const (
	StateUnloaded State = iota
	StateLoading
	StateReady
	StateSleeping // the model is unloaded until the next request wakes it
	StateFailed
)

// String returns the state's name as it stands in JSON and metrics.
func (s State) String() string {
	switch s {
	case StateUnloaded:
		return "unloaded"
	case StateLoading:
		return "loading"
	case StateReady:
		return "ready"
	case StateSleeping:
		return "sleeping"
	case StateFailed:
		return "failed"
	default:
		return "unknown"
	}
}

// MarshalText returns the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Features is the set of things an instance was seen to be able to do. Versions
// of llama-server differ, so they are probed and never assumed.
type Features uint32

// What an instance may be able to do.
const (
	// ContinueContent: go on with an assistant message whose content is given.
	ContinueContent Features = 1 << iota

	// ContinueReasoning: go on inside the reasoning of an assistant message.
	ContinueReasoning

	// ContinueGrammar: the grammar of a chat's response_format or json_schema goes on
	// behind the content that is given, and does not begin again. Seen: the server
	// objects to continue_final_message and add_generation_prompt both being true, and
	// its /props list a generation_prompt among the default settings.
	ContinueGrammar

	// GenerationPrompt: a completion's grammar or json_schema goes on behind the text
	// of a generation_prompt. Seen: /props list it among the default settings.
	GenerationPrompt

	// ContinueResponses: /v1/responses takes the chat's fields for going on. Seen: what
	// ContinueContent takes, and /v1/responses/input_tokens answers.
	ContinueResponses

	// ContinueMessages: /v1/messages goes on with a final assistant message, and gives
	// its text back in front of the answer. Seen: what ContinueContent takes (older
	// servers do not give it back), /v1/messages/count_tokens answers, and
	// /apply-template leaves a final assistant message open that no field asks it to.
	ContinueMessages
)

// Has reports whether all of want are in the set.
func (f Features) Has(want Features) bool { return f&want == want }

// Instance is one model on one node: what placement chooses.
type Instance struct {
	Node    string // the node's name; the manager sets it
	Model   string
	Aliases []string // further names of the model
	State   State

	Lanes     int    // generations it can run at once; 0: unknown, taken as 1
	Context   Tokens // tokens one generation may hold; 0: unknown
	KVUnified bool   // the lanes share one pool of Context tokens

	// Fingerprint is equal for two instances that can go on with each other's
	// answers: same vocabulary, parameters and chat template. Empty: unknown.
	Fingerprint string
	Features    Features

	Load  Load
	Rates Rates

	// Leaving is how many lanes are taken there by what is none of our requests, or not any
	// more: generations that we gave up and the node has not ended yet, and those of
	// others, where the node divides its lanes.
	Leaving int

	// Routed: the node serves it next to other models and goes by the name of the model
	// that a request asks for.
	Routed bool

	// Port is that of the router's child that serves the model; 0: none, or no router.
	Port int
}

// Serves reports whether the instance answers to the name.
func (i *Instance) Serves(model string) bool {
	return i.Model == model || slices.Contains(i.Aliases, model)
}

// lanes is how many generations it runs at once.
func (i *Instance) lanes() int { return max(1, i.Lanes) }

// Load is what a node says it carries, and when it said so.
type Load struct {
	Active int // generations it runs, ours and others'
	Queued int // requests waiting inside it; no log tells, so 0 where only a log speaks
	Ours   int // how many of these were ours when it said so

	KVUsed  Tokens // held by lanes that are processing
	KVTotal Tokens // 0: unknown

	At time.Time // when its source was last looked at, whole; zero: never
}

// loadTTL is how long a look at a node counts. A silent log is an idle node, not
// an old word. Rates outlive it: what a node does when busy stays true while it idles.
const loadTTL = 10 * time.Second

func (l Load) fresh(now time.Time) bool {
	return !l.At.IsZero() && now.Sub(l.At) < loadTTL
}

// Rates are speeds of one lane in tokens per second; 0: unknown.
type Rates struct {
	Prefill float64
	Decode  float64
}

// Request is what placement has to know of a client's request.
type Request struct {
	Model   string // a name or alias of a served model
	Session string // key of the conversation; empty: none known
	Tenant  string // who pays with their turn in the queue; empty: nobody in particular
	Class   int    // 0 to 9, higher goes first

	// Route is the kind of request, in the caller's words: answers to one kind are
	// expected to be about as long.
	Route string

	Prompt Tokens // estimated length of the prompt
	Out    Tokens // expected length of the answer; 0: unknown

	// Counter has a server count the prompt where the estimate cannot tell whether it
	// fits; nil: none can.
	Counter Counter

	Blocks   []uint64  // hashes of the prompt's blocks, for the warm index
	Deadline time.Time // when it must have been placed; zero: the policy's limit
	Bytes    int64     // of its body, held while it waits

	// Digest stands for the whole request: one under which nodes crash is refused when
	// it comes again. 0: unknown.
	Digest uint64

	// Light: it needs no lane, because no slot of the model server works on it
	// (tokenize, template). It does not wait for one either.
	Light bool

	// Loaded: it is a question that no model is to be loaded for.
	Loaded bool

	// Mixed: where no instance of the same fingerprint is left, another build of the
	// model may go on with the answer.
	Mixed bool
}

// Needs is what an instance must have to go on with a [Job].
type Needs struct {
	// Done: the answer is whole and nobody has to go on; only the end is missing.
	Done bool

	// Fingerprint must be equal to the instance's; empty: any.
	Fingerprint string

	// Features that the instance must have.
	Features Features

	// Anew: where no instance meets the two above, any may begin anew, because the
	// client has nothing yet of what was taken.
	Anew bool

	// Repeat: where no instance has the features, one with the fingerprint may give
	// the answer again from its beginning, and the job finds what the client has of it.
	Repeat bool

	// Prompt is how many tokens the next instance reads, if that is known better
	// than at first; 0: as before.
	Prompt Tokens

	// Left is how many tokens are still to be generated; 0: not limited.
	Left Tokens
}
