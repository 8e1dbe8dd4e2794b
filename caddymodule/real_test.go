package caddymodule

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Real llama-servers behind a real Caddy. The model should be one in which text and
// tokens agree, else what a second server makes of the text so far may tokenise
// otherwise than what the first one generated, and go on otherwise.

// realServer is a llama-server process.
type realServer struct {
	t         testing.TB
	bin, gguf string
	port, log string
	more      []string // arguments
	cmd       *exec.Cmd
}

// startReal runs the llama-server that the environment names, on a port of its own.
func startReal(t testing.TB, more ...string) *realServer {
	t.Helper()
	s := &realServer{t: t, bin: os.Getenv("SLOTFLEET_LLAMA_SERVER"), gguf: os.Getenv("SLOTFLEET_LLAMA_MODEL"), more: more}
	if s.bin == "" || s.gguf == "" {
		t.Skip("SLOTFLEET_LLAMA_SERVER and SLOTFLEET_LLAMA_MODEL are not set: run make -f xcaddy.mk test-real")
	}
	_, s.port, _ = net.SplitHostPort(freeAddr(t))
	s.log = filepath.Join(t.TempDir(), "llama-server.log")
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *realServer) start() {
	s.t.Helper()
	out := openLog(s.t, s.log)
	// One token at a time, prompts too: then a prompt that holds the text so far
	// leaves the very numbers in the cache that generating it left there, and a near
	// tie between two tokens falls the same way.
	args := append([]string{
		"-m", s.gguf, "--alias", "sim", "--host", "127.0.0.1", "--port", s.port,
		"-np", "2", "-c", "8192", "-t", "1", "-ub", "1", "-b", "32",
	}, s.more...)
	s.cmd = exec.Command(s.bin, args...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill is SIGKILL.
func (s *realServer) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // says that it was killed
}

// runningOn reports whether the log of a node shows a slot that runs.
func (e *edge) runningOn(name string) bool {
	var s struct {
		Sources []struct {
			Source string
			Ports  []struct {
				Slots []struct{ State string }
			}
		}
	}
	decode(e.t, e.get(e.Admin+"/slotlog/slots").Body, &s)
	for _, src := range s.Sources {
		for _, p := range src.Ports {
			for _, slot := range p.Slots {
				if src.Source == name && slot.State == "processing" {
					return true
				}
			}
		}
	}
	return false
}

func TestRealAnswersSurviveTheDeathOfTheirServer(t *testing.T) {
	t.Run("plain", func(t *testing.T) { realDeaths(t, false) })
	t.Run("thinking", func(t *testing.T) {
		realDeaths(t, true, "--jinja", "--chat-template-file", "testdata/real/thinking.jinja")
	})
}

// realDeaths kills the serving one of two servers at several points of each kind of
// answer.
func realDeaths(t *testing.T, thinking bool, args ...string) {
	servers := []*realServer{startReal(t, args...), startReal(t, args...)}
	var conf strings.Builder
	conf.WriteString("fleet {\n")
	for i, s := range servers {
		fmt.Fprintf(&conf, "\t\tnode node-%d http://127.0.0.1:%s {\n\t\t\tlog file %s\n\t\t}\n", i, s.port, s.log)
	}
	conf.WriteString("\t}")
	e := startEdge(t, conf.String(), "fleet")
	e.allUp(len(servers))

	const tokens, points = 500, 5
	list := slices.Concat(askings, []asking{
		typedAsking("responses, streamed", "/v1/responses", thinking, true), typedAsking("responses, whole", "/v1/responses", thinking, false),
		typedAsking("messages, streamed", "/v1/messages", thinking, true), typedAsking("messages, whole", "/v1/messages", thinking, false),
	})
	for _, a := range list {
		if a.thinking != thinking {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			want := e.ask(t.Context(), a, tokens, nil)
			if want.Fault != "" || want.Content+want.Reasoning == "" || thinking != (want.Reasoning != "") {
				t.Fatalf("the uninterrupted answer: %+v", want)
			}
			before := e.moves()
			for i := range points {
				at := 1 + i*want.Events*3/4/points
				e.killReal(t, a, want, tokens, at, servers)
				e.allUp(len(servers))
			}
			moved := e.moves() - before
			t.Logf("%d of %d answers were cut and went on", moved, points)
			if moved < points/2 {
				t.Errorf("only %d of %d answers were cut: the server is too fast for this test", moved, points)
			}
		})
	}
}

// moves is how many requests left a node so far.
func (e *edge) moves() (n int) {
	for name, value := range scrape(e.t, e) {
		if strings.HasPrefix(name, "slotfleet_failovers_total{") {
			n += int(value)
		}
	}
	return n
}

// killReal asks, kills the process that has the request on the way, and starts it again.
func (e *edge) killReal(t *testing.T, a asking, want told, tokens, at int, servers []*realServer) {
	var killed *realServer
	kill := func() bool {
		held := lanesHeld(e)
		for i, s := range servers {
			if strings.Contains(held, fmt.Sprintf("node-%d:", i)) {
				s.kill()
				killed = s
				return true
			}
		}
		return false
	}
	var got told
	if a.stream {
		got = e.ask(t.Context(), a, tokens, func(chunk int) {
			if chunk == at {
				await(t, "a lane that is held", kill)
			}
		})
	} else {
		answered := make(chan told)
		go func() { answered <- e.ask(t.Context(), a, tokens, nil) }()
		await(t, "a slot that runs", func() bool { return e.runningOn("node-0") || e.runningOn("node-1") })
		kill()
		got = <-answered
	}
	if diff := got.equal(want); diff != "" {
		t.Errorf("killed at event %d: %s", at, diff)
	}
	if killed == nil {
		t.Fatal("nothing was killed")
	}
	killed.start()
}

// What a client that leaves occupied is free again within a second.
func TestRealServerIsFreeSoonAfterTheClientLeft(t *testing.T) {
	s := startReal(t)
	e := startEdge(t, fmt.Sprintf("fleet {\n\t\tnode node-0 http://127.0.0.1:%s {\n\t\t\tlog file %s\n\t\t}\n\t}", s.port, s.log), "fleet")
	e.allUp(1)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	a := askings[0]
	answered := make(chan told)
	go func() {
		answered <- e.ask(ctx, a, 6000, func(chunk int) {
			if chunk == 20 {
				leave()
			}
		})
	}()
	<-answered
	began := time.Now()
	await(t, "the slot to be free", func() bool { return !e.runningOn("node-0") })
	t.Logf("free %s after the client left", time.Since(began).Round(time.Millisecond))
}
