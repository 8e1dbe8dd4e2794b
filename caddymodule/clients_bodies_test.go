package caddymodule

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestBodiesOfFrontEnds sends what front ends send, and kills a node under each.
func TestBodiesOfFrontEnds(t *testing.T) {
	file, err := os.ReadFile("testdata/clients/bodies.json")
	if err != nil {
		t.Fatal(err)
	}
	var bodies []struct {
		Name, Path string
		Headers    map[string]string
		Body       json.RawMessage
	}
	decode(t, string(file), &bodies)
	f := startClientFleet(t, "m")
	for _, b := range bodies {
		t.Run(b.Name, func(t *testing.T) {
			ask := func() string {
				r := f.request(context.Background(), b.Path, strings.NewReader(string(b.Body)))
				r.Header.Set("Authorization", "Bearer "+freeSecret)
				for name, value := range b.Headers {
					r.Header.Set(name, value)
				}
				a := f.do(r)
				if a.Status != 200 || a.Err != nil {
					t.Errorf("got %d %s, %v", a.Status, a.Body, a.Err)
				}
				return wordsOf(a.Body)
			}
			want := ask()
			if len(want) < clientTokens {
				t.Fatalf("undisturbed: got only %q", want)
			}
			if got := f.underDeath(t, ask); got != want {
				t.Error(difference(got, want))
			}
		})
	}
}

// wordsOf collects what an answer of any API says, streamed or whole.
func wordsOf(body string) string {
	var words strings.Builder
	var collect func(name string, v any)
	collect = func(name string, v any) {
		switch v := v.(type) {
		case string:
			switch name {
			case "content", "reasoning_content", "text", "delta", "arguments", "partial_json", "thinking":
				words.WriteString(v)
			}
		case []any:
			for _, e := range v {
				collect(name, e)
			}
		case map[string]any:
			for _, field := range []string{"choices", "message", "delta", "tool_calls", "function", "content_block", "content", "reasoning_content", "text", "arguments", "partial_json", "thinking"} {
				collect(field, v[field])
			}
		}
	}
	take := func(data string) {
		var v any
		if json.Unmarshal([]byte(data), &v) == nil {
			collect("", v)
		}
	}
	if strings.HasPrefix(body, "{") {
		take(body)
	}
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			take(data)
		}
	}
	return words.String()
}
