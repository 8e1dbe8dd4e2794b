package caddymodule

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestCallsAreAnsweredWholeAndSurviveTheirNode(t *testing.T) {
	o := llamasim.Options{Model: "m", Embeddings: true}
	a, b := startSim(t, o), startSim(t, o)
	e := startEdge(t, nodes("", a, b), "fleet {\n\t\talias gpt-4o m\n\t}")
	e.ready()
	for path, body := range map[string]string{
		"/v1/embeddings":            `{"model":"gpt-4o","input":["a","b"]}`,
		"/tokenize":                 `{"model":"m","content":"hello"}`,
		"/v1/messages/count_tokens": `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
	} {
		if got := e.post(path, body); got.Status != http.StatusOK || !json.Valid([]byte(got.Body)) || got.Header.Get("Content-Length") == "" {
			t.Errorf("%s: got %d %s %v", path, got.Status, got.Body, got.Err)
		}
	}
	a.Kill()
	for range 4 {
		if got := e.post("/v1/embeddings", `{"model":"m","input":"a"}`); got.Status != http.StatusOK {
			t.Fatalf("after a node died: got %d %s", got.Status, got.Body)
		}
	}
}

func TestPropsShowNothingOfTheServersPlace(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet {\n\t\talias gpt-4o m\n\t}")
	e.ready()
	for _, path := range []string{"/props", "/props?model=m", "/props?model=gpt-4o"} {
		got := e.get(e.URL + path)
		var props map[string]json.RawMessage
		decode(t, got.Body, &props)
		if got.Status != http.StatusOK || props["total_slots"] == nil || props["chat_template"] == nil {
			t.Fatalf("%s: got %d %s", path, got.Status, got.Body)
		}
		for name := range props {
			if strings.Contains(name, "path") || strings.HasPrefix(name, "ui") || strings.HasPrefix(name, "endpoint") {
				t.Errorf("%s shows %s", path, name)
			}
		}
	}
	wantError(t, e.get(e.URL+"/props?model=nope"), http.StatusNotFound, "model_not_found")
}

func TestErrorsHaveTheFormOfTheirAPI(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet {\n\t\tmax_body 2KiB\n\t}")
	e.ready()
	for name, c := range map[string]struct {
		body   string
		status int
		kind   string
	}{
		"unknown model": {`{"model":"nope","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`, 404, "not_found_error"},
		"broken":        {`{`, 400, "invalid_request_error"},
		"too large":     {chatBody("m", strings.Repeat("x", 4096), 1, false), 413, "request_too_large"},
	} {
		for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens"} {
			got := e.post(path, c.body)
			var v struct {
				Type  string
				Error struct{ Type, Message string }
			}
			decode(t, got.Body, &v)
			if got.Status != c.status || v.Type != "error" || v.Error.Type != c.kind || v.Error.Message == "" {
				t.Errorf("%s on %s: got %d %s, want %d %s", name, path, got.Status, got.Body, c.status, c.kind)
			}
		}
	}
}

func TestHeadersTellWhereTheTimeWent(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	timing := map[bool]string{
		true:  `^queue;dur=[0-9.]+, place;dur=[0-9.]+$`,
		false: `^queue;dur=[0-9.]+, place;dur=[0-9.]+, first;dur=[0-9.]+, total;dur=[0-9.]+$`,
	}
	for option, node := range map[string]string{"": "", "node_headers": "a"} {
		e := startEdge(t, nodes("", sim), "fleet {\n\t\t"+option+"\n\t}")
		e.ready()
		for stream, want := range timing {
			got := e.do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 3, stream))))
			if h := got.Header.Get("Server-Timing"); !regexp.MustCompile(want).MatchString(h) {
				t.Errorf("stream %t: got Server-Timing %q, want %s", stream, h, want)
			}
			if h := got.Header.Get(headerNode); h != node {
				t.Errorf("stream %t, %q: got node %q, want %q", stream, option, h, node)
			}
			if h := got.Header.Get("Access-Control-Allow-Origin") + got.Header.Get("Keep-Alive"); h != "" {
				t.Errorf("stream %t: a header of the node came through: %s", stream, h)
			}
		}
		if option != "" {
			got := e.post("/v1/chat/completions", chatBody("nope", "hi", 3, false))
			if h := got.Header.Get(headerReason); h != "unknown_model" {
				t.Errorf("got reason %q, want unknown_model", h)
			}
		}
		if err := caddy.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRouterModelsAreListedAndLoaded(t *testing.T) {
	sim := startSim(t, llamasim.Options{Models: []llamasim.Model{{Name: "alpha", Aliases: []string{"a"}}, {Name: "beta"}, {Name: "gamma"}}, ModelsMax: 1})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	for _, model := range []string{"alpha", "beta", "a", "gamma"} {
		if got := e.post("/v1/chat/completions", chatBody(model, "hi", 3, false)); got.Status != http.StatusOK {
			t.Fatalf("%s: got %d %s", model, got.Status, got.Body)
		}
	}
	await(t, "gamma alone to be loaded", func() bool {
		body := e.get(e.URL + "/v1/models").Body
		return strings.Count(body, `"status":{"value":"loaded"}`) == 1 && strings.Count(body, `"status":{"value":"unloaded"}`) == 2
	})
	for _, secret := range []string{"args", "preset", "port", "path"} {
		if body := e.get(e.URL + "/v1/models").Body; strings.Contains(body, secret) {
			t.Errorf("the list shows %s: %s", secret, body)
		}
	}
}
