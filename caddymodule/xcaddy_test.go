package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
)

// binary is a Caddy that xcaddy built from this checkout, as users build theirs.
type binary struct {
	path string
	home string // where it may leave things
}

// TestBinary builds Caddy once and tries what can only be tried with a program.
func TestBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: building Caddy with xcaddy takes minutes")
	}
	b := buildWithXcaddy(t)
	t.Run("has the modules", b.testModules)
	t.Run("describes its commands", b.testHelp)
	t.Run("takes the example", b.testExample)
	t.Run("recipe for a node behind NAT", b.testRecipe)
	t.Run("one file for all nodes", b.testOneFile)
	t.Run("reads logs", b.testReadLog)
	t.Run("exit codes", b.testExitCodes)
	t.Run("stand-in", b.testStandIn)
	t.Run("stops in order", b.testStop)
	t.Run("is killed", b.testKilled)
	t.Run("demo", b.testDemo)
	t.Run("demo with own nodes", b.testDemoOwnNodes)
	t.Run("demo that cannot start", b.testDemoRefusals)
}

func buildWithXcaddy(t *testing.T) *binary {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/caddyserver/caddy/v2").Output()
	if err != nil {
		t.Fatalf("asking for Caddy's version: %v", err)
	}
	b := &binary{path: filepath.Join(t.TempDir(), "caddy"), home: t.TempDir()}
	if runtime.GOOS == "windows" {
		b.path += ".exe"
	}
	began := time.Now()
	cmd := exec.Command("go", "tool", "xcaddy", "build", strings.TrimSpace(string(version)),
		"--output", b.path, "--with", "github.com/slotfleet/slotfleet@v0.0.0="+root)
	// Without the flags of a release (-trimpath, -w, -s) what was compiled for other
	// tests is used again, which saves minutes.
	cmd.Env = append(os.Environ(), "XCADDY_GO_BUILD_FLAGS=-tags=nobadger,nomysql,nopgx")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("xcaddy build: %v\n%s", err, out)
	} else if _, err := os.Stat(b.path); err != nil {
		t.Fatalf("xcaddy build made nothing: %v\n%s", err, out)
	}
	t.Logf("built in %s", time.Since(began).Round(time.Second))
	return b
}

func (b *binary) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Env = append(os.Environ(), "HOME="+b.home, "XDG_DATA_HOME="+b.home, "XDG_CONFIG_HOME="+b.home, nodesVariable+"=", "FLEET_TOKEN="+linkf.NewToken())
	return cmd
}

// run returns what a command says and its exit code.
func (b *binary) run(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := b.command(t.Context(), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("caddy %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), code
}

// succeed returns what a command prints, which must end well.
func (b *binary) succeed(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := b.run(t, "", args...)
	if code != 0 {
		t.Fatalf("caddy %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

func (b *binary) testModules(t *testing.T) {
	out := b.succeed(t, "list-modules", "--skip-standard")
	for _, id := range []string{"fleet", "slotlog", "fleet_node", "http.handlers.fleet", "http.handlers.fleet_join", "admin.api.slotfleet_fleet", "admin.api.slotfleet_slotlog"} {
		if !strings.Contains("\n"+out, "\n"+id+"\n") {
			t.Errorf("list-modules does not name %s:\n%s", id, out)
		}
	}
}

func (b *binary) testHelp(t *testing.T) {
	out := b.succeed(t, "fleet", "--help")
	for _, c := range fleetCommands {
		name, _, _ := strings.Cut(c.use, " ")
		if !strings.Contains(out, "  "+name+" ") {
			t.Errorf("`caddy fleet --help` does not name %s:\n%s", name, out)
		}
		if help := b.succeed(t, "fleet", name, "--help"); !strings.Contains(help, "Exit codes:") {
			t.Errorf("`caddy fleet %s --help` says no exit codes:\n%s", name, help)
		}
	}
}

func (b *binary) testExample(t *testing.T) {
	const example = "../Caddyfile.example"
	b.succeed(t, "validate", "--config", example, "--adapter", "caddyfile")
	out := b.succeed(t, "adapt", "--config", example, "--adapter", "caddyfile")
	var config struct {
		Apps map[string]json.RawMessage `json:"apps"`
	}
	if err := json.Unmarshal([]byte(out), &config); err != nil {
		t.Fatal(err)
	}
	for _, app := range []string{"fleet", "slotlog", "fleet_node", "http"} {
		if config.Apps[app] == nil {
			t.Errorf("the example makes no app %s", app)
		}
	}
	if out, errs, code := b.run(t, "", "fmt", "--diff", example); code != 0 || changes(out) {
		t.Errorf("the example is not formatted (exit code %d):\n%s%s", code, out, errs)
	}
}

// changes reports whether the output of `caddy fmt --diff` shows a difference.
func changes(diff string) bool {
	for line := range strings.Lines(diff) {
		if line[0] == '+' || line[0] == '-' {
			return true
		}
	}
	return false
}

func (b *binary) testReadLog(t *testing.T) {
	for _, log := range []string{busyLog, "../slotlog/testdata/busy-b6673.log"} {
		out := b.succeed(t, "fleet", "read-log", log)
		if !strings.Contains(out, "idle") || !strings.Contains(out, "tokens generated") || strings.Contains(out, "\n0 tokens") {
			t.Errorf("%s:\n%s", log, out)
		}
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if piped, _, code := b.run(t, string(text), "fleet", "read-log", "-"); code != 0 || piped != out {
			t.Errorf("%s through a pipe: exit code %d and\n%s, want\n%s", log, code, piped, out)
		}
	}
}

func (b *binary) testExitCodes(t *testing.T) {
	nobody := freeAddr(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"fleet", "status", "--address", nobody}, 1, "is Caddy running there"},
		{[]string{"fleet", "slots", "--address", nobody}, 1, "is Caddy running there"},
		{[]string{"fleet", "llamasim", "kill", "--address", nobody}, 1, "is Caddy running there"},
		{[]string{"fleet", "read-log", t.TempDir()}, 1, "is a folder"},
		{[]string{"fleet", "read-log", filepath.Join(t.TempDir(), "none.log")}, 1, "does not exist"},
		{[]string{"fleet", "read-log", "--port", "99999", busyLog}, 1, "a port is a number"},
		{[]string{"fleet", "read-log"}, 1, ""},
		{[]string{"fleet", "sttaus"}, 1, "unknown command"},
		{[]string{"fleet", "llamasim", "--listen", "0.0.0.0:0"}, 1, "loopback"},
		{[]string{"fleet", "llamasim", "--slots", "0"}, 1, "--slots"},
	} {
		out, errs, code := b.run(t, "", c.args...)
		if code != c.code || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("caddy %s: exit code %d, want %d and %q; stdout:\n%s\nstderr:\n%s", strings.Join(c.args, " "), code, c.code, c.says, out, errs)
		}
	}
}

// process is a command that runs until it is told to end.
type process struct {
	cmd      *exec.Cmd
	out, err *watched
	ended    chan error
}

func (b *binary) start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: b.command(context.Background(), args...), out: newWatched(), err: newWatched(), ended: make(chan error, 1)}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("caddy %s said\n%s\n%s", strings.Join(args, " "), p.out, p.err)
		}
	})
	return p
}

// interrupt presses Ctrl-C.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there are no interrupts from one process to another here")
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("interrupted, it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("interrupted, it did not end in 20 s")
	}
}

func (b *binary) testStandIn(t *testing.T) {
	addr := freeAddr(t)
	p := b.start(t, nil, "fleet", "llamasim", "--listen", addr, "--model", "some-model")
	p.err.await(t, "no model, made-up words")
	resp, err := http.Get("http://" + addr + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if models, _ := io.ReadAll(resp.Body); !bytes.Contains(models, []byte("some-model")) {
		t.Errorf("the stand-in serves %s", models)
	}
	p.interrupt(t)

	p = b.start(t, nil, "fleet", "llamasim", "--listen", addr)
	p.err.await(t, "no model, made-up words")
	if err := killStandIn("http://" + addr); err != nil {
		t.Fatal(err)
	}
	err = <-p.ended
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("killed, it ended with %v, want exit code 1", err)
	}
}

// testStop ends Caddy while a stream runs: the stream has until the end of
// grace_period, and whoever comes meanwhile is told to come again, then refused.
func (b *binary) testStop(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGTERM here")
	}
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 100})
	e := &edge{
		t: t, URL: "http://" + freeAddr(t), Admin: "http://" + freeAddr(t),
		Client: &http.Client{Transport: new(http.Transport), Timeout: 30 * time.Second},
	}
	defer e.Client.CloseIdleConnections()
	config := filepath.Join(t.TempDir(), "Caddyfile")
	const limits = "grace_period 20s\n\tshutdown_delay 2s\n\t"
	if err := os.WriteFile(config, []byte(e.caddyfile(limits+nodes("", sim), "fleet")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := b.start(t, nil, "run", "--config", config, "--adapter", "caddyfile")
	e.ready()

	resp, err := e.Client.Do(e.request(t.Context(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 500, true))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := readStream(resp.Body, func(chunks int) {
		if chunks != 3 {
			return
		}
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var late answer
		await(t, "requests to be turned away", func() bool {
			late = e.post("/v1/chat/completions", chatBody("m", "late", 1, true))
			return late.Status != http.StatusOK
		})
		wantError(t, late, http.StatusServiceUnavailable, "stopping")
		if late.Header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		await(t, "connections to be refused", func() bool {
			c, err := net.Dial("tcp", strings.TrimPrefix(e.URL, "http://"))
			if err == nil {
				c.Close()
			}
			return err != nil
		})
		if sim.Stats().Active != 1 {
			t.Error("the stream did not run any more: the test shows little")
		}
	})
	if wrong := stream.whole(); wrong != "" {
		t.Errorf("the stream that ran: %s", wrong)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it did not end in 20 s")
	}
}

// testDemo runs the three commands as they are printed.
func (b *binary) testDemo(t *testing.T) {
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("left out: %s", tool)
		}
	}
	temp := t.TempDir()
	p := b.start(t, []string{"TMPDIR=" + temp}, "fleet", "demo", "--listen", freeAddr(t), "--admin", freeAddr(t))
	p.out.await(t, "llamasim kill")
	if !strings.Contains(p.out.String(), "stand-in") {
		t.Errorf("the demo does not say that it uses stand-ins:\n%s", p.out)
	}
	stream, status, kill := p.commands(t)

	if out := shell(t, status); !strings.Contains(out, "3 of 3 nodes up") {
		t.Errorf("%s\nprinted\n%s", status, out)
	}
	// Nothing is being served: nothing is killed.
	if out, errs, code := b.run(t, "", killArgs(kill)...); code != 1 || !strings.Contains(errs, "nothing is being served") {
		t.Errorf("killing while nothing is served: exit code %d\n%s%s", code, out, errs)
	}
	whole := shell(t, stream)
	if !strings.HasSuffix(whole, "data: [DONE]\n\n") {
		t.Errorf("%s\ndid not end with [DONE]:\n%s", stream, whole)
	}
	killed := shell(t, kill)
	if got, want := said(killed), said(whole); got != want || want == "" {
		t.Errorf("the answer that went on is\n%q\nthe one that was left alone is\n%q", got, want)
	}
	if !strings.Contains(killed, "data: [DONE]\n\n") || strings.Contains(killed, `"error"`) {
		t.Errorf("%s\ndid not go on to its end:\n%s", kill, killed)
	}
	p.err.await(t, "was killed; it comes back in 15s")
	if out := shell(t, status); !strings.Contains(out, "2 of 3 nodes up") || !strings.Contains(out, "has been down for") {
		t.Errorf("after the kill,\n%s\nprinted\n%s", status, out)
	}
	p.err.await(t, "is back")

	p.interrupt(t)
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("the demo left %v behind", left)
	}
}

// said is the text of a streamed chat. The words of stand-ins depend on the whole
// conversation: a lost or repeated byte changes all that follow.
func said(stream string) string {
	var b strings.Builder
	for line := range strings.Lines(stream) {
		payload, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte("{"+payload), &chunk); err != nil {
			return ""
		}
		for _, c := range chunk.Choices {
			b.WriteString(c.Delta.Content)
		}
	}
	return b.String()
}

// commands are what the demo says to try.
func (p *process) commands(t *testing.T) (stream, status, kill string) {
	t.Helper()
	var found []string
	for line := range strings.Lines(p.out.String()) {
		if command, ok := strings.CutPrefix(line, "   "); ok {
			found = append(found, strings.TrimSpace(command))
		}
	}
	if len(found) != 3 {
		t.Fatalf("the demo prints %d commands, want 3:\n%s", len(found), p.out)
	}
	return found[0], found[1], found[2]
}

// killArgs takes the middle command of the one-liner apart.
func killArgs(line string) []string {
	_, rest, _ := strings.Cut(line, " fleet llamasim kill")
	args, _, _ := strings.Cut(rest, ";")
	return append([]string{"fleet", "llamasim", "kill"}, strings.Fields(args)...)
}

func shell(t *testing.T, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Errorf("%s\nended with %v:\n%s", line, err, out)
	}
	return string(out)
}

func (b *binary) testDemoOwnNodes(t *testing.T) {
	s, err := llamasim.Start(llamasim.Options{Model: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	admin := freeAddr(t)
	p := b.start(t, []string{nodesVariable + "=" + s.URL() + " http://" + freeAddr(t)}, "fleet", "demo", "--listen", freeAddr(t), "--admin", admin)
	p.out.await(t, "killing needs stand-ins")
	if out := p.out.String(); !strings.Contains(out, `"model":"mine"`) || !strings.Contains(out, "in front of 2 servers") {
		t.Errorf("the demo does not name the model that is served:\n%s", out)
	}
	if out := b.succeed(t, "fleet", "status", "--address", admin); !strings.Contains(out, "1 of 2 nodes up; serving mine") {
		t.Errorf("status:\n%s", out)
	}
	if out, _, code := b.run(t, "", "fleet", "slots", "--address", admin); code != 3 || out != "no log is read\n" {
		t.Errorf("slots without a log: exit code %d, want 3:\n%s", code, out)
	}
	s.Kill()
	awaitExit(t, b, 3, "fleet", "status", "--address", admin, "--json")
	p.interrupt(t)
}

// awaitExit runs a command until it ends with this exit code.
func awaitExit(t *testing.T, b *binary, want int, args ...string) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); ; {
		out, errs, code := b.run(t, "", args...)
		if code == want {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("caddy %s: exit code %d, want %d:\n%s%s", strings.Join(args, " "), code, want, out, errs)
		}
	}
}

func (b *binary) testDemoRefusals(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	addr := taken.Listener.Addr().String()
	for name, c := range map[string]struct {
		env  string
		args []string
		says string
	}{
		"listen taken": {"", []string{"--listen", addr, "--admin", freeAddr(t)}, "--listen"},
		"admin taken":  {"", []string{"--listen", freeAddr(t), "--admin", addr}, "--admin"},
		"wrong node":   {"box-a:8080", []string{"--listen", freeAddr(t), "--admin", freeAddr(t)}, "box-a:8080"},
	} {
		p := b.start(t, []string{nodesVariable + "=" + c.env}, append([]string{"fleet", "demo"}, c.args...)...)
		select {
		case err := <-p.ended:
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != 1 || !strings.Contains(p.err.String(), c.says) {
				t.Errorf("%s: ended with %v, want exit code 1 and a word about %s:\n%s", name, err, c.says, p.err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it runs", name)
		}
	}
}
