package caddymodule

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// curl is what people try first, and what shows the plain bytes.
func curl(ctx context.Context, args ...string) string {
	args = append([]string{"--silent", "--show-error", "--no-buffer", "--max-time", "30"}, args...)
	out, err := exec.CommandContext(ctx, "curl", args...).CombinedOutput()
	if err != nil {
		return "error " + err.Error() + ": " + string(out)
	}
	return string(out)
}

func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("left out: curl (no curl)")
	}
	f := startClientFleet(t, "m")
	const bearer = "Authorization: Bearer " + freeSecret
	a := chatAsking("curl", false, true)
	ask := strings.Replace(a.json(clientTokens), `"sim"`, `"m"`, 1)
	stream := func() streamed {
		return readStream(strings.NewReader(curl(t.Context(), "-H", bearer, "-H", "Content-Type: application/json", "-d", ask, f.URL+chatPath)), nil)
	}
	want := stream()
	if wrong := want.whole(); wrong != "" {
		t.Fatalf("undisturbed: %s", wrong)
	}
	var got streamed
	f.underDeath(t, func() string { got = stream(); return "" })
	if wrong := got.whole(); wrong != "" || got.Text != want.Text {
		t.Errorf("with a node killed under it: %s, got %q, want %q", wrong, got.Text, want.Text)
	}
	// curl sends a form where nobody says what it is, and asks first with a large body.
	if out := curl(t.Context(), "-H", bearer, "-d", chatBody("m", strings.Repeat("x", 4000), 3, false), f.URL+chatPath); !strings.Contains(out, `"choices"`) {
		t.Errorf("without a content type: got %s", out)
	}
	for name, args := range map[string][]string{
		"401 ": {f.URL + "/v1/models"},
		"200 ": {"-H", "x-api-key: " + freeSecret, f.URL + "/v1/models"},
		"404 ": {"-H", bearer, f.URL + "/slots"},
	} {
		args = append([]string{"-o", "/dev/null", "-w", "%{http_code} "}, args...)
		if out := curl(t.Context(), args...); out != name {
			t.Errorf("curl %v: got %q, want %q", args, out, name)
		}
	}
	// What is broken off must not look whole to a script.
	f.breakAll(llamasim.Fault{Kind: llamasim.FaultReset, Token: dieAt})
	defer f.breakAll(llamasim.Fault{})
	if out := curl(t.Context(), "-H", bearer, "-d", ask, f.URL+chatPath); !strings.HasPrefix(out, "error exit status 18") || strings.Contains(out, "[DONE]") {
		t.Errorf("a stream that was broken off: got %s, want exit status 18 (partial file)", out)
	}
}
