package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func TestTenantAndClassOfARequest(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, c := range map[string]struct {
		tenant, class string
		header        string // X-Who
		client        string // as Caddy says
		remote        string
		wantTenant    string
		wantClass     int
	}{
		"nothing set":         {client: "192.0.2.7", wantTenant: "192.0.2.7", wantClass: 5},
		"only the connection": {remote: "192.0.2.8:1234", wantTenant: "192.0.2.8", wantClass: 5},
		"a unix socket":       {remote: "@", wantTenant: "@", wantClass: 5},
		"IPv6":                {client: "2001:db8:1:2:3:4:5:6", wantTenant: "2001:db8:1:2::/64", wantClass: 5},
		"IPv6 with a zone":    {client: "fe80::1%eth0", wantTenant: "fe80::/64", wantClass: 5},
		"IPv4 in IPv6":        {client: "::ffff:192.0.2.7", wantTenant: "::ffff:192.0.2.7", wantClass: 5},
		"placeholder":         {tenant: "{http.request.header.X-Who}", header: "ann", client: "192.0.2.7", wantTenant: "ann", wantClass: 5},
		"placeholder, empty":  {tenant: "{http.request.header.X-Who}", client: "192.0.2.7", wantTenant: "192.0.2.7", wantClass: 5},
		"placeholder, long":   {tenant: "{http.request.header.X-Who}", header: long, wantTenant: long[:maxTenant], wantClass: 5},
		"unknown placeholder": {tenant: "{nobody.knows}", class: "{nobody.knows}", client: "192.0.2.7", wantTenant: "192.0.2.7", wantClass: 5},
		"fixed":               {tenant: "all", class: "0", wantTenant: "all", wantClass: 0},
		"class by header":     {tenant: "t", class: "{http.request.header.X-Who}", header: "9", wantTenant: "t", wantClass: 9},
		"class that is none":  {tenant: "t", class: "{http.request.header.X-Who}", header: "10", wantTenant: "t", wantClass: 5},
		"class with a sign":   {tenant: "t", class: "{http.request.header.X-Who}", header: "-", wantTenant: "t", wantClass: 5},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.RemoteAddr = c.remote
			if c.header != "" {
				r.Header.Set("X-Who", c.header)
			}
			repl := caddyhttp.NewTestReplacer(r)
			ctx := context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl)
			vars := map[string]any{}
			if c.client != "" {
				vars[caddyhttp.ClientIPVarKey] = c.client
			}
			r = r.WithContext(context.WithValue(ctx, caddyhttp.VarsCtxKey, vars))
			h := &Handler{Tenant: c.tenant, Class: c.class}
			if got := h.tenant(r, nil); got != c.wantTenant {
				t.Errorf("got tenant %q, want %q", got, c.wantTenant)
			}
			if got := h.class(r, nil); got != c.wantClass {
				t.Errorf("got class %d, want %d", got, c.wantClass)
			}
		})
	}
}
