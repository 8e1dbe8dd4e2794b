package openai

import (
	"encoding/json"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

// A router goes by the model's name; a server of one model does not look at it, and gets
// the client's bytes.
func TestRouterIsToldItsOwnNameOfTheModel(t *testing.T) {
	routed := fleet.Instance{Model: "m", Aliases: []string{"the-m"}, Routed: true}
	for name, c := range map[string]struct {
		instance    fleet.Instance
		asked, want string
	}{
		"its name":      {routed, `,"model":"m"`, "m"},
		"its alias":     {routed, `,"model":"the-m"`, "the-m"},
		"ours":          {routed, `,"model":"gpt-4o"`, "m"},
		"any":           {routed, `,"model":"nonsense"`, "m"},
		"none":          {routed, "", "m"},
		"any, one":      {fleet.Instance{Model: "m"}, `,"model":"nonsense"`, "nonsense"},
		"none, one":     {fleet.Instance{Model: "m"}, "", ""},
		"ours, one":     {fleet.Instance{Model: "m"}, `,"model":"gpt-4o"`, "m"},
		"null, routed":  {routed, `,"model":null`, "m"},
		"its name, one": {fleet.Instance{Model: "m"}, `,"model":"m"`, "m"},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"messages":[{"role":"user","content":"hi"}]` + c.asked + `}`
			j, err := Parse("/v1/chat/completions", []byte(body), Options{Aliases: map[string]string{"gpt-4o": "m"}})
			if err != nil {
				t.Fatal(err)
			}
			a, err := j.Request(c.instance)
			if err != nil {
				t.Fatal(err)
			}
			var got struct{ Model string }
			if err := json.Unmarshal(a.Body, &got); err != nil {
				t.Fatalf("%v in %s", err, a.Body)
			}
			if got.Model != c.want {
				t.Errorf("got model %q in %s, want %q", got.Model, a.Body, c.want)
			}
		})
	}
}
