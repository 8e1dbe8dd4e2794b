package caddymodule

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// maxSecret is the longest secret in bytes that is looked at.
const maxSecret = 1 << 10

// secretsOf returns the secrets that a request shows: OpenAI's clients send a bearer
// token, Anthropic's `X-Api-Key`, and some send both and mean either.
func secretsOf(r *http.Request) []string {
	var found []string
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if ok && strings.EqualFold(scheme, "Bearer") {
		found = append(found, strings.TrimSpace(token))
	}
	found = append(found, strings.TrimSpace(r.Header.Get("X-Api-Key"))) // HTTP/1 cuts spaces, HTTP/2 does not
	return slices.DeleteFunc(found, func(s string) bool { return s == "" || len(s) > maxSecret })
}

// challenge is the WWW-Authenticate header of a request that is not let in (RFC 6750).
func challenge(shown bool) string {
	if shown {
		return `Bearer realm="slotfleet", error="invalid_token"`
	}
	return `Bearer realm="slotfleet"`
}

// keyOf returns the key whose secret a request shows, nil for none, and whether it
// shows any.
func (f *keyFile) keyOf(r *http.Request, now time.Time, log *slog.Logger) (k *key, shown bool) {
	secrets := secretsOf(r)
	for _, s := range secrets {
		if k := f.find(s, now, log); k != nil {
			return k, true
		}
	}
	return nil, len(secrets) > 0
}

// letIn finds out whose request it is, and answers it if it is nobody's.
func (h *Handler) letIn(p *reply, r *http.Request) bool {
	if h.keys == nil {
		return true
	}
	k, shown := h.keys.keyOf(r, time.Now(), h.logger)
	if k == nil {
		p.w.Header().Set("WWW-Authenticate", challenge(shown))
		p.fail(errKey(shown))
		return false
	}
	p.who = k
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.auth.user.id", k.name)
	}
	return true
}

func errKey(shown bool) *openai.Error {
	message := "a key is needed: send it as Authorization: Bearer, or as X-Api-Key"
	if shown {
		message = "the key is not known here"
	}
	e := refuse(http.StatusUnauthorized, "invalid_api_key", message)
	e.Type = "authentication_error"
	return e
}

// count counts a request for its key; the function that it returns ends it.
func (p *reply) count(now time.Time) (end func(), err error) {
	k := p.who
	if k == nil {
		return func() {}, nil
	}
	left, over := k.use.begin(now, k.concurrent, k.perMinute)
	left.tell(p.w.Header())
	if over != nil {
		return nil, over.error(k)
	}
	return k.use.end, nil
}

// tell sets the headers by which OpenAI's API says what is left.
func (q quota) tell(head http.Header) {
	if q.limit == 0 {
		return
	}
	head.Set("X-Ratelimit-Limit-Requests", strconv.Itoa(q.limit))
	head.Set("X-Ratelimit-Remaining-Requests", strconv.Itoa(q.left))
	head.Set("X-Ratelimit-Reset-Requests", q.renewed.Round(time.Millisecond).String())
}

// laterWhenBusy is when to come again where another request has to end first.
const laterWhenBusy = 2 * time.Second

func (e *excess) error(k *key) *openai.Error {
	if e.concurrent {
		return &openai.Error{
			Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "concurrency_limit_exceeded",
			Message:    "the key may have " + strconv.Itoa(k.concurrent) + " requests at once; wait until one of them ended",
			RetryAfter: laterWhenBusy,
		}
	}
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "rate_limit_exceeded",
		Message:    "the key may begin " + strconv.Itoa(k.perMinute) + " requests a minute",
		RetryAfter: e.again,
	}
}

// sees reports whether a key may use a model that is served.
func (h *Handler) sees(k *key, models []fleet.ModelStatus, model string) bool {
	if k == nil || k.models == nil {
		return true
	}
	model = h.resolve(models, model)
	return slices.ContainsFunc(k.models, func(m string) bool { return h.resolve(models, m) == model })
}

// resolve returns the name under which a model is served, if it is.
func (h *Handler) resolve(models []fleet.ModelStatus, name string) string {
	if to, ok := h.Aliases[name]; ok {
		name = to
	}
	if is := served(models, name); is != "" {
		return is
	}
	return name
}

// choose returns the model to ask for in the name of a key. Where the request says
// none, the manager would take the only one there is when it comes to that; who may not
// use all models gets the one that is meant now.
func (h *Handler) choose(k *key, models []fleet.ModelStatus, model string) (string, error) {
	if k == nil || k.models == nil {
		return model, nil
	}
	if model == "" {
		switch {
		case len(models) == 1:
			model = models[0].Model
		case len(models) == 0 && len(k.models) == 1:
			model = h.resolve(models, k.models[0])
		default:
			return "", &fleet.RequestError{
				Reason:  fleet.ReasonUnknownModel,
				Message: "the request names no model; GET /v1/models lists those that the key may use",
			}
		}
	}
	if !h.sees(k, models, model) {
		e := refuse(http.StatusForbidden, "model_not_allowed", "the key may not use this model; GET /v1/models lists those that it may")
		e.Type, e.Param = "permission_error", "model"
		return "", e
	}
	return model, nil
}
