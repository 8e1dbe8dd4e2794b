package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

// Admin routers are made anew for each configuration and each admin endpoint, and
// are never cleaned up. They hold nothing: each request looks up the state that is
// there.

// reading answers reads of v with JSON.
func reading(v func(*state, *http.Request) (any, error)) caddy.AdminHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			return apiError(http.StatusMethodNotAllowed, "%s is not possible here: use GET", r.Method)
		}
		s := currentState()
		if s == nil {
			return apiError(http.StatusNotFound, "neither the fleet nor the slotlog app is configured")
		}
		answer, err := v(s, r)
		if err != nil {
			return err
		}
		body, err := json.Marshal(answer)
		if err != nil {
			return apiError(http.StatusInternalServerError, "writing the answer: %v", err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, err = w.Write(append(body, '\n'))
		return err
	}
}

// apiError makes an error for the admin API, which knows it by its type only if it
// is a value and not wrapped.
func apiError(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}
