package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// parseSlotlogOption reads the global option `slotlog`.
func parseSlotlogOption(d *caddyfile.Dispenser, before any) (any, error) {
	app := new(SlotlogApp)
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	if before != nil {
		return nil, d.Err("the global option slotlog is there twice: put all of it in one block")
	}
	return httpcaddyfile.App{Name: "slotlog", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile sets up the app from Caddyfile tokens. Syntax:
//
//	slotlog {
//		source <name> file <path>
//	}
//
// `source` may stand there any number of times. Placeholders are left as they are:
// they are expanded when the configuration is loaded.
func (a *SlotlogApp) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the option
	if d.NextArg() {
		return d.ArgErr()
	}
	return block{"source": {read: a.readSource, repeat: true}}.parse(d, "slotlog")
}

func (a *SlotlogApp) readSource(d *caddyfile.Dispenser) error {
	src := new(LogSource)
	var kind string
	if !d.AllArgs(&src.Name, &kind, &src.File) {
		return d.ArgErr()
	}
	if kind != "file" {
		return d.Errf("source %s: unknown kind %q: only `file PATH` can be read so far", src.Name, kind)
	}
	for _, other := range a.Sources {
		if other.Name == src.Name {
			return d.Errf("source %s is there twice: give each source its own name", src.Name)
		}
	}
	a.Sources = append(a.Sources, src)
	return noOptions(d, src.Name)
}

// noOptions refuses what stands in the block of a source. server and key will be for
// reading slots that the log alone does not tell.
func noOptions(d *caddyfile.Dispenser, name string) error {
	if !d.NextBlock(d.Nesting()) {
		return nil
	}
	if d.Val() == "server" || d.Val() == "key" {
		return d.Errf("%s in source %s is not available yet: leave it out, the slots are read from the log alone", d.Val(), name)
	}
	return d.Errf("unknown option %q in source %s: it takes none", d.Val(), name)
}

// Interface guards.
var _ caddyfile.Unmarshaler = (*SlotlogApp)(nil)
