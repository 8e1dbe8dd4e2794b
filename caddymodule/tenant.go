package caddymodule

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// defaultClass is the class of requests that have none: with room above and below.
const defaultClass = 5

// maxTenant bounds a tenant's name in bytes: the queue keeps it.
const maxTenant = 255

// tenant is who the request counts for in the queue.
func (h *Handler) tenant(r *http.Request, who *key) string {
	name := expand(r, h.Tenant)
	switch {
	case name != "":
	case who != nil:
		name = who.name
	default:
		name = client(r)
	}
	return name[:min(len(name), maxTenant)]
}

// caller is whose conversations the request may be part of: nobody has part in those
// of another key, even where one tenant has both.
func (h *Handler) caller(r *http.Request, who *key) string {
	if who != nil {
		return who.name
	}
	return h.tenant(r, nil)
}

// class is the request's class in the queue.
func (h *Handler) class(r *http.Request, who *key) int {
	if who != nil && who.class != nil {
		return *who.class
	}
	if c := expand(r, h.Class); len(c) == 1 && c[0] >= '0' && c[0] <= '9' {
		return int(c[0] - '0')
	}
	return defaultClass
}

// expand replaces the placeholders in s; unknown ones by nothing.
func expand(r *http.Request, s string) string {
	if !strings.Contains(s, "{") {
		return s
	}
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return ""
	}
	return repl.ReplaceAll(s, "")
}

// clientHost is the client's address as Caddy determined it.
func clientHost(r *http.Request) string {
	if host, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string); host != "" {
		return host
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// client is the client's address. Of IPv6 it is the network: there a single client has as
// many addresses as it likes.
func client(r *http.Request) string {
	host := clientHost(r)
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Unmap().Is4() {
		return host
	}
	const network = 64
	prefix, err := ip.WithZone("").Prefix(network)
	if err != nil {
		return host
	}
	return prefix.String()
}

// checkClass refuses what can be no class.
func checkClass(s string) error {
	if strings.Contains(s, "{") || len(s) == 1 && s[0] >= '0' && s[0] <= '9' {
		return nil
	}
	return errors.New("class " + s + ": want a whole number from 0 to 9, or a placeholder")
}
