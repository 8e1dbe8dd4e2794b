//go:build linux

package caddymodule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/linkf"
)

// lab is a head and two nodes as programs of their own, in two networks with a wire between
// them: one node is dialled, the other dials in.
type lab struct {
	*edge
	t       *testing.T
	caddy   string
	names   string // of the namespaces, in front
	network string // of the addresses
	wire    wire
}

// Addresses of the lab, behind its network.
const (
	testHost   = ".1" // and the head's to it
	headToTest = ".2"
	headHost   = ".5"
	nodeHost   = ".6"
)

// newLab connects two network namespaces, or skips the test where that may not be.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces are left alone: only root makes them")
	}
	l := &lab{t: t, names: fmt.Sprintf("sf%d-", rand.IntN(1e6)), network: fmt.Sprintf("198.18.%d", rand.IntN(256))}
	for _, n := range []string{"head", "node"} {
		if err := l.try("ip", "netns", "add", l.names+n); err != nil {
			t.Skipf("no network namespaces: %v", err)
		}
		t.Cleanup(func() { _ = l.try("ip", "netns", "del", l.names+n) })
		l.must("ip", "-n", l.names+n, "link", "set", "lo", "up")
	}
	// The names of interfaces have at most 15 characters.
	l.must("ip", "link", "add", l.names+"t", "type", "veth", "peer", "name", "test", "netns", l.names+"head")
	l.must("ip", "address", "add", l.network+testHost+"/30", "dev", l.names+"t")
	l.must("ip", "link", "set", l.names+"t", "up")
	l.must("ip", "-n", l.names+"head", "address", "add", l.network+headToTest+"/30", "dev", "test")
	l.must("ip", "-n", l.names+"head", "link", "set", "test", "up")
	if err := l.wire.open(l.names+"w0", l.names+"w1"); err != nil {
		t.Skipf("no network devices of a program's own: %v", err)
	}
	t.Cleanup(l.wire.close)
	for k, host := range []string{headHost, nodeHost} {
		where, dev := l.names+[]string{"head", "node"}[k], fmt.Sprintf("%sw%d", l.names, k)
		l.must("ip", "link", "set", dev, "netns", where)
		l.must("ip", "-n", where, "address", "add", l.network+host+"/30", "dev", dev)
		l.must("ip", "-n", where, "link", "set", dev, "up")
	}
	return l
}

// try runs a program.
func (l *lab) try(args ...string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (l *lab) must(args ...string) {
	l.t.Helper()
	if err := l.try(args...); err != nil {
		l.t.Fatal(err)
	}
}

// start runs Caddy in a namespace until the test ends.
func (l *lab) start(where string, args ...string) {
	l.t.Helper()
	cmd := exec.CommandContext(context.Background(), "ip", append([]string{"netns", "exec", l.names + where, l.caddy}, args...)...)
	home := l.t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if l.t.Failed() {
			l.t.Logf("%s in %s: %.4000s", args, where, said.String())
		}
	})
}

// run starts Caddy with this configuration in a namespace.
func (l *lab) run(where, config string) {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), "Caddyfile")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.start(where, "run", "--adapter", "caddyfile", "--config", path)
}

// populate starts the head, both nodes and their servers.
func (l *lab) populate(slots int) {
	l.t.Helper()
	l.caddy = filepath.Join(l.t.TempDir(), "caddy")
	l.must("go", "build", "-tags", "nobadger,nomysql,nopgx", "-buildvcs=false", "-o", l.caddy, "./cmd/caddy")
	token := linkf.NewToken()
	peers := []string{"listen " + l.network + nodeHost + ":8455", "head linkf://" + l.network + headHost + ":8454"}
	for i, peer := range peers {
		server := fmt.Sprintf("127.0.0.1:%d", 9001+i)
		l.start("node", "fleet", "llamasim", "--listen", server, "--model", "m", "--slots", fmt.Sprint(slots), "--context", "8192", "--prefill", "0", "--decode", "100")
		l.run("node", fmt.Sprintf("{\n\tadmin off\n\tfleet_node {\n\t\t%s\n\t\ttoken %s\n\t\tidentity node-%d\n\t\tupstream http://%s\n\t}\n}\n", peer, token, i, server))
	}
	at := l.network + headToTest
	l.edge = &edge{t: l.t, URL: "http://" + at + ":8088", Admin: "http://" + at + ":2019", Client: &http.Client{Timeout: time.Minute}}
	l.run("head", fmt.Sprintf(`{
	admin %s:2019
	auto_https off
	fleet {
		listen %s:8454
		token %s
		retry 1s
		node dialled linkf://%s:8455 {
			token %s
		}
	}
}
%s {
	fleet
}
`, at, l.network+headHost, token, l.network+nodeHost, token, l.URL))
	await(l.t, "the head to answer", func() bool { return l.get(l.Admin+"/fleet/nodes").Status == http.StatusOK })
	l.allUp(2)
}

// Programs in two networks: streams over links that either side dialled go on when
// everything between them is lost for two seconds, and when packets are late and some lost.
func TestLinksBetweenNetworks(t *testing.T) {
	const clients, tokens = 20, 450
	l := newLab(t)
	l.populate(clients)
	want := streams(l.edge, clients, tokens, nil)
	wantWhole(t, want)
	check := func(t *testing.T, begun func()) {
		t.Helper()
		moves := l.moves()
		got := streams(l.edge, clients, tokens, begun)
		wantWhole(t, got)
		for i := range got {
			if got[i].Text != want[i].Text {
				t.Errorf("stream %d: got %.200q, want %.200q", i, got[i].Text, want[i].Text)
			}
		}
		if n := l.moves() - moves; n != 0 {
			t.Errorf("%d of %d requests went to another node, want none", n, clients)
		}
		l.allUp(2)
	}
	t.Run("cut for 2 s", func(t *testing.T) {
		check(t, func() {
			l.wire.cut.Store(true)
			time.Sleep(2 * time.Second)
			l.wire.cut.Store(false)
		})
	})
	t.Run("late and lossy", func(t *testing.T) {
		l.wire.bad.Store(true)
		passed, lost := l.wire.passed.Load(), l.wire.lost.Load()
		check(t, nil)
		passed, lost = l.wire.passed.Load()-passed, l.wire.lost.Load()-lost
		if t.Logf("of %d packets %d were lost", passed+lost, lost); lost == 0 {
			t.Error("no packet was lost")
		}
	})
}
