package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const busyLog = "../slotlog/testdata/busy-0.4.0.log"

func readLog(t *testing.T, c logCommand) string {
	t.Helper()
	var b bytes.Buffer
	c.out = &b
	if c.print == nil {
		c.print = printSlots
	}
	if err := c.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func writeLog(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.log")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadLogPrintsFinalSlots(t *testing.T) {
	path := writeLog(
		t,
		"0.00.000.001 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0",
		"0.00.000.900 I slot print_timing: id  0 | task 7 | n_decoded =    100, tg =  50.25 t/s, tg_3s =  50.25 t/s",
		"0.00.001.000 I slot launch_slot_: id  1 | task 9 | processing task, is_child = 0",
		"0.00.001.500 I slot      release: id  1 | task 9 | stop processing: n_tokens = 1234, truncated = 0",
		"0.00.001.600 I slot print_timing: id  1 | task 9 | prompt eval time = 12 strange words",
	)
	got := readLog(t, logCommand{path: path})
	for _, want := range []string{"port unknown\n", "decode", "1,234", "100 tokens generated", "5 lines read"} {
		if !strings.Contains(got, want) {
			t.Errorf("the output has no %q:\n%s", want, got)
		}
	}
}

// A log is read alike whichever way its bytes come in, and as JSON.
func TestReadLogAsJSON(t *testing.T) {
	var r struct {
		Ports  []json.RawMessage `json:"ports"`
		Tokens int64             `json:"generated_tokens"`
		Lines  int               `json:"lines"`
		Under  int               `json:"understood"`
		Un     int               `json:"unknown"`
	}
	out := readLog(t, logCommand{path: busyLog, print: printSlotsJSON})
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if len(r.Ports) != 1 || r.Tokens == 0 || r.Lines == 0 || r.Under+r.Un != r.Lines {
		t.Errorf("got %s", out)
	}
	if strings.Count(out, "\n") != 1 {
		t.Errorf("the report is not one line:\n%s", out)
	}
}

func TestReadLogOfOnePort(t *testing.T) {
	whole, err := os.ReadFile("../slotlog/testdata/router-0.4.0.log")
	if err != nil {
		t.Fatal(err)
	}
	// At its end all servers have stopped.
	running, _, ok := strings.Cut(string(whole), "0.50.655.930")
	if !ok {
		t.Fatal("the router's log has no end")
	}
	path := writeLog(t, running)
	all := readLog(t, logCommand{path: path})
	if strings.Count(all, "\nport ")+1 < 2 {
		t.Fatalf("the router's log shows less than two servers:\n%s", all)
	}
	want := onlyPortOf(t, all, "port 42957")
	got := readLog(t, logCommand{path: path, port: 42957})
	if diff := cmp.Diff(want, onlyPortOf(t, got, "port 42957")); diff != "" {
		t.Errorf("--port shows its slots otherwise (-want +got):\n%s", diff)
	}
	if strings.Contains(got, "port 55121") {
		t.Errorf("--port 42957 shows others, too:\n%s", got)
	}
	// The log of a single server does not say its port.
	if got := readLog(t, logCommand{path: busyLog, port: 9000}); !strings.Contains(got, "port 9000") {
		t.Errorf("--port 9000 shows nothing of a log without ports:\n%s", got)
	}
}

// onlyPortOf is the paragraph of a port, without its spacing.
func onlyPortOf(t *testing.T, report, head string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(report, head)
	if !ok {
		t.Fatalf("no %q in:\n%s", head, report)
	}
	paragraph, _, _ := strings.Cut(rest, "\n\n")
	return strings.Fields(paragraph)
}

func TestReadLogShowsWhatItDoesNotUnderstand(t *testing.T) {
	path := writeLog(
		t,
		"0.00.000.001 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0",
		"0.00.000.900 I slot print_timing: id  0 | task 7 | said \x1b]0;title\x07 123 words at 50.25 t/s",
	)
	got := readLog(t, logCommand{path: path})
	if strings.ContainsAny(got, "\x1b\x07") {
		t.Errorf("control characters of the log reach the terminal: %q", got)
	}
	if !strings.Contains(got, "1 unknown") || !strings.Contains(got, `said \x1b]#;title\a # words at #.# t/s`) {
		t.Errorf("the strange line is not shown:\n%s", got)
	}
}

func TestReadLogOfNoFile(t *testing.T) {
	for _, follow := range []bool{false, true} {
		c := logCommand{path: filepath.Join(t.TempDir(), "none.log"), follow: follow, out: new(bytes.Buffer), print: printSlots}
		if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("follow %v: got error %v, want one that says that the file does not exist", follow, err)
		}
	}
}

func TestReadLogFollows(t *testing.T) {
	path := writeLog(t, "0.00.000.001 I slot launch_slot_: id  0 | task 7 | processing task, is_child = 0\n")
	ctx, stop := context.WithCancel(t.Context())
	out := newWatched()
	c := logCommand{path: path, follow: true, out: out, print: printSlots}
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	out.await(t, "1 line read")

	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const timing = "0.00.001.499 I slot print_timing: id  0 | task 7 |        eval time =     409.00 ms /    60 tokens (    6.82 ms per token,   146.70 tokens per second)\n"
	if _, err := f.WriteString(timing + "0.00.001.500 I slot      release: id  0 | task 7 | stop processing: n_tokens = 77, truncated = 0\n"); err != nil {
		t.Fatal(err)
	}
	out.await(t, "slot 0  idle        task -  context 77")
	out.await(t, "slot 0  task 7 ended: done  prompt 18  generated 60  146.7 tokens/s")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("interrupted, it ended with %v", err)
	}
}

// watched is output that somebody waits for.
type watched struct {
	mu      sync.Mutex
	b       bytes.Buffer
	written chan struct{}
}

func newWatched() *watched { return &watched{written: make(chan struct{}, 1)} }

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.written <- struct{}{}:
	default:
	}
	return w.b.Write(b)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func (w *watched) await(t *testing.T, what string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !strings.Contains(w.String(), what) {
		select {
		case <-w.written:
		case <-late:
			t.Fatalf("no %q in 20 s; there is:\n%s", what, w.String())
		}
	}
}

// The captures of busy servers end with every slot idle, and with the tokens that the
// clients got. Of requests whose client left, neither prints a count.
func TestReadLogOfABusyServerEndsIdleWithEveryToken(t *testing.T) {
	for path, want := range map[string]struct{ tokens, lines, requests int }{
		busyLog:                              {900 + 300 + 150 + 40 + 60 + 2*50, 77, 9},
		"../slotlog/testdata/busy-b6673.log": {900 + 300 + 150 + 40 + 60, 224, 7},
	} {
		var r struct {
			Ports []struct {
				Slots []struct{ State string }
			}
			Tokens   int `json:"generated_tokens"`
			Lines    int
			Requests []struct{ Outcome string }
		}
		decode(t, readLog(t, logCommand{path: path, print: printSlotsJSON}), &r)
		if r.Tokens != want.tokens || r.Lines != want.lines {
			t.Errorf("%s: got %d tokens in %d lines, want %d in %d", path, r.Tokens, r.Lines, want.tokens, want.lines)
		}
		if len(r.Requests) != want.requests {
			t.Errorf("%s: got %d requests, want %d", path, len(r.Requests), want.requests)
		}
		idle := 0
		for _, s := range r.Ports[0].Slots {
			if s.State == "idle" {
				idle++
			}
		}
		if len(r.Ports) != 1 || len(r.Ports[0].Slots) != 2 || idle != 2 {
			t.Errorf("%s: got %+v, want one server with two idle slots", path, r.Ports)
		}
	}
}

func TestReadLogCountsLinesAsTheyAre(t *testing.T) {
	for text, want := range map[string]string{"": "0 lines read", "a": "1 line read", "a\n": "1 line read", "a\nb": "2 lines read"} {
		path := filepath.Join(t.TempDir(), "server.log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := readLog(t, logCommand{path: path}); !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
