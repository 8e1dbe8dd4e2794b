package caddymodule

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// started is when models are said to be from: it changes with no reload.
var started = time.Now().Unix()

// describe answers what is served and whether it is.
func (h *Handler) describe(p *reply, r *http.Request, t route) {
	l, err := h.app.lease(r.Context())
	if err != nil {
		h.end(p, r, nil, err)
		return
	}
	models := l.manager.Models(l.Applied)
	l.end()
	shown := slices.DeleteFunc(slices.Clone(models), func(m fleet.ModelStatus) bool {
		return m.State == fleet.StateFailed || !h.sees(p.who, models, m.Model)
	})
	switch t {
	case routeHealth:
		p.health(len(shown) > 0)
	case routeModels:
		p.json(h.modelList(shown))
	case routeModel:
		id := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1"), "/models/")
		h.describeModel(p, shown, id)
	}
}

// modelEntry is a model as the OpenAI API shows it, with llama-server's additions.
type modelEntry struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	OwnedBy string   `json:"owned_by"`
	Aliases []string `json:"aliases,omitempty"`

	Status modelState `json:"status"`
	Meta   *modelMeta `json:"meta,omitempty"`
}

// modelState is llama-server's word, in router mode, for whether a model answers at
// once: `loaded`, `sleeping`, `loading` or `unloaded`. The latter are loaded by a
// request.
type modelState struct {
	Value string `json:"value"`
}

func stateWord(s fleet.State) string {
	if s == fleet.StateReady {
		return "loaded"
	}
	return s.String()
}

type modelMeta struct {
	Context fleet.Tokens `json:"n_ctx"`
}

type modelList struct {
	Object string       `json:"object"`
	Data   []modelEntry `json:"data"`
}

func (h *Handler) modelList(models []fleet.ModelStatus) modelList {
	l := modelList{Object: "list", Data: make([]modelEntry, 0, len(models))}
	for _, m := range models {
		l.Data = append(l.Data, h.modelEntry(m))
	}
	return l
}

func (h *Handler) modelEntry(m fleet.ModelStatus) modelEntry {
	e := modelEntry{
		ID: m.Model, Object: "model", Created: started, OwnedBy: "llamacpp",
		Aliases: slices.Clone(m.Aliases), Status: modelState{stateWord(m.State)},
	}
	for name, model := range h.Aliases {
		if model == m.Model || slices.Contains(m.Aliases, model) {
			e.Aliases = append(e.Aliases, name)
		}
	}
	slices.Sort(e.Aliases)
	e.Aliases = slices.Compact(e.Aliases)
	if m.Context > 0 {
		e.Meta = &modelMeta{m.Context}
	}
	return e
}

// describeModel answers for one model, by any of its names.
func (h *Handler) describeModel(p *reply, models []fleet.ModelStatus, id string) {
	for _, m := range models {
		if e := h.modelEntry(m); e.ID == id || slices.Contains(e.Aliases, id) {
			p.json(e)
			return
		}
	}
	p.fail(openai.ErrorFor(&fleet.RequestError{Reason: fleet.ReasonUnknownModel}))
}

// served returns under which name a model is served; empty: it is not.
func served(models []fleet.ModelStatus, name string) string {
	for _, m := range models {
		if m.Model == name || slices.Contains(m.Aliases, name) {
			return m.Model
		}
	}
	return ""
}

// The bodies of /health are llama-server's, for probes that know those.
const (
	healthy   = `{"status":"ok"}`
	unhealthy = `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`
)

func (p *reply) health(ok bool) {
	if ok {
		_ = p.send(http.StatusOK, "application/json", []byte(healthy))
		return
	}
	p.w.Header().Set("Retry-After", "1")
	_ = p.send(http.StatusServiceUnavailable, "application/json", []byte(unhealthy))
}

func (p *reply) json(v any) {
	body, err := json.Marshal(v)
	if err != nil {
		p.fail(openai.ErrorFor(err))
		return
	}
	_ = p.send(http.StatusOK, "application/json", body)
}
