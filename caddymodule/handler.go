package caddymodule

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
// It serves `/v1/chat/completions` and `/v1/completions`, `/v1/models`,
// `/v1/models/{id}` and `/v1/health`, all but completions also without `/v1`. Other
// paths of the API are answered 501, those by which a llama-server is managed 404.
// Anything else, and every OPTIONS, goes to the next handler.
//
// Errors are answered in the form of the OpenAI API, not through error routes.
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
// The access log gets the same as fields: `request_id`, `node`, `model`, `outcome`,
// `reason`, `queue`, `first_token`, `moves` and `tokens`.
type Handler struct {
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
	// earlier ones are cached. Only a hash of it is kept. Default: `X-Session-Id`, and
	// if that is missing `X-Session-Affinity`.
	SessionHeader string `json:"session_header,omitempty"`

	// Who a request counts for where requests wait: the tenants of a class share what is
	// served. May have placeholders; what is longer than 255 bytes is cut. Default, and
	// where it comes out empty: the client's address, of IPv6 its first 64 bits.
	Tenant string `json:"tenant,omitempty"`

	// The class of requests, a number from 0 to 9: higher ones wait less. May be a
	// placeholder; where it comes out as anything else, the default holds. Default: 5.
	Class string `json:"class,omitempty"`

	app    *FleetApp
	logger *slog.Logger
}

// The defaults of a handler.
const (
	defaultMaxBody     = 64 << 20
	defaultReadTimeout = 60 * time.Second
)

var defaultSessionHeaders = []string{"X-Session-Id", "X-Session-Affinity"}

// resumes are the values of `resume`.
var resumes = map[string]openai.Resume{
	"":                  openai.ResumeOn,
	"on":                openai.ResumeOn,
	"before_first_byte": openai.ResumeBeforeFirstByte,
	"off":               openai.ResumeOff,
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
	return nil
}

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
	case routeGenerate:
		h.generate(p, r)
	case routeModels, routeModel, routeHealth:
		h.describe(p, r, route)
	case routeLater:
		p.fail(errLater(r.URL.Path))
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

// generate answers one request for a generation, and accounts for it.
func (h *Handler) generate(p *reply, r *http.Request) {
	a := account{began: time.Now()}
	l, err := h.app.lease(r.Context())
	if err != nil {
		h.end(p, r, nil, err)
		return
	}
	defer l.end()
	defer a.interrupted(r, l)
	mem := share{of: &l.run.state.memory, limit: l.run.buffer}
	defer mem.release()
	job, err := h.read(p, r, &mem)
	if err != nil {
		a.unread(err)
		a.settle(r, l)
		h.end(p, r, nil, err)
		return
	}
	if err := h.run(p, r, l, job, &a); err != nil {
		if p.began && a.Outcome == fleet.OutcomeRefused {
			a.Outcome = fleet.OutcomeBroken // what began was a ping
		}
		a.settle(r, l)
		h.end(p, r, job, err)
		return
	}
	a.publish(r)
	if p.finish() != nil {
		a.Outcome, a.Reason = fleet.OutcomeCancelled, fleet.ReasonCancelled
	}
	a.settle(r, l)
}

// read makes a job of the request.
func (h *Handler) read(p *reply, r *http.Request, mem *share) (*openai.Job, error) {
	body, err := readBody(p, r, h.MaxBody, time.Duration(h.ReadTimeout), mem)
	if err != nil {
		return nil, err
	}
	return openai.Parse(r.URL.Path, body, openai.Options{Aliases: h.Aliases, Resume: resumes[h.Resume]})
}

// run has the job done by the fleet.
func (h *Handler) run(p *reply, r *http.Request, l lease, job *openai.Job, a *account) error {
	want := h.want(r, l, job)
	a.asked = want.Model
	p.contentType = job.ContentType()
	ctx, out, todo := r.Context(), p.whole, limited(job, h.Resume)
	if job.Streams() {
		var lost context.CancelFunc
		ctx, lost = context.WithCancel(ctx)
		defer lost()
		out, todo = p.stream, lastWords{todo, p}
		defer p.ping(l.run.ping, lost)()
	}
	s, err := l.manager.Admit(ctx, l.Applied, want)
	if err != nil {
		a.unplaced(err)
		return err
	}
	defer func() {
		s.Close()
		a.Record = s.Record()
	}()
	return s.Run(ctx, todo, out)
}

// want is what placement has to know of the request.
func (h *Handler) want(r *http.Request, l lease, job *openai.Job) fleet.Request {
	want := job.Want()
	want.Tenant, want.Class = h.tenant(r), h.class(r)
	if id := h.session(r); id != "" {
		sum := sha256.Sum256([]byte(want.Model + "\x00" + id))
		want.Session = string(sum[:16])
	}
	if h.AnyModel && want.Model != "" {
		models := l.manager.Models(l.Applied)
		if len(models) < 2 && served(models, want.Model) == "" {
			want.Model = "" // the manager takes the only one there is
		}
	}
	return want
}

// session returns what the client calls its conversation, as far as it counts.
func (h *Handler) session(r *http.Request) string {
	names := defaultSessionHeaders
	if h.SessionHeader != "" {
		names = []string{h.SessionHeader}
	}
	const longest = 255
	for _, name := range names {
		if id := r.Header.Get(name); id != "" {
			return id[:min(len(id), longest)]
		}
	}
	return ""
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
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ fleet.Job                   = oneAttempt{}
)
