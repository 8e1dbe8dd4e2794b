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
type fleetAdmin struct{}

// CaddyModule returns the Caddy module information.
func (fleetAdmin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.slotfleet_fleet",
		New: func() caddy.Module { return new(fleetAdmin) },
	}
}

// Routes returns the routes. Their patterns have no methods, so that a wrong one is
// answered in the form of the admin API.
func (*fleetAdmin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/fleet/nodes", Handler: reading(showNodes)},
		{Pattern: "/fleet/nodes/{name}", Handler: reading(showNode)},
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
	name := r.PathValue("name")
	for _, n := range s.manager.Status().Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, apiError(http.StatusNotFound, "no node has the name %q", shown(name))
}

var errNoFleet = apiError(http.StatusNotFound, "the fleet app is not configured")

// Interface guards.
var _ caddy.AdminRouter = (*fleetAdmin)(nil)
