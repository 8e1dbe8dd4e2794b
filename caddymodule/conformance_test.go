package caddymodule

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// exchange is a request that was made of a real llama-server.
type exchange struct {
	Name    string
	Request struct {
		Method, Path, Body string
		Headers            map[string]string
	}
}

// recordedExchanges are those of the stand-in's own tests of conformance.
func recordedExchanges(t *testing.T, name string) (list []exchange) {
	t.Helper()
	f, err := os.Open("../fleet/llamasim/testdata/" + name + ".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var x exchange
		decode(t, lines.Text(), &x)
		list = append(list, x)
	}
	if err := lines.Err(); err != nil || len(list) < 50 {
		t.Fatalf("%s: got %d exchanges, %v", name, len(list), err)
	}
	return list
}

// What differs between any two answers of one server: names it makes up, and how long
// it took.
var (
	madeUp = regexp.MustCompile(`"(chatcmpl-|resp_|msg_|fc_|rs_|call_)?[A-Za-z0-9]{32}"`)
	moment = regexp.MustCompile(`"(created|created_at|completed_at|t_start|modified_at|[a-z_]*_ms|[a-z_]*_per_second|time_ms)":-?[0-9.e+-]+`)
)

func unmoved(body string) string {
	return moment.ReplaceAllString(madeUp.ReplaceAllString(body, `"$1…"`), `"$1":0`)
}

// ownAnswers are the exchanges that the edge answers itself, with the status it gives.
var ownAnswers = map[string]int{
	"chat-bad-json": http.StatusBadRequest, // llama-server says 500 for it
	"audio-off":     http.StatusBadRequest, // it is no form
}

// routedAnswers are those besides, of a fleet with several models.
var routedAnswers = map[string]int{
	"chat-unknown-model": http.StatusNotFound, // as OpenAI says it; a router says 400
}

// TestAnswersAreThoseOfTheNode: whatever was asked of a real llama-server in the
// recordings, a client of the edge gets the bytes that the node behind it gives a client
// of its own, but for ids and times. Two stand-ins get the same requests in the same order,
// one of them through the edge.
func TestAnswersAreThoseOfTheNode(t *testing.T) {
	for name, o := range map[string]llamasim.Options{
		"http-0.4.0":                   {Model: "sim-model", Context: 2048},
		"http-0.4.0-thinking-template": {Model: "sim-model", Context: 2048, Thinking: true},
		"http-0.4.0-router":            {Models: []llamasim.Model{{Name: "alpha"}, {Name: "beta"}}, Context: 2048},
	} {
		t.Run(name, func(t *testing.T) {
			alone, behind := startSim(t, o), startSim(t, o)
			e := startEdge(t, nodes("", behind), "fleet {\n\t\tany_model\n\t}")
			e.ready()
			same := 0
			for _, x := range recordedExchanges(t, name) {
				path, ok := openai.PathOf(x.Request.Path)
				if !ok || path.Method != x.Request.Method {
					continue
				}
				ask := func(base string) answer {
					r, err := http.NewRequestWithContext(context.Background(), x.Request.Method, base+x.Request.Path, strings.NewReader(x.Request.Body))
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("Content-Type", "application/json")
					r.Close = true // llama-server closes after a stream without saying so
					return e.do(r)
				}
				want, got := ask(alone.URL()), ask(e.URL)
				status, own := ownAnswers[x.Name]
				if len(o.Models) > 0 && !own {
					status, own = routedAnswers[x.Name]
				}
				if own {
					if got.Status != status || got.Err != nil {
						t.Errorf("%s: got %d %s, want the edge's own %d", x.Name, got.Status, got.Body, status)
					}
					continue
				}
				if w, g := conforming(path, want), conforming(path, got); w != g {
					t.Errorf("%s: got\n%d %s\nwant\n%d %s", x.Name, got.Status, g, want.Status, w)
					continue
				}
				same++
			}
			t.Logf("%s: %d answers are the node's", name, same)
			if same < 40 {
				t.Errorf("only %d answers were compared", same)
			}
		})
	}
}

// besides is what can be asked for and the recordings do not have. Each is asked whole and
// as a stream.
var besides = []struct{ path, body string }{
	{"/v1/chat/completions", `"stop":["Q","zz"]`},
	{"/v1/chat/completions", `"stop":" fox"`},
	{"/v1/chat/completions", `"verbose":true`},
	{"/v1/chat/completions", `"verbose":true,"timings_per_token":true,"stream_options":{"include_usage":true}`},
	{"/v1/chat/completions", `"verbose":true,"response_fields":["tokens_predicted","timings/predicted_n","no"]`},
	{"/v1/chat/completions", `"n":2,"stream_options":{"include_usage":true}`},
	{"/v1/chat/completions", `"n_predict":1`},
	{"/v1/chat/completions", `"continue_final_message":true,"add_generation_prompt":false`},
	{"/v1/chat/completions", `"continue_final_message":true,"add_generation_prompt":true`},
	{"/v1/chat/completions", `"response_format":{"type":"json_object"}`},
	{"/v1/chat/completions", `"id_slot":1,"cache_prompt":false`},
	{"/v1/completions", `"stop":["six blue"]`}, // as it may go on, and as it does
	{"/v1/completions", `"stop":["six town"],"verbose":true,"return_tokens":true,"timings_per_token":true`},
	{"/v1/completions", `"verbose":true`},
	{"/v1/completions", `"verbose":true,"timings_per_token":true,"return_progress":true`},
	{"/v1/completions", `"verbose":true,"response_fields":["content","tokens_predicted","generation_settings/stream"]`},
	{"/v1/completions", `"n":2`},
	{"/completion", `"stop":["six blue"],"return_tokens":true`},
	{"/completion", `"stop":["six town"],"return_tokens":true,"timings_per_token":true`},
	{"/completion", `"timings_per_token":true,"return_progress":true`},
	{"/completion", `"response_fields":["content","timings/predicted_n","generation_settings/stream","no"]`},
	{"/completion", `"response_fields":[]`},
	{"/v1/responses", `"return_progress":true,"timings_per_token":true`},
	{"/v1/responses", `"instructions":"be short"`},
	{"/v1/messages", `"stop_sequences":[" fox"],"system":"be short"`},
	{"/v1/messages", `"return_progress":true,"n":2`},
}

// TestAnswersAreThoseOfTheNodeWhateverIsAskedBesides is the same for what the recordings
// do not have.
func TestAnswersAreThoseOfTheNodeWhateverIsAskedBesides(t *testing.T) {
	o := llamasim.Options{Model: "sim-model", Context: 2048}
	alone, behind := startSim(t, o), startSim(t, o)
	e := startEdge(t, nodes("", behind), "fleet")
	e.ready()
	asked := map[string]string{
		"/v1/chat/completions": `"max_completion_tokens":9,"messages":[{"role":"user","content":"The quick brown"}]`,
		"/v1/completions":      `"max_tokens":9,"prompt":"The quick brown"`,
		"/completion":          `"n_predict":9,"prompt":"The quick brown"`,
		"/v1/responses":        `"max_output_tokens":9,"input":"The quick brown"`,
		"/v1/messages":         `"max_tokens":9,"messages":[{"role":"user","content":"The quick brown"}]`,
	}
	for _, x := range besides {
		path, _ := openai.PathOf(x.path)
		for _, stream := range []string{"false", "true"} {
			body := "{" + asked[x.path] + `,"temperature":0,"seed":7,"stream":` + stream + "," + x.body + "}"
			ask := func(base string) answer {
				r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+x.path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				r.Close = true
				return e.do(r)
			}
			want, got := ask(alone.URL()), ask(e.URL)
			if w, g := conforming(path, want), conforming(path, got); w != g || want.Status != got.Status {
				t.Errorf("%s %s: got\n%d %s\nwant\n%d %s", x.path, body, got.Status, g, want.Status, w)
			}
		}
	}
}

// conforming is an answer without what may differ. In whole answers that is the order of
// fields, too: what is assembled from a stream has the stream's. Errors are compared by what they
// say: the form of Messages' is Anthropic's here, llama-server's own there.
func conforming(p openai.Path, a answer) string {
	if a.Err != nil {
		return a.Err.Error()
	}
	if a.Status >= 400 && p.Shape == openai.ShapeAnthropic {
		var e struct {
			Error struct{ Message string }
		}
		if json.Unmarshal([]byte(a.Body), &e) == nil {
			return e.Error.Message
		}
	}
	body := unmoved(a.Body)
	var whole any
	if json.Unmarshal([]byte(body), &whole) != nil {
		return body // a stream
	}
	sorted, err := json.Marshal(whole)
	if err != nil {
		return err.Error()
	}
	return string(sorted)
}
