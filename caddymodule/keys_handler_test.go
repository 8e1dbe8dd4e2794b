package caddymodule

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// keysOnDisk writes a file of keys and returns its path.
func keysOnDisk(t *testing.T, entries ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, []byte(aKeyFile(entries...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// with sends a request with a header, as `Name: value`; empty: without. A body makes it
// a POST.
func (e *edge) with(header, path, body string) answer {
	e.t.Helper()
	r := e.request(context.Background(), path, strings.NewReader(body))
	if body == "" {
		r.Method = http.MethodGet
	}
	if name, value, ok := strings.Cut(header, ": "); ok {
		r.Header.Set(name, value)
	}
	return e.do(r)
}

const chatPath = "/v1/chat/completions"

func TestOnlyWhoHasAKeyIsServed(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	site := "fleet {\n\t\tkeys " + keysOnDisk(t, "ann sk-1") + "\n\t}\n\trespond /other 418"
	e := startEdge(t, nodes("", sim), site)
	e.ready()
	message := `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
	for name, c := range map[string]struct {
		header, path, body string
		status             int
		says               string
	}{
		"bearer":             {"Authorization: Bearer sk-1", chatPath, chatBody("m", "hi", 3, false), 200, `"choices"`},
		"bearer, small":      {"authorization: bearer  sk-1", chatPath, chatBody("m", "hi", 3, true), 200, "[DONE]"},
		"x-api-key":          {"x-api-key: sk-1", "/v1/messages", message, 200, `"content"`},
		"none":               {"", chatPath, chatBody("m", "hi", 3, false), 401, `"code":"invalid_api_key"`},
		"wrong":              {"Authorization: Bearer sk-2", chatPath, chatBody("m", "hi", 3, false), 401, `"type":"authentication_error"`},
		"wrong, Anthropic's": {"x-api-key: sk-2", "/v1/messages", message, 401, `{"type":"error","error":{"type":"authentication_error"`},
		"basic":              {"Authorization: Basic c2stMTpzay0x", chatPath, chatBody("m", "hi", 3, false), 401, "a key is needed"},
		"the hash":           {"x-api-key: " + hashOf("sk-1").String(), chatPath, chatBody("m", "hi", 3, false), 401, "not known"},
		"too long":           {"x-api-key: " + strings.Repeat("k", 4096), chatPath, chatBody("m", "hi", 3, false), 401, "a key is needed"},
		"in the query":       {"", chatPath + "?key=sk-1&api_key=sk-1", chatBody("m", "hi", 3, false), 401, "a key is needed"},
		"models":             {"", "/v1/models", "", 401, "invalid_api_key"},
		"models with a key":  {"x-api-key: sk-1", "/v1/models", "", 200, `"id":"m"`},
		"one model":          {"", "/v1/models/m", "", 401, "invalid_api_key"},
		"props":              {"", "/props", "", 401, "invalid_api_key"},
		"closed path":        {"", "/slots", "", 401, "invalid_api_key"},
		"wrong method":       {"", "/v1/models", "{}", 401, "invalid_api_key"},
		"health":             {"", "/health", "", 200, "ok"},
		"health, wrong key":  {"x-api-key: sk-2", "/v1/health", "", 200, "ok"},
		"another path":       {"", "/other", "", 418, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := e.with(c.header, c.path, c.body)
			if a.Status != c.status || !strings.Contains(a.Body, c.says) {
				t.Fatalf("got %d %s, want %d and %q", a.Status, a.Body, c.status, c.says)
			}
			if got := a.Header.Get("WWW-Authenticate"); (got != "") != (c.status == 401) || got != "" && !strings.HasPrefix(got, "Bearer ") {
				t.Errorf("got WWW-Authenticate %q with status %d", got, a.Status)
			}
			if strings.Contains(a.Body, "sk-") || strings.Contains(a.Body, hashScheme) {
				t.Errorf("the answer repeats a secret: %s", a.Body)
			}
		})
	}
}

// HTTP/2 leaves the spaces around a header that HTTP/1 cuts off.
func TestSpacesAroundAKeyAreNoneOfIt(t *testing.T) {
	for header, value := range map[string]string{"Authorization": "Bearer  sk-1 ", "X-Api-Key": " sk-1 "} {
		r := &http.Request{Header: http.Header{header: {value}}}
		if got := secretsOf(r); !slices.Equal(got, []string{"sk-1"}) {
			t.Errorf("%s %q: got %q, want sk-1", header, value, got)
		}
	}
}

func TestAKeyUsesOnlyItsModels(t *testing.T) {
	a, b := startSim(t, llamasim.Options{Model: "m", Aliases: []string{"m-alias"}}), startSim(t, llamasim.Options{Model: "n"})
	site := "fleet {\n\t\tkeys " + keysOnDisk(t, `ann sk-1 "models": ["gpt-4o"]`, "bob sk-2") + "\n\t\talias gpt-4o m-alias\n\t\talias gpt-x n\n\t\tany_model\n\t}"
	e := startEdge(t, nodes("", a, b), site)
	await(t, "both models", func() bool {
		got := e.with("x-api-key: sk-2", "/v1/models", "").Body
		return strings.Contains(got, `"id":"m"`) && strings.Contains(got, `"id":"n"`)
	})
	for model, want := range map[string]int{
		"m": 200, "m-alias": 200, "gpt-4o": 200, "n": 403, "gpt-x": 403, "none": 403,
	} {
		got := e.with("x-api-key: sk-1", chatPath, chatBody(model, "hi", 3, false))
		if got.Status != want || want == 403 && !strings.Contains(got.Body, `"code":"model_not_allowed"`) {
			t.Errorf("model %s: got %d %s, want %d", model, got.Status, got.Body, want)
		}
	}
	if got := e.with("x-api-key: sk-1", "/v1/messages", `{"model":"n","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`); got.Status != 403 ||
		!strings.Contains(got.Body, `"type":"permission_error"`) {
		t.Errorf("got %d %s, want 403 in Anthropic's form", got.Status, got.Body)
	}
	if got := e.with("x-api-key: sk-1", chatPath, `{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`); got.Status != 404 {
		t.Errorf("no model: got %d %s, want 404", got.Status, got.Body)
	}
	if got := e.with("x-api-key: sk-1", "/v1/models", "").Body; strings.Contains(got, `"id":"n"`) || !strings.Contains(got, `"id":"m"`) {
		t.Errorf("models: got %s, want m alone", got)
	}
	if got := e.with("x-api-key: sk-1", "/v1/models/n", ""); got.Status != 404 {
		t.Errorf("model n: got %d %s, want 404", got.Status, got.Body)
	}
	if got := e.with("x-api-key: sk-1", "/props?model=gpt-x", ""); got.Status != 403 {
		t.Errorf("props: got %d %s, want 403", got.Status, got.Body)
	}
	if got := e.with("x-api-key: sk-2", chatPath, chatBody("n", "hi", 3, false)); got.Status != 200 {
		t.Errorf("a key without models: got %d %s, want 200", got.Status, got.Body)
	}

	// Where one model is left and any name goes, it must still be one of the key's.
	a.Kill()
	if err := e.load(nodes("", b), site); err != nil {
		t.Fatal(err)
	}
	e.ready()
	for _, model := range []string{"whatever", "m", "gpt-4o", "n"} {
		if got := e.with("x-api-key: sk-1", chatPath, chatBody(model, "hi", 3, false)); got.Status != 403 {
			t.Errorf("model %s of a fleet of n: got %d %s, want 403", model, got.Status, got.Body)
		}
	}
	if got := e.with("x-api-key: sk-2", chatPath, chatBody("whatever", "hi", 3, false)); got.Status != 200 {
		t.Errorf("any model: got %d %s, want 200", got.Status, got.Body)
	}
}

func TestLimitsSurviveAReload(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	path := keysOnDisk(t, `ann sk-1 "per_minute": 3`, `bob sk-2 "concurrent": 1`)
	site := "fleet {\n\t\tkeys " + path + "\n\t}"
	e := startEdge(t, nodes("", sim), site)
	e.ready()
	ask := func(secret string) answer {
		return e.with("x-api-key: "+secret, chatPath, chatBody("m", "hi", 3, false))
	}
	for i := range 2 {
		a := ask("sk-1")
		if a.Status != 200 || a.Header.Get("X-Ratelimit-Limit-Requests") != "3" || a.Header.Get("X-Ratelimit-Remaining-Requests") != strconv.Itoa(2-i) {
			t.Errorf("got %d %v, want what is left of 3", a.Status, a.Header)
		}
	}
	if a := e.with("x-api-key: sk-1", "/v1/models", ""); a.Status != 200 {
		t.Errorf("models: got %d, want a list that counts for nothing", a.Status)
	}
	if err := e.load(nodes("", sim), site+"\n\theader X-Unrelated 1"); err != nil {
		t.Fatal(err)
	}
	if a := ask("sk-1"); a.Status != 200 {
		t.Errorf("the third request: got %d %s", a.Status, a.Body)
	}
	a := ask("sk-1")
	after, err := strconv.Atoi(a.Header.Get("Retry-After"))
	if a.Status != 429 || !strings.Contains(a.Body, `"code":"rate_limit_exceeded"`) || err != nil || after < 1 || after > 60 {
		t.Errorf("the fourth request: got %d %s, Retry-After %d, want 429", a.Status, a.Body, after)
	}
	if a := e.with("x-api-key: sk-1", "/v1/messages", `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`); a.Status != 429 ||
		!strings.Contains(a.Body, `{"type":"error","error":{"type":"rate_limit_error"`) {
		t.Errorf("got %d %s, want 429 in Anthropic's form", a.Status, a.Body)
	}
	if a := ask("sk-2"); a.Status != 200 {
		t.Errorf("another key: got %d %s", a.Status, a.Body)
	}
	metrics := e.get(e.Admin + "/metrics").Body
	if !strings.Contains(metrics, `slotfleet_requests_total{model="_other",outcome="refused",reason="limit"} 2`) {
		t.Errorf("the requests that met a limit are not counted in\n%s", metrics)
	}
}

// A key's requests are counted until they ended, through a reload, and given back
// however they end.
func TestOneRequestAtOnce(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 100})
	site := "fleet {\n\t\tkeys " + keysOnDisk(t, `bob sk-2 "concurrent": 1`) + "\n\t}"
	e := startEdge(t, nodes("", sim), site)
	e.ready()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	r := e.request(ctx, chatPath, strings.NewReader(chatBody("m", "hi", 100000, true)))
	r.Header.Set("Authorization", "Bearer sk-2")
	resp, err := e.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("got %s", resp.Status)
	}
	ask := func() answer { return e.with("x-api-key: sk-2", chatPath, chatBody("m", "hi", 3, false)) }
	if err := e.load(nodes("", sim), site+"\n\theader X-Unrelated 1"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if a := ask(); a.Status != 429 || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Body, `"code":"concurrency_limit_exceeded"`) {
			t.Errorf("got %d %s, want 429 while another request runs", a.Status, a.Body)
		}
	}
	leave()
	await(t, "the request to be given back", func() bool { return ask().Status == 200 })
	for _, body := range []string{`{"model":`, chatBody("none", "hi", 3, false), chatBody("m", "hi", 3, true)} {
		e.with("x-api-key: sk-2", chatPath, body)
		sim.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 2, Times: 100})
		e.with("x-api-key: sk-2", chatPath, chatBody("m", "hi", 20, true)) // is broken off
		sim.SetFault(llamasim.Fault{})
	}
	await(t, "the node to be up again", func() bool {
		a := ask()
		if a.Status == 429 {
			t.Fatalf("got %s after requests that failed: one was not given back", a.Body)
		}
		return a.Status == 200
	})
}

// No secret of a client is in what this program writes, with the filter of docs/keys.md.
func TestSecretsAreNotLogged(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	folder := t.TempDir()
	site := "log {\n\t\toutput file " + folder + "/access.log\n\t\tformat filter {\n\t\t\trequest>headers>X-Api-Key delete\n\t\t}\n\t}\n" +
		"\tfleet {\n\t\tkeys " + keysOnDisk(t, "ann sk-right") + "\n\t}"
	logs := "debug\n\tlog everything {\n\t\toutput file " + folder + "/all.log\n\t\texclude http.log.access\n\t}\n\t"
	e := startEdge(t, logs+nodes("", sim), site)
	e.ready()
	for _, header := range []string{"Authorization: Bearer sk-right", "x-api-key: sk-right", "Authorization: Bearer sk-wrong", "x-api-key: sk-wrong"} {
		e.with(header, chatPath, chatBody("m", "hi", 3, false))
		e.with(header, chatPath, "{")
		e.with(header, "/v1/models", "")
	}
	var access string
	await(t, "the access log", func() bool {
		b, _ := os.ReadFile(folder + "/access.log")
		access = string(b)
		return strings.Count(access, `"uri":"/v1/chat/completions"`)+strings.Count(access, `"uri":"/v1/models"`) == 12
	})
	all, err := os.ReadFile(folder + "/all.log")
	if err != nil || len(all) == 0 {
		t.Fatalf("nothing was logged: %v", err)
	}
	for name, text := range map[string]string{
		"access log": access, "log": string(all), "configuration": e.get(e.Admin + "/config/").Body,
		"nodes": e.get(e.Admin + "/fleet/nodes").Body, "sessions": e.get(e.Admin + "/fleet/sessions").Body,
		"metrics": e.get(e.Admin + "/metrics").Body, "request to the node": string(sim.LastBodies()[0]),
	} {
		if i := strings.Index(text, "sk-"); i >= 0 {
			t.Errorf("%s: it has a secret: …%s", name, text[max(0, i-60):min(len(text), i+40)])
		}
	}
	if got := strings.Count(access, `"user_id":"ann"`); got != 6 {
		t.Errorf("the access log names the key %d times, want 6, in\n%s", got, access)
	}
}

func TestTheTenantIsTheKey(t *testing.T) {
	class := 0
	k := &key{name: "ann", class: &class}
	r, err := http.NewRequest(http.MethodPost, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.RemoteAddr = "192.0.2.7:1"
	if h := new(Handler); h.tenant(r, k) != "ann" || h.class(r, k) != 0 || h.caller(r, k) != "ann" {
		t.Errorf("got tenant %q, class %d, caller %q, want ann's", h.tenant(r, k), h.class(r, k), h.caller(r, k))
	}
	if h := (&Handler{Tenant: "all", Class: "9"}); h.tenant(r, k) != "all" || h.class(r, k) != 0 || h.caller(r, k) != "ann" {
		t.Errorf("got tenant %q, class %d, caller %q, want the tenant that is configured", h.tenant(r, k), h.class(r, k), h.caller(r, k))
	}
	if h := (&Handler{Class: "9"}); h.class(r, &key{name: "bob"}) != 9 {
		t.Errorf("a key without a class: got %d, want the handler's", h.class(r, &key{name: "bob"}))
	}
}
