package llamacpp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/slotfleet/slotfleet/fleet"
)

func errorBody(code int, text string) string {
	b, _ := json.Marshal(text)
	return fmt.Sprintf(`{"error":{"code":%d,"message":%s,"type":"server_error"}}`, code, b)
}

// verdictOf writes an error down in one line: cause, or reason with its marks.
func verdictOf(err error) string {
	if lost, ok := errors.AsType[*fleet.NodeLost](err); ok {
		return "lost " + string(lost.Cause)
	}
	var e *fleet.RequestError
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	s := string(e.Reason)
	if e.Again {
		s += " again"
	}
	if e.Reply != nil {
		s += " reply"
	}
	return s
}

func TestAnswersAreClassifiedByTheirText(t *testing.T) {
	for _, tt := range []struct {
		status int
		text   string
		want   string
	}{
		// Another node.
		{503, "Loading model", "lost loading"},
		{503, "Stream owner model is loading, retry later", "lost loading"},
		{503, "no slot available", "overloaded again"},
		{500, "Context size has been exceeded.", "overloaded again"},
		{500, "Compute error.", "lost crashed"},
		{500, "Invalid input batch.", "lost crashed"},
		{500, "decode() failed: x", "lost crashed"},
		{500, "pre_decode() failed: x", "lost crashed"},
		{500, "post_decode() failed: x", "lost crashed"},
		{500, "got exception: x", "lost crashed"},
		{500, "failed to process mtmd chunk", "lost crashed"},
		{500, "failed to decode the batch", "lost crashed"},
		{500, "model name=m8b failed to load", "declined again reply"},
		{500, "model limit reached, try again later", "overloaded again"},
		{400, "model 'x' not found", "declined again reply"},
		{400, "model is not loaded", "declined again reply"},
		{400, "model name=m8b is not running", "declined again reply"},
		{501, "This server does not support embeddings. Start it with `--embeddings`", "declined again reply"},
		{501, "Infill is not supported by this model: prefix token is missing. ", "declined again reply"},
		{501, "The current model does not support audio input.", "declined again reply"},
		{501, "something new", "declined again reply"},
		{500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj", "declined again reply"},
		{500, "tools param requires --jinja flag", "declined again reply"},
		{500, "input (3002 tokens) is too large to process. increase the physical batch size (current batch size: 512)", "declined again reply"},
		{400, "Assistant response prefill is incompatible with enable_thinking.", "declined again reply"},
		{401, "Invalid API Key", "no_node again"},
		{404, "File Not Found", "declined again reply"},

		// The client.
		{400, "'messages' is required", "refused reply"},
		{400, "Field 'n': Value must be between 1 <= value <= 2, but got 5", "refused reply"},
		{400, "something new", "refused reply"},
		{400, "Cannot have 2 or more assistant messages at the end of the list.", "refused reply"},
		{500, "[json.exception.parse_error.101] parse error at line 1", "refused reply"},
		{500, "Failed to parse messages: Compute error.", "refused reply"},
		{500, "Failed to parse tools: x", "refused reply"},
		{500, "Unknown reasoning format: x", "refused reply"},
		{500, "'messages' is required", "refused reply"},
		{413, "", "refused reply"},

		// The model.
		{500, "The model produced output that does not match the expected peg-native format", "broken_output again reply"},

		// Unknown.
		{500, "something new", "refused again reply"},
		{505, "something new", "refused again reply"},
		{500, "what did you say: Compute error.", "refused again reply"},
	} {
		if got := verdictOf(classify(tt.status, []byte(errorBody(tt.status, tt.text)))); got != tt.want {
			t.Errorf("%d %q: got %s, want %s", tt.status, tt.text, got, tt.want)
		}
	}
}

func TestAnswersThatAreNotOfTheServerAreClassifiedByTheirStatus(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		want   string
	}{
		{400, "", "refused reply"},
		{413, "", "refused reply"},
		{500, "proxy error: Failed to read connection", "lost closed"},
		{500, "", "refused again reply"},
		{502, "<html>Bad Gateway</html>", "lost closed"},
		{503, "", "lost closed"},
		{504, "", "lost closed"},
		{429, "", "overloaded again"},
		{403, "<html>", "no_node again"},
		{407, "", "no_node again"},
		{301, "", "declined again"},
		{307, `{"error":"x"}`, "declined again"},
		{204, "", "declined again"},
		{404, "<html>nginx on gpu7.lan</html>", "declined again reply"},
		{400, `{"error":"a plain text"}`, "refused reply"},
		{500, `{"error":{"message":["odd"]}}`, "refused again reply"},
	} {
		if got := verdictOf(classify(tt.status, []byte(tt.body))); got != tt.want {
			t.Errorf("%d %q: got %s, want %s", tt.status, tt.body, got, tt.want)
		}
	}
}

func TestTooLongTellsBothLengths(t *testing.T) {
	var e *fleet.RequestError
	err := classify(400, []byte(`{"error":{"code":400,"message":"request (40020 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":40020,"n_ctx":4096}}`))
	if !errors.As(err, &e) || e.Reason != fleet.ReasonTooLong || e.Len != 40020 || e.Max != 4096 || !e.Again {
		t.Fatalf("got %#v", err)
	}
	err = classify(400, []byte(errorBody(400, "the request exceeds the available context size. try increasing the context size or enable context shift")))
	if !errors.As(err, &e) || e.Reason != fleet.ReasonTooLong || e.Len != 0 || e.Max != 0 {
		t.Fatalf("an older server: got %#v", err)
	}
}

func TestRecordedObjectionsAreClassified(t *testing.T) {
	want := map[string]string{
		"chat-continue-toolcalls": "refused reply",
		"chat-image-unsupported":  "declined again reply",
		"chat-no-messages":        "refused reply",
		"chat-bad-json":           "refused reply",
		"chat-too-long":           "too_long again reply",
		"chat-too-long-stream":    "too_long again reply",
		"embeddings-off":          "declined again reply",
		"rerank-off":              "declined again reply",
		"infill-off":              "declined again reply",
		"audio-off":               "declined again reply",
		"slot-save-off":           "declined again reply",
		"slot-erase":              "declined again reply",
		"not-found":               "declined again reply",
		"wrong-method":            "declined again reply",
	}
	for _, r := range recordings(t) {
		if r.Response.Status == 200 {
			continue
		}
		err := classify(r.Response.Status, []byte(r.Response.Body))
		if got := verdictOf(err); got != want[r.Name] {
			t.Errorf("%s: got %s, want %s", r.Name, got, want[r.Name])
		}
		var e *fleet.RequestError
		if errors.As(err, &e) && (e.Reply.Status != min(r.Response.Status, 400) && e.Reason == fleet.ReasonRefused || string(e.Reply.Body) != r.Response.Body) {
			t.Errorf("%s: the reply is not the server's: %+v", r.Name, e.Reply)
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("not recorded: %v", want)
	}
}

func TestRefusalSaysWhatTheServerSaid(t *testing.T) {
	var e *fleet.RequestError
	if !errors.As(classify(400, []byte(errorBody(400, "'messages' is required"))), &e) || e.Message != "'messages' is required" {
		t.Errorf("got message %q", e.Message)
	}
	if !errors.As(classify(400, []byte("<html>gpu7.lan says no</html>")), &e) ||
		strings.Contains(e.Message, "gpu7") || len(e.Reply.Body) != 0 {
		t.Errorf("got message %q and body %q, want nothing of what stands between", e.Message, e.Reply.Body)
	}
}

func TestErrorsRepeatNothingThatAClientOrAModelWrote(t *testing.T) {
	for _, tt := range []struct {
		status     int
		text, want string
	}{
		{500, "Compute error.", "node  lost: crashed: Compute error."},
		{500, "proxy error: Failed to read connection", "node  lost: closed: proxy error: Failed to read connection"},
		{500, "proxy error: Failed\nmy secret", "node  lost: closed: proxy error: Failed…"},
		{500, "decode() failed: my secret", "node  lost: crashed: decode() failed…"},
		{500, "got exception: {\"secret\":1}", "node  lost: crashed: got exception: …"},
		{500, "[json.exception.parse_error.101] parse error at line 1, column 5: last read: 'my secret", "refused: [json.exception.parse_error.101] parse error at line 1, column 5…"},
		{500, "Failed to parse messages: Missing 'role' in message: {\"content\":\"secret\"}", "refused: Failed to parse messages: Missing …"},
		{500, "Failed to parse tools: \x1b[2Jsecret", "refused: Failed to parse tools: …"},
		{500, "Unknown reasoning format: secret", "refused: Unknown reasoning format: …"},
		{400, "'messages' is required", "refused: 'messages' is required"},
		{400, "you sent: my secret", "refused: the model server refuses the request (status 400, 76 bytes)"},
		{500, "you sent: my secret", "refused: the model server refuses the request (status 500, 76 bytes)"},
		{400, "model 'my secret' not found", "declined: the model server does not serve this model"},
		{501, "my secret", "declined: the model server does not support this request"},
		{503, "my secret", "node  lost: closed: Service Unavailable"},
	} {
		for _, body := range []string{errorBody(tt.status, tt.text), tt.text} {
			got := classify(tt.status, []byte(body)).Error()
			if got != tt.want && body != tt.text || strings.Contains(got, "secret") || strings.ContainsFunc(got, unicode.IsControl) {
				t.Errorf("%d %q: got %q, want %q", tt.status, body, got, tt.want)
			}
		}
	}
	long := classify(500, []byte("proxy error: "+strings.Repeat("x", 100_000))).Error()
	if n := len(long) - len("node  lost: closed: …"); n != 200 {
		t.Errorf("a long text: got %d bytes of it, want 200", n)
	}
}

func TestErrorEventsMeanWhatTheSameAnswerWould(t *testing.T) {
	for payload, want := range map[string]string{
		`{"error":{"code":500,"message":"Compute error.","type":"server_error"}}`:                                             "lost crashed",
		`{"code":500,"message":"Context size has been exceeded.","type":"server_error"}`:                                      "overloaded again",
		`{"error":{"code":400,"message":"Prompt contains invalid tokens"}}`:                                                   "refused reply",
		`{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`:                                         "lost loading",
		`{"error":{"message":"something new"}}`:                                                                               "refused again reply",
		`{"type":"error","error":{"type":"server_error","message":"Invalid input batch."}}`:                                   "lost crashed",
		`{"error":{"code":"odd","message":"The model produced output that does not match the expected Content-only format"}}`: "broken_output again reply",
	} {
		if got := verdictOf(classifyEvent([]byte(payload))); got != want {
			t.Errorf("%s: got %s, want %s", payload, got, want)
		}
	}
}
