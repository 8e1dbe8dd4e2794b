package caddymodule

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// ownNodes are the nodes of a list of URLs.
func ownNodes(list []string) ([]demoNode, error) {
	nodes := make([]demoNode, 0, len(list))
	for i, raw := range list {
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
			u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(raw, "{}\"`") {
			return nil, fmt.Errorf("$%s: %q is not the address of a llama-server, such as http://10.0.0.2:8080", nodesVariable, raw)
		}
		if u.User != nil {
			return nil, fmt.Errorf("$%s: the address of %s has a name or password in it; servers with a key need a Caddyfile", nodesVariable, u.Host)
		}
		nodes = append(nodes, demoNode{name: fmt.Sprintf("node-%d", i+1), address: raw})
	}
	return nodes, nil
}

// caddyfile is the demo's configuration.
func (d *demo) caddyfile() string {
	var b strings.Builder
	line := func(indent int, format string, a ...any) {
		b.WriteString(strings.Repeat("\t", indent))
		fmt.Fprintf(&b, format+"\n", a...)
	}
	line(0, "{")
	line(1, "admin %s", d.admin)
	line(1, "persist_config off")
	line(1, "storage file_system `%s`", d.folder)
	line(1, "auto_https off")
	line(1, "grace_period 2s")
	line(1, "servers {")
	line(2, "protocols h1")
	line(1, "}")
	line(1, "log {")
	line(2, "output stderr")
	line(2, "format console")
	line(2, "level WARN")
	line(1, "}")
	line(1, "fleet {")
	for _, n := range d.nodes {
		if n.log == "" {
			line(2, "node %s %s", n.name, n.address)
			continue
		}
		line(2, "node %s %s {", n.name, n.address)
		line(3, "log file `%s`", n.log)
		line(2, "}")
	}
	line(2, "warm {")
	line(3, "memory_only")
	line(2, "}")
	line(1, "}")
	line(0, "}")
	host, port := d.place()
	line(0, "http://:%s {", port)
	if host != "" {
		line(1, "bind %s", host)
	}
	line(1, "fleet")
	line(0, "}")
	return b.String()
}

// place is where the edge listens; no host: on all addresses.
func (d *demo) place() (host, port string) {
	a, err := caddy.ParseNetworkAddress(d.listen)
	if err != nil {
		return "", ""
	}
	host, port, _ = net.SplitHostPort(a.JoinHostPort(0))
	return host, port
}

// base is the edge's address for clients on this machine.
func (d *demo) base() string {
	host, port := d.place()
	return "http://" + net.JoinHostPort(reachable(host), port)
}

// greet says what runs, and what to try. model is one that is served.
func (d *demo) greet(model string) {
	host, port := d.place()
	base := d.base()
	if len(d.standIns) > 0 {
		fmt.Fprintf(os.Stdout, "Slotfleet runs on %s with %d stand-in servers: they have no model, their words\n"+
			"are made up. For real ones, name their addresses in $%s.\n", base, len(d.standIns), nodesVariable)
	} else {
		fmt.Fprintf(os.Stdout, "Slotfleet runs on %s in front of %s.\n", base, plural(len(d.nodes), "server"))
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		fmt.Fprint(os.Stdout, "Other machines can reach it, without a key; --listen 127.0.0.1:"+port+" keeps it here.\n")
	}
	fmt.Fprintf(os.Stdout, "Ctrl-C ends it. To try from another terminal:\n\n")
	c := d.commands(base, model)
	fmt.Fprintf(os.Stdout, "1. A streamed answer\n\n   %s\n\n", c.stream)
	fmt.Fprintf(os.Stdout, "2. The nodes, their lanes and load\n\n   %s\n\n", c.status)
	if c.kill != "" {
		fmt.Fprintf(os.Stdout, "3. A stream whose server is killed in the middle, and that goes on\n\n   %s\n\n", c.kill)
	} else {
		fmt.Fprintf(os.Stdout, "3. To see a stream go on after its server was killed in the middle, stop the server that\n"+
			"   serves it by hand, or run this again without $%s: killing needs stand-ins.\n"+
			"   Who serves what, again and again:\n\n   %s\n\n", nodesVariable, c.watch)
	}
	if model == "" {
		fmt.Fprintf(os.Stderr, "No server has said yet what it serves: put a model's name in place of MODEL, command 2 lists them.\n")
	}
}

// demoCommands are lines for a shell.
type demoCommands struct{ stream, status, kill, watch string }

func (d *demo) commands(base, model string) demoCommands {
	if model == "" {
		model = "MODEL"
	}
	name, _ := json.Marshal(model) // of a string: cannot fail
	body := fmt.Sprintf(`{"model":%s,"stream":true,"max_tokens":250,"messages":[{"role":"user","content":"Tell me a story."}]}`, name)
	bin, err := os.Executable()
	if err != nil {
		bin = "caddy"
	}
	caddyFleet := shellWord(bin) + " fleet"
	address := ""
	if d.admin != caddy.DefaultAdminListen {
		address = " --address " + shellWord(d.admin)
	}
	c := demoCommands{
		stream: fmt.Sprintf("curl -sN %s/v1/chat/completions -H 'Content-Type: application/json' -d %s", base, shellWord(body)),
		status: caddyFleet + " status" + address,
	}
	if len(d.standIns) > 0 {
		c.kill = fmt.Sprintf("( %s & sleep 2; %s llamasim kill%s; wait )", c.stream, caddyFleet, address)
	} else {
		c.watch = fmt.Sprintf("while sleep 1; do %s; done", c.status)
	}
	return c
}

// reachable is the host by which an edge on this machine is reached.
func reachable(host string) string {
	if ip := net.ParseIP(host); host == "" || host == "127.0.0.1" || ip != nil && ip.IsUnspecified() {
		return "localhost"
	}
	return host
}

// shellWord makes one word of s for a POSIX shell.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
