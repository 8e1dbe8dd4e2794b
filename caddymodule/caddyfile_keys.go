package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
)

// parseFleetKeys reads the directive `fleet_keys`. Syntax:
//
//	fleet_keys [<matcher>] <file>
func parseFleetKeys(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the name of the directive
	var k FleetKeys
	if !h.AllArgs(&k.File) {
		return nil, h.ArgErr()
	}
	if h.NextBlock(0) {
		return nil, h.Err("fleet_keys takes no block")
	}
	return caddyauth.Authentication{
		ProvidersRaw: caddy.ModuleMap{"fleet_keys": caddyconfig.JSON(k, nil)},
	}, nil
}
