//go:build unix

package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// peerVariable has the program of the tests be the peers of a benchmark in a process of
// its own, so that the CPU of this one is the edge's.
const peerVariable = "SLOTFLEET_BENCH_PEER"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(peerVariable) {
	case "":
		os.Exit(m.Run())
	case "nodes":
		err = beNodes(os.Getenv("SLOTFLEET_BENCH_HEAD"), os.Getenv("SLOTFLEET_BENCH_TOKEN"))
	default:
		err = bePeer()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// peerStreams run at once, of peerTokens each, peerRate a second.
const (
	peerStreams = 100
	peerTokens  = 200
	peerRate    = 40
)

// bePeer runs a stand-in, and clients when asked to, until its standard input ends.
func bePeer() error {
	sim, err := llamasim.Start(llamasim.Options{Model: "m", Slots: peerStreams, Decode: peerRate})
	if err != nil {
		return err
	}
	defer sim.Close()
	clients := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, runClients(r.FormValue("edge"), r.FormValue("stream") == "true"))
	}))
	defer clients.Close()
	fmt.Println(sim.URL())
	fmt.Println(clients.URL)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// runClients returns how many events all clients together got.
func runClients(edge string, stream bool) (chunks int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: peerStreams}
	defer transport.CloseIdleConnections()
	for i := range peerStreams {
		wg.Go(func() {
			body := chatBody("m", fmt.Sprint("story ", i), peerTokens, stream)
			body = strings.Replace(body, "{", `{"ignore_eos":true,`, 1)
			r, _ := http.NewRequest(http.MethodPost, edge+"/v1/chat/completions", strings.NewReader(body))
			resp, err := transport.RoundTrip(r)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			s := readStream(resp.Body, nil)
			mu.Lock()
			defer mu.Unlock()
			chunks += s.Chunks
		})
	}
	wg.Wait()
	return chunks
}

// startPeer runs a peer and reads the lines that it says first.
func startPeer(b *testing.B, said []*string, variables ...string) {
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

// BenchmarkStreamedChunk measures the CPU of the edge for each chunk of 100 streams,
// flushed one by one, in turns with reverse_proxy in the same process. Chunks are
// counted at the clients.
func BenchmarkStreamedChunk(b *testing.B) {
	var node, clients string
	startPeer(b, []*string{&node, &clients}, peerVariable+"=servers")
	ways := []string{"proxy", "on", "off"}
	const site = `
	handle_path /proxy/* {
		reverse_proxy %s {
			flush_interval -1
		}
	}
	handle_path /on/* {
		fleet
	}
	handle_path /off/* {
		fleet {
			resume off
		}
	}`
	e := startEdge(b, "fleet {\n\t\tnode a "+node+"\n\t}", fmt.Sprintf(site, node))
	e.allUp(1)
	took := make(map[string][]float64)
	for b.Loop() {
		for _, way := range ways {
			before := cpu(b)
			a := e.get(clients + "/?stream=true&edge=" + e.URL + "/" + way)
			spent := cpu(b) - before
			chunks, err := strconv.Atoi(a.Body)
			if err != nil || chunks < peerStreams*peerTokens {
				b.Fatalf("%s: the clients got %s chunks: %v", way, a.Body, a.Err)
			}
			took[way] = append(took[way], float64(spent)/float64(chunks)/float64(time.Microsecond))
		}
	}
	for _, way := range ways {
		slices.Sort(took[way])
		b.ReportMetric(took[way][len(took[way])/2], "µs/chunk-"+way)
	}
	var ratios []float64
	for i := range took["on"] {
		ratios = append(ratios, took["on"][i]/took["proxy"][i])
	}
	b.ReportMetric(ratios[len(ratios)/2], "on/proxy")
	b.ReportMetric(0, "ns/op")
}

// cpu is what this process took so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
