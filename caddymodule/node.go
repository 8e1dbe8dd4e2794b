package caddymodule

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/slotlog"
)

// Node is one llama-server, or an agent that runs one.
type Node struct {
	// The node's name in answers, logs and metrics. Required, unique.
	Name string `json:"name,omitempty"`

	// Where the server listens: `http://host:port`, `https://host:port` or
	// `unix//path/to.sock`. A path after the host is kept as a prefix
	// (llama-server's `--api-prefix`). Or where an agent listens (the `fleet_node` app
	// of another Caddy): `linkf://host:port`. Placeholders such as `{env.BOX_A}` are
	// expanded. Required.
	URL string `json:"url,omitempty"`

	// The API key that the server wants, best as `{env.BOX_A_KEY}` or
	// `{file./run/secrets/box-a}`: these are read when the configuration is loaded
	// and stay out of what the admin API shows. Default: none.
	Key string `json:"key,omitempty"`

	// The tokens that an agent may have, one of which it must, 64 hexadecimal digits
	// each, best as `{env.BOX_A_TOKEN}`. Two while one takes the place of the other.
	// Default: none, which is an error if the agent is not on this machine and the
	// fleet is not `insecure`.
	Tokens []string `json:"tokens,omitempty"`

	// How many requests each model of the node runs at once. Default: asked from the
	// server.
	Lanes int `json:"lanes,omitempty"`

	// How many tokens one lane holds. Default: asked from the server.
	Context int64 `json:"context,omitempty"`

	// The server's log, from which its load is read. Default: none, so that only our
	// own requests count as load.
	Log *NodeLog `json:"log,omitempty"`

	// A file with the certificates (PEM) that a server with `https` is checked
	// against. Default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`

	// The node's speed, to start from until it was measured. Default: unknown.
	Speed *Speed `json:"speed,omitempty"`
}

// NodeLog says where a node's log is. Exactly one field is set.
type NodeLog struct {
	// The path of the log file. It need not exist yet.
	File string `json:"file,omitempty"`

	// The name of a source of the `slotlog` app.
	Source string `json:"source,omitempty"`
}

// Speed is how fast one lane is.
type Speed struct {
	// Prompt tokens read in a second. Above 0.
	Prefill float64 `json:"prefill,omitempty"`

	// Tokens generated in a second. Above 0.
	Decode float64 `json:"decode,omitempty"`
}

// maxNodeName bounds a node's name, as linkf does the one of an agent.
const maxNodeName = 255

// check refuses what is wrong without a look at the environment.
func (n *Node) check() error {
	switch {
	case n == nil:
		return errors.New("a node is null")
	case n.Name == "":
		return errors.New("a node has no name")
	case len(n.Name) > maxNodeName || !showable(n.Name):
		return fmt.Errorf("node %q: its name is not fit to be shown: want at most %d bytes of printable characters", n.Name, maxNodeName)
	case n.Lanes < 0 || n.Context < 0:
		return fmt.Errorf("node %s: lanes and context cannot be negative", n.Name)
	case n.Speed != nil && (n.Speed.Prefill <= 0 || n.Speed.Decode <= 0):
		return fmt.Errorf("node %s: speed wants two figures above 0, prefill and decode tokens per second", n.Name)
	case n.Log != nil && (n.Log.File == "") == (n.Log.Source == ""):
		return fmt.Errorf("node %s: log wants either a file or a source", n.Name)
	}
	if err := n.checkAddress(n.URL); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	return nil
}

// checkAddress refuses an address that is none, and what does not go with it, unless a
// placeholder hides it.
func (n *Node) checkAddress(address string) error {
	switch {
	case isLinkf(address):
		return n.checkLinkf(address)
	case len(n.Tokens) > 0 && !strings.HasPrefix(address, "{"):
		return fmt.Errorf("token is for an agent, linkf://host:port, and the address is %s", address)
	}
	if err := checkURL(address); err != nil {
		return err
	}
	return checkTrust(n.TLSCA, address)
}

// checkTrust refuses certificates that nothing would be checked against.
func checkTrust(ca, address string) error {
	if ca == "" || strings.HasPrefix(address, "https:") || strings.HasPrefix(address, "{") {
		return nil
	}
	return fmt.Errorf("tls_ca is for https, and the address is %s", address)
}

const wantURL = "want http://host:port, https://host:port or unix//path/to.sock"

// checkURL checks the scheme of a node's address, unless a placeholder hides it.
func checkURL(address string) error {
	scheme, _, ok := strings.Cut(address, "://")
	switch {
	case address == "":
		return errors.New("no address: " + wantURL)
	case strings.HasPrefix(address, "unix/"), strings.HasPrefix(address, "{"):
		return nil
	case !ok:
		return fmt.Errorf("the address %q has no scheme: %s", address, wantURL)
	case scheme == "linkf":
		return errors.New("linkf:// is where an agent listens: give the address of the llama-server itself, http:// or https://")
	case scheme != "http" && scheme != "https":
		return fmt.Errorf("the scheme %s:// is not known: %s", scheme, wantURL)
	case strings.HasSuffix(strings.TrimRight(address, "/"), "/v1"):
		return fmt.Errorf("the address %s ends in /v1, which is put behind it by itself: leave that out", address)
	}
	return nil
}

// plainURL writes an address such that those which mean the same are equal: host names
// have no case, and the port of a scheme need not be said.
func plainURL(address string) string {
	if socket, ok := strings.CutPrefix(address, "unix/"); ok {
		return "unix/" + filepath.Clean(socket)
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return address
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(host, port) + strings.TrimRight(u.EscapedPath(), "/")
}

// provisionNodes makes the specifications of all nodes.
func (a *FleetApp) provisionNodes(ctx caddy.Context) ([]fleet.NodeSpec, error) {
	logs, err := sourcesOf(ctx)
	if err != nil {
		return nil, err
	}
	a.run.reads = make(map[string]string)
	repl := caddy.NewReplacer()
	specs := make([]fleet.NodeSpec, 0, len(a.Nodes))
	at := make(map[string]string) // names by address
	for _, n := range a.Nodes {
		t, err := a.logOf(n, logs)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		spec, err := n.provision(ctx, repl, t, a)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		if _, taken := logs.log(n.Name); taken && isLinkf(spec.Address) {
			return nil, fmt.Errorf("node %s: a source of the slotlog app has the name under which the node's own slots are shown: rename one", n.Name)
		}
		place := plainURL(spec.Address)
		if other, ok := at[place]; ok {
			return nil, fmt.Errorf("node %s: node %s has the address %s already", n.Name, other, spec.Address)
		}
		at[place] = n.Name
		specs = append(specs, spec)
	}
	return specs, nil
}

// sourcesOf returns the slotlog app of the same configuration; nil: it has none.
func sourcesOf(ctx caddy.Context) (*SlotlogApp, error) {
	app, err := ctx.AppIfConfigured("slotlog")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return app.(*SlotlogApp), nil
}

// logOf takes hold of the node's log; nil: it has none.
func (a *FleetApp) logOf(n *Node, logs *SlotlogApp) (*tail, error) {
	if n.Log == nil {
		return nil, nil
	}
	if n.Log.Source != "" {
		log, ok := logs.log(n.Log.Source)
		if !ok {
			return nil, fmt.Errorf("log source %s is not in the slotlog app; it has %s", n.Log.Source, logs.names())
		}
		if _, ok := a.run.reads[n.Log.Source]; !ok {
			a.run.reads[n.Log.Source] = n.Name
		}
		return a.hold(log.o)
	}
	if _, ok := logs.log(n.Name); ok {
		return nil, fmt.Errorf("its log and a source of the slotlog app have the same name: write `log source %s`, or rename one", n.Name)
	}
	o, err := logOptions(slotlog.SourceOptions{Kind: slotlog.SourceFile, Path: n.Log.File})
	if err != nil {
		return nil, err
	}
	t, err := a.hold(o)
	if err == nil {
		a.run.logs = append(a.run.logs, namedLog{name: n.Name, node: n.Name, tail: t})
	}
	return t, err
}

func (a *FleetApp) hold(o slotlog.SourceOptions) (*tail, error) {
	t, err := holdTail(o)
	if err == nil {
		a.run.tails = append(a.run.tails, t)
	}
	return t, err
}

// provision expands the node's placeholders and makes its specification.
func (n *Node) provision(ctx caddy.Context, repl *caddy.Replacer, log *tail, a *FleetApp) (fleet.NodeSpec, error) {
	address, err := repl.ReplaceOrErr(n.URL, true, true)
	if err != nil {
		return fleet.NodeSpec{}, fmt.Errorf("the address cannot be read (%w): set it in the environment that Caddy starts with", err)
	}
	if err := n.checkAddress(address); err != nil {
		return fleet.NodeSpec{}, err
	}
	spec := fleet.NodeSpec{Name: n.Name, Address: address, Lanes: n.Lanes, Context: fleet.Tokens(n.Context)}
	if n.Speed != nil {
		spec.Rates = fleet.Rates{Prefill: n.Speed.Prefill, Decode: n.Speed.Decode}
	}
	if isLinkf(address) {
		err = n.reachAgent(ctx, repl, &spec, a)
	} else {
		err = n.reachServer(ctx, repl, &spec, log)
	}
	return spec, err
}

// reachServer says how the link to a llama-server is made.
func (n *Node) reachServer(ctx caddy.Context, repl *caddy.Replacer, spec *fleet.NodeSpec, log *tail) error {
	o := llamacpp.Options{Name: n.Name, URL: spec.Address, Logger: ctx.Slogger()}
	var err error
	if o.Key, err = repl.ReplaceOrErr(n.Key, true, true); err != nil {
		return fmt.Errorf("the key cannot be read (%w): set it in the environment or file it comes from, or leave key out", err)
	}
	var roots []byte
	if n.TLSCA != "" {
		if o.TLS, roots, err = trust(n.TLSCA); err != nil {
			return err
		}
	}
	read := ""
	if log != nil {
		read = log.key
	}
	spec.Identity = identity(n.Name, o.URL, o.Key, string(roots), read)
	spec.Open = func() (fleet.Link, error) {
		o := o
		if log != nil {
			o.Source = log.start()
		}
		return llamacpp.New(o)
	}
	return tryOut(o)
}

// tryOut lets the link say what is wrong with its options, before Start would.
func tryOut(o llamacpp.Options) error {
	link, err := llamacpp.New(o)
	if err != nil {
		return errors.Unwrap(err) // the node's name is said already
	}
	return link.Close("it was made to check the configuration")
}

// trust reads the certificates that a server is checked against.
func trust(path string) (*tls.Config, []byte, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("tls_ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("tls_ca: %s holds no certificate in PEM form", path)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, pem, nil
}

// identity stands for all that a link is made from. It is a hash, for the key is
// among it.
func identity(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
