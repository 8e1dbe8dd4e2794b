package caddymodule

import (
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// account is what is told of a request when it ended.
type account struct {
	fleet.Record
	began   time.Time
	read    time.Time // the request was here, whole and understood
	placed  time.Time // it had a lane
	asked   string    // the model's name as the client said it; never told
	settled bool
}

// unread accounts for a request that did not come to the fleet.
func (a *account) unread(err error) {
	a.Outcome, a.Reason = fleet.OutcomeRefused, refusal(err)
}

// unplaced accounts for a request that got no lane.
func (a *account) unplaced(err error) {
	a.Outcome, a.Reason, a.Waited = fleet.OutcomeRefused, fleet.ReasonLost, time.Since(a.began)
	if e, ok := errors.AsType[*fleet.RequestError](err); ok {
		a.Reason = e.Reason
	}
	if a.Reason == fleet.ReasonCancelled {
		a.Outcome = fleet.OutcomeCancelled
	}
}

// The reasons of requests which did not come to the fleet.
const (
	reasonBadRequest fleet.Reason = "bad_request"
	reasonForbidden  fleet.Reason = "forbidden" // the key may not use the model
	reasonLimit      fleet.Reason = "limit"     // the key has used up what it may
)

// refusal is the reason of a request that could not be read.
func refusal(err error) fleet.Reason {
	if e, ok := errors.AsType[*fleet.RequestError](err); ok {
		return e.Reason
	}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		switch e.Status {
		case http.StatusForbidden:
			return reasonForbidden
		case http.StatusTooManyRequests:
			return reasonLimit
		}
	}
	return reasonBadRequest
}

// reasonInternal is that of requests which a fault of this program ended.
const reasonInternal fleet.Reason = "internal"

// interrupted accounts for a request that nobody did account for: it panics.
func (a *account) interrupted(r *http.Request, l lease) {
	if a.settled {
		return
	}
	a.Outcome, a.Reason = fleet.OutcomeBroken, reasonInternal
	a.settle(r, l)
}

// settle tells metrics, access log and placeholders.
func (a *account) settle(r *http.Request, l lease) {
	a.settled = true
	if a.Model == "" && a.asked != "" {
		a.Model = served(l.manager.Models(l.Applied), a.asked)
	}
	if a.Reason == fleet.ReasonCancelled {
		a.Outcome = fleet.OutcomeCancelled
	}
	l.run.state.fleet.ended(a.Record, time.Since(a.began))
	fields := a.fields()
	if extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		for _, f := range fields {
			extra.Set(f)
		}
	}
	a.publish(r)
}

// fields are those of the access log. What is unknown is absent.
func (a *account) fields() []zap.Field {
	f := []zap.Field{
		zap.String("outcome", string(a.Outcome)),
		zap.Duration("queue", a.Waited),
		zap.Int("moves", a.Moves),
		zap.Int64("tokens", int64(a.Generated)),
	}
	if a.Node != "" {
		f = append(f, zap.String("node", a.Node))
	}
	if a.Model != "" {
		f = append(f, zap.String("model", a.Model))
	}
	if a.Reason != "" {
		f = append(f, zap.String("reason", string(a.Reason)))
	}
	if a.Session != "" {
		f = append(f, zap.String("session", a.Session))
	}
	if a.Mixed {
		f = append(f, zap.Bool("mixed", true))
	}
	if a.FirstToken > 0 {
		f = append(f, zap.Duration("first_token", a.FirstToken))
	}
	return f
}

// publish sets the placeholders. Those of a whole answer are there before its header
// is written, which may name its node.
func (a *account) publish(r *http.Request) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	repl.Set("http.fleet.node", a.Node)
	repl.Set("http.fleet.model", a.Model)
	repl.Set("http.fleet.outcome", string(a.Outcome))
	repl.Set("http.fleet.reason", string(a.Reason))
	repl.Set("http.fleet.queue", a.Waited)
	repl.Set("http.fleet.first_token", a.FirstToken)
	repl.Set("http.fleet.moves", a.Moves)
	repl.Set("http.fleet.tokens", int64(a.Generated))
}
