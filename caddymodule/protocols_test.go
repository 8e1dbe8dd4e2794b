package caddymodule

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// h2c lets clients speak HTTP/2 without TLS, as proxies in front do.
const h2c = "servers {\n\t\tprotocols h1 h2c\n\t}\n\t"

// overHTTP2 makes the edge's client speak HTTP/2 only.
func (e *edge) overHTTP2() {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	e.t.Cleanup(transport.CloseIdleConnections)
	e.Client = &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

func TestStreamsOverHTTP2(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, h2c+nodes("queue {\n\t\t\ttimeout 300ms\n\t\t}", sim), "fleet")
	e.ready()
	e.overHTTP2()
	ask := func() streamed {
		t.Helper()
		resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", 50, true))))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %s over %s", resp.Status, resp.Proto)
		}
		return readStream(resp.Body, nil)
	}
	if wrong := ask().whole(); wrong != "" {
		t.Error(wrong)
	}
	sim.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 10})
	if s := ask(); s.Err == nil || s.Done != 0 || !strings.Contains(s.Error, `"code"`) {
		t.Errorf("got %+v, want an error event, no [DONE] and a stream that was broken off", s)
	}
}

func TestHeadOfModels(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, h2c+nodes("", sim), "fleet")
	e.ready()
	want := e.get(e.URL + "/v1/models")
	for range 2 {
		r, _ := http.NewRequest(http.MethodHead, e.URL+"/v1/models", nil)
		a := e.do(r)
		if a.Status != http.StatusOK || a.Body != "" || a.Err != nil ||
			a.Header.Get("Content-Length") != want.Header.Get("Content-Length") || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %+v, want the headers of %+v and no body", a, want)
		}
		e.overHTTP2()
	}
}

// TestExpectContinue: a client that asks before it sends a large body is told to send
// it, or that it need not.
func TestExpectContinue(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet {\n\t\tmax_body 8KiB\n\t}")
	e.ready()
	for size, want := range map[int]string{4 << 10: "HTTP/1.1 100 ", 16 << 10: "HTTP/1.1 413 "} {
		body := chatBody("m", strings.Repeat("x", size), 3, false)
		host := strings.TrimPrefix(e.URL, "http://")
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", host, len(body))
		answer := bufio.NewReader(conn)
		line, err := answer.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("a body of %d bytes: got %q, %v, want %q", len(body), line, err, want)
		}
		if !strings.Contains(want, "100") {
			continue
		}
		_, _ = answer.ReadString('\n') // the empty line
		if _, err := io.WriteString(conn, body); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(answer); err != nil || !strings.HasPrefix(string(rest), "HTTP/1.1 200 ") {
			t.Errorf("got %q, %v, want 200", rest, err)
		}
	}
}

// inFront is a proxy to a stand-in, as people put one in front of llama-server.
func inFront(t *testing.T, sim *llamasim.Server) http.Handler {
	t.Helper()
	to, err := url.Parse(sim.URL())
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		// llama-server closes the connection after a stream without a word.
		Transport: &http.Transport{DisableKeepAlives: true},
	}
}

func wantChat(t *testing.T, e *edge) {
	t.Helper()
	for _, stream := range []bool{false, true} {
		a := e.post("/v1/chat/completions", chatBody("m", "hi", 20, stream))
		if a.Status != http.StatusOK || a.Err != nil {
			t.Fatalf("stream %t: got %d %s %v", stream, a.Status, a.Body, a.Err)
		}
		if stream {
			if wrong := readStream(strings.NewReader(a.Body), nil).whole(); wrong != "" {
				t.Error(wrong)
			}
		}
	}
}

func TestNodeWithTLS(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	server := httptest.NewTLSServer(inFront(t, sim))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	node := "fleet {\n\t\tretry 100ms\n\t\tnode a " + server.URL
	e := startEdge(t, node+" {\n\t\t\ttls_ca "+ca+"\n\t\t}\n\t}", "fleet")
	e.ready()
	wantChat(t, e)

	// Nobody else vouches for that certificate.
	if err := e.load(node+"\n\t}", "fleet"); err != nil {
		t.Fatal(err)
	}
	await(t, "the certificate to be refused", func() bool {
		return strings.Contains(e.get(e.Admin+"/fleet/nodes").Body, "certificate")
	})
	if a := e.get(e.URL + "/health"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("got %d, want 503 without a certificate that counts", a.Status)
	}
}

func TestNodeOnASocket(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	folder, err := os.MkdirTemp("", "sf") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	ln, err := net.Listen("unix", filepath.Join(folder, "llama.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: inFront(t, sim)}}
	server.Start()
	defer server.Close()
	e := startEdge(t, "fleet {\n\t\tnode a unix/"+ln.Addr().String()+"\n\t}", "fleet")
	e.ready()
	wantChat(t, e)
}
