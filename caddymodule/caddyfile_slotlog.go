package caddymodule

import (
	"slices"
	"strings"

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
//		source <name> file|fifo <path> {
//			server <address>
//			key <key>
//		}
//		source <name> stdin
//		source <name> journald <unit>
//		source <name> docker <container>
//		source <name> kubectl <pod>
//		source <name> command <program> [<args...>]
//	}
//
// `source` may stand there any number of times, and each may have the block.
// Placeholders are left as they are: they are expanded when the configuration is
// loaded.
func (a *SlotlogApp) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the option
	if d.NextArg() {
		return d.ArgErr()
	}
	return block{"source": {read: a.readSource, repeat: true}}.parse(d, "slotlog")
}

func (a *SlotlogApp) readSource(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return d.ArgErr()
	}
	src := &LogSource{Name: args[0]}
	if err := src.readKind(d, args[1], args[2:]); err != nil {
		return err
	}
	if slices.ContainsFunc(a.Sources, func(other *LogSource) bool { return other.Name == src.Name }) {
		return d.Errf("source %s is there twice: give each source its own name", src.Name)
	}
	for _, o := range src.given() {
		// What a placeholder will be is checked when it is expanded.
		if strings.Contains(o.Path+o.Target+strings.Join(o.Args, ""), "{") {
			continue
		}
		if err := o.Check(); err != nil {
			return d.Errf("source %s: %v", src.Name, err)
		}
	}
	a.Sources = append(a.Sources, src)
	err := block{
		"server": {read: checked(&src.Server, checkURL)},
		"key":    {read: text(&src.Key)},
	}.parse(d, "source "+src.Name)
	if err == nil && src.Key != "" && src.Server == "" {
		return d.Errf("source %s: key is that of a server, and none is named", src.Name)
	}
	return err
}

// readKind reads where the log comes from.
func (s *LogSource) readKind(d *caddyfile.Dispenser, kind string, args []string) error {
	one := map[string]*string{
		"file": &s.File, "fifo": &s.FIFO, "journald": &s.Journald, "docker": &s.Docker, "kubectl": &s.Kubectl,
	}
	to := one[kind]
	switch {
	case to != nil && len(args) == 1:
		*to = args[0]
		if args[0] == "" {
			return d.Errf("source %s: what follows %s is empty", s.Name, kind)
		}
	case kind == "stdin" && len(args) == 0:
		s.Stdin = true
	case kind == "command" && len(args) > 0:
		s.Command = args
	case to != nil, kind == "stdin", kind == "command":
		return d.ArgErr()
	default:
		return d.Errf("source %s: unknown kind %q: one of file, fifo, stdin, journald, docker, kubectl, command", s.Name, kind)
	}
	return nil
}

// Interface guards.
var _ caddyfile.Unmarshaler = (*SlotlogApp)(nil)
