package caddymodule

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
)

// FleetKeys lets in who has a key of a `fleet` handler's file of keys, as a bearer token
// or in `X-Api-Key`, for routes that the handler does not answer. It sets
// `{http.auth.user.id}` to the name of the key and `{http.auth.user.class}` to its
// class, empty if it has none. Models and limits of keys are for the handler, and mean nothing
// here.
type FleetKeys struct {
	// The file of keys; see docs/keys.md. May have placeholders. It is read again when
	// it changes.
	File string `json:"file,omitempty"`

	keys   *keyFile
	logger *slog.Logger
}

// CaddyModule returns the Caddy module information.
func (FleetKeys) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.authentication.providers.fleet_keys",
		New: func() caddy.Module { return new(FleetKeys) },
	}
}

// Provision reads the file of keys.
func (k *FleetKeys) Provision(ctx caddy.Context) error {
	k.logger = ctx.Slogger()
	if k.File == "" {
		return errors.New("fleet_keys needs a file of keys")
	}
	var err error
	k.keys, err = openKeys(k.File)
	return err
}

// Cleanup leaves the file of keys.
func (k *FleetKeys) Cleanup() error { return closeKeys(&k.keys) }

// Authenticate finds out whose key a request shows.
func (k *FleetKeys) Authenticate(w http.ResponseWriter, r *http.Request) (caddyauth.User, bool, error) {
	found, shown := k.keys.keyOf(r, time.Now(), k.logger)
	if found == nil {
		w.Header().Set("WWW-Authenticate", challenge(shown))
		return caddyauth.User{}, false, nil
	}
	class := ""
	if found.class != nil {
		class = strconv.Itoa(*found.class)
	}
	return caddyauth.User{ID: found.name, Metadata: map[string]string{"class": class}}, true, nil
}

// Interface guards.
var (
	_ caddy.Provisioner       = (*FleetKeys)(nil)
	_ caddy.CleanerUpper      = (*FleetKeys)(nil)
	_ caddyauth.Authenticator = (*FleetKeys)(nil)
)
