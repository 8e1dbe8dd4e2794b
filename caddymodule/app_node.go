package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
	"github.com/slotfleet/slotfleet/slotlog"
)

// NodeApp runs a llama-server for the fleets of other Caddys: it dials them or lets them
// dial it, so that one of both need not be reachable.
//
// A reload that leaves it as it was keeps its links and what runs over them. One that
// changes it ends both, and fleets go on elsewhere.
type NodeApp struct {
	// The fleets to dial: `https://host/path` or `http://host/path` where a site of theirs
	// has `fleet_join`, or `linkf://host:port`, where their `listen` is. Each gets a link of
	// its own; one that cannot be reached is dialled again. Two addresses of one fleet get
	// one link, which the other takes over when it is lost. And `auto`: those on the local
	// network that `announce` themselves. Default: none.
	Heads []string `json:"heads,omitempty"`

	// Where fleets may dial in: `:port` or `host:port`. Default: they may not. A node
	// has heads, or listens, or both.
	Listen string `json:"listen,omitempty"`

	// A file with the certificates (PEM) that heads with `https` are checked against, such as
	// that of your own authority. Placeholders are expanded. Default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`

	// The tokens that the fleets know, 64 hexadecimal digits each, best as
	// `{env.FLEET_TOKEN}`. A fleet that does not know one is met with the next. Default:
	// none, which is an error if a head is not on this machine, or may dial in from another
	// one, and the node is not `insecure`.
	Tokens []string `json:"tokens,omitempty"`

	// Take heads on other machines without a token. Default: false.
	Insecure bool `json:"insecure,omitempty"`

	// What the fleets call the node. At most 255 bytes. Default: the host's name.
	Identity string `json:"identity,omitempty"`

	// The llama-server, as the address of a node of the `fleet` app. Required.
	Upstream string `json:"upstream,omitempty"`

	// The API key that the server wants. Default: none.
	Key string `json:"key,omitempty"`

	// A file with the certificates (PEM) that a server with `https` is checked against.
	// Placeholders are expanded. Default: the system's.
	UpstreamTLSCA string `json:"upstream_tls_ca,omitempty"`

	// The server's log. Default: none, so that fleets know only of what they sent.
	Log *NodeLog `json:"log,omitempty"`

	// How many requests of all fleets run at once. Default: asked from the server.
	Lanes int `json:"lanes,omitempty"`

	// How long what runs may go on when Caddy stops. The fleets are told first, so that
	// they give the node nothing new and move elsewhere what can go on there. Default: 30s.
	DrainTimeout caddy.Duration `json:"drain_timeout,omitempty"`

	logger *slog.Logger
	o      agent.Options
	log    *slotlog.SourceOptions // nil: none
	listen string                 // empty: no
	key    string                 // stands for all of the above
	behind *background
	runs   bool // it holds the agent
}

// CaddyModule returns the Caddy module information.
func (NodeApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "fleet_node",
		New: func() caddy.Module { return new(NodeApp) },
	}
}

// Provision checks the configuration and expands placeholders. It reaches nobody.
func (a *NodeApp) Provision(ctx caddy.Context) error {
	a.logger, a.behind = ctx.Slogger(), new(background)
	repl := caddy.NewReplacer()
	if a.Upstream == "" {
		return errors.New("no upstream: name the llama-server that this node runs")
	}
	if len(a.Heads) == 0 && a.Listen == "" {
		return errors.New("no head and no listen: name a fleet to dial, or an address for fleets to dial")
	}
	if a.Lanes < 0 || a.DrainTimeout < 0 {
		return errors.New("lanes and drain_timeout cannot be negative")
	}
	tokens, secrets, err := readTokens(repl, a.Tokens)
	if err != nil {
		return err
	}
	a.o = agent.Options{Tokens: tokens, Lanes: a.Lanes, Logger: a.logger}
	if err := a.provisionPeers(repl); err != nil {
		return err
	}
	roots, err := a.provisionTrust(repl)
	if err != nil {
		return err
	}
	serverRoots, err := a.provisionServer(repl)
	if err != nil {
		return err
	}
	if err := a.provisionLog(ctx); err != nil {
		return err
	}
	read := ""
	if a.log != nil {
		read = a.log.Key()
	}
	parts := []string{a.listen, a.o.Identity, a.o.Upstream, a.o.Key, read, roots, serverRoots, fmt.Sprint(a.Lanes, len(a.o.Heads), a.o.Seek, a.DrainTimeout)}
	a.key = identity(append(append(parts, a.o.Heads...), secrets...)...)
	return nil
}

// provisionPeers checks who is dialled and who may dial.
func (a *NodeApp) provisionPeers(repl *caddy.Replacer) error {
	open := len(a.o.Tokens) == 0 && !a.Insecure
	for _, head := range a.Heads {
		expanded, err := repl.ReplaceOrErr(head, true, true)
		if err != nil {
			return fmt.Errorf("head cannot be read: %w", err)
		}
		if err := checkHead(expanded); err != nil {
			return err
		}
		if expanded == headAuto {
			a.o.Seek = true
			continue
		}
		if open && !onThisMachine(hostPort(expanded)) {
			return fmt.Errorf("head %s is another machine, and there is no token: add `token`, or `insecure`", expanded)
		}
		a.o.Heads = append(a.o.Heads, strings.TrimPrefix(expanded, linkfScheme))
	}
	if a.o.Seek && open {
		return errors.New("head auto takes any machine of the local network, and there is no token: add `token`, or `insecure`")
	}
	if a.Listen == "" {
		return nil
	}
	var err error
	if a.listen, err = listenAddress(repl, a.Listen); err != nil {
		return err
	}
	if open && !onThisMachine(a.listen) {
		return fmt.Errorf("listen %s is open to other machines, and there is no token: add `token`, or `insecure`", a.listen)
	}
	return nil
}

// provisionTrust reads the certificates that heads are checked against, and returns their
// text.
func (a *NodeApp) provisionTrust(repl *caddy.Replacer) (roots string, err error) {
	if a.TLSCA == "" {
		return "", nil
	}
	if !slices.ContainsFunc(a.o.Heads, func(head string) bool { return strings.HasPrefix(strings.ToLower(head), "https:") }) {
		return "", errors.New("tls_ca is for a head with https, and there is none: the link by linkf:// is secured by its token")
	}
	path, err := caPath(repl, a.TLSCA)
	if err != nil {
		return "", err
	}
	config, pem, err := trust(path)
	if err != nil {
		return "", fmt.Errorf("%w: copy the certificate of the head's authority there, readable for this Caddy; that of `tls internal` is %s in the data folder of the head's Caddy", err, internalRoot)
	}
	a.o.HeadTLS = config
	return string(pem), nil
}

// caPath expands the path of a tls_ca.
func caPath(repl *caddy.Replacer, path string) (string, error) {
	path, err := repl.ReplaceOrErr(path, true, true)
	if err != nil {
		return "", fmt.Errorf("tls_ca cannot be read: %w", err)
	}
	return path, nil
}

// internalRoot is where Caddy's own authority has its certificate.
const internalRoot = "pki/authorities/local/root.crt"

// headAuto stands for the fleets that are found on the local network.
const headAuto = "auto"

// checkHead refuses what is not the address of a fleet, unless a placeholder hides it.
func checkHead(address string) error {
	var err error
	switch {
	case address == headAuto, strings.Contains(address, "{"):
	case isLinkf(address):
		err = checkLinkf(address)
	case strings.Contains(address, "://"):
		err = linkf.CheckHead(address)
	default:
		err = fmt.Errorf("%q: want https://host/path, where the fleet has fleet_join, linkf://host:port, where it listens, or auto", address)
	}
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	return nil
}

// hostPort is the host:port of a head's address.
func hostPort(address string) string {
	_, host, _ := strings.Cut(plainURL(address), "://")
	host, _, _ = strings.Cut(host, "/")
	return host
}

// provisionServer checks what the node is called, and its server. It returns the text of
// the certificates that this is checked against.
func (a *NodeApp) provisionServer(repl *caddy.Replacer) (roots string, err error) {
	for _, x := range []struct {
		what, from string
		to         *string
	}{{"identity", a.Identity, &a.o.Identity}, {"upstream", a.Upstream, &a.o.Upstream}, {"key", a.Key, &a.o.Key}} {
		if *x.to, err = repl.ReplaceOrErr(x.from, true, true); err != nil {
			return "", fmt.Errorf("%s cannot be read (%w): set it in the environment or file it comes from", x.what, err)
		}
	}
	if err := checkURL(a.o.Upstream); err != nil {
		return "", fmt.Errorf("upstream: %w", err)
	}
	if a.o.Identity == "" {
		name, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("no identity, and the host has no name: %w", err)
		}
		a.o.Identity = name
	}
	if len(a.o.Identity) > maxNodeName || !showable(a.o.Identity) {
		return "", fmt.Errorf("identity %.300q is not fit to be shown: want at most %d bytes of printable characters", a.o.Identity, maxNodeName)
	}
	if roots, err = a.provisionServerTrust(repl); err != nil {
		return "", fmt.Errorf("upstream: %w", err)
	}
	if err := tryOut(llamacpp.Options{Name: a.o.Identity, URL: a.o.Upstream, Key: a.o.Key, TLS: a.o.TLS}); err != nil {
		return "", fmt.Errorf("upstream: %w", err)
	}
	return roots, nil
}

// provisionServerTrust reads the certificates that the server is checked against, and
// returns their text.
func (a *NodeApp) provisionServerTrust(repl *caddy.Replacer) (roots string, err error) {
	if a.UpstreamTLSCA == "" {
		return "", nil
	}
	if err := checkTrust(a.UpstreamTLSCA, a.o.Upstream); err != nil {
		return "", err
	}
	path, err := caPath(repl, a.UpstreamTLSCA)
	if err != nil {
		return "", err
	}
	config, pem, err := trust(path)
	if err != nil {
		return "", err
	}
	a.o.TLS = config
	return string(pem), nil
}

// provisionLog checks where the server's log comes from.
func (a *NodeApp) provisionLog(ctx caddy.Context) error {
	if a.Log == nil {
		return nil
	}
	if (a.Log.File == "") == (a.Log.Source == "") {
		return errors.New("log wants either a file or a source")
	}
	if a.Log.File != "" {
		o, err := logOptions(slotlog.SourceOptions{Kind: slotlog.SourceFile, Path: a.Log.File})
		a.log = &o
		return err
	}
	logs, err := sourcesOf(ctx)
	if err != nil {
		return err
	}
	l, ok := logs.log(a.Log.Source)
	if !ok {
		return fmt.Errorf("log source %s is not in the slotlog app; it has %s", a.Log.Source, logs.names())
	}
	a.log = &l.o
	return nil
}

// Start runs the node, if no other configuration does already.
func (a *NodeApp) Start() error {
	v, _, err := agents.LoadOrNew(a.key, func() (caddy.Destructor, error) { return a.launch() })
	if err != nil {
		return err
	}
	a.runs = true
	r := v.(*running)
	if r.tail != nil {
		logs := []namedLog{{name: cmp.Or(a.Log.Source, a.o.Identity), tail: r.tail}}
		a.behind.begin(func(ctx context.Context) { keepEye(ctx, a.logger, logs) })
	}
	return nil
}

// Stop gives the node back. It ends unless a new configuration has the same.
func (a *NodeApp) Stop() error {
	a.behind.stop()
	if !a.runs {
		return nil
	}
	a.runs = false
	_, err := agents.Delete(a.key)
	return err
}

// running is a node that outlives its configuration.
type running struct {
	identity string
	agent    *agent.Agent
	drain    time.Duration // how long it may take to end
	tail     *tail         // nil: none
}

// defaultNodeDrain is how long what runs on a node may go on when Caddy stops.
const defaultNodeDrain = 30 * time.Second

func (a *NodeApp) launch() (_ *running, err error) {
	r, o := &running{identity: a.o.Identity, drain: cmp.Or(time.Duration(a.DrainTimeout), defaultNodeDrain)}, a.o
	defer func() {
		if err != nil && r.tail != nil {
			err = errors.Join(err, dropTails([]*tail{r.tail}))
		}
	}()
	if a.log != nil {
		if r.tail, err = holdTail(*a.log); err != nil {
			return nil, err
		}
		o.Log = r.tail.start()
	}
	if a.listen != "" {
		if o.Listener, err = listenTCP(a.listen); err != nil {
			return nil, fmt.Errorf("fleet_node: listen %s: %w", a.listen, err)
		}
	}
	if r.agent, err = namesakes.start(o); err != nil {
		return nil, errors.Join(err, closeListener(o.Listener))
	}
	return r, nil
}

func closeListener(ln net.Listener) error {
	if ln == nil {
		return nil
	}
	return ln.Close()
}

// Destruct ends the node. It takes its time only if Caddy stops: a reload is not to wait,
// and a node that takes the place of this one has its link already.
func (r *running) Destruct() error {
	if caddy.Exiting() {
		ctx, cancel := context.WithTimeout(context.Background(), r.drain)
		r.agent.Drain(ctx)
		cancel()
	}
	err := namesakes.end(r.identity, r.agent)
	if r.tail != nil {
		err = errors.Join(err, dropTails([]*tail{r.tail}))
	}
	return err
}

// Interface guards.
var (
	_ caddy.App         = (*NodeApp)(nil)
	_ caddy.Provisioner = (*NodeApp)(nil)
	_ caddy.Destructor  = (*running)(nil)
)
