package caddymodule

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/linkf"
)

const linkfScheme = "linkf://"

func isLinkf(address string) bool { return strings.HasPrefix(address, linkfScheme) }

// checkLinkf refuses an address of linkf that is not linkf://host:port.
func checkLinkf(address string) error {
	if strings.Contains(address, "{") {
		return nil // a placeholder hides it
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Port() == "" || u.Scheme+"://"+u.Host != address {
		return fmt.Errorf("the address %q: want linkf://host:port", address)
	}
	return nil
}

// checkLinkf refuses what an agent's node cannot have: its server's matters are the
// agent's.
func (n *Node) checkLinkf(address string) error {
	if err := checkLinkf(address); err != nil {
		return err
	}
	var which string
	switch {
	case n.Key != "":
		which = "key"
	case n.Log != nil:
		which = "log"
	case n.TLSCA != "":
		which = "tls_ca"
	default:
		return nil
	}
	return fmt.Errorf("%s is about a llama-server, and %s is an agent: put it into fleet_node there", which, address)
}

// reachAgent says how the link to an agent is made. The head is one of its own, so that
// a node whose lines changed does not end what its predecessor still runs there.
func (n *Node) reachAgent(ctx caddy.Context, repl *caddy.Replacer, spec *fleet.NodeSpec, a *FleetApp) error {
	tokens, parts, err := readTokens(repl, n.Tokens)
	if err != nil {
		return err
	}
	host := strings.TrimPrefix(spec.Address, linkfScheme)
	if len(tokens) == 0 && !a.Insecure && !onThisMachine(host) {
		return fmt.Errorf("%s is another machine, and there is no token: add `token`, or `insecure` to the fleet", spec.Address)
	}
	spec.Identity = identity(append([]string{n.Name, spec.Address, time.Duration(a.Lease).String()}, parts...)...)
	name, id, lease, logger := n.Name, spec.Identity[:16], time.Duration(a.Lease), ctx.Slogger()
	spec.Open = func() (fleet.Link, error) {
		h, err := linkf.NewHead(linkf.HeadOptions{
			Identity: headIdentity() + "/" + id, Tokens: ringOf(tokens), Lease: lease, Logger: logger,
		})
		if err != nil {
			return nil, err
		}
		return h.Dial(name, host), nil
	}
	return nil
}

// headIdentity is what nodes know this Caddy by, over restarts too: they end what an
// earlier run left there. Where Caddy's data folder cannot be written, it is another one
// each time, and what a run left goes with its lease.
var headIdentity = sync.OnceValue(func() string {
	id, err := caddy.InstanceID()
	if err != nil {
		return rand.Text()
	}
	return id.String()
})

// readTokens expands placeholders and reads tokens. It returns their texts, too, for
// what stands for all that a link is made from.
func readTokens(repl *caddy.Replacer, texts []string) ([]linkf.Token, []string, error) {
	var all []linkf.Token
	var plain []string
	for _, text := range texts {
		expanded, err := repl.ReplaceOrErr(text, true, true)
		if err != nil {
			return nil, nil, fmt.Errorf("the token cannot be read (%w): set it in the environment or file it comes from, or leave token out", err)
		}
		t, err := linkf.ParseToken(expanded)
		if err != nil {
			return nil, nil, fmt.Errorf("token: %w", err)
		}
		all, plain = append(all, t), append(plain, strings.ToLower(strings.TrimSpace(expanded)))
	}
	return all, plain, nil
}

// checkToken refuses a token that is none, unless a placeholder hides it.
func checkToken(text string) error {
	if strings.Contains(text, "{") {
		return nil
	}
	_, err := linkf.ParseToken(text)
	return err
}

// ringOf lets nodes of any identity use these tokens; nil: there are none.
func ringOf(tokens []linkf.Token) *linkf.Keyring {
	if len(tokens) == 0 {
		return nil
	}
	k := new(linkf.Keyring)
	for _, t := range tokens {
		k.Add(t)
	}
	return k
}

// onThisMachine reports whether a host:port is reached from this machine only.
func onThisMachine(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// listenAddress expands placeholders and checks where peers are listened for.
func listenAddress(repl *caddy.Replacer, text string) (string, error) {
	address, err := repl.ReplaceOrErr(text, true, true)
	if err != nil {
		return "", fmt.Errorf("listen cannot be read: %w", err)
	}
	return address, checkListen(address)
}

// checkListen refuses what is not a port or host:port, unless a placeholder hides it.
func checkListen(address string) error {
	if strings.Contains(address, "{") {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("listen %q: want :port or host:port", address)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return fmt.Errorf("listen %q: want a port from 1 to 65535", address)
	}
	return nil
}

// listenTCP listens so that a new configuration can, too, before the old one has ended.
func listenTCP(address string) (net.Listener, error) {
	a, err := caddy.ParseNetworkAddress(address)
	if err != nil {
		return nil, err
	}
	ln, err := a.Listen(context.Background(), 0, net.ListenConfig{})
	if err != nil {
		return nil, err
	}
	tcp, ok := ln.(net.Listener)
	if !ok {
		return nil, errors.New("it is not one of TCP")
	}
	return &listener{Listener: tcp}, nil
}

// listener says that it was closed as others do: where Caddy shares a listener, its own
// error for that is another one.
type listener struct {
	net.Listener
	closed atomic.Bool
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.closed.Load() {
		return nil, net.ErrClosed
	}
	return c, err
}

func (l *listener) Close() error {
	l.closed.Store(true)
	return l.Listener.Close()
}
