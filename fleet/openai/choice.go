package openai

import "github.com/slotfleet/slotfleet/fleet"

// Bounds of what one answer may hold here.
const (
	maxChoices = 128
	maxHeld    = 8 << 20  // of tool calls, before they are streamed on
	maxText    = 16 << 20 // of text that is kept to go on from, or to assemble
	maxCalls   = 256      // of tools in one choice
)

// choice is one of the answers to a request.
type choice struct {
	content   []byte
	reasoning []byte
	now, done choiceMark

	wait waiting

	// Only of whole answers.
	finish   []byte // as JSON
	logprobs []byte // the elements of logprobs.content
}

// waiting is what came since a tool call began. It waits for the finish, and is
// forgotten when the node is lost.
type waiting struct {
	on     bool
	role   bool // the role is in it
	chunks int64
	events []byte // of a stream

	// Of a whole answer.
	calls              []call
	content, reasoning []byte
	size               int
}

// choiceMark is how far a choice has come.
type choiceMark struct {
	content, reasoning int  // so much of the text
	logprobs           int  // so much of them
	role               bool // the role was said
	said               bool // text is out
	finished           bool
	tools              bool // a part of a tool call is out
	opaque             bool // something is out that cannot be sent on
}

// mark is how far the present attempt has come.
type mark struct {
	text  bool // something of the answer came
	usage int  // usage figures that are out

	sawContent, sawReasoning bool

	tokens int64
	told   bool // tokens is what the server said with the last text
	ms     float64
	hasMs  bool
}

// sent is the text that the present attempt was given to go on with.
type sent struct{ content, reasoning []byte }

// relay is the state of an answer over all attempts. Whatever has a now and a done
// is taken first and delivered then.
type relay struct {
	chunk   chunk
	edits   edits
	out     []byte
	scratch []byte

	attempt     int
	fingerprint string // of the present instance
	home        string // of the first that delivered something

	envelope [envelopes][]byte // as JSON, of the first node the client heard of
	owner    int               // the attempt it is of; 0: none yet
	owned    bool              // it was delivered

	choices []choice
	size    int  // of all text that is kept
	full    bool // more came than is kept

	past      past
	cur       figures
	now, done mark
	sent      sent

	lastIndex int64 // of the choice that finished last
	rawUsage  []byte
	rawTiming []byte
}

// begin starts an attempt.
func (r *relay) begin(i fleet.Instance) {
	if r.done.text {
		f := r.cur
		f.predictedMs, f.hasMs = r.done.ms, r.done.hasMs
		r.past.fold(f, r.done.tokens)
	}
	r.attempt++
	r.fingerprint = i.Fingerprint
	if r.fingerprint == "" {
		r.fingerprint = "unknown: " + i.Node + "/" + i.Model
	}
	r.cur, r.now, r.done, r.sent = figures{}, mark{usage: r.done.usage}, mark{usage: r.done.usage}, sent{}
	for k := range r.choices {
		ch := &r.choices[k]
		ch.now.role = ch.now.role && !ch.wait.role
		ch.done.role = ch.now.role
		r.size -= ch.wait.size
		ch.wait = waiting{}
	}
}

// first returns the figures of the node whose prompt is the answer's.
func (r *relay) first() figures {
	if r.past.nodes > 0 {
		return r.past.first
	}
	return r.cur
}

// tokens is how many were generated and delivered.
func (r *relay) tokens() int64 { return r.past.tokens + r.done.tokens }

// at returns the choice of an index.
func (r *relay) at(index int64) *choice {
	for int64(len(r.choices)) <= index {
		r.choices = append(r.choices, choice{})
	}
	return &r.choices[index]
}

// Delivered says that the bytes of the last Take were written to the client.
func (j *Job) Delivered() {
	r := &j.relay
	r.done = r.now
	r.owned = r.owned || r.owner > 0
	if r.done.text && r.home == "" {
		r.home = r.fingerprint
	}
	for i := range r.chunk.parts {
		if ch := r.touched(i); ch != nil {
			ch.done = ch.now
		}
	}
}

// rollback forgets what was taken and not delivered.
func (j *Job) rollback() {
	r := &j.relay
	r.now = r.done
	if !r.owned {
		r.owner = 0
	}
	for i := range r.chunk.parts {
		ch := r.touched(i)
		if ch == nil {
			continue
		}
		r.size -= ch.now.content - ch.done.content + ch.now.reasoning - ch.done.reasoning + ch.now.logprobs - ch.done.logprobs
		ch.now = ch.done
		ch.content, ch.reasoning = ch.content[:ch.now.content], ch.reasoning[:ch.now.reasoning]
		ch.logprobs = ch.logprobs[:ch.now.logprobs]
	}
}

// touched returns the choice that a part of the last chunk was for; nil: it did not
// come to that. The now and the done of all others are equal.
func (r *relay) touched(part int) *choice {
	if k := r.chunk.parts[part].index; k < int64(len(r.choices)) {
		return &r.choices[k]
	}
	return nil
}

// finished reports whether the finish of every choice was delivered.
func (j *Job) finished() bool {
	r := &j.relay
	if len(r.choices) < j.expect {
		return false
	}
	for k := range r.choices[:j.expect] {
		if !r.choices[k].done.finished {
			return false
		}
	}
	return true
}
