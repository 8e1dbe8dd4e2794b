package caddymodule

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// parseNodeOption reads the global option `fleet_node`.
func parseNodeOption(d *caddyfile.Dispenser, before any) (any, error) {
	app := new(NodeApp)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	if before != nil {
		return nil, d.Err("the global option fleet_node is there twice: put all of it in one block")
	}
	return httpcaddyfile.App{Name: "fleet_node", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens. Syntax:
//
//	fleet_node {
//		head     https://<host>/<path>|linkf://<host>:<port>|auto
//		listen   <address>
//		tls_ca   <path>
//		token    <token>
//		insecure
//		identity <name>
//		upstream <url> {
//			key    <key>
//			tls_ca <path>
//		}
//		log      file <path> | source <name>
//		lanes    <number>
//		drain_timeout <duration>
//	}
//
// `head` and `token` may stand there more than once. Placeholders are left as they
// are: they are expanded when the configuration is loaded.
func (a *NodeApp) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the option
	if d.NextArg() {
		return d.ArgErr()
	}
	err := block{
		"head":     {read: a.readHead, repeat: true},
		"listen":   {read: checked(&a.Listen, checkListen)},
		"tls_ca":   {read: text(&a.TLSCA)},
		"token":    {read: tokens(&a.Tokens), repeat: true},
		"insecure": {read: flag(&a.Insecure)},
		"identity": {read: text(&a.Identity)},
		"upstream": {read: a.readUpstream},
		"log":      {read: nodeLog(&a.Log)},
		"lanes":    {read: number(&a.Lanes, 0)},

		"drain_timeout": {read: duration(&a.DrainTimeout, "", 0)},
	}.parse(d, "fleet_node")
	switch {
	case err != nil:
		return err
	case a.Upstream == "":
		return d.Err("fleet_node has no upstream: name the llama-server that this node runs")
	case len(a.Heads) == 0 && a.Listen == "":
		return d.Err("fleet_node has no head and no listen: name a fleet to dial, or an address for fleets to dial")
	}
	return nil
}

func (a *NodeApp) readHead(d *caddyfile.Dispenser) error {
	var head string
	if err := checked(&head, checkHead)(d); err != nil {
		return err
	}
	if slices.ContainsFunc(a.Heads, func(other string) bool { return strings.EqualFold(other, head) }) {
		return d.Errf("head %s is there twice", head)
	}
	a.Heads = append(a.Heads, head)
	return nil
}

func (a *NodeApp) readUpstream(d *caddyfile.Dispenser) error {
	if err := checked(&a.Upstream, checkURL)(d); err != nil {
		return err
	}
	err := block{"key": {read: text(&a.Key)}, "tls_ca": {read: text(&a.UpstreamTLSCA)}}.parse(d, "upstream")
	if err != nil {
		return err
	}
	if err := checkTrust(a.UpstreamTLSCA, a.Upstream); err != nil {
		return d.Errf("upstream: %v", err)
	}
	return nil
}

// Interface guards.
var _ caddyfile.Unmarshaler = (*NodeApp)(nil)
