package llamacpp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
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

// sendable reports whether a path or a content type may stand in the head of a request.
func sendable(path, contentType string) bool {
	odd := func(r rune) bool { return r < ' ' || r == 0x7f }
	return !strings.ContainsFunc(contentType, odd) &&
		!strings.ContainsFunc(path, func(r rune) bool { return odd(r) || r == ' ' || r > 0x7f })
}

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
	if len(x.body) < longBody {
		x.write(conn, c.head(x))
	} else {
		x.bodies.Go(func() { x.write(conn, c.head(x)) })
	}
	in := &direct{Conn: conn, stop: stop, left: maxHeader}
	resp, err := in.answer(x.method)
	if err != nil {
		_ = in.Close()
	}
	return resp, err
}

// head is that of the request.
func (c *client) head(x *exchange) []byte {
	b := make([]byte, 0, 512)
	for _, s := range []string{x.method, " ", c.prefix, x.path, " HTTP/1.1\r\nHost: ", c.host, "\r\nUser-Agent: slotfleet\r\nContent-Length: "} {
		b = append(b, s...)
	}
	b = strconv.AppendInt(b, int64(len(x.body)), 10)
	b = append(append(b, "\r\nAccept: "...), x.accept...)
	if c.key != "" {
		b = append(append(b, "\r\nAuthorization: Bearer "...), c.key...)
	}
	b = append(append(b, "\r\nContent-Type: "...), cmp.Or(x.contentType, "application/json")...)
	return append(b, "\r\n\r\n"...)
}

// write sends the whole request, if it can: the answer tells, or that there is none.
func (x *exchange) write(conn net.Conn, head []byte) {
	all := net.Buffers{head, x.body}
	_, _ = all.WriteTo(conn)
	x.isWritten()
}

// direct is the connection of one request, whose end is its own.
type direct struct {
	net.Conn
	stop func() bool
	left int // of what the head of the answer may take; negative: it is here
}

// answer reads the head of the answer. Those that only say that one will come are passed
// over.
func (d *direct) answer(method string) (*http.Response, error) {
	r := bufio.NewReader(d)
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		d.left = -1
		body := directBody{Reader: resp.Body, conn: d}
		if slices.Equal(resp.TransferEncoding, []string{"chunked"}) {
			body.Reader = &unchunker{r: r}
		}
		resp.Body = &body
		return resp, nil
	}
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
