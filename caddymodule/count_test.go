package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// By its bytes the prompt seems too long for the free server. That one counts it, and
// answers it while the large one is busy.
func TestPromptThatNearlyFillsAContextIsCounted(t *testing.T) {
	small := startSim(t, llamasim.Options{Model: "m", Slots: 1, Context: 1000})
	large := startSim(t, llamasim.Options{Model: "m", Slots: 1, Context: 8000, Decode: 2})
	e := startEdge(t, fmt.Sprintf("fleet {\n node a %s {\n speed 1000 50\n }\n node b %s {\n speed 1000 50\n }\n }", small.URL(), large.URL()), "fleet")
	e.ready()
	await(t, "both nodes to be up", func() bool { return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, `"up":2`) })
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		e.do(e.request(ctx, "/v1/chat/completions", strings.NewReader(chatBody("m", strings.Repeat("text ", 2000), 5000, true))))
	}()
	defer func() { leave(); <-left }()
	await(t, "the large server to be busy", func() bool { return large.Stats().Active == 1 })

	const words = 870 // a token each, of five bytes; by fours they seem 1,100
	text := strings.Repeat("word ", words)
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody("m", text, 5, false),
		"/v1/completions":      fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":5}`, text),
	} {
		before := small.Stats().Requests
		got := e.do(e.request(t.Context(), path, strings.NewReader(body)))
		if got.Status != http.StatusOK {
			t.Fatalf("%s: got status %d: %s", path, got.Status, got.Body)
		}
		if large.Stats().Active != 1 || small.Stats().Requests != before+1 {
			t.Errorf("%s: got %+v on the small server and %+v on the large one, want the answer from the small one meanwhile", path, small.Stats(), large.Stats())
		}
	}
}
