package linkf

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// A link over HTTP begins as a request for another protocol (RFC 9110 section 7.8); from
// the answer 101 on its bytes are those of a link over TCP.

const (
	protocol = "linkf" // in Upgrade

	// upgradeLimit bounds TLS and HTTP together, after the connection was made.
	upgradeLimit = 5 * time.Second

	// answerMost is how many bytes an answer to the request may have.
	answerMost = 64 << 10
)

// AcceptHTTP takes the connection of a node that asks for a link over HTTP/1.1, as Accept
// does. Other requests are answered 426.
func (h *Head) AcceptHTTP(w http.ResponseWriter, r *http.Request, host string, adopt func(*Joiner) error) {
	if !asksForLink(r) {
		refuseUpgrade(w, r)
		return
	}
	c, err := switchProtocols(w)
	if err != nil {
		h.amiss.warn("a node that dialled in was not taken", host, err)
		return
	}
	h.Accept(c, host, adopt)
}

func switchProtocols(w http.ResponseWriter) (net.Conn, error) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", protocol)
	w.WriteHeader(http.StatusSwitchingProtocols)
	c, rw, err := http.NewResponseController(innermost(w)).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	// Deadlines of HTTP end here: those of the handshake come next.
	if err := errors.Join(c.SetDeadline(time.Now().Add(greetLimit)), rw.Flush()); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("switch protocols: %w", err)
	}
	return unread(c, rw.Reader), nil
}

// innermost is the writer below all that were put around it. What those do with bytes,
// such as count them for a log, ends with the request, and the connection does not.
func innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = u.Unwrap()
	}
}

func asksForLink(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor == 1 && r.ContentLength == 0 &&
		hasToken(r.Header["Connection"], "upgrade") && hasToken(r.Header["Upgrade"], protocol)
}

// hasToken reports whether one of the lists of a header has a token.
func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for x := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(x), token) {
				return true
			}
		}
	}
	return false
}

// refuseUpgrade says what the URL is for. Of the newer versions none may have an Upgrade
// field: clients must treat such an answer as broken (RFC 9113 section 8.2.2).
func refuseUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, "Here the nodes of a fleet dial in, over HTTP/1.1 with \"Upgrade: linkf\"; this was a plain request over "+r.Proto+".\n"+
		"Put this URL behind \"head\" in the fleet_node block of a node's Caddyfile. If a node is told this, "+
		"a proxy between it and here passes no upgrades.", http.StatusUpgradeRequired)
}

// unread is the connection with what was read of it already.
func unread(c net.Conn, r *bufio.Reader) net.Conn {
	n := r.Buffered()
	if n == 0 {
		return c
	}
	rest, _ := r.Peek(n) // they are there
	return &unreadConn{c, append([]byte(nil), rest...)}
}

type unreadConn struct {
	net.Conn
	rest []byte
}

func (c *unreadConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// CheckHead says why an address is none that [Node.Join] takes.
func CheckHead(address string) error {
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("%q is neither a host:port nor a URL: %w", address, err)
		}
		return nil
	}
	_, err := urlOf(address)
	return err
}

func urlOf(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.New("the address is no URL: want https://host/path")
	case u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return nil, fmt.Errorf("%q: want https://host/path or http://host/path", u.Redacted())
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("%q: want no user, password or fragment", u.Redacted())
	}
	return u, nil
}

// reach connects to the head at a host:port, or at the URL of its fleet_join.
func (n *Node) reach(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialLimit}
	if !strings.Contains(address, "://") {
		return d.DialContext(ctx, "tcp", address)
	}
	u, err := urlOf(address)
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme // a name that stands for the port, too
	}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	up, err := upgrade(ctx, c, u, n.o.TLS)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return up, nil
}

// upgrade makes a connection to a web server one for a link.
func upgrade(ctx context.Context, c net.Conn, u *url.URL, config *tls.Config) (net.Conn, error) {
	if err := c.SetDeadline(time.Now().Add(upgradeLimit)); err != nil {
		return nil, err
	}
	if u.Scheme == "https" {
		// Only HTTP/1.1 knows upgrades.
		config = config.Clone()
		if config == nil {
			config = new(tls.Config)
		}
		config.ServerName, config.NextProtos = u.Hostname(), []string{"http/1.1"}
		s := tls.Client(c, config)
		if err := s.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS with %s: %w%s", u.Host, err, adviceOnTLS(err, config.RootCAs != nil))
		}
		c = s
	}
	r := &http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}, "User-Agent": {"slotfleet"}},
	}
	if err := r.Write(c); err != nil {
		return nil, fmt.Errorf("ask %s: %w", u.Host, err)
	}
	br := bufio.NewReader(io.LimitReader(c, answerMost))
	resp, err := http.ReadResponse(br, r)
	if err != nil {
		return nil, fmt.Errorf("the answer of %s: %w", u.Host, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || !hasToken(resp.Header["Upgrade"], protocol) {
		return nil, &upgradeError{status: resp.StatusCode, location: resp.Header.Get("Location")}
	}
	return unread(c, br), nil
}

// upgradeError is what the web server answered instead.
type upgradeError struct {
	status   int
	location string
}

func (e *upgradeError) Error() string {
	return fmt.Sprintf("the head's web server answered %d %s: %s", e.status, http.StatusText(e.status), e.advice())
}

// advice says what to do.
func (e *upgradeError) advice() string {
	switch {
	case e.status == http.StatusUpgradeRequired:
		return "a proxy between here and the head takes the upgrade away; dial the head itself, or its `listen` by linkf://"
	case e.status == http.StatusNotFound:
		return "there is no fleet_join at this path"
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden:
		return "fleet_join must not be behind a login or filter, it has the token for that"
	case e.status >= 300 && e.status < 400:
		return fmt.Sprintf("it wants the address to be %q", clip(e.location, 200))
	case e.status == http.StatusBadGateway, e.status == http.StatusServiceUnavailable, e.status == http.StatusGatewayTimeout:
		return "the head is stopping, or a proxy before it does not reach it"
	case e.status >= 200 && e.status < 300, e.status == http.StatusSwitchingProtocols:
		return "something else than fleet_join is at this path"
	}
	return "want 101 from a fleet_join"
}

// adviceOnTLS says what to do where the head did not prove who it is; own says that it was
// checked against certificates of the node's configuration.
func adviceOnTLS(err error, own bool) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown) && own:
		return " (no certificate of tls_ca is that of its authority: copy it there anew from the head, where a new one may have been made)"
	case errors.As(err, &unknown):
		return " (if it is your own authority, name a file with its certificate by tls_ca, or put it into the system's trust store)"
	case errors.As(err, &name):
		return " (dial the head by a name that its certificate has, or give it one with this name)"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return " (is the clock of this machine right, and that of the head?)"
	case errors.As(err, &plain):
		return " (is it http:// there, or the port of another service?)"
	}
	return ""
}
