//go:build unix

package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// peerVariable has the program of the tests be the nodes and the clients of a benchmark
// in a process of its own, so that the CPU of this one is the edge's.
const peerVariable = "SLOTFLEET_BENCH_PEER"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(peerVariable) {
	case "":
		os.Exit(m.Run())
	case "agents":
		err = beNodes(os.Getenv("SLOTFLEET_BENCH_HEAD"), os.Getenv("SLOTFLEET_BENCH_TOKEN"))
	default:
		err = bePeer()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// peerStreams run at once, of peerTokens each, peerRate a second where the node is paced.
const (
	peerStreams = 100
	peerTokens  = 200
	peerRate    = 40

	peerCalls = 200  // of each of those who call
	peerHeld  = 4000 // streams that are open at once
)

// bePeer runs the nodes, and clients when asked to, until its standard input ends.
func bePeer() error {
	paced, err := llamasim.Start(llamasim.Options{Model: "m", Slots: peerStreams, Decode: peerRate})
	if err != nil {
		return err
	}
	defer paced.Close()
	fast, err := llamasim.Start(llamasim.Options{Model: "m", Slots: peerStreams})
	if err != nil {
		return err
	}
	defer fast.Close()
	slow, err := llamasim.Start(llamasim.Options{Model: "m", Slots: peerHeld, Decode: 0.2})
	if err != nil {
		return err
	}
	defer slow.Close()
	turns := httptest.NewServer(newTurns(fast.URL()))
	defer turns.Close()
	var held crowd
	clients := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		edge := r.FormValue("edge")
		n, _ := strconv.Atoi(r.FormValue("n"))
		switch r.FormValue("do") {
		case "streams":
			fmt.Fprint(w, runClients(edge, n, true))
		case "answers":
			fmt.Fprint(w, runClients(edge, n, false))
		case "calls":
			fmt.Fprint(w, runCalls(edge, n))
		case "first":
			fmt.Fprint(w, runFirst(edge, n))
		case "hold":
			fmt.Fprint(w, held.gather(edge, n))
		case "leave":
			held.leave()
		}
	}))
	defer clients.Close()
	fmt.Println(paced.URL())
	fmt.Println(fast.URL())
	fmt.Println(slow.URL())
	fmt.Println(turns.URL)
	fmt.Println(clients.URL)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// got is told by a client that it has a chunk of its story.
var got [peerStreams]chan struct{}

func init() {
	for i := range got {
		got[i] = make(chan struct{}, 1)
	}
}

// turns is a node that sends an event of a story only once the client has the one
// before: no two of them can meet on the way.
type turns struct {
	node  string
	other *httputil.ReverseProxy
}

func newTurns(node string) *turns {
	u, _ := url.Parse(node)
	return &turns{node: node, other: httputil.NewSingleHostReverseProxy(u)}
}

var storyNumber = regexp.MustCompile(`story ([0-9]+)`)

func (n *turns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	story := storyNumber.FindSubmatch(body)
	if err != nil || story == nil || !strings.HasSuffix(r.URL.Path, "/chat/completions") {
		r.Body = io.NopCloser(bytes.NewReader(body))
		n.other.ServeHTTP(w, r)
		return
	}
	ask, _ := http.NewRequest(http.MethodPost, n.node+r.URL.Path, bytes.NewReader(body))
	ask.Close = true // the stand-in closes the connection of a stream without a word
	resp, err := http.DefaultTransport.RoundTrip(ask)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(resp.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	i, _ := strconv.Atoi(string(story[1]))
	flush := http.NewResponseController(w).Flush
	for event := range bytes.SplitAfterSeq(all, []byte("\n\n")) {
		_, _ = w.Write(event)
		_ = flush()
		if bytes.Contains(event, []byte(`"delta":{"content":"`)) {
			select {
			case <-got[i]:
			case <-r.Context().Done():
				return
			}
		}
	}
}

// runClients has each of n clients read an answer and returns how many events all
// together got; a whole answer is one.
func runClients(edge string, n int, stream bool) (chunks int64) {
	var all atomic.Int64
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: peerStreams}
	defer transport.CloseIdleConnections()
	for i := range n {
		wg.Go(func() {
			select {
			case <-got[i]: // the finish of the story before
			default:
			}
			resp, err := transport.RoundTrip(tell(context.Background(), edge, i, stream))
			if err != nil {
				fmt.Fprintln(os.Stderr, "client", i, err)
				return
			}
			defer resp.Body.Close()
			if !stream {
				body, err := io.ReadAll(resp.Body)
				if err == nil && bytes.Contains(body, []byte(`"finish_reason":"length"`)) {
					all.Add(1)
				}
				return
			}
			s := readStream(resp.Body, func(chunks int) {
				if chunks > 1 { // the first is the role's
					select {
					case got[i] <- struct{}{}:
					default:
					}
				}
			})
			if why := s.whole(); why != "" {
				fmt.Fprintln(os.Stderr, "client", i, why)
			}
			all.Add(int64(s.Chunks))
		})
	}
	wg.Wait()
	return all.Load()
}

// tell asks for a story.
func tell(ctx context.Context, edge string, i int, stream bool) *http.Request {
	body := chatBody("m", fmt.Sprint("story ", i), peerTokens, stream)
	body = strings.Replace(body, "{", `{"ignore_eos":true,`, 1)
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, edge+"/v1/chat/completions", strings.NewReader(body))
	return r
}

// runCalls has each of n clients make calls and returns how many were answered.
func runCalls(edge string, n int) int64 {
	var all atomic.Int64
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: n}
	defer transport.CloseIdleConnections()
	for range n {
		wg.Go(func() {
			for range peerCalls {
				r, _ := http.NewRequest(http.MethodPost, edge+"/tokenize", strings.NewReader(`{"content":"How long is this?"}`))
				resp, err := transport.RoundTrip(r)
				if err != nil {
					fmt.Fprintln(os.Stderr, "call", err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err == nil && bytes.Contains(body, []byte(`"tokens"`)) {
					all.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return all.Load()
}

// runFirst sends n requests for short streams, one each 5 ms, whether those before are
// answered or not. It returns how many microseconds after its turn each had its first
// byte; a request that failed is missing.
func runFirst(edge string, n int) []int64 {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var first []int64
	transport := &http.Transport{MaxIdleConnsPerHost: peerStreams}
	defer transport.CloseIdleConnections()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for i := range n {
		turn := <-pace.C
		wg.Go(func() {
			body := chatBody("m", fmt.Sprint("first ", i), 5, true)
			r, _ := http.NewRequest(http.MethodPost, edge+"/v1/chat/completions", strings.NewReader(body))
			resp, err := transport.RoundTrip(r)
			if err != nil {
				fmt.Fprintln(os.Stderr, "client", i, err)
				return
			}
			defer resp.Body.Close()
			if _, err = io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				fmt.Fprintln(os.Stderr, "client", i, err)
				return
			}
			took := time.Since(turn).Microseconds()
			_, _ = io.Copy(io.Discard, resp.Body)
			mu.Lock()
			defer mu.Unlock()
			first = append(first, took)
		})
	}
	wg.Wait()
	return first
}

// crowd is clients whose streams stay open.
type crowd struct {
	leave func()
}

// gather opens n streams and returns how many began.
func (c *crowd) gather(edge string, n int) int64 {
	ctx, cancel := context.WithCancel(context.Background())
	var began atomic.Int64
	var came, all sync.WaitGroup
	transport := &http.Transport{DisableKeepAlives: true}
	pace := time.NewTicker(2 * time.Millisecond) // as many as come at once are too many for a listener
	defer pace.Stop()
	for i := range n {
		<-pace.C
		came.Add(1)
		all.Go(func() {
			resp, err := transport.RoundTrip(tell(ctx, edge, i, true))
			if err == nil {
				defer resp.Body.Close()
				_, err = resp.Body.Read(make([]byte, 1))
			}
			if err == nil {
				began.Add(1)
			}
			came.Done()
			<-ctx.Done()
		})
	}
	came.Wait()
	c.leave = func() {
		cancel()
		all.Wait()
	}
	return began.Load()
}

// peer is where the nodes and the clients of a benchmark are.
type peer struct{ paced, fast, slow, turns, clients string }

func startPeer(b *testing.B) (p peer) {
	b.Helper()
	runPeer(b, []*string{&p.paced, &p.fast, &p.slow, &p.turns, &p.clients}, peerVariable+"=servers")
	return p
}

// runPeer runs this program as a peer and reads the lines that it says first.
func runPeer(b *testing.B, said []*string, variables ...string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait() // it has said what went wrong
	})
	lines := bufio.NewScanner(stdout)
	for _, to := range said {
		if !lines.Scan() {
			b.Fatal("the peer said nothing")
		}
		*to = lines.Text()
	}
}

// cpu is what this process took so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
