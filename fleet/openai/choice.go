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
	ids       []byte // of the text's tokens, as elements of an array
	now, done choiceMark

	again again
	wait  waiting

	// Only of whole answers.
	finish   []byte // as JSON
	logprobs []byte // the elements of logprobs.content
	tokens   []byte // all the server told, as elements of an array
	last     []byte // the whole of the chunk that ended it
	stop     []byte // how it ended, in Messages
}

// waiting is what came since a tool call began. It waits for the finish, and is
// forgotten when the node is lost.
type waiting struct {
	on     bool
	role   bool    // the role is in it
	opened opening // what is opened in it
	closed opening // what is closed in it
	chunks int64
	events []byte // of a stream

	// Of a whole answer.
	calls              []call
	content, reasoning []byte
	size               int
}

// choiceMark is how far a choice has come.
type choiceMark struct {
	content, reasoning int     // so much of the text
	logprobs           int     // so much of them
	ids                int     // so much of them
	tokens             bool    // ids stands for the text
	seen               int64   // tokens that the present node counted
	role               bool    // the role was said
	opened, closed     opening // of what a stream has to open
	said               bool    // text is out
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
	ms     decimal
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
	begun       bool   // something was delivered
	repeats     bool   // the present attempt gives all of the answer
	blocks      blocks // of the present attempt
	ids         itemIDs

	envelope [envelopes][]byte // as JSON, of the first node the client heard of
	owner    int               // the attempt it is of; 0: none yet
	owned    bool              // it was delivered
	taken    bool              // something was, and is not delivered yet
	steady   steady

	choices []choice
	size    int  // of all text that is kept
	full    bool // what is new is not kept any more
	asked   int  // how long the present attempt's body is

	past      past
	cur       figures
	now, done mark
	sent      sent

	lastIndex int64 // of the choice that finished last
	rawUsage  []byte
	rawTiming []byte

	rawVerbose []byte
}

// begin starts an attempt.
func (r *relay) begin(i fleet.Instance, w way) {
	if r.done.text {
		f := r.cur
		f.predictedMs = r.done.ms
		if r.repeats {
			r.past = past{}
		}
		r.past.fold(f, r.done.tokens)
	}
	r.attempt++
	r.repeats = w == wayRepeat
	r.fingerprint = i.Fingerprint
	if r.fingerprint == "" {
		r.fingerprint = "unknown: " + i.Node + "/" + i.Model
	}
	r.cur, r.now, r.done, r.sent = figures{}, mark{usage: r.done.usage}, mark{usage: r.done.usage}, sent{}
	r.blocks = blocks{}
	r.chunk.alike.rest, r.steady = r.chunk.alike.rest[:0], steady{} // figures were found in what came before, by another node
	for k := range r.choices {
		r.choices[k].begin(r)
	}
}

// begin forgets what the lost node left waiting.
func (ch *choice) begin(r *relay) {
	ch.now.role = ch.now.role && !ch.wait.role
	ch.now.opened &^= ch.wait.opened
	ch.now.seen = 0
	ch.done = ch.now
	r.size -= ch.wait.size
	ch.wait, ch.again = waiting{}, again{}
	if r.repeats {
		ch.again = again{content: ch.content, reasoning: ch.reasoning, came: true}
	}
}

// before is what earlier nodes delivered of the answer to which the present one only
// adds.
func (r *relay) before() past {
	if r.repeats {
		return past{}
	}
	return r.past
}

// first returns the figures of the node whose prompt is the answer's.
func (r *relay) first() figures {
	if p := r.before(); p.nodes > 0 {
		return p.first
	}
	return r.cur
}

// tokens is how many were generated and delivered.
func (r *relay) tokens() int64 {
	if r.repeats && !r.done.text {
		return r.past.tokens
	}
	return r.before().tokens + r.done.tokens
}

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
	r.done, r.taken = r.now, false
	r.owned = r.owned || r.owner > 0
	r.begun = r.begun || r.done.text
	if r.begun && r.home == "" {
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
	r.now, r.taken = r.done, false
	if !r.owned {
		r.owner = 0
	}
	for i := range r.chunk.parts {
		ch := r.touched(i)
		if ch == nil {
			continue
		}
		r.size -= ch.now.content - ch.done.content + ch.now.reasoning - ch.done.reasoning +
			ch.now.logprobs - ch.done.logprobs + ch.now.ids - ch.done.ids
		ch.now = ch.done
		ch.content, ch.reasoning = ch.content[:ch.now.content], ch.reasoning[:ch.now.reasoning]
		ch.logprobs, ch.ids = ch.logprobs[:ch.now.logprobs], ch.ids[:ch.now.ids]
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
