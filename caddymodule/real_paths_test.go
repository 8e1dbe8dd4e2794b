package caddymodule

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startRealRouter runs a llama-server in router mode with three models, of which two
// can be loaded at once.
func startRealRouter(t testing.TB) *realServer {
	t.Helper()
	s := &realServer{t: t, bin: os.Getenv("SLOTFLEET_LLAMA_SERVER"), gguf: os.Getenv("SLOTFLEET_LLAMA_MODEL")}
	if s.bin == "" || s.gguf == "" {
		t.Skip("SLOTFLEET_LLAMA_SERVER and SLOTFLEET_LLAMA_MODEL are not set: run make -f xcaddy.mk test-real")
	}
	folder := t.TempDir()
	gguf, err := filepath.Abs(s.gguf)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"alpha", "beta", "gamma"} {
		if err := os.Symlink(gguf, filepath.Join(folder, name+".gguf")); err != nil {
			t.Fatal(err)
		}
	}
	s.port = strings.TrimPrefix(freeAddr(t), "127.0.0.1:")
	s.log = filepath.Join(t.TempDir(), "router.log")
	out := openLog(t, s.log)
	s.cmd = exec.Command(s.bin, "--models-dir", folder, "--models-max", "2", "--host", "127.0.0.1", "--port", s.port,
		"-np", "1", "-c", "8192", "-t", "1", "-ub", "1", "-b", "32")
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(os.Interrupt) // its children end with it
		_ = s.cmd.Wait()
	})
	return s
}

func TestRealRouterLoadsWhatIsAskedForAndNothingThatAnswersGoes(t *testing.T) {
	s := startRealRouter(t)
	e := startEdge(t, "fleet {\n\t\tnode a http://127.0.0.1:"+s.port+" {\n\t\t\tlog file "+s.log+"\n\t\t}\n\t}", "fleet")
	e.ready()
	states := func() string {
		var models struct {
			Data []struct {
				ID     string
				Status struct{ Value string }
			}
		}
		decode(t, e.get(e.URL+"/v1/models").Body, &models)
		var all []string
		for _, m := range models.Data {
			all = append(all, m.ID+" "+m.Status.Value)
		}
		return strings.Join(all, ", ")
	}
	if got, want := states(), "alpha unloaded, beta unloaded, gamma unloaded"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	// alpha answers for long, and is the one that was asked longest ago.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := e.Client.Do(e.request(ctx, "/v1/chat/completions", strings.NewReader(
		strings.Replace(chatBody("alpha", "hello", 8000, true), "{", `{"ignore_eos":true,`, 1))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"beta", "gamma"} {
		if a := e.post("/v1/chat/completions", chatBody(model, "hello", 3, false)); a.Status != http.StatusOK {
			t.Fatalf("%s: got %d %s", model, a.Status, a.Body)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("alpha was ended when %s was asked for: %v", model, err)
		}
	}
	const want = "alpha loaded, beta unloaded, gamma loaded"
	await(t, want, func() bool { return states() == want })
	if a := e.post("/tokenize", `{"model":"alpha","content":"hi"}`); a.Status != http.StatusOK || !strings.Contains(a.Body, "tokens") {
		t.Errorf("tokenize: got %d %s", a.Status, a.Body)
	}
	if a := e.get(e.URL + "/props?model=alpha"); a.Status != http.StatusOK || strings.Contains(a.Body, "model_path") {
		t.Errorf("props: got %d %s", a.Status, a.Body)
	}
	if a := e.get(e.URL + "/props?model=beta"); a.Status == http.StatusOK {
		t.Errorf("props of a model that is not loaded: got %s", a.Body)
	}
	if got := states(); got != want {
		t.Errorf("got %s after questions, want %s", got, want)
	}
}

// TestRealServerIsFreeWhileAnotherStreamRuns: streaming, or in the prefill of a long
// prompt, while another stream keeps the server busy.
func TestRealServerIsFreeWhileAnotherStreamRuns(t *testing.T) {
	s := startReal(t, "-c", "65536")
	e := startEdge(t, "fleet {\n\t\tnode a http://127.0.0.1:"+s.port+" {\n\t\t\tlog file "+s.log+"\n\t\t}\n\t}", "fleet")
	e.ready()
	long := strings.Replace(chatBody("sim", "hello", 20000, true), "{", `{"ignore_eos":true,`, 1)
	other, err := e.Client.Do(e.request(t.Context(), "/v1/chat/completions", strings.NewReader(long)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Body.Close()
	read := make(chan struct{})
	go func() { defer close(read); readStream(other.Body, nil) }()
	defer func() { other.Body.Close(); <-read }()
	active := func() int {
		var n struct {
			Instances []struct {
				Active int `json:"lanes_active"`
				Load   struct{ Active int }
			}
		}
		decode(t, e.get(e.Admin+"/fleet/nodes/a").Body, &n)
		return max(n.Instances[0].Active, n.Instances[0].Load.Active)
	}
	await(t, "the other stream", func() bool { return active() == 1 })
	for name, body := range map[string]string{
		"streaming":  long,
		"prefilling": chatBody("sim", strings.Repeat("a long prompt ", 2000), 3, true),
	} {
		ctx, leave := context.WithCancel(t.Context())
		resp, err := e.Client.Do(e.request(ctx, "/v1/chat/completions", strings.NewReader(strings.Replace(body, "{", `{"return_progress":true,`, 1))))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		left := time.Now()
		leave()
		resp.Body.Close()
		await(t, name+" to end on the server", func() bool { return active() == 1 })
		t.Logf("%s: free %s after the client left", name, time.Since(left).Round(time.Millisecond))
	}
}
