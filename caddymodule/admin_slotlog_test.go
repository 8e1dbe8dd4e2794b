package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/slotlog"
)

// events reads /slotlog/events.
type events struct {
	t     *testing.T
	lines *bufio.Scanner
}

func (e *edge) events(ctx context.Context) *events {
	e.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Admin+"/slotlog/events", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	resp, err := e.Client.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		e.t.Fatalf("got %s, %v", resp.Status, resp.Header)
	}
	return &events{t: e.t.(*testing.T), lines: bufio.NewScanner(resp.Body)}
}

// next returns the next event with this name whose data hold what is wanted.
func (e *events) next(name, want string) string {
	e.t.Helper()
	event := ""
	for e.lines.Scan() {
		line := e.lines.Text()
		if s, ok := strings.CutPrefix(line, "event: "); ok {
			event = s
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && event == name && strings.Contains(data, want) {
			if !json.Valid([]byte(data)) {
				e.t.Fatalf("%s: no JSON: %s", name, data)
			}
			return data
		}
	}
	e.t.Fatalf("the events ended before %s with %s: %v", name, want, e.lines.Err())
	return ""
}

const launch = "0.00.001.000 I slot launch_slot_: id  0 | task %d | processing task, is_child = 0\n"

func TestEventsTellTheSlotsAndThenWhatChanges(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one.log"), filepath.Join(dir, "two.log")
	log := openLog(t, one)
	openLog(t, two)
	config := func(more string) string {
		return "slotlog {\n\t\tsource gpu1 file " + one + "\n\t\tsource gpu2 file " + two + "\n" + more + "\t}"
	}
	e := startEdge(t, config(""), "respond x")
	fmt.Fprintf(log, launch, 1)
	await(t, "the slot", func() bool { return strings.Contains(e.get(e.Admin+"/slotlog/slots").Body, `"task":1`) })
	got := e.events(t.Context())
	first := got.next("snapshot", "")
	for _, want := range []string{`"source":"gpu1"`, `"source":"gpu2"`, `"task":1`, `"phase":"busy"`} {
		if !strings.Contains(first, want) {
			t.Errorf("snapshot: got %s, want it to hold %s", first, want)
		}
	}
	fmt.Fprintf(log, launch, 2)
	if data := got.next("port", `"task":2`); !strings.Contains(data, `"source":"gpu1"`) || strings.Contains(data, "gpu2") {
		t.Errorf("change: got %s, want gpu1 alone", data)
	}
	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	got.next("source", `"source":"gpu2","degraded":true`)
	// A reload changes what there is; the stream goes on.
	three := filepath.Join(dir, "three.log")
	fmt.Fprintf(openLog(t, three), launch, 3)
	if err := e.load(config("\t\tsource gpu3 file "+three+"\n"), "respond x"); err != nil {
		t.Fatal(err)
	}
	got.next("port", `"source":"gpu3"`)
	fmt.Fprintf(log, launch, 4)
	got.next("port", `"task":4`)
	if err := e.load("", "respond x"); err != nil {
		t.Fatal(err)
	}
	got.next("end", "configured any more")
}

func TestReadersOfEventsAreBounded(t *testing.T) {
	e := startEdge(t, "slotlog {\n\t\tsource a file "+filepath.Join(t.TempDir(), "a.log")+"\n\t}", "respond x")
	ctx, cancel := context.WithCancel(t.Context())
	for range maxEventReaders {
		e.events(ctx).next("snapshot", "")
	}
	if a := e.get(e.Admin + "/slotlog/events"); a.Status != http.StatusServiceUnavailable || !strings.HasPrefix(a.Body, `{"error"`) {
		t.Errorf("one more: got %d %s, want 503", a.Status, a.Body)
	}
	cancel()
	await(t, "all to be gone", func() bool { return eventReaders.Load() == 0 })
	e.events(t.Context()).next("snapshot", "")
}

// stuckWriter is a connection whose other end reads nothing.
type stuckWriter struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *stuckWriter) SetWriteDeadline(at time.Time) error {
	w.deadline = at
	return nil
}

func (w *stuckWriter) Write([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestReaderOfEventsThatTakesNothingIsDropped(t *testing.T) {
	s, err := holdState()
	if err != nil {
		t.Fatal(err)
	}
	defer dropState()
	_ = s
	w := &stuckWriter{ResponseRecorder: httptest.NewRecorder()}
	if err := showEvents(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/slotlog/events", nil)); err != nil {
		t.Errorf("got %v, want the end of the stream", err)
	}
	if d := time.Until(w.deadline); d <= 0 || d > eventsPatience {
		t.Errorf("got a deadline in %v, want at most %v", d, eventsPatience)
	}
	// Those of earlier tests end when their Caddy does, and may not have yet.
	await(t, "all readers to be gone", func() bool { return eventReaders.Load() == 0 })
}

// seedOf returns how seeding of a source goes.
func (e *edge) seedOf(name string) slotlog.SeedNote {
	e.t.Helper()
	var all struct {
		Sources []struct {
			Source string
			Seed   slotlog.SeedNote
		}
	}
	decode(e.t, e.get(e.Admin+"/slotlog/sources").Body, &all)
	for _, s := range all.Sources {
		if s.Source == name {
			return s.Seed
		}
	}
	return slotlog.SeedNote{}
}

// What an empty log does not tell, the server does, also where the log is a node's.
func TestServerOfASourceIsAskedForItsSlots(t *testing.T) {
	t.Setenv("SLOTFLEET_TEST_KEY", "sesame")
	sim := startSim(t, llamasim.Options{Model: "m", Slots: 3, APIKey: "sesame"})
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		openLog(t, filepath.Join(dir, name))
	}
	e := startEdge(t, fmt.Sprintf(`fleet {
		node c %[1]s {
			key sesame
			log file %[2]s/c
		}
	}
	slotlog {
		source a file %[2]s/a {
			server %[1]s
			key {env.SLOTFLEET_TEST_KEY}
		}
		source b file %[2]s/b {
			server %[1]s
		}
	}`, sim.URL(), dir), "respond x")
	for _, name := range []string{"a", "c"} {
		await(t, "the seed of "+name, func() bool { return e.seedOf(name).State == slotlog.SeedDone })
	}
	var all allSlots
	decode(t, e.get(e.Admin+"/slotlog/slots").Body, &all)
	for _, s := range all.Sources {
		want := map[string]int{"a": 3, "b": 0, "c": 3}[s.Source]
		got := 0
		for _, p := range s.Ports {
			got += len(p.Slots)
		}
		if got != want {
			t.Errorf("slots of %s: got %d, want %d", s.Source, got, want)
		}
	}
	await(t, "the wrong key to be told", func() bool { return e.seedOf("b").State == slotlog.SeedOff })
	if got := e.seedOf("b").Reason; !strings.Contains(got, "key") || strings.Contains(got, "sesame") {
		t.Errorf("reason: got %q, want the key to be named and not told", got)
	}
}

// Programs and pipes go the whole way, and end with the configuration.
func TestSourcesOfAllKindsAreRead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the programs of this test are shell scripts")
	}
	bin := t.TempDir()
	script := "#!/bin/sh\necho $$ > " + bin + "/$(basename $0).pid\nprintf '" + strings.ReplaceAll(launch, "%d", "7") + "'\nexec sleep 1000\n"
	for _, name := range []string{"journalctl", "docker", "kubectl", "anything"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	allowCommands = true
	defer func() { allowCommands = false }()
	e := startEdge(t, `slotlog {
		source j journald llama.service
		source d docker llama
		source k kubectl llama-0
		source c command anything "with words"
	}`, "respond x")
	await(t, "all four", func() bool {
		return strings.Count(e.get(e.Admin+"/slotlog/slots").Body, `"state":"processing","task":7`) == 4
	})
	if err := e.load("", "respond x"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"journalctl", "docker", "kubectl", "anything"} {
		pid, err := os.ReadFile(filepath.Join(bin, name+".pid"))
		if err != nil {
			t.Fatal(err)
		}
		await(t, name+" to end", func() bool {
			_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)))
			return err != nil
		})
	}
}
