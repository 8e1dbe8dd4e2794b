package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/slotfleet/slotfleet/fleet/openai"
)

// route says what a request is to us.
type route int

const (
	routeNone   route = iota // not ours
	routeServe               // work of a model: one of openai.Paths
	routeModels              // the list of models
	routeModel               // one of them
	routeHealth
	routeProps  // of one node
	routeClosed // manages a single llama-server, which a fleet is not
)

// closedPaths of llama-server, without /v1, with what is below them.
var closedPaths = []string{
	"/slots", "/metrics", "/lora-adapters", "/tools", "/cors-proxy", "/stream", "/streams", "/chat/completions/control",
}

// routeOf tells whose a request is. Paths are llama-server's: most of them stand
// with and without /v1.
func routeOf(method, path string) route {
	if method == http.MethodOptions {
		return routeNone
	}
	if _, ok := openai.PathOf(path); ok {
		return routeServe
	}
	bare := path
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
		bare = "/" + rest
	}
	reads := method == http.MethodGet || method == http.MethodHead
	switch {
	case bare == "/models":
		return routeModels
	case strings.HasPrefix(bare, "/models/") && len(bare) > len("/models/"):
		if reads {
			return routeModel
		}
		return routeClosed
	case bare == "/health":
		return routeHealth
	case path == "/props":
		if reads {
			return routeProps
		}
		return routeClosed
	case slices.ContainsFunc(closedPaths, func(p string) bool { return under(bare, p) }):
		return routeClosed
	}
	return routeNone
}

func under(path, folder string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && (rest == "" || rest[0] == '/')
}

// allows lists the methods of a route as an Allow header does; empty: any.
func (t route) allows() string {
	switch t {
	case routeServe:
		return "POST"
	case routeModels, routeModel, routeHealth, routeProps:
		return "GET, HEAD"
	}
	return ""
}

func method(m, allowed string) bool {
	return slices.Contains(strings.Split(allowed, ", "), m)
}

// refuse makes an error about the request itself, which the same request will meet
// again.
func refuse(status int, code, message string) *openai.Error {
	return &openai.Error{
		Status: status, Type: "invalid_request_error", Code: code, Message: message,
		ShouldRetry: new(false),
	}
}

func errMethod(method, allow string) *openai.Error {
	return refuse(http.StatusMethodNotAllowed, "method_not_allowed",
		fmt.Sprintf("%s is not possible here: use %s", shown(method), allow))
}

func errClosed(path string) *openai.Error {
	return refuse(http.StatusNotFound, "not_found",
		shown(path)+" belongs to a single llama-server and is not open at this gateway")
}

// shown cuts what a client sent for a message that repeats it.
func shown(s string) string {
	const longest = 128
	if len(s) > longest {
		s = s[:longest]
	}
	return strings.ToValidUTF8(s, "?")
}
