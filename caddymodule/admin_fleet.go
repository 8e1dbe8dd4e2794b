package caddymodule

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

// fleetAdmin shows the fleet on the admin API.
//
//	GET /fleet/nodes          how many nodes are up, what is served, each node
//	GET /fleet/nodes/{name}   one node
//	GET /fleet/queue          who waits for a lane
//	GET /fleet/warm           what the servers' caches are expected to hold
//	GET /fleet/sessions       the requests that run
//	GET /fleet/sessions/{id}  one request, which may have ended lately
//	GET /fleet/events         what happens, as it happens
//
//	POST /fleet/control/nodes/{name}/{action}     drain, undrain or probe
//	POST /fleet/control/sessions/{id}/{action}    cancel, park, resume or move
//	POST /fleet/control/lora                      set LoRA adapters on all nodes of a model
type fleetAdmin struct {
	ended <-chan struct{} // when the configuration ends
}

// CaddyModule returns the Caddy module information.
func (fleetAdmin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.slotfleet_fleet",
		New: func() caddy.Module { return new(fleetAdmin) },
	}
}

// Provision learns when the configuration ends, and with it what streams.
func (a *fleetAdmin) Provision(ctx caddy.Context) error {
	a.ended = ctx.Done()
	return nil
}

// Routes returns the routes. Their patterns have no methods, so that a wrong one is
// answered in the form of the admin API.
func (a *fleetAdmin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/fleet/nodes", Handler: reading(showNodes)},
		{Pattern: "/fleet/nodes/{name}", Handler: reading(showNode)},
		{Pattern: "/fleet/sessions", Handler: reading(showSessions)},
		{Pattern: "/fleet/sessions/{id}", Handler: reading(showSession)},
		{Pattern: "/fleet/events", Handler: caddy.AdminHandlerFunc(a.showEvents)},
		{Pattern: "/fleet/control/nodes/{name}/{action}", Handler: acting(controlNode)},
		{Pattern: "/fleet/control/sessions/{id}/{action}", Handler: acting(controlSession)},
		{Pattern: "/fleet/control/lora", Handler: acting(controlLora)},
		{Pattern: "/fleet/queue", Handler: reading(showQueue)},
		{Pattern: "/fleet/warm", Handler: reading(showWarm)},
	}
}

func showNodes(s *state, _ *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return s.manager.Status(), nil
}

func showNode(s *state, r *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return nodeNamed(s, r.PathValue("name"))
}

func nodeNamed(s *state, name string) (any, error) {
	for _, n := range s.manager.Status().Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, apiError(http.StatusNotFound, "no node has the name %q", shown(name))
}

func showSessions(s *state, _ *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return map[string]any{"sessions": s.manager.Sessions()}, nil
}

func showSession(s *state, r *http.Request) (any, error) {
	if s.apps.last() == nil {
		return nil, errNoFleet
	}
	return sessionWith(s, r.PathValue("id"))
}

func sessionWith(s *state, id string) (any, error) {
	st, ok := s.manager.Session(id)
	if !ok {
		return nil, apiError(http.StatusNotFound, "no session has the id %q, nor had one of the last that ended", shown(id))
	}
	return st, nil
}

var errNoFleet = apiError(http.StatusNotFound, "the fleet app is not configured")

// Interface guards.
var (
	_ caddy.AdminRouter = (*fleetAdmin)(nil)
	_ caddy.Provisioner = (*fleetAdmin)(nil)
)
