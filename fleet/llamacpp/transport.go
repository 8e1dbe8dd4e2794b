package llamacpp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

const (
	dialLimit   = 2 * time.Second
	healthLimit = 2 * time.Second
	probeLimit  = 5 * time.Second

	// llama-server drops a connection that idled for 5 s.
	idleLimit = 4 * time.Second

	maxHeader = 64 << 10
	maxProbe  = 4 << 20 // a chat template may be long
)

var errNoAnswer = errors.New("no answer in time")

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// client sends requests to one server and to nobody else: no proxy, no redirects,
// no cookies. It uses transports without an http.Client for that.
type client struct {
	base string // scheme, host and prefix, without a slash at the end
	port string // of the URL; empty: a socket
	key  string

	dial dialFunc
	addr string // that streams are asked for at, as direct.go says; empty: through keep

	keep  *http.Transport // keeps connections for idleLimit
	fresh *http.Transport // a new connection for each request
}

// newClient returns a client for the URL; dial is nil but in tests.
func newClient(o Options, dial dialFunc) (*client, error) {
	c := &client{key: o.Key}
	socket, err := c.locate(o.URL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(o.Key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, errors.New("the key holds a control character (a line end of its file?)")
	}
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialLimit, KeepAlive: 15 * time.Second}).DialContext
	}
	if socket != "" {
		tcp := dial
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return tcp(ctx, "unix", socket) }
	}
	c.dial = dial
	c.keep = newTransport(o.TLS, dial)
	c.fresh = newTransport(o.TLS, dial)
	c.fresh.DisableKeepAlives = true
	return c, nil
}

// locate reads the URL. It returns the path of the socket, if it names one.
func (c *client) locate(raw string) (socket string, err error) {
	if rest, ok := strings.CutPrefix(raw, "unix/"); ok {
		if !strings.HasPrefix(rest, "/") || len(rest) == 1 {
			return "", fmt.Errorf("url %q: a socket is written unix//path/to.sock, with its whole path", raw)
		}
		c.base, c.addr = "http://localhost", "localhost:80"
		return rest, nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The error of url.Parse repeats the URL, which may hold a password.
		return "", errors.New("the url cannot be read: want http://host:port, https://host:port or unix//path/to.sock")
	}
	switch {
	case u.User != nil:
		return "", errors.New("the url holds a user: llama-server knows only keys, set the key instead")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("url %q: want http://host:port, https://host:port or unix//path/to.sock", raw)
	case u.Hostname() == "":
		return "", fmt.Errorf("url %q names no host", raw)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("url %q: only a path may follow the host", raw)
	}
	c.port = u.Port()
	if c.port == "" {
		c.port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := strings.TrimSuffix(u.Host, ":")
	c.base = u.Scheme + "://" + host + strings.TrimRight(u.EscapedPath(), "/")
	// Names in other scripts and zones of addresses are written otherwise to dial them:
	// that is left to the transport.
	if u.Scheme == "http" && !strings.ContainsFunc(host, func(r rune) bool { return r == '%' || r > 0x7f }) {
		c.addr = net.JoinHostPort(u.Hostname(), c.port)
	}
	return "", nil
}

func newTransport(conf *tls.Config, dial dialFunc) *http.Transport {
	if conf != nil {
		conf = conf.Clone()
		conf.NextProtos = nil
	}
	t := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        conf,
		TLSHandshakeTimeout:    dialLimit,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        idleLimit,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

func (c *client) closeIdle() {
	c.keep.CloseIdleConnections()
	c.fresh.CloseIdleConnections()
}

// exchange is one request on its way. The bytes of the request belong to the caller
// again only after bodies was waited for.
type exchange struct {
	method      string
	path        string
	accept      string
	contentType string // of the body; empty: application/json
	body        []byte

	bodies sync.WaitGroup           // those that a transport may still read
	conn   atomic.Pointer[net.Conn] // that it goes out on; nil: none yet
	wrote  chan struct{}            // closed when it was sent; nil: nobody asks
	once   sync.Once                // closes wrote
	ended  atomic.Bool              // let go of: it is not sent again
}

// isWritten says that it was sent, or that it cannot be.
func (x *exchange) isWritten() {
	if x.wrote != nil {
		x.once.Do(func() { close(x.wrote) })
	}
}

// letGo says on the connection that nothing more will be asked, once the request is
// sent, and reports whether it could: only then the server may be trusted to notice.
func (x *exchange) letGo(within time.Duration) bool {
	x.ended.Store(true)
	conn := x.conn.Load()
	if conn == nil {
		return false
	}
	select {
	case <-x.wrote:
	case <-time.After(within):
		return false
	}
	half, ok := (*conn).(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}

// send sends the request and returns the answer's head. A connection that was
// kept and broke before a byte of the answer came says only that the server had
// dropped it meanwhile: the same bytes go out once more, on a new one. net/http
// would do that itself for requests marked as idempotent, but not when the break
// shows while a long body is being written.
func (c *client) send(ctx context.Context, via *http.Transport, x *exchange) (*http.Response, error) {
	resp, t, err := c.sendOnce(ctx, via, x)
	if err != nil && t.reused.Load() && !t.answered.Load() && ctx.Err() == nil && !x.ended.Load() {
		resp, t, err = c.sendOnce(ctx, c.fresh, x)
	}
	if err != nil && !t.connected.Load() {
		err = &dialError{err}
	}
	return resp, err
}

// trace is what happened to a request.
type trace struct{ connected, reused, answered atomic.Bool }

func (c *client) sendOnce(ctx context.Context, via *http.Transport, x *exchange) (*http.Response, *trace, error) {
	t := new(trace)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			t.connected.Store(true)
			t.reused.Store(i.Reused)
			x.conn.Store(&i.Conn)
		},
		WroteRequest:         func(httptrace.WroteRequestInfo) { x.isWritten() },
		GotFirstResponseByte: func() { t.answered.Store(true) },
	})
	req, err := c.request(ctx, x)
	if err != nil {
		return nil, t, err
	}
	resp, err := via.RoundTrip(req)
	return resp, t, err
}

// request is the exchange's, once.
func (c *client) request(ctx context.Context, x *exchange) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, x.method, c.base+x.path, nil)
	if err != nil {
		return nil, err
	}
	if x.method == http.MethodPost {
		x.bodies.Add(1)
		req.Body = &requestBody{Reader: bytes.NewReader(x.body), closed: sync.OnceFunc(x.bodies.Done)}
		req.ContentLength = int64(len(x.body))
		req.Header.Set("Content-Type", cmp.Or(x.contentType, "application/json"))
	}
	req.Header.Set("Accept", x.accept)
	req.Header.Set("User-Agent", "slotfleet")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return req, nil
}

// requestBody tells when the transport is done with it, which may be after the
// answer came.
type requestBody struct {
	*bytes.Reader
	closed func()
}

func (b *requestBody) Close() error { b.closed(); return nil }

// dialError is one from before there was a connection: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// causeOf tells how the connection failed.
func causeOf(err error) fleet.Cause {
	if dial, ok := errors.AsType[*dialError](err); ok {
		var t interface{ Timeout() bool }
		if errors.As(dial.err, &t) && t.Timeout() {
			return fleet.CauseTimedOut
		}
		return fleet.CauseRefused
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return fleet.CauseReset
	}
	return fleet.CauseClosed
}

var errNoHTTP = errors.New("no HTTP/1.1 answer came that can be read")

// seen is what of a failed exchange may be told. net/http quotes what it cannot read,
// and that may be what a client or a model wrote.
func seen(err error) error {
	var dial *dialError
	var op *net.OpError
	var errno syscall.Errno
	if errors.As(err, &dial) || errors.As(err, &op) || errors.As(err, &errno) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return errNoHTTP
}

// ask makes a short request and reads the whole answer within the limit.
func (l *Link) ask(outer context.Context, via *http.Transport, limit time.Duration,
	method, path string, body []byte,
) (fleet.Reply, error) {
	return l.askAt(outer, l.client, via, limit, method, path, body)
}

// askAt is ask at another place of the node: a child of the router that the link is to.
func (l *Link) askAt(outer context.Context, at *client, via *http.Transport, limit time.Duration,
	method, path string, body []byte,
) (fleet.Reply, error) {
	bound, cancel := l.bind(outer)
	ctx, stop := context.WithTimeoutCause(bound, limit, errNoAnswer)
	x := &exchange{method: method, path: path, accept: "application/json", body: body}
	defer func() {
		stop()
		cancel(nil)
		x.bodies.Wait()
	}()
	resp, err := at.send(ctx, via, x)
	if err != nil {
		return fleet.Reply{}, l.fault(outer, ctx, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProbe+1))
	if err != nil {
		return fleet.Reply{}, l.fault(outer, ctx, err)
	}
	if len(b) > maxProbe {
		return fleet.Reply{}, fmt.Errorf("node %s: the answer to %s is longer than %d bytes", l.name, path, maxProbe)
	}
	return fleet.Reply{Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), Body: b}, nil
}
