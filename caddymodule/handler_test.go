package caddymodule

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func TestChatIsAnsweredWholeAndStreamed(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()

	whole := e.post("/v1/chat/completions", chatBody("m", "hello", 20, false))
	if whole.Status != http.StatusOK || whole.Err != nil {
		t.Fatalf("got %+v", whole)
	}
	var c struct {
		Object  string
		Choices []struct {
			Message struct{ Content string }
		}
	}
	decode(t, whole.Body, &c)
	if c.Object != "chat.completion" || len(c.Choices) != 1 || c.Choices[0].Message.Content == "" {
		t.Fatalf("got %s", whole.Body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "X-Request-Id": whole.Header.Get("X-Request-Id")} {
		if got := whole.Header.Get(name); got != want || got == "" {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if whole.Header.Get("Content-Length") == "" {
		t.Error("a whole answer has no Content-Length")
	}

	resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hello", 20, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s := readStream(resp.Body, nil)
	if wrong := s.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	if s.Text != c.Choices[0].Message.Content {
		t.Errorf("streamed %q, whole %q", s.Text, c.Choices[0].Message.Content)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Server": "Caddy",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestModelsAndHealth(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Aliases: []string{"m-alias"}, Context: 2048})
	e := startEdge(t, nodes("retry 100ms", sim), "fleet {\n\t\talias gpt-4o m\n\t}")
	e.ready()
	if got := e.get(e.URL + "/v1/health").Body; got != `{"status":"ok"}` {
		t.Errorf("health: got %s", got)
	}
	var models struct {
		Object string
		Data   []struct {
			ID, Object string
			OwnedBy    string `json:"owned_by"`
			Created    int64
			Aliases    []string
			Meta       struct {
				Context int `json:"n_ctx"`
			}
		}
	}
	for _, path := range []string{"/v1/models", "/models"} {
		decode(t, e.get(e.URL+path).Body, &models)
		m := models.Data[0]
		if models.Object != "list" || len(models.Data) != 1 || m.ID != "m" || m.Object != "model" ||
			m.OwnedBy != "llamacpp" || m.Created != started || m.Meta.Context != 2048 ||
			strings.Join(m.Aliases, " ") != "gpt-4o m-alias" {
			t.Errorf("%s: got %+v", path, models)
		}
	}
	for _, id := range []string{"m", "m-alias", "gpt-4o"} {
		if a := e.get(e.URL + "/v1/models/" + id); a.Status != http.StatusOK || !strings.Contains(a.Body, `"id":"m"`) {
			t.Errorf("models/%s: got %d %s", id, a.Status, a.Body)
		}
	}
	wantError(t, e.get(e.URL+"/v1/models/none"), http.StatusNotFound, "model_not_found")

	sim.Kill()
	await(t, "the edge to be unhealthy", func() bool {
		a := e.get(e.URL + "/health")
		return a.Status == http.StatusServiceUnavailable && a.Body == unhealthy
	})
}

func TestAliasAndAnyModel(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), `
	handle /any/* {
		uri strip_prefix /any
		fleet {
			any_model
		}
	}
	handle {
		fleet {
			alias gpt-4o m
		}
	}`)
	e.ready()
	if a := e.post("/v1/chat/completions", chatBody("gpt-4o", "hi", 5, false)); a.Status != http.StatusOK {
		t.Errorf("alias: got %d %s", a.Status, a.Body)
	}
	wantError(t, e.post("/v1/chat/completions", chatBody("gpt-3.5-turbo", "hi", 5, false)), http.StatusNotFound, "model_not_found")
	if a := e.post("/any/v1/chat/completions", chatBody("gpt-3.5-turbo", "hi", 5, false)); a.Status != http.StatusOK {
		t.Errorf("any_model: got %d %s", a.Status, a.Body)
	}
}

func TestRefusalsHaveTheFormOfTheAPI(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "route {\n\t\tfleet {\n\t\t\tmax_body 2KiB\n\t\t}\n\t\trespond next 418\n\t}")
	e.ready()
	const chat = "/v1/chat/completions"
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code               string // empty: the next handler's
	}{
		"broken JSON":         {"POST", chat, `{"model":`, 400, "*"},
		"no object":           {"POST", chat, `[]`, 400, "*"},
		"unknown model":       {"POST", chat, chatBody("nope", "hi", 1, true), 404, "model_not_found"},
		"too large":           {"POST", chat, chatBody("m", strings.Repeat("x", 4096), 1, true), 413, "request_too_large"},
		"wrong method":        {"GET", chat, "", 405, "method_not_allowed"},
		"models by POST":      {"POST", "/v1/models", "{}", 405, "method_not_allowed"},
		"embeddings, no JSON": {"POST", "/v1/embeddings", "{", 400, "*"},
		"responses, no JSON":  {"POST", "/v1/responses", "{", 400, "invalid_json"},
		"infill, no JSON":     {"POST", "/infill", "[", 400, "*"},
		"two models":          {"POST", "/completion", `{"model":"m","model":"n","prompt":"x"}`, 400, "duplicate_field"},
		"speech that is none": {"POST", "/v1/audio/transcriptions", `{"model":"m"}`, 400, "invalid_content_type"},
		"unknown to rerank":   {"POST", "/v1/rerank", `{"model":"nope","query":"q","documents":["a"]}`, 404, "model_not_found"},
		"unknown responses":   {"POST", "/v1/responses", `{"model":"nope","input":"hi"}`, 404, "model_not_found"},
		"unknown to tokenize": {"POST", "/tokenize", `{"model":"nope","content":"hi"}`, 404, "model_not_found"},
		"large infill":        {"POST", "/infill", `{"model":"m","prompt":"` + strings.Repeat("x", 4096) + `"}`, 413, "request_too_large"},
		"responses by GET":    {"GET", "/v1/responses", "", 405, "method_not_allowed"},
		"adapters":            {"POST", "/lora-adapters", "[]", 404, "not_found"},
		"tools":               {"GET", "/tools", "", 404, "not_found"},
		"props by DELETE":     {"DELETE", "/props", "", 404, "not_found"},
		"control":             {"POST", "/v1/chat/completions/control", "{}", 404, "not_found"},
		"streams":             {"GET", "/v1/stream?conv_id=a", "", 404, "not_found"},
		"one stream":          {"DELETE", "/v1/stream/a", "", 404, "not_found"},
		"setting props":       {"POST", "/props", "{}", 404, "not_found"},
		"slots":               {"GET", "/slots", "", 404, "not_found"},
		"saving a slot":       {"POST", "/slots/0?action=save", "{}", 404, "not_found"},
		"metrics":             {"GET", "/metrics", "", 404, "not_found"},
		"loading a model":     {"POST", "/models/load", "{}", 404, "not_found"},
		"not ours":            {"GET", "/other", "", 418, ""},
		"not ours by a hair":  {"GET", "/v1/chat/completionsx", "", 418, ""},
		"OPTIONS is the site": {"OPTIONS", chat, "", 418, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := http.NewRequest(c.method, e.URL+c.path, strings.NewReader(c.body))
			a := e.do(r)
			if c.code == "" {
				if a.Status != c.status || a.Body != "next" {
					t.Fatalf("got %d %s, want the next handler's answer", a.Status, a.Body)
				}
				return
			}
			wantError(t, a, c.status, c.code)
			if c.status == http.StatusMethodNotAllowed && a.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	if n := sim.Stats().Requests; n != 0 {
		t.Errorf("the server got %d requests, want 0", n)
	}
}

// wantError checks an error's status, code and form. code "*": any.
func wantError(t *testing.T, a answer, status int, code string) {
	t.Helper()
	var e struct {
		Error map[string]json.RawMessage `json:"error"`
	}
	if a.Status != status || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %s %s %v, want %d", a.Status, a.Header.Get("Content-Type"), a.Body, a.Err, status)
	}
	decode(t, a.Body, &e)
	for _, field := range []string{"message", "type", "param", "code"} {
		if _, ok := e.Error[field]; !ok {
			t.Errorf("no %s in %s", field, a.Body)
		}
	}
	if got := string(e.Error["code"]); code != "*" && got != `"`+code+`"` {
		t.Errorf("code: got %s, want %q", got, code)
	}
	if a.Header.Get("X-Request-Id") == "" {
		t.Error("no X-Request-Id")
	}
}

func TestAllNodesDown(t *testing.T) {
	const queue = "retry 100ms\n\t\tqueue {\n\t\t\ttimeout 200ms\n\t\t}"
	refused := func(t *testing.T, e *edge) {
		t.Helper()
		a := e.post("/v1/chat/completions", chatBody("m", "hi", 5, true))
		if a.Status != http.StatusServiceUnavailable && a.Status != http.StatusGatewayTimeout {
			t.Fatalf("got %d %s, want 503 or 504", a.Status, a.Body)
		}
		wantError(t, a, a.Status, "*")
		if a.Header.Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After", a.Status)
		}
	}
	t.Run("never seen", func(t *testing.T) {
		refused(t, startEdge(t, "fleet {\n\t\tnode a http://"+freeAddr(t)+"\n\t\t"+queue+"\n\t}", "fleet"))
	})
	t.Run("lost", func(t *testing.T) {
		sim := startSim(t, llamasim.Options{Model: "m"})
		e := startEdge(t, nodes(queue, sim), "fleet")
		e.ready()
		sim.Kill()
		await(t, "the loss to be noticed", func() bool { return e.get(e.URL+"/health").Status != http.StatusOK })
		refused(t, e)
	})
}

func TestClientThatLeavesFreesTheSlot(t *testing.T) {
	for name, stream := range map[string]bool{"stream": true, "whole": false} {
		t.Run(name, func(t *testing.T) {
			sim := startSim(t, llamasim.Options{Model: "m", Decode: 50})
			e := startEdge(t, nodes("", sim), "fleet")
			e.ready()
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				resp, err := e.Client.Do(e.request(ctx, "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 3000, stream))))
				if err == nil {
					readStream(resp.Body, func(n int) {
						if n == 3 {
							leave()
						}
					})
					resp.Body.Close()
				}
			}()
			await(t, "the generation to begin", func() bool { return sim.Stats().Active == 1 })
			if !stream {
				leave()
			}
			await(t, "the server to see the client leave", func() bool {
				s := sim.Stats()
				return s.Active == 0 && s.Cancelled == 1
			})
			<-ended
			var status struct {
				Nodes []struct {
					Instances []struct {
						Active int `json:"lanes_active"`
					}
				}
			}
			await(t, "the lane to be free", func() bool {
				decode(t, e.get(e.Admin+"/fleet/nodes").Body, &status)
				return status.Nodes[0].Instances[0].Active == 0
			})
		})
	}
}
