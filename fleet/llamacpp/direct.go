package llamacpp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
)

// A generation has a connection of its own, read by the goroutine that hands its events
// on: llama-server closes the one of a stream in any case, and a transport that could keep
// it costs every stream two goroutines more, and every chunk more than to find its events.
// Over TLS all goes through the transport: there a new connection is dear, and what stands
// before the server may keep one.

// longBody is from where on a server's answer is read while the request is still being
// written: it may come before the server has all of it. Less is taken by the buffers of
// the connection.
const longBody = 16 << 10

var errHeadTooLong = errors.New("the head of an answer is too long")

// stream sends the request and returns the answer's head, as send does.
func (c *client) stream(ctx context.Context, x *exchange) (*http.Response, error) {
	if c.addr == "" {
		return c.send(ctx, c.keep, x)
	}
	conn, err := c.dial(ctx, "tcp", c.addr)
	if err != nil {
		return nil, &dialError{err}
	}
	x.conn.Store(&conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	in := &direct{Conn: conn, stop: stop, left: maxHeader}
	req, err := c.request(ctx, x)
	switch {
	case err != nil:
		_ = in.Close()
		return nil, err
	case len(x.body) < longBody:
		err = x.write(conn, req)
	default:
		x.bodies.Go(func() { _ = x.write(conn, req) }) // the answer, or that there is none, tells
	}
	resp, none := in.answer(req)
	if none != nil {
		_ = in.Close()
		return nil, cmp.Or(err, none)
	}
	return resp, nil
}

// write sends the whole request.
func (x *exchange) write(conn net.Conn, req *http.Request) error {
	err := req.Write(conn)
	x.isWritten()
	return err
}

// direct is the connection of one request, whose end is its own.
type direct struct {
	net.Conn
	stop func() bool
	left int // of what the head of the answer may take; negative: it is here
}

// answer reads the head of the answer. Those that only say that one will come are passed
// over.
func (d *direct) answer(req *http.Request) (*http.Response, error) {
	r := bufio.NewReader(d)
	for {
		resp, err := http.ReadResponse(r, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		d.left = -1
		resp.Body = &directBody{d.payload(resp, r), d}
		return resp, nil
	}
}

// payload is the body of an answer, which stands in r. Of a chunked one only the chunks are
// wanted: nothing is written on its connection any more, and nobody reads its trailers.
func (d *direct) payload(resp *http.Response, r *bufio.Reader) io.Reader {
	if len(resp.TransferEncoding) > 0 {
		return httputil.NewChunkedReader(r)
	}
	return resp.Body
}

func (d *direct) Read(b []byte) (int, error) {
	switch {
	case d.left < 0:
		return d.Conn.Read(b)
	case d.left == 0:
		return 0, errHeadTooLong
	}
	n, err := d.Conn.Read(b[:min(len(b), d.left)])
	d.left -= n
	return n, err
}

func (d *direct) Close() error {
	d.stop()
	return d.Conn.Close()
}

// directBody is the body of an answer, with which the connection ends.
type directBody struct {
	io.Reader
	conn *direct
}

func (b *directBody) Close() error { return b.conn.Close() }
