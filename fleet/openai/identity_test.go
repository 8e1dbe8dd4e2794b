package openai

import (
	"net/http"
	"strings"
	"testing"
)

func sessionOf(t *testing.T, body string, o Options) string {
	t.Helper()
	return mustParse(t, chatPath, body, o).Want().Session
}

// headers as a server reads them off the wire.
func headers(list ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(list); i += 2 {
		h.Add(list[i], list[i+1])
	}
	return h
}

func TestSessionIsNamedInOrder(t *testing.T) {
	// Each name wins over all that stand after it.
	var list []string
	for _, h := range []string{
		"x-session-id", "x-session-affinity", "x-claude-code-session-id", "session-id", "session_id", "x-opencode-session",
		"X-OpenWebUI-Chat-Id", "x-litellm-session-id", "x-bf-session-id", "X-Olla-Session-ID", "X-Amp-Thread-Id", "X-Conversation-Id",
	} {
		list = append(list, h, "from "+h)
	}
	fields := []string{
		`"prompt_cache_key":"p"`, `"conversation":{"id":"c"}`, `"previous_response_id":"r"`,
		`"metadata":{"user_id":"u","session_id":"s"}`, `"user":"x"`,
	}
	body := func(fields []string) string {
		return `{"messages":[]` + strings.Join(append([]string{""}, fields...), ",") + `}`
	}
	seen := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		s := sessionOf(t, body(fields), Options{Header: headers(list[i:]...)})
		if alone := sessionOf(t, body(nil), Options{Header: headers(list[i : i+2]...)}); s != alone || s == "" {
			t.Errorf("%s does not win over what comes after it", list[i])
		}
		if other := seen[s]; other != "" {
			t.Errorf("%s and %s give one key", list[i], other)
		}
		seen[s] = list[i]
	}
	for i := range fields {
		s := sessionOf(t, body(fields[i:]), Options{})
		if alone := sessionOf(t, body(fields[i:i+1]), Options{}); s != alone || s == "" {
			t.Errorf("%s does not win over what comes after it", fields[i])
		}
		if other := seen[s]; other != "" {
			t.Errorf("%s and %s give one key", fields[i], other)
		}
		seen[s] = fields[i]
	}
	own := Options{SessionHeader: "X-Mine", Header: headers(append(list, "X-Mine", "m")...)}
	if s := sessionOf(t, body(fields), own); seen[s] != "" {
		t.Errorf("the configured header lost against %s", seen[s])
	}
	if s := sessionOf(t, body(nil), Options{}); s != "" {
		t.Errorf("nothing names a conversation, and the key is %q", s)
	}
}

func TestSessionTellsNothingAndIsOneCallers(t *testing.T) {
	const secret = "my-secret-name"
	body := `{"model":"m","messages":[],"user":"` + secret + `"}`
	a := sessionOf(t, body, Options{Caller: "key-1"})
	if len(a) != 32 || strings.Contains(a, "secret") {
		t.Errorf("the key is %q, want 32 letters that tell nothing", a)
	}
	if again := sessionOf(t, `{"user":"my-secr\u0065t-name","model":"m","messages":[]}`, Options{Caller: "key-1"}); again != a {
		t.Errorf("the same name gives %q and %q", a, again)
	}
	for what, b := range map[string]string{
		"caller": sessionOf(t, body, Options{Caller: "key-2"}),
		"model":  sessionOf(t, strings.Replace(body, `"m"`, `"n"`, 1), Options{Caller: "key-1"}),
		"key":    sessionOf(t, body, Options{Caller: "key-1", BlockKey: [16]byte{1}}),
		"parts":  sessionOf(t, strings.Replace(body, `"m"`, `"mkey-1"`, 1), Options{}),
	} {
		if b == a {
			t.Errorf("another %s has the same key", what)
		}
	}
}

func TestSessionThatIsNoNameIsNone(t *testing.T) {
	for _, fields := range []string{
		`"user":"` + strings.Repeat("x", 256) + `"`, `"user":7`, `"user":null`, `"user":""`, `"metadata":"text"`,
		`"metadata":{"user_id":5}`, `"metadata":[]`, `"conversation":{"name":"x"}`,
	} {
		if s := sessionOf(t, `{"messages":[],`+fields+`}`, Options{}); s != "" {
			t.Errorf("%.40s: the key is %q, want none", fields, s)
		}
	}
	if s := sessionOf(t, `{"messages":[],"user":"`+strings.Repeat("x", 255)+`"}`, Options{}); s == "" {
		t.Error("255 bytes are no name")
	}
}
