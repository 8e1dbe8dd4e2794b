package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
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
		return answerJSON(w, answer)
	}
}

// maxControl is the longest body of an action.
const maxControl = 64 << 10

// acting does what a POST asks for and answers with what came of it. A page of another
// site cannot ask: it cannot send this content type without Caddy's leave.
func acting(do func(s *state, r *http.Request, body []byte) (any, error)) caddy.AdminHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", "POST")
			return apiError(http.StatusMethodNotAllowed, "%s is not possible here: use POST", shown(r.Method))
		}
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return apiError(http.StatusUnsupportedMediaType, "want the Content-Type application/json")
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, maxControl+1))
		switch {
		case err != nil:
			return apiError(http.StatusBadRequest, "reading the body: %v", err)
		case len(body) > maxControl:
			return apiError(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", maxControl)
		}
		s := currentState()
		if s == nil || s.apps.last() == nil {
			return errNoFleet
		}
		answer, err := do(s, r, body)
		if err != nil {
			return err
		}
		return answerJSON(w, answer)
	}
}

// readControl reads the body of an action into v. An empty one is an empty object.
func readControl(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return apiError(http.StatusBadRequest, "the body is not the JSON object that this wants: %v", err)
	}
	if d.More() {
		return apiError(http.StatusBadRequest, "the body has more than one JSON object")
	}
	return nil
}

func answerJSON(w http.ResponseWriter, answer any) error {
	body, err := json.Marshal(answer)
	if err != nil {
		return apiError(http.StatusInternalServerError, "writing the answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, err = w.Write(append(body, '\n'))
	return err
}

// apiError makes an error for the admin API, which knows it by its type only if it
// is a value and not wrapped.
func apiError(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}
