package caddymodule

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// ownCertificate makes a certificate for 127.0.0.1 that signs itself.
func ownCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	pool = x509.NewCertPool()
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		text := pem.EncodeToMemory(block)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		pool.AppendCertsFromPEM(text)
	}
	return cert, key, pool
}

// eachHTTP makes clients that speak one version of HTTP each.
func eachHTTP(t *testing.T, roots *x509.CertPool) (h1, h2, h3 http.RoundTripper) {
	t.Helper()
	conf := &tls.Config{RootCAs: roots}
	one := &http.Transport{TLSClientConfig: conf.Clone(), Protocols: new(http.Protocols)}
	one.Protocols.SetHTTP1(true)
	two := &http.Transport{TLSClientConfig: conf.Clone(), Protocols: new(http.Protocols)}
	two.Protocols.SetHTTP2(true)
	three := &http3.Transport{TLSClientConfig: conf.Clone()}
	t.Cleanup(func() {
		one.CloseIdleConnections()
		two.CloseIdleConnections()
		if err := three.Close(); err != nil {
			t.Error(err)
		}
	})
	return one, two, three
}

// packing has the client pack what it sends.
type packing struct {
	encoding string
	pack     func(string) []byte
	via      http.RoundTripper
	admin    http.RoundTripper // for the admin API, which is as it was
	proto    int               // the HTTP version that is to be spoken
	t        *testing.T
}

func (p packing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" {
		return p.admin.RoundTrip(r)
	}
	if p.encoding != "" {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		packed := p.pack(string(body))
		r = r.Clone(r.Context())
		r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(packed)), int64(len(packed)), nil
		r.Header.Set("Content-Encoding", p.encoding)
	}
	resp, err := p.via.RoundTrip(r)
	if err == nil && resp.ProtoMajor != p.proto {
		p.t.Errorf("%s was answered over %s", r.URL.Path, resp.Proto)
	}
	return resp, err
}

// Every kind of answer is the same over each version of HTTP, however its request was
// packed, and a node that is lost is noticed over none.
func TestEveryPathOverEachProtocol(t *testing.T) {
	o := llamasim.Options{Model: "sim", Slots: 4, Audio: true, Embeddings: true, Reranking: true, Infill: true}
	sims := []*llamasim.Server{startSim(t, o), startSim(t, o), startSim(t, o)}
	const site = "handle /stream/* {\n\t\turi strip_prefix /stream\n\t\tfleet\n\t}\n\thandle {\n\t\tfleet\n\t}"
	e := startEdge(t, nodes("moves 300\n\t\tretry 100ms", sims...), site)
	e.allUp(len(sims))
	askings := allAskings(false)
	var want []told
	for _, a := range askings {
		want = append(want, e.ask(t.Context(), a, 20, nil))
	}
	cert, key, pool := ownCertificate(t)
	e.URL = strings.Replace(e.URL, "http://", "https://", 1)
	if err := e.load(nodes("moves 300\n\t\tretry 100ms", sims...), "tls "+cert+" "+key+"\n\t"+site); err != nil {
		t.Fatal(err)
	}
	plain := e.Client.Transport
	h1, h2, h3 := eachHTTP(t, pool)
	for _, p := range []packing{
		{via: h1, proto: 1, encoding: "gzip", pack: gzipped},
		{via: h2, proto: 2, encoding: "zstd", pack: zstded},
		{via: h3, proto: 3},
	} {
		p.t, p.admin = t, plain
		e.Client = &http.Client{Transport: p, Timeout: 30 * time.Second}
		e.allUp(len(sims))
		for i, a := range askings {
			if diff := e.ask(t.Context(), a, 20, nil).equal(want[i]); diff != "" {
				t.Errorf("HTTP/%d, %s: %s", p.proto, a.name, diff)
			}
			if want[i].Plain != "" || a.form || a.name == "tools, passed on" {
				continue
			}
			for _, sim := range sims[:2] { // two of three: it may move twice
				sim.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 8, Times: 1})
			}
			if diff := e.ask(t.Context(), a, 20, nil).equal(want[i]); diff != "" {
				t.Errorf("HTTP/%d, %s, cut: %s", p.proto, a.name, diff)
			}
			for _, sim := range sims {
				sim.SetFault(llamasim.Fault{})
			}
			e.allUp(len(sims))
		}
		// Nobody is left: the stream must not look whole.
		for _, sim := range sims {
			sim.SetFault(llamasim.Fault{Kind: llamasim.FaultReset, Token: 4})
		}
		got := e.ask(t.Context(), askings[0], 20, nil)
		if diff := got.partOf(want[0]); diff != "" {
			t.Errorf("HTTP/%d, broken off: %s", p.proto, diff)
		}
		// Over HTTP/3 the reset of a stream overtakes what was sent before it.
		if !got.lostHonestly() && (p.proto != 3 || got.Fault == "" || got.Done > 0) {
			t.Errorf("HTTP/%d: got %+v, want an error end and a stream that breaks off", p.proto, got)
		}
		for _, sim := range sims {
			sim.SetFault(llamasim.Fault{})
		}
		e.allUp(len(sims))
	}
	e.quiet(sims)
}

// A request of 64 MiB, of which most is images, passes; its memory is set aside, the
// copy for the node included, and another one of its size finds none meanwhile.
func TestImagesOf64MiBPassWithinTheBuffer(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Vision: true, Decode: 50, Context: 8192})
	e := startEdge(t, nodes("buffer 140MiB", sim), "fleet")
	e.ready()
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0K", 1<<20) + `"}}`
	body := func(images int, tokens string) string {
		return `{"model":"m","stream":true,"max_tokens":` + tokens + `,"messages":[{"role":"user","content":[` + strings.Repeat(image+",", images) + `{"type":"text","text":"what is it?"}]}]}`
	}
	large := body(7, "3000") // with 8 MiB each
	large = strings.TrimSuffix(large, "}") + strings.Repeat(" ", 64<<20-len(large)) + "}"
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := e.Client.Do(e.request(ctx, "/v1/chat/completions", strings.NewReader(large)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %s %s", resp.Status, text)
	}
	if got := e.buffered(); got < 2*(64<<20) || got > 2*(64<<20)+1<<20 {
		t.Errorf("%d bytes are set aside, want the body of 64 MiB twice", got)
	}
	a := e.do(e.request(t.Context(), "/v1/chat/completions", strings.NewReader(body(1, "3"))))
	wantError(t, a, http.StatusServiceUnavailable, "overloaded")
	wantError(t, e.post("/v1/chat/completions", large+" "), http.StatusRequestEntityTooLarge, "request_too_large")
	leave()
	e.quiet([]*llamasim.Server{sim})
	e.wantFree()
	if a := e.do(e.request(t.Context(), "/v1/chat/completions", strings.NewReader(body(1, "3")))); a.Status != http.StatusOK {
		t.Errorf("when the memory is free: got %d %.300s", a.Status, a.Body)
	}
}
