package caddymodule

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
)

func TestOwnNodes(t *testing.T) {
	nodes, err := ownNodes([]string{"http://10.0.0.2:8080", "https://box.example.com/llama"})
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 2 || nodes[0].name == nodes[1].name || nodes[1].address != "https://box.example.com/llama" {
		t.Errorf("got %+v", nodes)
	}
	for _, bad := range []string{
		"10.0.0.2:8080", "box-a", "ftp://box", "http://", "http://:8080", "http://u:secret@box", "http://box?x", "http://box#x",
		"http://{env.X}", "http://bo x", "http://box\x00", "%zz",
	} {
		_, err := ownNodes([]string{"http://fine:1", bad})
		if err == nil || !strings.Contains(err.Error(), "LLAMA_NODES") {
			t.Errorf("%q: got error %v, want one that names LLAMA_NODES", bad, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error repeats the password: %v", bad, err)
		}
	}
}

func TestDemoConfigurationIsFormatted(t *testing.T) {
	d := demo{listen: "127.0.0.1:8088", admin: "localhost:2019", folder: "/tmp/with blank", nodes: []demoNode{
		{name: "stand-in-1", address: "http://127.0.0.1:1", log: "/tmp/with blank/a.log"}, {name: "node-2", address: "https://box/x"},
	}}
	text := d.caddyfile()
	if got := string(caddyfile.Format([]byte(text))); got != text {
		t.Errorf("caddy fmt changes\n%s\nto\n%s", text, got)
	}
	if _, err := d.config(); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
}

// Without a key the demo is for this machine alone, and prints the address as people
// know it.
func TestDemoListensHereOnly(t *testing.T) {
	cmd := new(cobra.Command)
	demoCommand.flags(cmd)
	listen := cmd.Flags().Lookup("listen").DefValue
	if listen != "127.0.0.1:8088" {
		t.Errorf("the demo listens on %s, want 127.0.0.1:8088", listen)
	}
	d := demo{listen: listen, admin: "localhost:2019"}
	if got := d.caddyfile(); !strings.Contains(got, "bind 127.0.0.1\n") {
		t.Errorf("the demo binds no address:\n%s", got)
	}
	for listen, want := range map[string]string{
		listen: "http://localhost:8088", ":8088": "http://localhost:8088", "0.0.0.0:8088": "http://localhost:8088",
		"10.0.0.1:80": "http://10.0.0.1:80", "[::1]:8088": "http://[::1]:8088",
	} {
		d := demo{listen: listen}
		if got := d.base(); got != want {
			t.Errorf("--listen %s: got %s, want %s", listen, got, want)
		}
	}
}

func TestTakenAddressIsNoticed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := checkFree(ln.Addr().String()); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("got error %v for an address that is taken", err)
	}
	for _, bad := range []string{"127.0.0.1:1-9", "127.0.0.1:http99"} {
		if err := checkFree(bad); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

func TestShellWord(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell to ask")
	}
	for _, word := range []string{"", "plain", "/a b/c", "it's", "$HOME `id` \\ \"", "{\"a\":1}", "*?~"} {
		out, err := exec.Command(sh, "-c", "printf %s "+shellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("the shell makes %q (%v) of %q, written as %s", out, err, word, shellWord(word))
		}
	}
}
