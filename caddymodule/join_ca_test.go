package caddymodule

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
)

// A node dials in at a site with `tls internal`, whose authority is the head's own: with
// a copy of its certificate, and not with that of another authority or without one.
func TestNodeTrustsTheOwnAuthorityOfItsHead(t *testing.T) {
	token, at := linkf.NewToken(), freeAddr(t)
	sim := startSim(t, llamasim.Options{Model: "m"})
	storage := t.TempDir()
	global := func(node string) string {
		return fmt.Sprintf("auto_https disable_redirects\n\tstorage file_system %s\n\tskip_install_trust\n\tfleet {\n\t\ttoken %s\n\t}\n\t%s", storage, token, node)
	}
	node := func(more string) string {
		return fmt.Sprintf("fleet_node {\n\t\thead https://%s/fleet/join\n\t\ttoken %s\n\t\tidentity box-a\n\t\tupstream %s\n\t\t%s\n\t}", at, token, sim.URL(), more)
	}
	site := fmt.Sprintf("fleet\n}\nhttps://%s {\n\ttls internal\n\tfleet_join", at)
	e := startEdge(t, global(""), site)
	root := filepath.Join(storage, internalRoot)
	await(t, "the head to have an authority", func() bool { _, err := os.Stat(root); return err == nil })
	mine := filepath.Join(t.TempDir(), "ca.pem")
	copied, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLOTFLEET_TEST_CA", mine)
	if err := e.load(global(node("tls_ca {env.SLOTFLEET_TEST_CA}")), site); err != nil {
		t.Fatal(err)
	}
	e.ready()
	wantChat(t, e)

	stranger, _, _ := ownCertificate(t)
	other, _, err := trust(stranger)
	if err != nil {
		t.Fatal(err)
	}
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	for want, config := range map[string]*tls.Config{
		"no certificate of tls_ca is that of its authority": other,
		"name a file with its certificate by tls_ca":        nil,
	} {
		said := make(lines, 1000)
		a, err := agent.Start(agent.Options{
			Heads: []string{"https://" + at + "/fleet/join"}, HeadTLS: config, Tokens: []linkf.Token{k},
			Identity: "box-b", Upstream: sim.URL(), Logger: slog.New(slog.NewTextHandler(said, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-said; !strings.Contains(got, want) {
			t.Errorf("the node said %s, want %q", got, want)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The server of a node has a certificate of its own authority: the node reads from it
// with that, and not with another one.
func TestNodeTrustsTheOwnAuthorityOfItsServer(t *testing.T) {
	token, listens, at := linkf.NewToken(), freeAddr(t), freeAddr(t)
	sim := startSim(t, llamasim.Options{Model: "m"})
	cert, key, _ := ownCertificate(t)
	stranger, _, _ := ownCertificate(t)
	site := fmt.Sprintf("fleet\n}\nhttps://%s {\n\ttls %s %s\n\treverse_proxy %s", at, cert, key, strings.TrimPrefix(sim.URL(), "http://"))
	global := func(ca string) string {
		return fmt.Sprintf("auto_https disable_redirects\n\tfleet {\n\t\tlisten %s\n\t\ttoken %s\n\t}\n\tfleet_node {\n\t\thead linkf://%s\n\t\ttoken %s\n\t\tidentity box-a\n\t\tupstream https://%s {\n\t\t\ttls_ca %s\n\t\t}\n\t}", listens, token, listens, token, at, ca)
	}
	e := startEdge(t, global(stranger), site)
	await(t, "the fleet to hear that the server is not trusted", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, "certificate signed by unknown authority")
	})
	t.Setenv("SLOTFLEET_TEST_CA", cert)
	if err := e.load(global("{env.SLOTFLEET_TEST_CA}"), site); err != nil {
		t.Fatal(err)
	}
	await(t, "the server to be trusted", func() bool {
		return e.post("/v1/chat/completions", chatBody("m", "hi", 3, false)).Status == 200
	})
	if sim.Stats().Requests == 0 {
		t.Error("the server got no request")
	}
}
