package openai

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestEveryPathIsAJobOrACall(t *testing.T) {
	for _, p := range Paths {
		if p.Method != http.MethodPost || p.Shape != ShapeOf(p.Path) {
			t.Errorf("%+v", p)
		}
		got, ok := PathOf(p.Path)
		if !ok || got.Use != p.Use {
			t.Errorf("%s: PathOf = %+v, %t", p.Path, got, ok)
		}
		body, typ := []byte(`{"model":"m"}`), ""
		if strings.Contains(p.Path, "audio") {
			typ, body = formOf(t, "model", "m")
		}
		_, err := Parse(p.Path, body, Options{ContentType: typ})
		_, errCall := ParseCall(p.Path, body, Options{})
		if (err == nil) != (p.Use == UseJob) || (errCall == nil) != (p.Use != UseJob) {
			t.Errorf("%s: Parse %v, ParseCall %v", p.Path, err, errCall)
		}
	}
	if _, ok := PathOf("/v1/models"); ok {
		t.Error("/v1/models is served here")
	}
}

func TestCallPassesAsItIsButForTheModelsName(t *testing.T) {
	o := Options{Aliases: map[string]string{"text-embedding-3-small": "bge-m3"}}
	for _, x := range []struct{ path, body, want, model string }{
		{"/v1/embeddings", `{"input":["a","b"], "model":"text-embedding-3-small","x":1.0}`, `{"input":["a","b"], "model":"bge-m3","x":1.0}`, "bge-m3"},
		{"/tokenize", `{"content":"a"}`, `{"content":"a"}`, ""},
		{"/v1/rerank", `{"model":"r","query":"q","documents":["a"]}`, `{"model":"r","query":"q","documents":["a"]}`, "r"},
		{"/v1/messages/count_tokens", `{"model":"r","messages":[{"role":"user","content":[]}]}`, `{"model":"r","messages":[{"role":"user","content":[]}]}`, "r"},
	} {
		c, err := ParseCall(x.path, []byte(x.body), o)
		if err != nil {
			t.Fatal(err)
		}
		a := c.Ask()
		if string(a.Body) != x.want || a.Op != fleet.OpAsk || a.Path != x.path || a.Method != "POST" || c.Want().Model != x.model {
			t.Errorf("%s: asks %+v: %s", x.path, a, a.Body)
		}
	}
	for _, body := range []string{``, `[]`, `{"model":7}`, `{"model":"a","model":"b"}`} {
		_, err := ParseCall("/v1/embeddings", []byte(body), o)
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 {
			t.Errorf("%s: got %v, want 400", body, err)
		}
	}
}

func TestErrorsHaveTheFormOfTheirPath(t *testing.T) {
	lost := &fleet.NodeLost{Node: "10.0.0.7:8080", Cause: fleet.CauseReset}
	for _, x := range []struct {
		a            api
		early, began string
	}{
		{
			apiChat, `{"error":{"message":"the servers that were asked failed before they answered; try again","type":"server_error","param":null,"code":"node_lost","source":"slotfleet"}}`,
			"data: {\"error\":{",
		},
		{
			apiResponses, `{"error":{"message":"the servers that were asked failed before they answered; try again","type":"server_error","param":null,"code":"node_lost","source":"slotfleet"}}`,
			`event: error` + "\n" + `data: {"type":"error","code":"node_lost_unresumable","message":`,
		},
		{
			apiMessages, `{"type":"error","error":{"type":"api_error","message":"the servers that were asked failed before they answered; try again","code":"node_lost","source":"slotfleet"}}`,
			`event: error` + "\n" + `data: {"type":"error","error":{"type":"api_error","message":`,
		},
	} {
		path, body := question(x.a, false, 9, 1)
		j := mustParse(t, path, body, Options{})
		if got := string(j.End(lost)); got != x.early {
			t.Errorf("whole:\n got %s\nwant %s", got, x.early)
		}
		path, body = question(x.a, true, 90, 1)
		j = mustParse(t, path, body, Options{})
		a, err := j.Request(modernNode)
		if err != nil {
			t.Fatal(err)
		}
		o := &oracle{api: x.a, text: []rune("Hello"), limit: 90, pieces: func() int { return 2 }}
		events := o.answer(a)
		out := feed(t, j, events[:len(events)-4])
		end := string(j.End(lost))
		if !strings.HasPrefix(end, x.began) || !strings.HasSuffix(end, "\n\n") || strings.Contains(end, "10.0.0.7") {
			t.Errorf("got %s\nwant %s…", end, x.began)
		}
		if v := hear(x.a, out+end); v.Error != "node_lost_unresumable" || v.wrong != "" {
			t.Errorf("the client hears %q %s: %s", v.Error, v.wrong, out+end)
		}
	}
}

// A server's own error of Messages comes in OpenAI's form, and bare inside of a stream.
func TestServersErrorTakesTheFormOfThePath(t *testing.T) {
	path, body := question(apiMessages, true, 9, 1)
	j := mustParse(t, path, body, Options{})
	request(t, j, modernNode)
	_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(`{"code":500,"message":"Compute error.","type":"server_error"}`)})
	if r, ok := errors.AsType[*fleet.RequestError](err); !ok || !r.Again || r.Message != "Compute error." {
		t.Fatalf("got %v, want an error of the server that another is asked after", err)
	}
	refused := &fleet.RequestError{
		Reason: fleet.ReasonRefused,
		Reply:  &fleet.Reply{Status: 400, Body: []byte(`{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}`)},
	}
	const want = `{"type":"error","error":{"type":"invalid_request_error","message":"'messages' is required"}}`
	if got := string(ErrorFor(refused).BodyIn(ShapeAnthropic)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
		429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 422: "invalid_request_error",
	} {
		if got := anthropicType(status); got != want {
			t.Errorf("%d is a %s, want %s", status, got, want)
		}
	}
}

// isJob reports whether the path is a [Job]'s.
func isJob(path string) bool {
	p, ok := PathOf(path)
	return ok && p.Use == UseJob
}
