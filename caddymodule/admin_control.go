package caddymodule

import (
	"context"
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

// Actions may be repeated: what is so already stays so.

// controlNode does something to a node and answers with how it is then.
func controlNode(s *state, r *http.Request, body []byte) (any, error) {
	if err := readControl(body, &struct{}{}); err != nil {
		return nil, err
	}
	name, action := r.PathValue("name"), r.PathValue("action")
	var err error
	switch action {
	case "drain":
		_, err = s.manager.Drain(name)
	case "undrain":
		err = s.manager.Undrain(name)
	case "probe":
		err = s.manager.Probe(r.Context(), name)
	default:
		return nil, apiError(http.StatusNotFound, "%q is nothing that a node can do: drain, undrain or probe", shown(action))
	}
	logControl("node", name, action, err)
	switch {
	case errors.Is(err, fleet.ErrUnknownNode):
		return nil, apiError(http.StatusNotFound, "no node has the name %q", shown(name))
	case err != nil && action == "probe":
		return nil, apiError(http.StatusBadGateway, "%v", err)
	case err != nil:
		return nil, apiError(http.StatusServiceUnavailable, "%v", err)
	}
	return nodeNamed(s, name)
}

// controlSession does something to a session and answers with how it is then.
func controlSession(s *state, r *http.Request, body []byte) (any, error) {
	if err := readControl(body, &struct{}{}); err != nil {
		return nil, err
	}
	id, action := r.PathValue("id"), r.PathValue("action")
	do := map[string]func(context.Context, string) error{
		"cancel": func(_ context.Context, id string) error { return s.manager.Cancel(id) },
		"park":   s.manager.Park,
		"resume": func(_ context.Context, id string) error { return s.manager.Resume(id) },
		"move":   s.manager.Move,
	}[action]
	if do == nil {
		return nil, apiError(http.StatusNotFound, "%q is nothing that a session can do: cancel, park, resume or move", shown(action))
	}
	err := do(r.Context(), id)
	logControl("session", id, action, err)
	switch {
	case errors.Is(err, fleet.ErrUnknownSession):
		return nil, apiError(http.StatusNotFound, "no session that runs has the id %q", shown(id))
	case errors.Is(err, fleet.ErrFixed), errors.Is(err, fleet.ErrNowhere), errors.Is(err, fleet.ErrWrongState):
		return nil, apiError(http.StatusConflict, "session %s: %v", shown(id), err)
	case err != nil:
		return nil, apiError(http.StatusServiceUnavailable, "session %s: %v", shown(id), err)
	}
	return sessionWith(s, id)
}

// logControl writes down what was done: it must be possible to see it afterwards. Who
// did it stands in the log of the admin API.
func logControl(kind, name, action string, err error) {
	log := caddy.Log().Named("admin.api.slotfleet_fleet").With(zap.String(kind, shown(name)), zap.String("action", shown(action)))
	if err != nil {
		log.Warn("action refused", zap.Error(err))
		return
	}
	log.Info("action done")
}
