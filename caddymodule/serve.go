package caddymodule

import (
	"context"
	"errors"
	"hash/maphash"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// ServeHTTP answers what is ours and hands on the rest.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	route := routeOf(r.Method, r.URL.Path)
	if route == routeNone {
		return next.ServeHTTP(w, r)
	}
	p := newReply(w, r)
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
		return p.answer(ctx, s, todo, mem)
	}
	out := p.whole
	if todo.job.Streams() {
		record := s.Record()
		p.setBefore(func(head http.Header) { h.tellPlaced(head, a, record) })
		out = p.stream
	}
	once := resumes[h.Resume] == openai.ResumeOff
	return s.Run(ctx, &clientJob{Job: todo.job, mem: mem, ends: p.ends, once: once}, out)
}

// answer has a call answered. Links that do not ask for room tell the size afterwards.
func (p *reply) answer(ctx context.Context, s *fleet.Session, todo work, mem *share) error {
	call := *todo.call
	call.Room = mem.room
	got, err := s.Call(ctx, call)
	if err != nil {
		return err
	}
	if err := mem.room(int64(cap(got.Body))); err != nil {
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
