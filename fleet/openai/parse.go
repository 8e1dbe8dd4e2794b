package openai

import (
	"fmt"
	"net/http"

	"github.com/slotfleet/slotfleet/fleet"
)

// Resume says how far an answer is carried on when its node is lost.
type Resume uint8

// The values of [Resume].
const (
	// ResumeOn goes on from what was delivered wherever that is exact.
	ResumeOn Resume = iota

	// ResumeBeforeFirstByte only sends again what delivered nothing yet.
	ResumeBeforeFirstByte

	// ResumeOff is ResumeBeforeFirstByte here: that a request may go to a second
	// node at all is not decided in this package.
	ResumeOff
)

// Options are what the configuration says of requests.
type Options struct {
	// Aliases maps a model's name as clients say it to the one that is served.
	// Default: none.
	Aliases map[string]string

	// Resume says whether answers survive their node. Default: ResumeOn.
	Resume Resume
}

// kind is a way of asking for a generation.
type kind struct {
	path   string // what the model server is asked
	chat   bool   // messages in, deltas out; else a prompt in and text out
	object string // of a whole answer
}

var (
	chat = &kind{
		path: "/v1/chat/completions", chat: true, object: "chat.completion",
	}
	completion = &kind{path: "/v1/completions", object: "text_completion"}
)

// kinds are the paths served. /completions without /v1 is not among them: there
// llama-server speaks its own language.
var kinds = map[string]*kind{
	"/v1/chat/completions": chat,
	"/chat/completions":    chat,
	"/v1/completions":      completion,
}

// Serves reports whether requests to the path are for this package.
func Serves(path string) bool { return kinds[path] != nil }

// Job is one request and what became of it. It implements [fleet.Job].
type Job struct {
	kind *kind
	opts Options
	doc  document

	model    string // as it is served; empty: the client named none
	alias    bool   // the client named it otherwise
	streams  bool
	usage    bool // the client asked for the usage chunk
	timings  bool // the client asked for timings in every chunk
	progress bool // the client asked for progress chunks
	verbose  bool

	expect  int    // how many choices there will be
	blocked string // why nobody can go on with it, for the client; empty: it can be
	prefill prefill

	relay relay
}

// maxModel bounds a model's name: it is kept by whoever counts or queues requests.
const maxModel = 1 << 10

// Parse reads a request. The body is kept, not copied. A non-nil error is an
// [*Error]: 400 for a body that is wrong, 404 for a path that is not served.
func Parse(path string, body []byte, o Options) (*Job, error) {
	k := kinds[path]
	if k == nil {
		return nil, &Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
			Message: "there is nothing at this path",
		}
	}
	j := &Job{kind: k, opts: o}
	if err := j.doc.read(body); err != nil {
		return nil, err
	}
	d := &j.doc
	j.model, _ = d.text(fieldModel)
	if len(j.model) > maxModel {
		return nil, invalid("model", "too_long", fmt.Sprintf("the model's name is longer than %d bytes", maxModel))
	}
	if to, ok := o.Aliases[j.model]; ok && j.model != "" && to != j.model {
		j.model, j.alias = to, true
	}
	j.streams = d.isTrue(fieldStream)
	j.usage = d.wantsUsage()
	j.timings = d.isTrue(fieldTimingsPerToken)
	j.progress = d.isTrue(fieldReturnProgress)
	j.verbose = d.isTrue(fieldVerbose)
	j.expect = 1
	if n, ok := d.number(fieldN); ok {
		j.expect = int(min(max(1, n), maxChoices))
	}
	if !k.chat {
		j.expect = min(j.expect*min(d.prompts(), maxChoices), maxChoices)
	}
	j.prefill = j.readPrefill()
	j.blocked = j.obstacle()
	return j, nil
}

// Want returns what placement has to know.
func (j *Job) Want() fleet.Request {
	out, _ := j.doc.budget()
	return fleet.Request{
		Model:  j.model,
		Prompt: fleet.Tokens(len(j.doc.body)+3) / 4,
		Out:    out,
		Bytes:  int64(len(j.doc.body)),
	}
}

// Streams reports whether the client asked for a stream.
func (j *Job) Streams() bool { return j.streams }

// ContentType returns the type of the answer, where it is not an error's.
func (j *Job) ContentType() string {
	if j.streams {
		return "text/event-stream"
	}
	return "application/json"
}

var _ fleet.Job = (*Job)(nil)
