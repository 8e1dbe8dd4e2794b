package llamacpp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestGenerationHasAConnectionOfItsOwn(t *testing.T) {
	var connections atomic.Int32
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		connections.Add(1)
		for {
			if _, _, err := request(r); err != nil {
				return
			}
			fmt.Fprint(c, streamHead+chunk(okStream)+lastChunk)
		}
	})
	l := newLink(t, Options{URL: s.url()})
	if _, err := l.Call(t.Context(), ask([]byte("{}"))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Run(t.Context(), chat, discard); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("got %d connections, want 3", n)
	}
}

// Over TLS, a connection is kept for the next generation where the server keeps it.
func TestConnectionOverTLSIsKept(t *testing.T) {
	var connections atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeStream(w) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	l := newLink(t, Options{URL: s.URL, TLS: &tls.Config{RootCAs: roots}})
	for range 3 {
		if err := l.Run(t.Context(), chat, discard); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("got %d connections, want 1", n)
	}
}

func TestHeadOfARequestIsPlain(t *testing.T) {
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		req, _, err := request(r)
		if err != nil {
			return
		}
		if got := req.Header.Get("X-Other"); got != "" {
			t.Errorf("got a header of the path or the content type: %q", got)
		}
		fmt.Fprint(c, streamHead+chunk(okStream)+lastChunk)
	})
	l := newLink(t, Options{URL: s.url()})
	for _, a := range []fleet.Assignment{
		{Path: "/a\r\nX-Other: 1"},
		{Path: "/a HTTP/1.1\r\nX-Other: 1"},
		{Path: "/a", ContentType: "text/plain\r\nX-Other: 1"},
	} {
		_ = l.Run(t.Context(), a, discard) // whether it is refused or escaped
	}
}

func TestServerMayAnswerBeforeItHasTheRequest(t *testing.T) {
	const limit = `{"error":{"code":400,"message":"request too large","type":"invalid_request_error"}}`
	for _, size := range []int{10, longBody, 64 << 20} {
		s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s", len(limit), limit)
			untilClosed(c)
			_, _ = io.Copy(io.Discard, r)
		})
		l := newLink(t, Options{URL: s.url()})
		err := l.Run(t.Context(), fleet.Assignment{Path: "/v1/chat/completions", Body: make([]byte, size)}, discard)
		if re, ok := errors.AsType[*fleet.RequestError](err); !ok || re.Reply == nil || !strings.Contains(string(re.Reply.Body), "request too large") {
			t.Errorf("with a body of %d bytes: got %v", size, err)
		}
	}
}

func TestAnnouncementsOfAnAnswerArePassedOver(t *testing.T) {
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err == nil {
			fmt.Fprint(c, "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"+streamHead+chunk(okStream)+lastChunk)
		}
	})
	var h heard
	if err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take); err != nil || len(h.data()) != 1 {
		t.Fatalf("got %v, %v", h.data(), err)
	}
}

func TestHeadOfAnAnswerIsBounded(t *testing.T) {
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
		for line := []byte("X-Filler: " + strings.Repeat("a", 1000) + "\r\n"); ; {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
	})
	began := time.Now()
	wantLost(t, newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, discard), fleet.CauseClosed)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

// A stream may be framed by its length or by the end of the connection, too.
func TestStreamsOfOtherFraming(t *testing.T) {
	for name, head := range map[string]string{
		"length": fmt.Sprintf("Content-Length: %d\r\n\r\n", len(okStream)),
		"close":  "Connection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, _, err := request(r); err == nil {
					fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"+head+okStream)
				}
			})
			var h heard
			if err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, h.take); err != nil || !bytes.Equal([]byte(h.data()[0]), []byte(`{"a":1}`)) {
				t.Fatalf("got %v, %v", h.data(), err)
			}
		})
	}
}
