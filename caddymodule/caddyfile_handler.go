package caddymodule

import (
	"fmt"
	"maps"
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// parseHandler reads the directive `fleet`.
func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	fleet [<matcher>] {
//		keys           <file>
//		alias          <name> <model>
//		any_model
//		max_body       <size>
//		read_timeout   <duration>
//		resume         on|before_first_byte|off
//		session_header <name>
//		tool_calls     hold|stream
//		node_headers
//		mixed
//		tenant         <name>
//		class          <number>
//	}
//
// Each option may stand there once, `alias` any number of times.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the name of the directive
	if d.NextArg() {
		return d.ArgErr()
	}
	return block{
		"keys":           {read: text(&h.Keys)},
		"alias":          {read: h.readAlias, repeat: true},
		"any_model":      {read: flag(&h.AnyModel)},
		"max_body":       {read: size(&h.MaxBody)},
		"read_timeout":   {read: duration(&h.ReadTimeout, "", 0)},
		"resume":         {read: checked(&h.Resume, checkResume)},
		"mixed":          {read: flag(&h.Mixed)},
		"tool_calls":     {read: checked(&h.ToolCalls, checkToolCalls)},
		"node_headers":   {read: flag(&h.NodeHeaders)},
		"session_header": {read: checked(&h.SessionHeader, checkHeaderName)},
		"tenant":         {read: text(&h.Tenant)},
		"class":          {read: checked(&h.Class, checkClass)},
	}.parse(d, "fleet")
}

func (h *Handler) readAlias(d *caddyfile.Dispenser) error {
	var name, model string
	if !d.AllArgs(&name, &model) {
		return d.ArgErr()
	}
	if _, ok := h.Aliases[name]; ok {
		return d.Errf("alias %s is there twice: a name stands for one model", name)
	}
	if h.Aliases == nil {
		h.Aliases = make(map[string]string)
	}
	h.Aliases[name] = model
	return nil
}

func checkResume(s string) error {
	if _, ok := resumes[s]; !ok || s == "" {
		return fmt.Errorf("resume %q: one of %s", s, list(slices.Sorted(maps.Keys(resumes))[1:]))
	}
	return nil
}

// Interface guards.
var _ caddyfile.Unmarshaler = (*Handler)(nil)
