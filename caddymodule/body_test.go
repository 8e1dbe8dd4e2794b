package caddymodule

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

func gzipped(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return b.Bytes()
}

func zstded(s string) []byte {
	z, _ := zstd.NewWriter(nil)
	defer z.Close()
	return z.EncodeAll([]byte(s), nil)
}

func TestBodiesAreUnpackedUnderTheLimit(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet {\n\t\tmax_body 64KiB\n\t}")
	e.ready()
	good := chatBody("m", "hi", 3, false)
	bomb := chatBody("m", strings.Repeat("x", 1<<20), 3, false)
	for name, c := range map[string]struct {
		encoding string
		body     []byte
		status   int
	}{
		"plain":                 {"", []byte(good), 200},
		"identity":              {"identity", []byte(good), 200},
		"gzip":                  {"gzip", gzipped(good), 200},
		"GZIP":                  {"GZIP", gzipped(good), 200},
		"zstd":                  {"zstd", zstded(good), 200},
		"gzip bomb":             {"gzip", gzipped(bomb), 413},
		"zstd bomb":             {"zstd", zstded(bomb), 413},
		"too large":             {"", []byte(bomb), 413},
		"gzip cut off":          {"gzip", gzipped(good)[:20], 400},
		"zstd cut off":          {"zstd", zstded(good)[:20], 400},
		"no gzip":               {"gzip", []byte(good), 400},
		"no zstd":               {"zstd", []byte(good), 400},
		"unknown":               {"br", []byte(good), 415},
		"two":                   {"gzip, zstd", []byte(good), 415},
		"empty":                 {"", nil, 400},
		"gzip of nothing":       {"gzip", gzipped(""), 400},
		"type is not looked at": {"", []byte(good), 200},
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " chunked ", chunked), func(t *testing.T) {
				var body io.Reader = bytes.NewReader(c.body)
				if chunked {
					body = io.MultiReader(body) // hides the length
				}
				r := e.request(context.Background(), "/v1/chat/completions", body)
				if c.encoding != "" {
					r.Header.Set("Content-Encoding", c.encoding)
				}
				if strings.HasPrefix(name, "type") {
					r.Header.Set("Content-Type", "text/plain")
				}
				a := e.do(r)
				if c.status == http.StatusOK {
					if a.Status != c.status {
						t.Fatalf("got %d %s %v", a.Status, a.Body, a.Err)
					}
					return
				}
				wantError(t, a, c.status, "*")
			})
		}
	}
}

// TestLargeBodyIsRefusedReadably: the client is told why, although the server does not
// read what is still on its way. A connection that is reset may take the answer along.
func TestLargeBodyIsRefusedReadably(t *testing.T) {
	e := startEdge(t, "fleet {\n\t}", "fleet {\n\t\tmax_body 1MiB\n\t}")
	part := strings.Repeat("x", 512<<10)
	for path, status := range map[string]int{"/v1/chat/completions": 413, "/v1/embeddings": 413, "/slots/0": 404, "/v1/models": 405} {
		conn := dialRequest(t, e, path, 8<<20, part)
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(got), fmt.Sprintf("HTTP/1.1 %d ", status)) || !strings.HasSuffix(string(got), "}}") {
			t.Errorf("%s: got %q, %v, want %d", path, got, err, status)
		}
	}
}

func TestSiteLimitIsAnsweredInOurForm(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "request_body {\n\t\tmax_size 1KiB\n\t}\n\tfleet")
	e.ready()
	body := io.MultiReader(strings.NewReader(chatBody("m", strings.Repeat("x", 4096), 1, true))) // else the site answers by its length
	wantError(t, e.do(e.request(context.Background(), "/v1/chat/completions", body)), 413, "request_too_large")
}

// dialRequest opens a connection and sends the head of a request with a body of so
// many bytes, and a part of it.
func dialRequest(t *testing.T, e *edge, path string, length int, part string) net.Conn {
	t.Helper()
	conn := dial(t, e)
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", path, e.host(), length, part); err != nil {
		t.Fatal(err)
	}
	return conn
}

func dial(t *testing.T, e *edge) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", e.host())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (e *edge) host() string { return strings.TrimPrefix(e.URL, "http://") }

func TestBodyThatDoesNotArriveIsRefused(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet {\n\t\tread_timeout 100ms\n\t}")
	e.ready()
	conn := dialRequest(t, e, "/v1/chat/completions", 100, "{")
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408 ") || !strings.Contains(string(got), `"code":"request_timeout"`) {
		t.Errorf("got %q, %v, want 408", got, err)
	}
}

// Whoever is refused without a look at the body, or gets what needs none, has the answer
// though the body does not come.
func TestAnswerThatNeedsNoBodyDoesNotWaitForIt(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	keys := keysOnDisk(t, "ann sk-1", `bob sk-2 "per_minute": 1`)
	e := startEdge(t, nodes("", sim), "fleet {\n\t\tkeys "+keys+"\n\t\tmax_body 1KiB\n\t\tread_timeout 1h\n\t}")
	e.ready()
	if a := e.with("x-api-key: sk-2", chatPath, chatBody("m", "hi", 1, false)); a.Status != 200 {
		t.Fatalf("got %+v, want the one request a minute", a)
	}
	cases := map[string]struct {
		line, key string
		length    int
		status    int
	}{
		"no key":          {"POST /v1/chat/completions", "", 100, 401},
		"used up":         {"POST /v1/chat/completions", "sk-2", 100, 429},
		"too large":       {"POST /v1/chat/completions", "sk-1", 2048, 413},
		"method":          {"PUT /v1/chat/completions", "sk-1", 100, 405},
		"management":      {"POST /slots", "sk-1", 100, 404},
		"unknown model":   {"GET /v1/models/x", "sk-1", 100, 404},
		"list of models":  {"GET /v1/models", "sk-1", 100, 200},
		"state of health": {"GET /health", "", 100, 200},
		"length unknown":  {"PUT /v1/chat/completions", "sk-1", -1, 405},
	}
	asked := make(map[string]net.Conn)
	for name, c := range cases {
		body := fmt.Sprintf("Content-Length: %d", c.length)
		if c.length < 0 {
			body = "Transfer-Encoding: chunked"
		}
		asked[name] = dial(t, e)
		fmt.Fprintf(asked[name], "%s HTTP/1.1\r\nHost: %s\r\nX-Api-Key: %s\r\n%s\r\n\r\n", c.line, e.host(), c.key, body)
	}
	for name, c := range cases {
		if err := asked[name].SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(asked[name]).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, fmt.Sprintf("HTTP/1.1 %d ", c.status)) {
			t.Errorf("%s: got %q, %v, want %d", name, line, err, c.status)
		}
	}
}

// TestReadDeadlinesDoNotCutStreams: an answer that takes longer than the body might
// have, over HTTP/1, where an old deadline would end the request.
func TestReadDeadlinesDoNotCutStreams(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 50})
	const idle = "servers {\n\t\ttimeouts {\n\t\t\tread_body_idle 300ms\n\t\t}\n\t}\n\t"
	e := startEdge(t, idle+nodes("", sim), "fleet {\n\t\tread_timeout 300ms\n\t}")
	e.ready()
	for name, body := range map[string]io.Reader{
		"length":  strings.NewReader(chatBody("m", "hi", 60, true)),
		"chunked": io.MultiReader(strings.NewReader(chatBody("m", "hi", 60, true))),
		"gzip":    bytes.NewReader(gzipped(chatBody("m", "hi", 60, true))),
	} {
		t.Run(name, func(t *testing.T) {
			r := e.request(context.Background(), "/v1/chat/completions", body)
			if name == "gzip" {
				r.Header.Set("Content-Encoding", "gzip")
			}
			resp, err := e.Client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			began := time.Now()
			s := readStream(resp.Body, nil)
			if wrong := s.whole(); wrong != "" {
				t.Fatal(wrong)
			}
			if took := time.Since(began); took < 600*time.Millisecond {
				t.Fatalf("the answer took %s: too short to show anything", took)
			}
		})
	}
}
