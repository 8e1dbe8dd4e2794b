package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestErrorTable(t *testing.T) {
	reason := func(r fleet.Reason) error { return &fleet.RequestError{Reason: r} }
	node := &fleet.NodeLost{Node: "secret-node", Cause: fleet.CauseReset, Err: errors.New("dial 10.0.0.1: key")}
	for _, x := range []struct {
		err    error
		status int
		code   string
	}{
		{reason(fleet.ReasonTooLong), 400, "context_length_exceeded"},
		{reason(fleet.ReasonUnknownModel), 404, "model_not_found"},
		{reason(fleet.ReasonNoNode), 503, "no_node"},
		{reason(fleet.ReasonStopping), 503, "stopping"},
		{reason(fleet.ReasonOverloaded), 503, "overloaded"},
		{reason(fleet.ReasonExpired), 504, "timeout"},
		{reason(fleet.ReasonDeclined), 501, "not_supported"},
		{reason(fleet.ReasonRefused), 400, "refused"},
		{reason(fleet.ReasonCancelled), 499, "cancelled"},
		{reason(fleet.ReasonBroken), 502, "broken_output"},
		{reason(fleet.ReasonLost), 502, "node_lost"},
		{fmt.Errorf("run: %w", node), 502, "node_lost"},
		{context.Canceled, 499, "cancelled"},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), 504, "timeout"},
		{errors.New("secret-node at 10.0.0.1 said key"), 500, "internal_error"},
		{&fleet.RequestError{Reason: fleet.ReasonLost, Err: node}, 502, "node_lost"},
	} {
		e := ErrorFor(x.err)
		if e.Status != x.status || e.Code != x.code || e.Message == "" || e.Type == "" {
			t.Errorf("%v: %+v, want %d %s", x.err, e, x.status, x.code)
		}
		body := string(e.Body())
		for _, secret := range []string{"secret", "10.0.0.1", "key"} {
			if strings.Contains(body, secret) {
				t.Errorf("%v: the client sees %s", x.err, body)
			}
		}
		var m struct{ Error map[string]any }
		if err := json.Unmarshal([]byte(body), &m); err != nil || m.Error["source"] != "slotfleet" {
			t.Errorf("%s: %v", body, err)
		}
		if (x.status == 503) != (e.Headers()["Retry-After"] != "") {
			t.Errorf("%v: headers %v", x.err, e.Headers())
		}
	}
	if ErrorFor(nil) != nil {
		t.Error("no error became one")
	}
}

func TestErrorBodyAndHeaders(t *testing.T) {
	e := ErrorFor(&fleet.RequestError{
		Reason: fleet.ReasonTooLong, Message: `too "long"`, Len: 40, Max: 30,
		Reply: &fleet.Reply{Status: 400, Body: []byte(`{"error":{"message":"of one server","n_ctx":10}}`)},
	})
	want := `{"error":{"message":"too \"long\"","type":"exceed_context_size_error","param":null,"code":"context_length_exceeded",` +
		`"n_prompt_tokens":40,"n_ctx":30,"retryable":false,"source":"slotfleet"}}`
	if got := string(e.Body()); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if d := cmp.Diff(map[string]string{"x-should-retry": "false"}, e.Headers()); d != "" {
		t.Error(d)
	}
	e = ErrorFor(&fleet.RequestError{Reason: fleet.ReasonOverloaded, RetryAfter: 1200 * time.Millisecond})
	if d := cmp.Diff(map[string]string{"Retry-After": "2"}, e.Headers()); d != "" {
		t.Error(d)
	}
	if got := (&Error{RetryAfter: time.Millisecond}).Headers()["Retry-After"]; got != "1" {
		t.Errorf("Retry-After = %s", got)
	}
}

func TestServersOwnRefusalPasses(t *testing.T) {
	reply := func(status int, body string) *Error {
		return ErrorFor(&fleet.RequestError{Reason: fleet.ReasonRefused, Reply: &fleet.Reply{Status: status, Body: []byte(body)}})
	}
	const own = `{"error":{"code":400,"message":"request (40020 tokens) exceeds","type":"exceed_context_size_error","n_prompt_tokens":40020,"n_ctx":4096}}`
	e := reply(400, own)
	if e.Status != 400 || string(e.Body()) != own || e.Type != "exceed_context_size_error" || e.Code != "400" || !strings.Contains(e.Message, "40020") {
		t.Errorf("%+v: %s", e, e.Body())
	}
	// It says 500 of requests that are wrong; the node makes 400 of that.
	e = reply(400, `{"error":{"code":500,"message":"Failed to parse messages: x","type":"server_error"}}`)
	if want := `{"error":{"message":"Failed to parse messages: x","type":"invalid_request_error","param":null,"code":"refused","retryable":false,"source":"slotfleet"}}`; e.Status != 400 || string(e.Body()) != want {
		t.Errorf("a 500 for a wrong request became %d %s, want 400 %s", e.Status, e.Body(), want)
	}
	for _, x := range []struct {
		status int
		body   string
		want   int
	}{
		{401, `{"error":{"message":"Invalid API Key","code":401}}`, 502},
		{403, own, 502},
		{200, own, 502},
		{413, ``, 413},
		{500, `<html>10.0.0.1</html>`, 502},
		{500, `{"error":"text"}`, 502},
		{500, own, 500},
	} {
		e := reply(x.status, x.body)
		if e.Status != x.want || e.Status != 500 && strings.Contains(string(e.Body()), "Invalid API Key") {
			t.Errorf("%d %s became %d %s", x.status, x.body, e.Status, e.Body())
		}
	}
}

// llama-server says 500 or 501 of what it cannot do, and client libraries try again after
// those: to no end, since all servers of the model were asked.
func TestWhatNoServerCanDoIsNotTriedAgain(t *testing.T) {
	const own = `{"error":{"code":500,"message":"image input is not supported - hint: x","type":"server_error"}}`
	e := ErrorFor(&fleet.RequestError{
		Reason: fleet.ReasonDeclined, Again: true, Message: "the model server takes no images",
		Reply: &fleet.Reply{Status: 500, Body: []byte(own)},
	})
	if e.Status != 500 || string(e.Body()) != own || e.Headers()["x-should-retry"] != "false" {
		t.Errorf("got %d %s %v, want the server's own words, not to be tried again", e.Status, e.Body(), e.Headers())
	}
}

// The refusal is of a request that the client did not make: it would not know what to
// do with it.
func TestRefusalToGoOnIsALostNode(t *testing.T) {
	const own = `{"error":{"code":400,"message":"Cannot continue an assistant message that contains tool calls.","type":"invalid_request_error"}}`
	refusals := map[string]error{
		"400":               &fleet.RequestError{Reason: fleet.ReasonRefused, Message: "Cannot continue", Reply: &fleet.Reply{Status: 400, Body: []byte(own)}},
		"500 of a template": &fleet.RequestError{Reason: fleet.ReasonRefused, Message: "Cannot continue with enable_thinking"},
		"404":               &fleet.RequestError{Reason: fleet.ReasonDeclined, Message: "Cannot continue", Again: true, Reply: &fleet.Reply{Status: 404, Body: []byte(own)}},
		"wrapped":           fmt.Errorf("run: %w", &fleet.RequestError{Reason: fleet.ReasonRefused, Reply: &fleet.Reply{Status: 400, Body: []byte(own)}}),
	}
	for name, err := range refusals {
		j := mustParse(t, chatPath, stream(""), Options{})
		request(t, j, nodeA)
		feed(t, j, []string{delta(role)})
		if got := j.ErrorFor(err); string(got.Body()) != string(ErrorFor(err).Body()) {
			t.Errorf("%s, of the client's own request: got %s", name, got.Body())
		}
		feed(t, j, []string{content("hello")})
		request(t, j, nodeB)
		feed(t, j, []string{delta(role)})
		e := j.ErrorFor(err)
		if e.Code != "node_lost_unresumable" || !strings.Contains(e.Message, "no other server could go on") || *e.ShouldRetry != true {
			t.Errorf("%s: got %s %q", name, e.Code, e.Message)
		}
		end := string(j.End(err))
		if h := listen(t, end); h.faults != 1 || h.done != 0 || strings.Contains(end, "Cannot continue") {
			t.Errorf("%s: got %s", name, end)
		}

		whole := mustParse(t, chatPath, `{"messages":[{"role":"user","content":"x"}]}`, Options{})
		request(t, whole, nodeA)
		feed(t, whole, []string{delta(role), content("hello")})
		request(t, whole, nodeB)
		if e := whole.ErrorFor(err); e.Status != 502 || e.Code != "node_lost" {
			t.Errorf("%s, whole: got %d %s %q", name, e.Status, e.Code, e.Message)
		}
	}
}

func TestErrorInTheMiddleKeepsItsMessage(t *testing.T) {
	for name, err := range map[string]*fleet.RequestError{
		"full":             {Reason: fleet.ReasonOverloaded, Message: "the KV cache is full", Again: true},
		"broken":           {Reason: fleet.ReasonBroken, Message: "the output has not the form", Again: true},
		"broken, reply":    {Reason: fleet.ReasonBroken, Reply: &fleet.Reply{Status: 500, Body: []byte(`{"error":{"message":"the output has not the form"}}`)}},
		"reply":            {Reason: fleet.ReasonRefused, Reply: &fleet.Reply{Status: 500, Body: []byte(`{"error":{"message":"no slot is left"}}`)}},
		"reply of no JSON": {Reason: fleet.ReasonRefused, Message: "no slot is left", Reply: &fleet.Reply{Status: 500, Body: []byte(`error: x`)}},
		"too long":         {Reason: fleet.ReasonTooLong, Message: "the context is full", Reply: &fleet.Reply{Status: 400, Body: []byte(`{"error":{"message":"x"}}`)}},
	} {
		want := err.Message
		if want == "" {
			want = ErrorFor(err).Message
		}
		for _, nodes := range []int{1, 2} {
			j := mustParse(t, chatPath, stream(""), Options{})
			for k := range nodes {
				request(t, j, []fleet.Instance{nodeA, nodeB}[k])
				feed(t, j, []string{delta(role), content("hello")})
			}
			end := string(j.End(err))
			if h := listen(t, end); want == "" || h.faults != 1 || h.done != 0 || !strings.Contains(end, want) {
				t.Errorf("%s, %d nodes: got %s, want %q in it", name, nodes, end, want)
			}
		}
	}
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	feed(t, j, []string{content("hello")})
	_, err := j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(`{"error":{"code":500,"message":"no slot is left"}}`)})
	if end := string(j.End(err)); err == nil || !strings.Contains(end, "no slot is left") {
		t.Errorf("an error event: %v, %s", err, end)
	}
}

func TestErrorEndOfAStreamIsOneEvent(t *testing.T) {
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	end := string(j.End(&fleet.RequestError{Reason: fleet.ReasonRefused, Reply: &fleet.Reply{Status: 400, Body: []byte("{\"error\":\n{\"message\":\"x\"}}")}}))
	if want := "data: {\"error\": {\"message\":\"x\"}}\n\n"; end != want {
		t.Errorf("got %q, want %q", end, want)
	}
	feed(t, j, []string{delta(role), content("x")})
	for _, err := range []error{&fleet.NodeLost{Node: "n"}, &fleet.RequestError{Reason: fleet.ReasonLost}} {
		if h := listen(t, string(j.End(err))); h.faults != 1 || h.done != 0 || !strings.Contains(h.raw, "node_lost_unresumable") {
			t.Errorf("%v: %s", err, h.raw)
		}
	}
	whole := mustParse(t, chatPath, `{"messages":[]}`, Options{})
	if m := decode(t, string(whole.End(&fleet.NodeLost{}))); m["error"] == nil {
		t.Errorf("got %v", m)
	}
}
