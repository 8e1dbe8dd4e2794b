package caddymodule

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
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

// recipe is README's "Add a node behind NAT": the command, and the Caddyfiles of both
// machines.
type recipe struct{ command, head, node string }

func readRecipe(t *testing.T) recipe {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Add a node behind NAT")
	if !ok {
		t.Fatal("README.md has no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	parts := strings.Split(section, "```")
	if len(parts) != 7 || !strings.HasPrefix(parts[1], "sh\n") {
		t.Fatalf("README.md: want a command and two Caddyfiles in\n%s", section)
	}
	return recipe{strings.TrimPrefix(parts[1], "sh\n"), parts[3], parts[5]}
}

// machines are those of the recipe, as processes: a head and two nodes. What is changed
// are names and places, for all are one machine here.
type machines struct {
	t      *testing.T // until its end they run
	b      *binary
	edge   *edge
	folder string // has one for each machine
	sims   map[string]*llamasim.Server
	head   *process
	nodes  map[string]*process
}

// place writes a machine's Caddyfile, and where Caddy and it keep their files.
func (m *machines) place(name, caddyfile string, change ...string) (config string, env []string) {
	m.t.Helper()
	home := filepath.Join(m.folder, name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		m.t.Fatal(err)
	}
	change = append(change, "/etc/slotfleet", home, "ai.example.com", strings.TrimPrefix(m.edge.URL, "https://"))
	config = filepath.Join(home, "Caddyfile")
	if err := os.WriteFile(config, []byte(strings.NewReplacer(change...).Replace(caddyfile)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return config, []string{"HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_CONFIG_HOME=" + home, "SSL_CERT_FILE=" + m.authority()}
}

// authority is the certificate of the one who vouches for the head.
func (m *machines) authority() string {
	return filepath.Join(m.folder, "head", "caddy", "pki", "authorities", "local", "root.crt")
}

func (m *machines) startHead(r recipe) {
	m.t.Helper()
	admin := strings.TrimPrefix(m.edge.Admin, "http://")
	config, env := m.place("head", r.head, "{\n\tfleet {", "{\n\tadmin "+admin+"\n\tskip_install_trust\n\tauto_https disable_redirects\n\tfleet {")
	m.head = m.b.start(m.t, env, "run", "--config", config)
	await(m.t, "the head's certificate", func() bool {
		pem, err := os.ReadFile(m.authority())
		roots := x509.NewCertPool()
		m.edge.Client = &http.Client{
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, Timeout: 30 * time.Second,
		}
		return err == nil && roots.AppendCertsFromPEM(pem)
	})
	m.t.Cleanup(m.edge.Client.CloseIdleConnections)
}

// startNode starts a node with a server of its own. The first is as the recipe has it;
// a second one on the same host needs a name.
func (m *machines) startNode(r recipe, name string) {
	m.t.Helper()
	identity := ""
	if name != "one" {
		identity = "identity " + name + "\n\t\t"
	}
	config, env := m.place(name, r.node, "{\n\tfleet_node {", "{\n\tadmin "+freeAddr(m.t)+"\n\tfleet_node {",
		"upstream http://127.0.0.1:8080", identity+"upstream "+m.sims[name].URL())
	token, err := os.ReadFile(filepath.Join(m.folder, "head", "token"))
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.folder, name, "token"), token, 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.nodes[name] = m.b.start(m.t, env, "run", "--config", config)
}

// serving is the node that generates.
func (m *machines) serving(t *testing.T) string {
	t.Helper()
	for name, s := range m.sims {
		if s.Stats().Active > 0 {
			return name
		}
	}
	t.Fatal("no node generates")
	return ""
}

// testRecipe does what README says, as a new user would, and then what becomes of the
// nodes: one is killed, one is stopped.
func (b *binary) testRecipe(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("left out: SSL_CERT_FILE, by which a node trusts the head's own authority")
	}
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("left out: sh")
	}
	r := readRecipe(t)
	_, port, _ := strings.Cut(freeAddr(t), ":")
	o := llamasim.Options{Model: "m", Slots: 4, Decode: 100}
	m := &machines{
		t: t, b: b, folder: t.TempDir(), edge: &edge{t: t, URL: "https://localhost:" + port, Admin: "http://" + freeAddr(t)},
		sims:  map[string]*llamasim.Server{"one": startSim(t, o), "two": startSim(t, o)},
		nodes: make(map[string]*process),
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(r.command, "/etc/slotfleet", filepath.Join(m.folder, "head")))
	cmd.Env = append(b.command(t.Context()).Env, "PATH="+filepath.Dir(b.path)+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\nended with %v:\n%s", r.command, err, out)
	}
	m.startHead(r)
	m.startNode(r, "one")
	m.edge.ready()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	status := b.succeed(t, "fleet", "status", "--address", strings.TrimPrefix(m.edge.Admin, "http://"))
	if !strings.Contains(status, "1 of 1 nodes up") || !strings.Contains(status, host) {
		t.Errorf("want the node by the name of its host, %s:\n%s", host, status)
	}
	m.startNode(r, "two")
	m.edge.allUp(2)
	want := m.edge.chatOf("tell me", 150, nil)
	if wrong := want.whole(); wrong != "" {
		t.Fatal(wrong)
	}
	t.Run("is killed", func(t *testing.T) { m.loses(t, r, want, syscall.SIGKILL) })
	t.Run("is stopped", func(t *testing.T) { m.loses(t, r, want, syscall.SIGTERM) })
}

// loses ends the process that serves in the middle of an answer, which must be that of
// one that was left alone, and has the node come back.
func (m *machines) loses(t *testing.T, r recipe, want streamed, by syscall.Signal) {
	name := ""
	var at time.Time
	got := m.edge.chatOf("tell me", 150, func(chunks int) {
		if chunks != 20 {
			return
		}
		name, at = m.serving(t), time.Now()
		if err := m.nodes[name].cmd.Process.Signal(by); err != nil {
			t.Fatal(err)
		}
	})
	if wrong := got.whole(); wrong != "" || got.Text != want.Text {
		t.Errorf("%s; got %q, want what an answer without a loss is: %q", wrong, got.Text, want.Text)
	}
	if name == "" {
		t.Fatal("no node was lost: the test shows nothing")
	}
	select {
	case err := <-m.nodes[name].ended:
		if (err == nil) != (by == syscall.SIGTERM) {
			t.Errorf("the node ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the node did not end in 20 s")
	}
	t.Logf("%s after the signal %s the answer was whole and the process gone", time.Since(at).Round(time.Millisecond), by)
	if by == syscall.SIGTERM {
		// It did not end in time by chance: the head took it away.
		m.head.err.await(t, `"moved":1,"finished":0,"ended":0`)
	}
	m.startNode(r, name)
	m.edge.allUp(2)
}

// testOneFile starts two nodes from the same Caddyfile: what differs is in the environment.
func (b *binary) testOneFile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "Caddyfile")
	err := os.WriteFile(config, []byte(`{
	admin off
	fleet_node {
		head     {env.FLEET_HEAD}
		token    {env.FLEET_SECRET}
		identity {env.NODE_NAME}
		upstream {env.LLAMA_SERVER}
	}
}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	door, token := freeAddr(t), linkf.NewToken()
	e := startEdge(t, "fleet {\n\t\tlisten "+door+"\n\t\ttoken "+token+"\n\t}", "fleet")
	for _, name := range []string{"box-a", "box-b"} {
		sim := startSim(t, llamasim.Options{Model: "model-of-" + name})
		env := []string{"FLEET_HEAD=linkf://" + door, "FLEET_SECRET=" + token, "NODE_NAME=" + name, "LLAMA_SERVER=" + sim.URL()}
		b.start(t, env, "run", "--config", config)
	}
	e.allUp(2)
	nodes := e.get(e.Admin + "/fleet/nodes").Body
	for _, want := range []string{`"box-a"`, `"box-b"`, `"model-of-box-a"`, `"model-of-box-b"`} {
		if !strings.Contains(nodes, want) {
			t.Errorf("%s is not there: %s", want, nodes)
		}
	}
}
