package linkf

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// siteOf is a site with TLS, HTTP/1.1 and HTTP/2, whose nodes dial in at /fleet/join.
func siteOf(t *testing.T, h *Head, adopt func(*Joiner) error) *httptest.Server {
	t.Helper()
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/fleet/join" {
			http.NotFound(w, r)
			return
		}
		h.AcceptHTTP(w, r, r.RemoteAddr, adopt)
	}))
	site.EnableHTTP2 = true
	site.Config.ErrorLog = log.New(io.Discard, "", 0)
	site.StartTLS()
	t.Cleanup(site.Close)
	return site
}

func nobody(t *testing.T) (*Head, func(*Joiner) error) {
	t.Helper()
	h := newEdge(t, tokenA)
	return h, func(*Joiner) error { t.Error("somebody was adopted"); return nil }
}

func TestRequestThatIsNoUpgradeIsToldWhatTheURLIs(t *testing.T) {
	h, adopt := nobody(t)
	site := siteOf(t, h, adopt)
	for name, c := range map[string]struct {
		http2  bool
		method string
		header http.Header
		body   string
	}{
		"a browser":            {method: "GET"},
		"a browser by HTTP/2":  {method: "GET", http2: true},
		"upgrade by HTTP/2":    {method: "GET", http2: true},
		"another protocol":     {method: "GET", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}},
		"an upgrade taken off": {method: "GET", header: http.Header{"Upgrade": {"linkf"}}},
		"another method":       {method: "POST", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"linkf"}}},
		"a body":               {method: "GET", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"linkf"}}, body: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			config := site.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: c.http2}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequest(c.method, site.URL+"/fleet/join", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if c.header != nil {
				r.Header = c.header
			}
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			want := "linkf"
			if c.http2 {
				want = "" // there the field would make the answer a broken one
			}
			if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != want || (resp.ProtoMajor == 2) != c.http2 {
				t.Errorf("got %s %d, Upgrade %q; want 426, Upgrade %q", resp.Proto, resp.StatusCode, resp.Header.Get("Upgrade"), want)
			}
			if !strings.Contains(string(body), "fleet_node") {
				t.Errorf("got %q, want it to say what the URL is for", body)
			}
		})
	}
}

// What comes in one piece with the request belongs to the link.
func TestBytesRightBehindTheRequestAreTheLinks(t *testing.T) {
	h, _ := nobody(t)
	got := make(chan string, 1)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.AcceptHTTP(w, r, "host", func(j *Joiner) error {
			got <- j.Identity
			return errors.New("seen enough")
		})
	}))
	defer site.Close()
	c, err := net.Dial("tcp", site.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var begin strings.Builder
	_, _ = begin.WriteString("GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: linkf\r\n\r\n")
	n := newNode(t, newServer(), token(t, tokenA))
	defer n.Close()
	_, err = n.serve(&lateAnswer{Conn: c, first: begin.String()}, "head", func() {})
	if id := get(t, got, "the node"); id != "box-a" {
		t.Errorf("got %q, %v; want box-a", id, err)
	}
}

// lateAnswer sends the request with the first bytes of the link, and reads the answer
// before those of the link.
type lateAnswer struct {
	net.Conn
	first string
	r     *bufio.Reader
}

func (c *lateAnswer) Write(b []byte) (int, error) {
	_, err := c.Conn.Write(append([]byte(c.first), b...))
	c.first = ""
	return len(b), err
}

func (c *lateAnswer) Read(b []byte) (int, error) {
	if c.r == nil {
		c.r = bufio.NewReader(c.Conn)
		if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			return 0, fmt.Errorf("got %v, %w; want 101", resp, err)
		}
	}
	return c.r.Read(b)
}

// The agent says what an operator has to change.
func TestNodeSaysWhyItsHeadIsNotReached(t *testing.T) {
	h, adopt := nobody(t)
	site := siteOf(t, h, adopt)
	trusted := site.Client().Transport.(*http.Transport).TLSClientConfig
	later := trusted.Clone()
	later.Time = func() time.Time { return site.Certificate().NotAfter.Add(time.Hour) }
	answering := func(status int, location string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if location != "" {
				w.Header().Set("Location", location)
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/fleet/join"
	}
	// A proxy that knows nothing of upgrades passes the request on without it.
	stripping := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Connection")
		h.AcceptHTTP(w, r, "host", adopt)
	}))
	t.Cleanup(stripping.Close)
	gone := listen(t)
	_ = gone.Close()
	silent := listen(t)
	t.Cleanup(func() { _ = silent.Close() })
	plain := strings.Replace(answering(200, ""), "http://", "https://", 1)
	for name, c := range map[string]struct {
		url  string
		tls  *tls.Config
		want string
	}{
		"another path":        {site.URL + "/other", trusted, "no fleet_join at this path"},
		"a proxy":             {stripping.URL, nil, "a proxy between here and the head takes the upgrade away"},
		"a login":             {answering(401, ""), nil, "must not be behind a login"},
		"a redirection":       {answering(308, "https://x/fleet/join"), nil, `"https://x/fleet/join"`},
		"another page":        {answering(200, ""), nil, "something else than fleet_join"},
		"a proxy of nothing":  {answering(502, ""), nil, "does not reach it"},
		"an odd status":       {answering(418, ""), nil, "418 I'm a teapot"},
		"unknown authority":   {site.URL + "/fleet/join", nil, "name a file with its certificate by tls_ca"},
		"another authority":   {site.URL + "/fleet/join", &tls.Config{RootCAs: x509.NewCertPool()}, "no certificate of tls_ca is that of its authority"},
		"another name":        {strings.Replace(site.URL, "127.0.0.1", "localhost", 1), trusted, "not localhost (dial the head by a name that its certificate has"},
		"another time":        {site.URL + "/fleet/join", later, "is the clock of this machine right"},
		"no TLS":              {plain, trusted, "is it http:// there"},
		"HTTP to a TLS port":  {strings.Replace(site.URL, "https://", "http://", 1), nil, "400"},
		"nobody there":        {"http://" + gone.Addr().String(), nil, "refused"},
		"unknown token there": {site.URL + "/fleet/join", trusted, "unknown token"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: newServer(), Tokens: []Token{token(t, tokenB)}, TLS: c.tls})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			_, err = n.dial(context.Background(), c.url)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want it to say %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), tokenB) {
				t.Error("it shows the token")
			}
		})
	}
}

func TestAddressesOfHeads(t *testing.T) {
	for address, ok := range map[string]bool{
		"x:1": true, "[::1]:1": true, "https://x/fleet/join": true, "http://x:8080": true, "https://[::1]:1/a?b=c": true,
		"x": false, "ftp://x": false, "https://": false, "https:///a": false, "https://u:p@x/": false, "https://x/#a": false, "https://x:y/": false,
	} {
		if err := CheckHead(address); (err == nil) != ok {
			t.Errorf("%s: got %v, want it taken: %t", address, err, ok)
		} else if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: the error shows a password: %v", address, err)
		}
	}
}
