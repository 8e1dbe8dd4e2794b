package openai

import (
	"net/http"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestServersAreAskedHowLongAPromptIs(t *testing.T) {
	for name, c := range map[string]struct{ path, body, asked, sent string }{
		"chat": {
			"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			"/v1/chat/completions/input_tokens", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		},
		"responses": {"/v1/responses", `{"input":"hi"}`, "/v1/responses/input_tokens", `{"input":"hi"}`},
		"messages": {
			"/v1/messages", `{"max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`,
			"/v1/messages/count_tokens", `{"max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`,
		},
		"completions":       {"/v1/completions", `{"prompt":"a \"b\"","n":1}`, "/tokenize", `{"add_special":true,"content":"a \"b\"","model":"m"}`},
		"native completion": {"/completion", `{"prompt":"hi"}`, "/tokenize", `{"add_special":true,"content":"hi","model":"m"}`},
		"several prompts":   {"/v1/completions", `{"prompt":["a","b"]}`, "", ""},
		"tokens":            {"/v1/completions", `{"prompt":[1,2,3]}`, "/tokenize", `{"add_special":true,"content":[1,2,3],"model":"m"}`},
		"tokens and text":   {"/completion", `{"prompt":["a",2]}`, "/tokenize", `{"add_special":true,"content":["a",2],"model":"m"}`},
		"text in a list":    {"/completion", `{"prompt":["a"]}`, "/tokenize", `{"add_special":true,"content":["a"],"model":"m"}`},
		"infill":            {"/infill", `{"input_prefix":"a","input_suffix":"b"}`, "", ""},
	} {
		j, err := Parse(c.path, []byte(c.body), Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		call, ok := j.Count(fleet.Instance{Model: "m"})
		if ok != (c.asked != "") || call.Path != c.asked || string(call.Body) != c.sent {
			t.Errorf("%s: got %v, %s with %s; want %s with %s", name, ok, call.Path, call.Body, c.asked, c.sent)
		}
	}
}

func TestAnswersTellHowLongAPromptIs(t *testing.T) {
	for body, want := range map[string]fleet.Tokens{
		`{"input_tokens":42}`:                           42,
		`{"object":"x","input_tokens":7,"tokens":null}`: 7,
		`{"tokens":[1, 15043,29871]}`:                   3,
		`{"tokens":[{"id":1,"piece":"a"},{"id":2}]}`:    2,
		`{"tokens":[]}`:                                 0,
		`{"tokens":"many"}`:                             0,
		`{"error":{"code":404}}`:                        0,
		`no JSON`:                                       0,
	} {
		got, ok := new(Job).Counted(fleet.Reply{Status: http.StatusOK, Body: []byte(body)})
		if got != want || ok != (want > 0) {
			t.Errorf("%s: got %d, %v; want %d", body, got, ok, want)
		}
	}
	if n, ok := new(Job).Counted(fleet.Reply{Status: http.StatusNotFound, Body: []byte(`{"input_tokens":42}`)}); ok {
		t.Errorf("an answer of 404 told %d", n)
	}
}
