package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/slotlog"
)

// streams starts n chats and returns how they ended once they have. begun is called
// when all of them have delivered something.
func streams(e *edge, n, tokens int, begun func()) []streamed {
	e.t.Helper()
	results := make([]streamed, n)
	var first, all sync.WaitGroup
	first.Add(n)
	for i := range n {
		all.Go(func() {
			started := sync.OnceFunc(first.Done)
			defer started()
			body := chatBody("m", fmt.Sprint("hello ", i), tokens, true)
			r := e.request(context.Background(), "/v1/chat/completions", strings.NewReader(body))
			r.Close = true // after a reload, the connection of one that ended is about to be closed
			resp, err := e.Client.Do(r)
			if err != nil {
				results[i].Err = err
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				results[i].Err = fmt.Errorf("status %d", resp.StatusCode)
				return
			}
			results[i] = readStream(resp.Body, func(int) { started() })
		})
	}
	first.Wait()
	if begun != nil {
		begun()
	}
	all.Wait()
	return results
}

func wantWhole(t *testing.T, results []streamed) {
	t.Helper()
	for i, s := range results {
		if wrong := s.whole(); wrong != "" {
			t.Errorf("stream %d: %s", i, wrong)
		}
	}
}

func TestStreamsSurviveReload(t *testing.T) {
	o := llamasim.Options{Model: "m", Slots: 10, Decode: 100}
	a, b, c := startSim(t, o), startSim(t, o), startSim(t, o)
	e := startEdge(t, nodes("", a, b), "fleet")
	e.ready()
	load := func(global, site string) {
		t.Helper()
		if err := e.load(global, site); err != nil {
			t.Fatal(err)
		}
	}
	results := streams(e, 20, 150, func() {
		load(nodes("", a, b), "fleet\n\theader X-Unrelated 1")
		load(nodes("", a, b, c), "fleet")
		load(nodes("", a), "fleet") // b runs half of the streams
		if b.Stats().Active == 0 {
			t.Error("the node that was removed ran nothing: the test shows nothing")
		}
		before := b.Stats().Requests
		wantWhole(t, streams(e, 5, 5, nil))
		if got := b.Stats().Requests; got != before {
			t.Errorf("a removed node got %d new requests", got-before)
		}
	})
	wantWhole(t, results)
}

func TestStreamsSurviveTheRemovalOfTheApp(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 4, Decode: 100})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	results := streams(e, 4, 100, func() {
		if err := e.load("", "respond gone"); err != nil {
			t.Fatal(err)
		}
		if got := e.get(e.URL + "/v1/models").Body; got != "gone" {
			t.Errorf("got %s, want the new configuration's answer", got)
		}
	})
	wantWhole(t, results)
	await(t, "the state to go with the last stream", func() bool { return currentState() == nil })
}

// TestRequestThatArrivesDuringReload holds its body back until the configuration it
// came to is gone.
func TestRequestThatArrivesDuringReload(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet")
	e.ready()
	body := chatBody("m", "hi", 5, true)
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	half := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		strings.TrimPrefix(e.URL, "http://"), len(body), body[:10])
	if _, err := conn.Write([]byte(half)); err != nil {
		t.Fatal(err)
	}
	held := currentState().apps.last().run
	await(t, "the request to arrive", func() bool {
		held.mu.Lock()
		defer held.mu.Unlock()
		return held.users == 2
	})
	if err := e.load(nodes("retry 3s", sim), "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(body[10:])); err != nil {
		t.Fatal(err)
	}
	if s := readStream(conn, nil); s.whole() != "" {
		t.Error(s.whole())
	}
}

// TestFailedReloadChangesNothing loads a configuration of which another app cannot
// start: our apps may have started before that, for the order is random.
func TestFailedReloadChangesNothing(t *testing.T) {
	good, bad := startSim(t, llamasim.Options{Model: "good"}), startSim(t, llamasim.Options{Model: "bad"})
	e := startEdge(t, nodes("", good), "fleet")
	e.ready()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	clash := "fleet\n}\nhttp://" + taken.Addr().String() + " {\n\trespond x"
	for range 8 {
		if err := e.load(nodes("", bad), clash); err == nil {
			t.Fatal("the configuration was loaded although its port is taken")
		}
		if err := e.load("fleet {\n\t\tnode a "+bad.URL()+"\n\t\tnode b http://[\n\t}", "fleet"); err == nil {
			t.Fatal("a node without a host was accepted")
		}
		var models struct{ Data []struct{ ID string } }
		decode(t, e.get(e.URL+"/v1/models").Body, &models)
		if len(models.Data) != 1 || models.Data[0].ID != "good" {
			t.Fatalf("got models %+v, want the old ones", models)
		}
		if a := e.post("/v1/chat/completions", chatBody("good", "hi", 3, false)); a.Status != http.StatusOK {
			t.Fatalf("got %d %s %v", a.Status, a.Body, a.Err)
		}
	}
	if n, _ := states.References(stateKey); n != 1 {
		t.Errorf("got %d holders of the state, want 1", n)
	}
}

func TestReloadsLeakNothing(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	log := filepath.Join(t.TempDir(), "llama.log")
	openLog(t, log)
	global := fmt.Sprintf("fleet {\n\t\tnode a %s {\n\t\t\tlog file %s\n\t\t}\n\t}\n\tslotlog {\n\t\tsource other file %s\n\t}", sim.URL(), log, log)
	e := startEdge(t, global, "fleet")
	e.ready()
	e.Client.Transport.(*http.Transport).DisableKeepAlives = true
	chat := func() {
		a := e.post("/v1/chat/completions", chatBody("m", "hi", 3, false))
		if errors.Is(a.Err, io.EOF) {
			// The old server took the connection as its last; net/http closes that unanswered.
			a = e.post("/v1/chat/completions", chatBody("m", "hi", 3, false))
		}
		if a.Status != http.StatusOK {
			t.Fatalf("got %d %s %v", a.Status, a.Body, a.Err)
		}
	}
	broken := strings.Replace(global, "slotlog {", "slotlog {\n\t\tsource folder file /", 1)
	reload := func(n int) {
		for range n {
			if err := e.load(broken, "fleet"); err == nil {
				t.Fatal("a folder was taken for a log")
			}
			if err := e.load(global, "fleet"); err != nil {
				t.Fatal(err)
			}
			chat()
		}
	}
	reload(3)
	var before int
	await(t, "a steady count of goroutines", func() bool {
		before, _ = runtime.NumGoroutine(), pause()
		return runtime.NumGoroutine() == before
	})
	files := openFiles()
	reload(50)
	await(t, "the goroutines of 50 configurations to end", func() bool { return runtime.NumGoroutine() <= before+2 })
	await(t, "the files and connections of 50 configurations to be closed", func() bool { return openFiles() <= files+2 })
	if n, _ := states.References(stateKey); n != 2 {
		t.Errorf("got %d holders of the state, want both apps", n)
	}
	if n, _ := tails.References(slotlog.SourceOptions{Path: log}.Key()); n != 2 {
		t.Errorf("got %d holders of the log, want both apps", n)
	}
}

// openFiles counts the descriptors of this process; 0 where the system does not tell.
func openFiles() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// pause gives ending goroutines a moment.
func pause() time.Time { return <-time.After(50 * time.Millisecond) }

func TestValidateHasNoEffects(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	log := filepath.Join(t.TempDir(), "sub", "llama.log")
	e := &edge{t: t, URL: "http://" + freeAddr(t), Admin: "http://" + freeAddr(t)}
	config, err := adapt(e.caddyfile(fmt.Sprintf(
		"fleet {\n\t\tnode a http://%s {\n\t\t\tlog file %s\n\t\t}\n\t}\n\tslotlog {\n\t\tsource s file %s\n\t}", l.Addr(), log, log), "fleet"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(config); err != nil {
		t.Fatal(err)
	}
	if currentState() != nil {
		t.Error("the state is still held")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(log)), "*")); len(left) > 0 {
		t.Errorf("validation made %q", left)
	}
	// Whoever dialled is in the queue of the listener by now.
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Accept(); err == nil {
		c.Close()
		t.Error("validation dialled the node")
	}
}

func TestCountersSurviveReload(t *testing.T) {
	sim := startSim(t, llamasim.Options{Model: "m"})
	e := startEdge(t, nodes("", sim), "fleet\n}\n"+"http://"+freeAddr(t)+" {\n\tfleet")
	e.ready()
	for range 3 {
		e.post("/v1/chat/completions", chatBody("m", "hi", 5, false))
	}
	for i := range 50 {
		e.post("/v1/chat/completions", chatBody(fmt.Sprint("junk-", i, "\"\n\\"), "hi", 5, false))
	}
	e.post("/v1/chat/completions", "{")
	check := func() {
		t.Helper()
		m := scrape(t, e)
		for series, want := range map[string]float64{
			`slotfleet_requests_total{model="m",outcome="whole",reason=""}`:                     3,
			`slotfleet_requests_total{model="_other",outcome="refused",reason="unknown_model"}`: 50,
			`slotfleet_requests_total{model="_other",outcome="refused",reason="bad_request"}`:   1,
			`slotfleet_node_up{node="a"}`:                                   1,
			`slotfleet_lanes{model="m",node="a"}`:                           2,
			`slotfleet_lanes_active{model="m",node="a"}`:                    0,
			`slotfleet_queue_waiting{}`:                                     0,
			`slotfleet_time_to_first_token_seconds{model="m"}`:              3,
			`slotfleet_request_duration_seconds{model="m",outcome="whole"}`: 3,
			`slotfleet_queue_wait_seconds{model="m"}`:                       3,
			`slotfleet_generated_tokens_total{model="m",node="a"}`:          float64(sim.Stats().Generated),
		} {
			if got, ok := m[series]; !ok || got != want {
				t.Errorf("%s: got %v (there: %t), want %v", series, got, ok, want)
			}
		}
		for series := range m {
			if strings.Contains(series, "junk") {
				t.Errorf("a name that a client made up is a series: %s", series)
			}
		}
	}
	// A request is counted when its answer was written: the client may be faster.
	await(t, "all requests to be counted", func() bool {
		return scrape(t, e)[`slotfleet_requests_total{model="m",outcome="whole",reason=""}`] == 3
	})
	check()
	if err := e.load(nodes("retry 4s", sim), "fleet"); err != nil {
		t.Fatal(err)
	}
	check()
}

func TestSlotsFollowTheLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "llama.log")
	sim := startSim(t, llamasim.Options{Model: "m", Decode: 200, Log: openLog(t, log)})
	e := startEdge(t, fmt.Sprintf("fleet {\n\t\tnode a %s {\n\t\t\tlog source gpu1\n\t\t}\n\t}\n\tslotlog {\n\t\tsource gpu1 file %s\n\t\tsource gpu2 file %s\n\t}", sim.URL(), log, log), "fleet")
	e.ready()
	states := func() (got string) {
		var slots struct {
			Sources []struct {
				Source, Node string
				Also         []string
				Age          *float64 `json:"age_seconds"`
				Ports        []struct {
					Port  int
					Slots []struct{ State string }
				}
			}
		}
		decode(t, e.get(e.Admin+"/slotlog/slots").Body, &slots)
		if len(slots.Sources) != 1 || slots.Sources[0].Source != "gpu1" || slots.Sources[0].Node != "a" ||
			strings.Join(slots.Sources[0].Also, "") != "gpu2" {
			t.Fatalf("got %+v, want one source gpu1 of node a, also gpu2", slots)
		}
		for _, p := range slots.Sources[0].Ports {
			for _, s := range p.Slots {
				got += s.State + " "
			}
		}
		return got
	}
	done := make(chan answer, 1)
	go func() { done <- e.post("/v1/chat/completions", chatBody("m", "hi", 60, false)) }()
	await(t, "a slot to be processing", func() bool { return strings.Contains(states(), "processing") })
	a := <-done
	if a.Status != http.StatusOK {
		t.Fatalf("got %d %s %v", a.Status, a.Body, a.Err)
	}
	await(t, "all slots to be idle", func() bool {
		got := states()
		return strings.Contains(got, "idle") && !strings.Contains(got, "processing")
	})
	const series = `slotfleet_slotlog_generated_tokens_total{source="gpu1"}`
	await(t, "the log's tokens to be counted", func() bool { return scrape(t, e)[series] == float64(sim.Stats().Generated) })
	scrape(t, e)
	if got, want := scrape(t, e)[series], float64(sim.Stats().Generated); got != want {
		t.Errorf("after another scrape: got %v, want %v", got, want)
	}
	var sources struct {
		Sources []map[string]json.RawMessage
	}
	decode(t, e.get(e.Admin+"/slotlog/sources").Body, &sources)
	if len(sources.Sources) != 1 || string(sources.Sources[0]["file"]) != `"open"` {
		t.Errorf("got %s", sources.Sources)
	}
}
