package caddymodule

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// parseFleetOption reads the global option `fleet`.
func parseFleetOption(d *caddyfile.Dispenser, before any) (any, error) {
	app := new(FleetApp)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	if before != nil {
		return nil, d.Err("the global option fleet is there twice: put all of it in one block")
	}
	return httpcaddyfile.App{Name: "fleet", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens. Syntax:
//
//	fleet {
//		policy    lowest_cost|load_aware|least_loaded|round_robin
//		node      <name> <url> {
//			key     <key>
//			token   <token>
//			lanes   <number>
//			context <tokens>
//			log     file <path> | source <name>
//			tls_ca  <path>
//			speed   <prefill> <decode>
//		}
//		pool_high <percent>
//		retry     <duration>
//		attempts  <number>
//		stall     auto|<duration>
//		buffer    <size>
//		moves     <percent>
//		preempt
//		listen    <address>
//		announce
//		token     <token>
//		tokens_file <path>
//		insecure
//		relink    <duration>
//		lease     <duration>
//		drain_timeout <duration>
//		queue {
//			requests <number>
//			bytes    <size>
//			timeout  <duration>
//			ping     <duration>|off
//		}
//		warm {
//			size        <size>
//			memory_only
//		}
//	}
//
// Each option may stand there once, `node` and `token` any number of times. Placeholders are
// left as they are: they are expanded when the configuration is loaded.
func (a *FleetApp) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the option
	if d.NextArg() {
		return d.ArgErr()
	}
	return block{
		"policy":    {read: checked(&a.Policy, checkPlacement)},
		"node":      {read: a.readNode, repeat: true},
		"pool_high": {read: number(&a.PoolHigh, 100)},
		"retry":     {read: duration(&a.Retry, "", 0)},
		"attempts":  {read: number(&a.Attempts, 0)},
		"stall":     {read: duration(&a.Stall, "auto", 0)},
		"buffer":    {read: size(&a.Buffer)},
		"queue":     {read: a.readQueue},

		"moves":         {read: number(&a.Moves, 300)},
		"preempt":       {read: flag(&a.Preempt)},
		"listen":        {read: checked(&a.Listen, checkListen)},
		"announce":      {read: flag(&a.Announce)},
		"token":         {read: tokens(&a.Tokens), repeat: true},
		"tokens_file":   {read: text(&a.TokensFile)},
		"insecure":      {read: flag(&a.Insecure)},
		"relink":        {read: duration(&a.Relink, "", 0)},
		"lease":         {read: duration(&a.Lease, "", 0)},
		"drain_timeout": {read: duration(&a.DrainTimeout, "", 0)},
		"warm":          {read: a.readWarm},
	}.parse(d, "fleet")
}

func (a *FleetApp) readQueue(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	a.Queue = new(Queue)
	return block{
		"requests": {read: number(&a.Queue.Requests, 0)},
		"bytes":    {read: size(&a.Queue.Bytes)},
		"timeout":  {read: duration(&a.Queue.Timeout, "", 0)},
		"ping":     {read: duration(&a.Queue.Ping, "off", -1)},
	}.parse(d, "queue")
}

func (a *FleetApp) readWarm(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	a.Warm = new(Warm)
	return block{
		"size":        {read: size(&a.Warm.Size)},
		"memory_only": {read: flag(&a.Warm.MemoryOnly)},
	}.parse(d, "warm")
}

func (a *FleetApp) readNode(d *caddyfile.Dispenser) error {
	n := new(Node)
	if !d.AllArgs(&n.Name, &n.URL) {
		return d.ArgErr()
	}
	for _, other := range a.Nodes {
		switch {
		case other.Name == n.Name:
			return d.Errf("node %s is there twice: give each node its own name", n.Name)
		case plainURL(other.URL) == plainURL(n.URL):
			return d.Errf("node %s: node %s has the address %s already", n.Name, other.Name, n.URL)
		}
	}
	if err := n.checkAddress(n.URL); err != nil {
		return d.Errf("node %s: %v", n.Name, err)
	}
	a.Nodes = append(a.Nodes, n)
	err := block{
		"key":     {read: text(&n.Key)},
		"token":   {read: tokens(&n.Tokens), repeat: true},
		"lanes":   {read: number(&n.Lanes, 0)},
		"context": {read: number(&n.Context, 0)},
		"log":     {read: nodeLog(&n.Log)},
		"tls_ca":  {read: text(&n.TLSCA)},
		"speed":   {read: n.readSpeed},
	}.parse(d, "node "+n.Name)
	if err != nil {
		return err
	}
	if err := n.checkAddress(n.URL); err != nil {
		return d.Errf("node %s: %v", n.Name, err)
	}
	return nil
}

// tokens reads one more token.
func tokens(to *[]string) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		var token string
		if err := checked(&token, checkToken)(d); err != nil {
			return err
		}
		*to = append(*to, token)
		return nil
	}
}

// nodeLog reads where a server's log is.
func nodeLog(to **NodeLog) func(*caddyfile.Dispenser) error {
	return func(d *caddyfile.Dispenser) error {
		var kind, where string
		if !d.AllArgs(&kind, &where) {
			return d.ArgErr()
		}
		switch kind {
		case "file":
			*to = &NodeLog{File: where}
		case "source":
			*to = &NodeLog{Source: where}
		default:
			return d.Errf("log %s: want `file PATH` or `source NAME`", kind)
		}
		return nil
	}
}

func (n *Node) readSpeed(d *caddyfile.Dispenser) error {
	var prefill, decode string
	if !d.AllArgs(&prefill, &decode) {
		return d.ArgErr()
	}
	p, err1 := strconv.ParseFloat(prefill, 64)
	g, err2 := strconv.ParseFloat(decode, 64)
	if err1 != nil || err2 != nil || !(p > 0 && g > 0 && p < 1e9 && g < 1e9) {
		return d.Errf("speed %s %s: want two figures above 0, prefill and decode tokens per second", prefill, decode)
	}
	n.Speed = &Speed{Prefill: p, Decode: g}
	return nil
}

// Interface guards.
var _ caddyfile.Unmarshaler = (*FleetApp)(nil)
