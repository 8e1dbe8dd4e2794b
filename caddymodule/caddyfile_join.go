package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// parseJoinHandler reads the directive `fleet_join`. Syntax:
//
//	fleet_join [<matcher>]
func parseJoinHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the name of the directive
	if h.NextArg() {
		return nil, h.ArgErr()
	}
	if h.NextBlock(0) {
		return nil, h.Err("fleet_join takes no block: what nodes may dial in says the global option fleet")
	}
	return new(JoinHandler), nil
}
