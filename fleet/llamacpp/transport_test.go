package llamacpp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

const okStream = "data: {\"a\":1}\n\ndata: [DONE]\n\n"

func writeStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, okStream)
}

func discard(fleet.Event) error { return nil }

func TestOnlyOurOwnHeadersAreSent(t *testing.T) {
	came := make(chan http.Header, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		came <- r.Header
		w.Header().Set("Set-Cookie", "a=b")
		writeStream(w)
	})
	l := newLink(t, Options{URL: s.URL, Key: "s3cret"})
	for range 2 {
		if err := l.Run(t.Context(), chat, discard); err != nil {
			t.Fatal(err)
		}
		got := <-came
		want := []string{"Accept", "Authorization", "Content-Length", "Content-Type", "User-Agent"}
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
			t.Errorf("got headers %v, want %v", keys, want)
		}
		if got.Get("Authorization") != "Bearer s3cret" || got.Get("Accept") != "text/event-stream" ||
			got.Get("Content-Type") != "application/json" {
			t.Errorf("got %v", got)
		}
	}
	if l.client.keep.Proxy != nil || l.client.fresh.Proxy != nil {
		t.Error("a proxy may be used")
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var reached atomic.Int32
	target := serve(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL+r.URL.Path, status)
		})
		l := newLink(t, Options{URL: s.URL, Key: "s3cret"})
		wantRequestError(t, l.Run(t.Context(), chat, discard), fleet.ReasonDeclined)
		_, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
		wantRequestError(t, err, fleet.ReasonDeclined)
		_, err = l.Call(t.Context(), fleet.Call{Op: fleet.OpHealth})
		wantRequestError(t, err, fleet.ReasonDeclined)
	}
	if n := reached.Load(); n != 0 {
		t.Fatalf("the target saw %d requests, want none", n)
	}
}

func TestKeyGoesToItsNodeOnly(t *testing.T) {
	var mu sync.Mutex
	keys := make(map[string][]string)
	var urls []string
	for _, name := range []string{"a", "b"} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			keys[name] = append(keys[name], r.Header.Get("Authorization"))
			mu.Unlock()
			writeStream(w)
		})
		urls = append(urls, s.URL)
	}
	with, without := newLink(t, Options{URL: urls[0], Key: "s3cret"}), newLink(t, Options{URL: urls[1]})
	for _, l := range []*Link{with, without} {
		if err := l.Run(t.Context(), chat, discard); err != nil {
			t.Fatal(err)
		}
		_, _ = l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys["a"]) < 3 || slices.ContainsFunc(keys["a"], func(k string) bool { return k != "Bearer s3cret" }) {
		t.Errorf("the node with a key got %q", keys["a"])
	}
	if len(keys["b"]) < 3 || slices.ContainsFunc(keys["b"], func(k string) bool { return k != "" }) {
		t.Errorf("the node without a key got %q", keys["b"])
	}
}

// ask is a call, for which a connection may have been kept.
func ask(body []byte) fleet.Call {
	return fleet.Call{Op: fleet.OpAsk, Method: http.MethodPost, Path: "/tokenize", Body: body}
}

// staleServer keeps its first connection after the first answer, and breaks it when
// the next request came.
func staleServer(t *testing.T, end func(net.Conn), bodies chan<- []byte) *rawServer {
	return serveRaw(t, func(n int, c net.Conn, r *bufio.Reader) {
		if n == 0 {
			if _, _, err := request(r); err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			_, body, err := request(r)
			if err == nil {
				bodies <- body
			}
			end(c)
			return
		}
		_, body, err := request(r)
		if err != nil {
			return
		}
		bodies <- body
		fmt.Fprint(c, streamHead+chunk(okStream)+lastChunk)
	})
}

func TestStaleConnectionIsReplacedOnce(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"closed": func(c net.Conn) { _ = c.Close() },
		"reset":  reset,
	} {
		t.Run(name, func(t *testing.T) {
			bodies := make(chan []byte, 8)
			s := staleServer(t, end, bodies)
			l := newLink(t, Options{URL: s.url()})
			if _, err := l.get(t.Context(), "/props"); err != nil {
				t.Fatal(err)
			}
			a := ask(bytes.Repeat([]byte("a long text "), 1000))
			if r, err := l.Call(t.Context(), a); err != nil || string(r.Body) != okStream {
				t.Fatalf("got %q, %v", r.Body, err)
			}
			s.close()
			close(bodies)
			n := 0
			for b := range bodies {
				if n++; !bytes.Equal(b, a.Body) {
					t.Errorf("request %d had another body, of %d bytes", n, len(b))
				}
			}
			if n != 2 {
				t.Errorf("the server saw %d requests, want 2", n)
			}
		})
	}
}

func TestConnectionThatBreaksInALongBodyIsReplaced(t *testing.T) {
	s := serveRaw(t, func(n int, c net.Conn, r *bufio.Reader) {
		if n > 0 {
			if _, body, err := request(r); err == nil && len(body) == 32<<20 {
				fmt.Fprint(c, streamHead+chunk(okStream)+lastChunk)
			}
			return
		}
		_, _, _ = request(r)
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = http.ReadRequest(r)
		reset(c)
	})
	l := newLink(t, Options{URL: s.url()})
	if _, err := l.get(t.Context(), "/props"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Call(t.Context(), ask(make([]byte, 32<<20))); err != nil {
		t.Fatal(err)
	}
}

func TestNewConnectionThatBreaksIsNotReplaced(t *testing.T) {
	var n atomic.Int32
	s := serveRaw(t, func(_ int, _ net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err == nil {
			n.Add(1)
		}
	})
	wantLost(t, newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, discard), fleet.CauseClosed)
	if n.Load() != 1 {
		t.Fatalf("the server saw %d requests, want 1", n.Load())
	}
}

func TestKeptConnectionThatBreaksInTheAnswerIsNotReplaced(t *testing.T) {
	var n atomic.Int32
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _, _ = request(r)
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		if _, _, err := request(r); err == nil {
			n.Add(1)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConten")
		}
	})
	l := newLink(t, Options{URL: s.url()})
	if _, err := l.get(t.Context(), "/props"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Call(t.Context(), ask([]byte("{}")))
	wantLost(t, err, fleet.CauseClosed)
	if n.Load() != 1 {
		t.Fatalf("the server saw %d requests, want 1", n.Load())
	}
}

func TestNoConnectionMeansThatNothingWasSent(t *testing.T) {
	s := serveRaw(t, func(int, net.Conn, *bufio.Reader) {})
	s.close()
	wantLost(t, newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, discard), fleet.CauseRefused)
	wantLost(t, newLink(t, Options{URL: "unix/" + filepath.Join(t.TempDir(), "none.sock")}).Run(t.Context(), chat, discard), fleet.CauseRefused)

	for _, tt := range []struct {
		err  error
		want fleet.Cause
	}{
		{&net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}, fleet.CauseRefused},
		{&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, fleet.CauseRefused},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, fleet.CauseTimedOut},
	} {
		l := newLink(t, Options{URL: "http://h"})
		c, err := newClient(Options{URL: "http://h"}, func(context.Context, string, string) (net.Conn, error) {
			return nil, tt.err
		})
		if err != nil {
			t.Fatal(err)
		}
		l.client = c
		wantLost(t, l.Run(t.Context(), chat, discard), tt.want)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeStream(w)
	})}}
	s.Start()
	defer s.Close()
	var h heard
	if err := newLink(t, Options{URL: "unix/" + path}).Run(t.Context(), chat, h.take); err != nil || len(h.data()) != 1 {
		t.Fatalf("got %v, %v", h.data(), err)
	}
}

func TestCertificatesAreVerifiedAndHTTP2NotSpoken(t *testing.T) {
	var proto atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(int32(r.ProtoMajor))
		writeStream(w)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()

	err := newLink(t, Options{URL: s.URL}).Run(t.Context(), chat, discard)
	wantLost(t, err, fleet.CauseRefused)
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("got %v, want that the certificate is unknown", err)
	}
	if proto.Load() != 0 {
		t.Error("the request was sent all the same")
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	conf := &tls.Config{RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}}
	if err := newLink(t, Options{URL: s.URL, TLS: conf}).Run(t.Context(), chat, discard); err != nil {
		t.Fatal(err)
	}
	if proto.Load() != 1 {
		t.Errorf("got HTTP/%d, want 1", proto.Load())
	}
}

func TestProbeAnswerIsBounded(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(" "), maxProbe+1))
	})
	_, err := newLink(t, Options{URL: s.URL}).Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Fatalf("got %v", err)
	}
}

func refuse(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}
