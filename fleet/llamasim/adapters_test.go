package llamasim

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestAdaptersAreSetAndForgottenWithTheProcess(t *testing.T) {
	s := start(t, Options{Adapters: 2})
	scales := func() string {
		t.Helper()
		resp, err := http.Get(s.URL() + "/lora-adapters")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		var found []string
		for _, part := range strings.SplitAfter(string(b), `"scale":`)[1:] {
			found = append(found, part[:strings.IndexByte(part, ',')])
		}
		return strings.Join(found, " ")
	}
	if got := scales(); got != "1 1" {
		t.Errorf("at the start: got scales %s, want 1 1", got)
	}
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`[{"id":1,"scale":0.5}]`, http.StatusOK, "0 0.5"},
		{`[{"id":7,"scale":0.5},{"id":0,"scale":-1}]`, http.StatusOK, "-1 0"},
		{`{"id":0,"scale":1}`, http.StatusBadRequest, "-1 0"},
	} {
		resp := post(t.Context(), t, s.URL()+"/lora-adapters", c.body)
		if got := scales(); resp.StatusCode != c.status || got != c.want {
			t.Errorf("%s: got status %d and scales %s, want %d and %s", c.body, resp.StatusCode, got, c.status, c.want)
		}
	}
	s.Kill()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := scales(); got != "1 1" {
		t.Errorf("another process: got scales %s, want 1 1", got)
	}
}

// A list names no model, and the real router goes by nothing else.
func TestRouterHandsOnNoListOfAdapters(t *testing.T) {
	s := start(t, Options{Models: []Model{{Name: "alpha"}}, Adapters: 1})
	resp := post(t.Context(), t, s.URL()+"/lora-adapters?model=alpha", `[{"id":0,"scale":0.5}]`)
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), "model name is missing from the request") {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
}
