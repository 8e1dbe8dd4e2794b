package llamasim

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
)

// conn is an accepted connection. The server must be able to reset all of them,
// those taken over for an event stream included, which net/http forgets about.
type conn struct {
	*net.TCPConn
	in       *instance
	requests atomic.Int32
}

// reset makes the next Close send RST instead of FIN.
func (c *conn) reset() { _ = c.SetLinger(0) }

// Close implements net.Conn.
func (c *conn) Close() error {
	c.in.mu.Lock()
	delete(c.in.conns, c)
	c.in.mu.Unlock()
	return c.TCPConn.Close()
}

type trackingListener struct {
	net.Listener
	in *instance
}

// Accept implements net.Listener.
func (l *trackingListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: nc.(*net.TCPConn), in: l.in}
	l.in.mu.Lock()
	dead := l.in.dead
	if !dead {
		l.in.conns[c] = http.StateNew
	}
	l.in.mu.Unlock()
	if dead {
		c.reset()
		_ = nc.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// connState keeps track of which connections are idle.
func (in *instance) connState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, known := in.conns[c]; known && state != http.StateClosed {
		in.conns[c] = state
	}
}

type connKey struct{}

func withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, nc)
}

// discardLog is for net/http's own complaints about broken connections, of which
// this server makes many on purpose.
func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }
