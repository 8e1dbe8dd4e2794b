package caddymodule

import (
	"context"
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// JoinHandler is where nodes of the `fleet` app dial in over the site's own port: those
// that run the `fleet_node` app with a head of `https://` or `http://`. Which tokens they
// may have the app says. It answers every request; what is none of a node, and what comes
// over HTTP/2 or HTTP/3, is told so with status 426.
//
// A link that began here does not end with the configuration. The handler must not be
// behind a login, which nodes do not have: the tokens guard it. Proxies in front have to
// pass the upgrade to `linkf`; many do so for WebSocket only.
type JoinHandler struct{ app *FleetApp }

// CaddyModule returns the Caddy module information.
func (JoinHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.fleet_join",
		New: func() caddy.Module { return new(JoinHandler) },
	}
}

// Provision finds the fleet app, which takes nodes that dial in from then on.
func (h *JoinHandler) Provision(ctx caddy.Context) error {
	app, err := ctx.AppIfConfigured("fleet")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return errors.New("fleet_join needs the fleet app, whose nodes dial in: add a global `fleet` block with a `token`")
	}
	if err != nil {
		return err
	}
	h.app = app.(*FleetApp)
	return h.app.takeJoins()
}

// ServeHTTP makes the request's connection the link of a node.
func (h *JoinHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	l, err := h.app.lease(r.Context())
	if err != nil {
		return stopping(w, err)
	}
	defer l.end()
	head := l.run.state.joinHead()
	switch {
	case caddy.Exiting():
		return stopping(w, errExiting)
	case head == nil:
		return stopping(w, errGone)
	}
	// No server of Caddy's knows the connection from then on: it ends with its link, which
	// is the state's. This request holds that until the handshake is over.
	head.AcceptHTTP(w, r, clientHost(r), l.run.state.adopt)
	return nil
}

func stopping(w http.ResponseWriter, err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	w.Header().Set("Retry-After", "5")
	return caddyhttp.Error(http.StatusServiceUnavailable, err)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*JoinHandler)(nil)
	_ caddyhttp.MiddlewareHandler = (*JoinHandler)(nil)
)
