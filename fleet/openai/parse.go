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

	// StreamTools passes the parts of a tool call on as they come. Then a loss inside
	// one is the end. Default: they are held until the answer's finish.
	StreamTools bool

	// BlockKey keys the hashes of [fleet.Request.Blocks]: without it they tell nothing
	// of a prompt. All of a fleet have the same. Default: zero, for tests.
	BlockKey [16]byte

	// ContentType is the request's; only multipart bodies need it. Default: JSON.
	ContentType string

	// Header is the request's, and SessionHeader the one that names its conversation
	// before all others; Caller is whose request it is. They make the session's key.
	// Default: none, and only the body tells.
	Header        http.Header
	SessionHeader string
	Caller        string
}

// Job is one request and what became of it. It implements [fleet.Job].
type Job struct {
	kind  *kind
	shape Shape
	opts  Options
	doc   document
	form  form // instead of doc, where the body is one

	model    string // as it is served; empty: the client named none
	alias    bool   // the client named it otherwise
	streams  bool
	usage    bool // the client asked for the usage chunk
	timings  bool // the client asked for timings in every chunk
	progress bool // the client asked for progress chunks
	verbose  bool

	expect  int    // how many choices there will be
	repeats bool   // it can only be gone on with by repeating it all
	seed    string // set by us, so that it can be repeated; empty: not set
	prefill prefill

	relay relay
}

// maxModel bounds a model's name: it is kept by whoever counts or queues requests.
const maxModel = 1 << 10

// Parse reads a request. The body is kept, not copied. A non-nil error is an
// [*Error]: 400 for a body that is wrong, 404 for a path that is not served.
func Parse(path string, body []byte, o Options) (*Job, error) {
	p, ok := PathOf(path)
	if !ok || p.Use != UseJob {
		return nil, &Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
			Message: "there is nothing at this path",
		}
	}
	j := &Job{kind: p.kind, shape: p.Shape, opts: o, expect: 1}
	if p.kind.api == apiAudio {
		if err := j.form.read(o.ContentType, body); err != nil {
			return nil, err
		}
		j.model, j.streams = j.form.model(), j.form.streams()
	} else {
		j.doc.turns = p.kind.turns
		if err := j.doc.read(body); err != nil {
			return nil, err
		}
		j.readFields()
		if err := j.checkChoices(); err != nil {
			return nil, err
		}
	}
	return j, j.nameModel()
}

// checkChoices refuses several answers of Responses, which has one: llama-server mixes the
// events of all of them in one stream, and nobody can tell which is of which.
func (j *Job) checkChoices() error {
	if j.kind.api != apiResponses {
		return nil
	}
	for _, f := range []field{fieldNCmpl, fieldN} {
		if n, ok := j.doc.number(f); ok && n > 1 {
			return invalid(fieldNames[f], "invalid_value", fmt.Sprintf("the field %q can only be 1 here: Responses has one answer", fieldNames[f]))
		}
	}
	return nil
}

// readFields takes from the body what the job has to know.
func (j *Job) readFields() {
	d := &j.doc
	j.model, _ = d.text(fieldModel)
	j.streams = d.isTrue(fieldStream)
	j.usage = d.wantsUsage()
	j.timings = d.isTrue(fieldTimingsPerToken)
	j.progress = d.isTrue(fieldReturnProgress)
	j.verbose = d.isTrue(fieldVerbose)
	if !j.kind.typed() {
		for _, f := range []field{fieldNCmpl, fieldN} {
			if n, ok := d.number(f); ok {
				j.expect = int(min(max(1, n), maxChoices))
				break
			}
		}
	}
	if !j.kind.chats() {
		j.expect = min(j.expect*min(d.prompts(), maxChoices), maxChoices)
	}
	j.prefill = j.readPrefill()
	j.repeats = j.mustRepeat()
	if j.opts.Resume == ResumeOn && j.streams && (j.repeats || j.schema()) && !d.seeded() {
		j.seed = newSeed()
	}
}

// nameModel puts the model's name as it is served in the place of the client's.
func (j *Job) nameModel() error {
	if len(j.model) > maxModel {
		return invalid("model", "too_long", fmt.Sprintf("the model's name is longer than %d bytes", maxModel))
	}
	if to, ok := j.opts.Aliases[j.model]; ok && j.model != "" && to != j.model {
		j.model, j.alias = to, true
	}
	return nil
}

// Want returns what placement has to know.
func (j *Job) Want() fleet.Request {
	if j.kind.api == apiAudio {
		return fleet.Request{Model: j.model, Route: j.kind.path, Session: j.session(), Bytes: j.size()}
	}
	out, _ := j.budget()
	return fleet.Request{
		Model:   j.model,
		Route:   j.kind.path,
		Session: j.session(),
		Prompt:  j.doc.guess(),
		Counter: j,
		Out:     out,
		Blocks:  j.blocks(),
		Bytes:   j.size(),
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
