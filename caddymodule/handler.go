package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// Handler answers the OpenAI API with the nodes of the `fleet` app. Each request goes
// to the node that will have answered it soonest; when that one fails, another goes
// on from what the client has.
//
// It serves the paths of llama-server, with and without `/v1` as that does: all kinds of
// generation (chat, completions, Responses, Messages, infill, transcription), embeddings,
// rerank, tokenize and the like, `/v1/models`, `/v1/models/{id}`, `/props` and
// `/v1/health`. Paths by which a llama-server is managed are answered 404. Anything
// else, and every OPTIONS, goes to the next handler.
//
// With a file of keys, everything but `/health` needs one of them. No header of a client
// goes to a node and none of a node's to a client. Errors are
// answered in the form of the API that was asked, OpenAI's or Anthropic's, not through
// error routes.
//
// These placeholders are set once a request was answered:
//
// Placeholder | Description
// ------------|---------------
// `{http.fleet.request_id}` | The request's id, as in `X-Request-Id`; set at the beginning
// `{http.fleet.node}` | The node that answered, the last one if there were several
// `{http.fleet.model}` | The model that answered
// `{http.fleet.outcome}` | `whole`, `cancelled`, `refused` or `broken`
// `{http.fleet.reason}` | Why, unless whole
// `{http.fleet.queue}` | How long the request waited for a lane
// `{http.fleet.first_token}` | How long it took until the model said something
// `{http.fleet.moves}` | How often the request went on to another node
// `{http.fleet.tokens}` | How many tokens were generated
//
// With a file of keys, `{http.auth.user.id}` is the name of the key.
//
// The access log gets the same as fields: `request_id`, `node`, `model`, `outcome`,
// `reason`, `session`, `queue`, `first_token`, `moves`, `tokens` and `mixed`.
type Handler struct {
	// The file that says who may ask, with which key and how much; see docs/keys.md. May
	// have placeholders, such as `{env.KEYS}`. It is read again when it changes. Default:
	// none, whoever reaches the site may ask.
	Keys string `json:"keys,omitempty"`

	// Further names of models: what clients say, and what is served. Default: none.
	Aliases map[string]string `json:"aliases,omitempty"`

	// Take any model name while exactly one model is served. Default: false.
	AnyModel bool `json:"any_model,omitempty"`

	// The largest request body in bytes, as sent and also when unpacked.
	// At most 1 TiB. Default: 67108864 (64 MiB).
	MaxBody int64 `json:"max_body,omitempty"`

	// How long the body of a request may take to arrive. Default: 60s.
	ReadTimeout caddy.Duration `json:"read_timeout,omitempty"`

	// What becomes of an answer whose node is lost: `on` goes on with it on another
	// node, `before_first_byte` does so only while the client has nothing of it, `off`
	// never. Default: `on`.
	Resume string `json:"resume,omitempty"`

	// The header that tells conversations apart, so that the turns of one go where the
	// earlier ones are cached; it comes before all others that are known for that. Only a
	// hash of it is kept. Default: `X-Session-Id`, `X-Session-Affinity` and those of
	// coding tools and front ends, then fields of the body.
	SessionHeader string `json:"session_header,omitempty"`

	// Let another build of the model, with another vocabulary or template, go on with
	// an answer where no node of the same build is left. The answer is marked `mixed` in
	// the access log. Default: false.
	Mixed bool `json:"mixed,omitempty"`

	// What becomes of the parts of a tool call: `hold` keeps them until the answer's
	// finish, so that a lost node costs nothing, `stream` passes them on at once, and a
	// loss inside a call ends the answer. Default: `hold`.
	ToolCalls string `json:"tool_calls,omitempty"`

	// Tell clients in `X-Slotfleet-Node` which node answered and in
	// `X-Slotfleet-Reason` why there is no whole answer. Default: false.
	NodeHeaders bool `json:"node_headers,omitempty"`

	// Who a request counts for where requests wait: the tenants of a class share what is
	// served. May have placeholders; what is longer than 255 bytes is cut. Default, and
	// where it comes out empty: the name of the key, without keys the client's address, of
	// IPv6 its first 64 bits.
	Tenant string `json:"tenant,omitempty"`

	// The class of requests, a number from 0 to 9: higher ones wait less. May be a
	// placeholder; where it comes out as anything else, the default holds. That of a key
	// comes before it. Default: 5.
	Class string `json:"class,omitempty"`

	app    *FleetApp
	keys   *keyFile // nil: no key is needed
	logger *slog.Logger
}

// The defaults of a handler.
const (
	defaultMaxBody     = 64 << 20
	defaultReadTimeout = 60 * time.Second
)

// resumes are the values of `resume`.
var resumes = map[string]openai.Resume{
	"":                  openai.ResumeOn,
	"on":                openai.ResumeOn,
	"before_first_byte": openai.ResumeBeforeFirstByte,
	"off":               openai.ResumeOff,
}

// The values of `tool_calls`.
const (
	toolCallsHold   = "hold"
	toolCallsStream = "stream"
)

func checkToolCalls(s string) error {
	if s != toolCallsHold && s != toolCallsStream {
		return fmt.Errorf("tool_calls %q: one of %s, %s", s, toolCallsHold, toolCallsStream)
	}
	return nil
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.fleet",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds the fleet app and fills in defaults.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Slogger()
	app, err := ctx.AppIfConfigured("fleet")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return errors.New("the fleet handler needs the fleet app, which says what nodes there are: add a global `fleet` block with at least one `node NAME URL`")
	}
	if err != nil {
		return err
	}
	h.app = app.(*FleetApp)
	if h.MaxBody == 0 {
		h.MaxBody = defaultMaxBody
	}
	if h.ReadTimeout == 0 {
		h.ReadTimeout = caddy.Duration(defaultReadTimeout)
	}
	if h.Keys != "" {
		h.keys, err = openKeys(h.Keys)
	}
	return err
}

// Cleanup leaves the file of keys.
func (h *Handler) Cleanup() error { return closeKeys(&h.keys) }

// Validate checks the configuration.
func (h *Handler) Validate() error {
	if h.MaxBody < 0 || h.ReadTimeout < 0 {
		return errors.New("max_body and read_timeout cannot be negative")
	}
	if h.MaxBody > maxSize {
		return fmt.Errorf("max_body %d: the most is %d (1 TiB)", h.MaxBody, int64(maxSize))
	}
	if h.Resume != "" {
		if err := checkResume(h.Resume); err != nil {
			return err
		}
	}
	if h.ToolCalls != "" {
		if err := checkToolCalls(h.ToolCalls); err != nil {
			return err
		}
	}
	if h.SessionHeader != "" {
		if err := checkHeaderName(h.SessionHeader); err != nil {
			return err
		}
	}
	if h.Class != "" {
		if err := checkClass(h.Class); err != nil {
			return err
		}
	}
	for name, model := range h.Aliases {
		if name == "" || model == "" {
			return fmt.Errorf("alias %q %q: neither the name nor the model may be empty", name, model)
		}
	}
	return nil
}

func checkHeaderName(name string) error {
	odd := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("session_header %q is not the name of a header", name)
	}
	return nil
}

// ServeHTTP answers what is ours and hands on the rest.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	route := routeOf(r.Method, r.URL.Path)
	if route == routeNone {
		return next.ServeHTTP(w, r)
	}
	p := newReply(w, r)
	if r.ContentLength != 0 {
		p.unread = time.Duration(h.ReadTimeout)
	}
	if route != routeHealth && !h.letIn(p, r) {
		return nil
	}
	if allow := route.allows(); allow != "" && !method(r.Method, allow) {
		p.w.Header().Set("Allow", allow)
		p.fail(errMethod(r.Method, allow))
		return nil
	}
	if caddy.Exiting() {
		p.fail(openai.ErrorFor(errExiting))
		return nil
	}
	switch route {
	case routeServe:
		h.serve(p, r, h.read)
	case routeProps:
		h.serve(p, r, h.askProps)
	case routeModels, routeModel, routeHealth:
		h.describe(p, r, route)
	case routeClosed:
		p.fail(errClosed(r.URL.Path))
	}
	return nil
}

// errExiting is the answer to requests that come while the process ends.
var errExiting = &fleet.RequestError{
	Reason:     fleet.ReasonStopping,
	Message:    "the server is stopping; try again",
	RetryAfter: 5 * time.Second,
}

// work is what a client asks a model for: a generation, or a call that is answered
// whole.
type work struct {
	job  *openai.Job
	call *fleet.Call
	only func([]byte) ([]byte, error) // what a client may have of a call's answer; nil: all

	want fleet.Request
}

// serve answers one request for work, and accounts for it.
func (h *Handler) serve(p *reply, r *http.Request, read func(*reply, *http.Request, lease, *share) (work, error)) {
	a := account{began: time.Now()}
	l, err := h.app.lease(r.Context())
	if err != nil {
		h.end(p, r, nil, err)
		return
	}
	defer l.end()
	defer a.interrupted(r, l)
	refused := func(err error) {
		a.unread(err)
		a.settle(r, l)
		h.end(p, r, nil, err)
	}
	leave, err := p.count(time.Now())
	if err != nil {
		refused(err)
		return
	}
	defer leave()
	mem := share{of: &l.run.state.memory, limit: l.run.buffer}
	defer mem.release()
	todo, err := read(p, r, l, &mem)
	if err != nil {
		refused(err)
		return
	}
	a.read = time.Now()
	if err := h.run(p, r, l, todo, &mem, &a); err != nil {
		if p.began && a.Outcome == fleet.OutcomeRefused {
			a.Outcome = fleet.OutcomeBroken // what began was a ping
		}
		a.settle(r, l)
		h.tell(p, &a, false)
		h.end(p, r, todo.job, err)
		return
	}
	a.publish(r)
	h.tell(p, &a, true)
	if p.finish() != nil {
		a.Outcome, a.Reason = fleet.OutcomeCancelled, fleet.ReasonCancelled
	}
	a.settle(r, l)
}

// digestSeed makes digests, by which a request is known again should servers crash
// under it, ones that nobody can aim at.
var digestSeed = maphash.MakeSeed()

// read makes work of the request.
func (h *Handler) read(p *reply, r *http.Request, l lease, mem *share) (work, error) {
	body, err := readBody(p, r, h.MaxBody, time.Duration(h.ReadTimeout), mem)
	if err != nil {
		return work{}, err
	}
	o := openai.Options{
		Aliases:       h.Aliases,
		Resume:        resumes[h.Resume],
		StreamTools:   h.ToolCalls == toolCallsStream,
		BlockKey:      l.manager.BlockKey(),
		ContentType:   r.Header.Get("Content-Type"),
		Header:        r.Header,
		SessionHeader: h.SessionHeader,
		Caller:        h.caller(r, p.who),
	}
	var todo work
	path, _ := openai.PathOf(r.URL.Path)
	if path.Use == openai.UseJob {
		job, err := openai.Parse(r.URL.Path, body, o)
		if err != nil {
			return work{}, err
		}
		todo = work{job: job, want: job.Want()}
	} else {
		call, err := openai.ParseCall(r.URL.Path, body, o)
		if err != nil {
			return work{}, err
		}
		ask := call.Ask()
		todo = work{call: &ask, want: call.Want()}
		todo.want.Light = path.Use == openai.UseLightCall
	}
	todo.want.Mixed, todo.want.Digest = h.Mixed, maphash.Bytes(digestSeed, body)
	todo.want.Tenant, todo.want.Class = h.tenant(r, p.who), h.class(r, p.who)
	models := l.manager.Models(l.Applied)
	if h.AnyModel && todo.want.Model != "" && len(models) < 2 && served(models, todo.want.Model) == "" {
		todo.want.Model = "" // the manager takes the only one there is
	}
	todo.want.Model, err = h.choose(p.who, models, todo.want.Model)
	return todo, err
}

// run has the work done by the fleet.
func (h *Handler) run(p *reply, r *http.Request, l lease, todo work, mem *share, a *account) error {
	a.asked = todo.want.Model
	ctx := r.Context()
	if todo.job != nil {
		p.contentType = todo.job.ContentType()
	}
	if todo.job != nil && todo.job.Streams() {
		var lost context.CancelFunc
		ctx, lost = context.WithCancel(ctx)
		defer lost()
		defer p.ping(l.run.ping, lost)()
	}
	s, err := l.manager.Admit(ctx, l.Applied, todo.want)
	if err != nil {
		a.unplaced(err)
		return err
	}
	defer func() {
		s.Close()
		a.Record = s.Record()
	}()
	a.placed = time.Now()
	if todo.call != nil {
		return p.answer(ctx, s, todo)
	}
	out, job := p.whole, limited(&bounded{Job: todo.job, mem: mem}, h.Resume)
	if todo.job.Streams() {
		record := s.Record()
		p.setBefore(func(head http.Header) { h.tellPlaced(head, a, record) })
		out, job = p.stream, lastWords{job, p}
	}
	return s.Run(ctx, job, out)
}

// answer has a call answered.
func (p *reply) answer(ctx context.Context, s *fleet.Session, todo work) error {
	got, err := s.Call(ctx, *todo.call)
	if err != nil {
		return err
	}
	p.contentType, p.body = "application/json", got.Body
	if todo.only != nil {
		p.body, err = todo.only(got.Body)
	}
	return err
}

// end gives the client the end of an answer that failed: an error, or the error end
// of a stream that began.
func (h *Handler) end(p *reply, r *http.Request, job *openai.Job, err error) {
	switch {
	case gone(r, err):
		p.abandon()
	default:
		e := openai.ErrorFor(err)
		if job != nil {
			e = job.ErrorFor(err)
		}
		if e.Code == "internal_error" {
			h.logger.Error("request failed", "request_id", p.id, "error", err)
		}
		if !p.began {
			p.fail(e)
			return
		}
		p.breakOff(job.End(err))
	}
}

// gone reports whether the client left. The context alone does not tell: over HTTP/1
// it also ends with the deadline for the body.
func gone(r *http.Request, err error) bool {
	if _, ok := errors.AsType[*openai.Error](err); ok {
		return false
	}
	if r.Context().Err() != nil || errors.Is(err, context.Canceled) {
		return true
	}
	e, ok := errors.AsType[*fleet.RequestError](err)
	return ok && e.Reason == fleet.ReasonCancelled
}

// limited returns the job, such that it runs on one node only if resume is off.
func limited(job fleet.Job, resume string) fleet.Job {
	if resumes[resume] == openai.ResumeOff {
		return oneAttempt{job}
	}
	return job
}

// oneAttempt is a job that nobody goes on with.
type oneAttempt struct{ fleet.Job }

// Needs says that the answer is whole, or that it will not be.
func (j oneAttempt) Needs() (fleet.Needs, error) {
	if needs, err := j.Job.Needs(); err != nil || needs.Done {
		return needs, err
	}
	return fleet.Needs{}, &fleet.RequestError{
		Reason:  fleet.ReasonLost,
		Message: "the server that answered was lost",
	}
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ fleet.Job                   = oneAttempt{}
)
