package slotlog

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 9, 20, 12, 0, 0, 0, time.UTC)

// feed gives b to a new reader in pieces of the sizes that next returns, and
// collects what it emits.
func feed(o SourceOptions, b []byte, next func() int) ([]Event, Stats) {
	r := NewReader(o)
	var events []Event
	emit := func(e Event) { events = append(events, e) }
	for len(b) > 0 {
		n := min(len(b), next())
		piece := append([]byte(nil), b[:n]...)
		r.Feed(piece, noon, emit)
		clear(piece) // whoever kept a reference sees zeros
		b = b[n:]
	}
	return events, r.Stats()
}

func whole() int { return 1 << 30 }

// track feeds b whole and returns the tracker that took the events.
func track(b string) *Tracker {
	tr := NewTracker()
	NewReader(SourceOptions{}).Feed([]byte(b), noon, tr.Apply)
	return tr
}

func slotsJSON(t testing.TB, tr *Tracker, port int) string {
	t.Helper()
	b, err := json.Marshal(tr.Resolve(port, noon))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The captures' clients, from the truth that was written beside them: a generated
// 900 tokens, b 300, d 150, e 40, g 60, n2 two children of 50 each. c and f were
// cancelled. Cancelled requests print no final timing, and neither capture holds a
// running readout of theirs (c decoded 147 or 202 chunks in under 3 s, f none), so
// the log knows nothing of their tokens. The old server refused n2.
var captures = []struct {
	file   string
	tokens int64
	slots  string
}{
	{
		"testdata/busy-0.4.0.log", 900 + 300 + 150 + 40 + 60 + 2*50,
		`[{"slot":0,"state":"idle","task":null,"promptTokens":73,"decoded":null,"rateTps":null},` +
			`{"slot":1,"state":"idle","task":null,"promptTokens":73,"decoded":null,"rateTps":null}]`,
	},
	{
		"testdata/busy-b6673.log", 900 + 300 + 150 + 40 + 60,
		`[{"slot":0,"state":"idle","task":null,"promptTokens":1520,"decoded":null,"rateTps":null},` +
			`{"slot":1,"state":"idle","task":null,"promptTokens":207,"decoded":null,"rateTps":null}]`,
	},
}

func TestCapturesEndIdleWithEveryTokenCountedOnce(t *testing.T) {
	for _, c := range captures {
		t.Run(c.file, func(t *testing.T) {
			events, _ := feed(SourceOptions{}, readFile(t, c.file), whole)
			tr := NewTracker()
			for _, e := range events {
				tr.Apply(e)
			}
			if got := tr.TakeGeneratedTokens(); got != c.tokens {
				t.Errorf("generated tokens: got %d, want %d", got, c.tokens)
			}
			if diff := cmp.Diff([]int{9101}, tr.Ports()); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
			if got := slotsJSON(t, tr, 9101); got != c.slots {
				t.Errorf("slots:\n got %s\nwant %s", got, c.slots)
			}
		})
	}
}

func TestEventsDoNotDependOnWhereChunksEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	files := map[string][]byte{
		"router": readFile(t, "testdata/router-0.4.0.log"),
		"lv4":    readGzip(t, "testdata/lv4-0.4.0.log.gz"),
	}
	for _, c := range captures {
		files[c.file] = readFile(t, c.file)
	}
	for name, b := range files {
		want, wantStats := feed(SourceOptions{}, b, whole)
		if len(want) == 0 {
			t.Fatalf("%s: no events", name)
		}
		cuts := map[string]func() int{
			"byte by byte": func() int { return 1 },
			"up to 100":    func() int { return 1 + rng.IntN(100) },
			"up to 5000":   func() int { return 1 + rng.IntN(5000) },
		}
		for how, next := range cuts {
			got, gotStats := feed(SourceOptions{}, b, next)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s %s (-whole +cut):\n%s", name, how, diff)
			}
			if gotStats != wantStats {
				t.Errorf("%s %s: stats: got %+v, want %+v", name, how, gotStats, wantStats)
			}
		}
	}
}

func TestSlotIsFreeAfterEachReleaseOfTheOldServer(t *testing.T) {
	// b6673 releases first and prints the timings after: walk the capture line by
	// line; after a release the slot must stay idle until its next launch.
	tr := NewTracker()
	r := NewReader(SourceOptions{})
	var e Event
	idle := map[int]bool{}
	released := 0
	for line := range strings.Lines(string(readFile(t, "testdata/busy-b6673.log"))) {
		e = Event{}
		r.Feed([]byte(line), noon, func(got Event) { e = got; tr.Apply(got) })
		switch e.Kind {
		case KindRelease:
			idle[e.Slot] = true
			released++
		case KindLaunch:
			idle[e.Slot] = false
		}
		for _, s := range tr.Resolve(9101, noon) {
			if idle[s.Slot] && s.State != Idle {
				t.Fatalf("slot %d after %q: got %s, want idle", s.Slot, line, s.State)
			}
		}
	}
	if released != 7 {
		t.Errorf("releases: got %d, want 7", released)
	}
}

func TestRouterLinesNameTheModelsAndTheirEnd(t *testing.T) {
	b := string(readFile(t, "testdata/router-0.4.0.log"))
	running, _, _ := strings.Cut(b, "0.50.655.930")
	tr := NewTracker()
	r := NewReader(SourceOptions{})
	models := map[int]string{}
	apply := func(e Event) {
		if e.Kind == KindModel {
			models[e.Port] = e.Model
		}
		tr.Apply(e)
	}
	r.Feed([]byte(running), noon, apply)
	if diff := cmp.Diff(map[int]string{55121: "alpha", 42957: "beta"}, models); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{42957, 55121}, tr.Ports()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if got, want := tr.TakeGeneratedTokens(), int64(20+3000); got != want {
		t.Errorf("tokens: got %d, want %d", got, want)
	}
	r.Feed([]byte(b[len(running):]), noon, apply)
	if got := tr.Ports(); len(got) != 0 {
		t.Errorf("ports after both children exited: got %v, want none", got)
	}
}

func TestOneLineSaysOneThing(t *testing.T) {
	const frame = "0.12.345.678 I slot print_timing: id  3 | task 42 | "
	slot := Event{Seq: 1, Time: noon, Port: 1, Slot: 3, Task: 42}
	with := func(k Kind, tokens int64, rate float64) Event {
		e := slot
		e.Kind, e.Tokens, e.HasTokens, e.Rate, e.HasRate = k, tokens, tokens >= 0, rate, rate > 0
		if tokens < 0 {
			e.Tokens = 0
		}
		return e
	}
	as := func(e Event, change func(*Event)) *Event {
		change(&e)
		return &e
	}
	idle := slot
	idle.Kind, idle.Task, idle.Own = KindIdle, -1, true
	running := func(mean float64) func(*Event) { return func(e *Event) { e.Mean, e.HasMean = mean, true } }
	progress := func(share float32, own bool) func(*Event) {
		return func(e *Event) { e.Share, e.HasShare, e.Own = share, true, own }
	}
	cancel := Event{Kind: KindCancel, Seq: 1, Time: noon, Port: 1, Slot: -1, Task: 2}
	child := with(KindRelease, 218, 0)
	child.Port, child.Slot, child.Task = 8081, 0, 533
	tests := []struct {
		name, line string
		want       *Event // nil: none
		unknown    bool
	}{
		{"launch", frame + "processing task, is_child = 0", new(with(KindLaunch, -1, 0)), false},
		{"launch before b7690", frame + "processing task", new(with(KindLaunch, -1, 0)), false},
		{"release", frame + "stop processing: n_tokens = 4185, truncated = 0", new(with(KindRelease, 4185, 0)), false},
		{"release before b6890", frame + "stop processing: n_past = 1011, truncated = 0", new(with(KindRelease, 1011, 0)), false},
		{"running", frame + "n_gen =    663, tg = 110.43 t/s, tg_3s = 109.88 t/s", as(with(KindRunning, 663, 109.88), running(110.43)), false},
		{"running before b10408", frame + "n_decoded =    663, tg = 110.43 t/s, tg_3s = 109.88 t/s", as(with(KindRunning, 663, 109.88), running(110.43)), false},
		{"running before b9706", frame + "n_decoded =    663, tg = 110.43 t/s", as(with(KindRunning, 663, 110.43), running(110.43)), false},
		{"a third name for the count", frame + "n_new =     12, tg =   9.00 t/s", new(slot), true},
		{"debug counter", frame + "n_gen = 17, n_remaining = 83, next token:   198 ''", new(with(KindStep, 17, 0)), false},
		{"timing", frame + "       eval time =     697.41 ms /    90 tokens (    7.84 ms per token,   127.62 tokens per second)", new(with(KindTiming, 90, 127.62)), false},
		{"timing without a finite rate", frame + "       eval time =       0.00 ms /     1 tokens (    0.00 ms per token,      inf tokens per second)", new(with(KindTiming, 1, 0)), false},
		{"timing with another line in it", frame + "       eval time =     697.41 ms /    90 tokens (    7.84 ms 0.12.345.679 I slot", new(slot), false},
		{"prefill timing", frame + "prompt eval time =    3912.44 ms /  4096 tokens (    0.96 ms per token,  1046.92 tokens per second)", new(with(KindPrefillTiming, 4096, 1046.92)), false},
		{"prefill", frame + "prompt processing, n_tokens =  16385, progress = 0.85, t =  13.94 s / 1175.06 tokens per second", as(with(KindPrompt, 16385, 0), progress(0.85, true)), false},
		{"prefill before b6890", frame + "prompt processing progress, n_past = 512, n_tokens = 256, progress = 0.572067", as(with(KindPrompt, 512, 0), progress(0.572067, false)), false},
		{"pick", "0.12.345.678 I slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1", &idle, false},
		{"draft tokens", frame + "accepted  3/ 4 draft tokens", as(with(KindDraftStep, 3, 0), func(e *Event) { e.Count = 4 }), false},
		{"router's child, four digits", "[ 8081] 3.24.875.501 I slot      release: id  0 | task 533 | stop processing: n_tokens = 218, truncated = 0", &child, false},
		{"colours", "\x1b[0m\x1b[34m0.12.345.790\x1b[0m \x1b[32mI \x1b[0mslot launch_slot_: id  3 | task 42 | processing task, is_child = 0", new(with(KindLaunch, -1, 0)), false},
		{"CRLF", "slot launch_slot_: id  3 | task 42 | processing task\r", new(with(KindLaunch, -1, 0)), false},
		{"byte order mark", "\xef\xbb\xbfslot launch_slot_: id  3 | task 42 | processing task", new(with(KindLaunch, -1, 0)), false},
		{"hole of NULs", "\x00\x00\x00slot launch_slot_: id  3 | task 42 | processing task", new(with(KindLaunch, -1, 0)), false},
		{"minutes without end", "1621.16.348.559 I slot launch_slot_: id  3 | task 42 | processing task", new(with(KindLaunch, -1, 0)), false},
		{"queue", "que    start_loop: processing task, id = 12", nil, false},
		{"service line", "0.00.000.001 W srv          stop: cancel task, id_task = 2", &cancel, false},
		{"library line", "llama_context: n_ctx         = 16384", nil, false},
		{"model slot", "slot available, loading queued model name=x", nil, true},
		{"epoch in brackets", "[1706462782] slot launch_slot_: id  3 | task 42 | processing task", new(with(KindLaunch, -1, 0)), false},
		{"frame of a fork", "slot- 0 launch_slo | task 21 | processing task", nil, true},
		{"head cut off", "lot launch_slot_: id  3 | task 42 | processing task", nil, true},
		{"slot id out of reach", "slot launch_slot_: id 99999999 | task 42 | processing task", nil, true},
		{"digits without end", "slot launch_slot_: id  3 | task 99999999999999999999 | processing task", nil, true},
		{"prompt text", `0.00.000.001 I srv  log_server_r: request: {"content":"| task 9 | stop processing"}`, nil, false},
		{"empty", "", nil, false},
		{"marked and empty", "[53409] ", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, stats := feed(SourceOptions{}, []byte(tt.line+"\n"), whole)
			var want []Event
			if tt.want != nil {
				want = []Event{*tt.want}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events of %q (-want +got):\n%s", tt.line, diff)
			}
			if (stats.Unknown == 1) != tt.unknown {
				t.Errorf("%q counted as unknown: got %v, want %v", tt.line, stats.Unknown == 1, tt.unknown)
			}
		})
	}
}

func TestPortComesFromMarkThenConfigurationThenListeningThenOne(t *testing.T) {
	const launch = "slot launch_slot_: id  0 | task 1 | processing task\n"
	const listening = "srv  llama_server: listening on http://127.0.0.1:9101\n"
	tests := []struct {
		name, log string
		port      int
		want      int
	}{
		{"nothing said", launch, 0, 1},
		{"listening on", listening + launch, 0, 9101},
		{"listening on IPv6", "srv  llama_server: listening on http://[::1]:8080\n" + launch, 0, 8080},
		{"listening on, before b9829", "main: server is listening on http://0.0.0.0:9102 - starting the main loop\n" + launch, 0, 9102},
		{"listening on, b9151 to b9828", "0.00.223.281 I main: server is listening on http://0.0.0.0:9104 - starting the main loop\n" + "0.00.300.000 I " + launch, 0, 9104},
		{"the last of two", listening + "srv  llama_server: listening on http://127.0.0.1:9103\n" + launch, 0, 9103},
		{"configured", listening + launch, 7000, 7000},
		{"marked", listening + "[53409] " + launch, 7000, 53409},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			events, _ := feed(SourceOptions{Port: tt.port}, []byte(tt.log), whole)
			if got := events[len(events)-1].Port; got != tt.want {
				t.Errorf("port: got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestLanesMoveToThePortThatIsAnnouncedAfterThem(t *testing.T) {
	tr := track("0.00.221.411 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'\n" +
		"0.00.223.281 I srv  llama_server: listening on http://127.0.0.1:9101\n")
	if diff := cmp.Diff([]int{9101}, tr.Ports()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if got := len(tr.Resolve(9101, noon)); got != 2 {
		t.Errorf("slots: got %d, want 2", got)
	}
}

func TestTimingAfterItsReleaseCountsOnceAndKeepsTheSlotFree(t *testing.T) {
	const block = "slot print_timing: id  0 | task 2 | \n" +
		"prompt eval time =      23.89 ms /    24 tokens (    1.00 ms per token,  1004.44 tokens per second)\n" +
		"       eval time =    1388.00 ms /   300 tokens (    4.63 ms per token,   216.14 tokens per second)\n" +
		"      total time =    1411.90 ms /   324 tokens\n"
	const timing = "slot print_timing: id  0 | task 2 |        eval time =    1388.00 ms /   300 tokens (    4.63 ms per token,   216.14 tokens per second)\n"
	const launch = "slot launch_slot_: id  0 | task 2 | processing task\n"
	const release = "slot      release: id  0 | task 2 | stop processing: n_past = 323, truncated = 0\n"
	const pick = "slot get_availabl: id  0 | task 2 | selected slot by LRU, t_last = 2544751736\n"
	const readout = "slot print_timing: id  0 | task 2 | n_gen =    100, tg = 110.43 t/s\n"
	tests := []struct {
		name, log string
		tokens    int64
		state     State
	}{
		{"block after release", launch + release + block, 300, Idle},
		{"block before release", launch + block + release, 300, Idle},
		{"block still running", launch + block, 300, Processing},
		{"framed after release", launch + release + timing, 300, Idle},
		{"twice", launch + release + block + block + timing, 300, Idle},
		{"carriage returns before b4326", launch + release + strings.ReplaceAll(block, "\n", "\n\r"), 300, Idle},
		{"blank lost in a copy", launch + release + strings.ReplaceAll(block, "| \n", "|\n"), 300, Idle},
		{"part counted while running", launch + readout + release + block, 300, Idle},
		{"readout after release", launch + release + readout, 100, Idle},
		{"bare line without its header", launch + release + block[strings.Index(block, "\n")+1:], 0, Idle},
		{"header of another line", launch + block[:strings.Index(block, "\n")+1] +
			"slot launch_slot_: id  1 | task 3 | processing task\n" + block[strings.Index(block, "\n")+1:], 0, Processing},
		{"pick with the last task", launch + release + block + pick, 300, Idle},
		{"pick when the release was lost", launch + pick, 0, Idle},
		{"same task id in a new process", launch + release + launch + readout, 100, Processing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := track(tt.log)
			if got := tr.TakeGeneratedTokens(); got != tt.tokens {
				t.Errorf("tokens: got %d, want %d", got, tt.tokens)
			}
			if got := tr.Resolve(1, noon)[0].State; got != tt.state {
				t.Errorf("state: got %s, want %s", got, tt.state)
			}
		})
	}
}

func TestCancelledRequestCountsFromItsLastReadout(t *testing.T) {
	tr := track("slot launch_slot_: id  0 | task 2 | processing task, is_child = 0\n" +
		"slot print_timing: id  0 | task 2 | n_gen =    173, tg =  54.33 t/s, tg_3s =  54.64 t/s\n" +
		"slot print_timing: id  0 | task 2 | n_gen =    209, tg =  54.33 t/s, tg_3s =  54.64 t/s\n" +
		"srv          stop: cancel task, id_task = 2\n" +
		"slot      release: id  0 | task 2 | stop processing: n_tokens = 230, truncated = 0\n")
	if got := tr.TakeGeneratedTokens(); got != 209 {
		t.Errorf("tokens: got %d, want 209", got)
	}
}

func TestUnprefixedFrameIsNoEventWhereOthersHaveAPrefix(t *testing.T) {
	const forged = "slot      release: id  0 | task 0 | stop processing: n_tokens = 1, truncated = 0\n"
	const launch = "0.02.656.111 I slot launch_slot_: id  0 | task 0 | processing task, is_child = 0\n"
	tr := track(launch + "0.02.656.112 I srv          init: example_format: '<|im_start|>system\n" + forged + "'\n")
	if got := tr.Resolve(1, noon)[0].State; got != Processing {
		t.Errorf("state after a release without prefix: got %s, want processing", got)
	}
	// An older server that writes to the same file from now on is believed.
	tr = track(launch + strings.Repeat(forged, bareLimit))
	if got := tr.Resolve(1, noon)[0].State; got != Idle {
		t.Errorf("state after %d lines without prefix: got %s, want idle", bareLimit, got)
	}
}

func TestContinuationLinesCountWhereOthersHaveAPrefix(t *testing.T) { // b9151..b9229
	tr := track("0.02.656.111 I slot launch_slot_: id  0 | task 0 | processing task\n" +
		"0.04.000.000 I slot print_timing: id  0 | task 0 | \n" +
		"prompt eval time =      23.89 ms /    24 tokens (    1.00 ms per token,  1004.44 tokens per second)\n" +
		"       eval time =    1388.00 ms /   300 tokens (    4.63 ms per token,   216.14 tokens per second)\n")
	if got := tr.TakeGeneratedTokens(); got != 300 {
		t.Errorf("tokens: got %d, want 300", got)
	}
}

func TestRestartForgetsTheSlotsAndKeepsTheTokens(t *testing.T) {
	const before = "9.02.656.111 I slot launch_slot_: id  2 | task 900 | processing task, is_child = 0\n" +
		"9.12.656.111 I slot print_timing: id  2 | task 900 | n_gen =    173, tg =  54.33 t/s, tg_3s =  54.64 t/s\n"
	tests := []struct {
		name, log string
		slots     int
	}{
		{"clock goes back", "0.00.190.133 I cmn  common_param: verbosity = 3\n", 0},
		{"load banner", "9.13.000.000 I srv    load_model: loading model 'x.gguf'\n", 0},
		{"slots made anew", "9.13.000.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 4096, kv_unified = 'true'\n", 2},
		{"a step of the clock is none", "9.12.000.000 I srv  proxy_reques: x\n", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := track(before + tt.log)
			if got := len(tr.Resolve(1, noon)); got != tt.slots {
				t.Errorf("slots: got %d, want %d", got, tt.slots)
			}
			if got := tr.TakeGeneratedTokens(); got != 173 {
				t.Errorf("tokens: got %d, want 173", got)
			}
		})
	}
}

func TestSlotsBeyondTheServersOwnNumberAreNotBelieved(t *testing.T) {
	tr := track("0.00.221.411 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'\n" +
		"0.02.656.111 I slot launch_slot_: id  7 | task 0 | processing task, is_child = 0\n")
	if got := len(tr.Resolve(1, noon)); got != 2 {
		t.Errorf("slots: got %d, want 2", got)
	}
}

func TestHugeLineIsSkippedWithoutBeingHeld(t *testing.T) {
	r := NewReader(SourceOptions{})
	tr := NewTracker()
	r.Feed([]byte("slot launch_slot_: id  0 | task 1 | processing task\n"), noon, tr.Apply)
	piece := []byte(strings.Repeat("x", 1<<16))
	for range 320 { // 20 MiB without a line feed
		r.Feed(piece, noon, tr.Apply)
	}
	if got := cap(r.part); got > 4*DefaultMaxLine {
		t.Errorf("bytes held: got %d, want at most %d", got, 4*DefaultMaxLine)
	}
	r.Feed([]byte("slot      release: id  0 | task 1 | stop processing: n_tokens = 1, truncated = 0\n"), noon, tr.Apply)
	if got := tr.Resolve(1, noon)[0].State; got != Processing {
		t.Errorf("the end of the huge line was read as a line: got %s, want processing", got)
	}
	r.Feed([]byte("slot      release: id  0 | task 1 | stop processing: n_tokens = 1, truncated = 0\n"), noon, tr.Apply)
	if got := tr.Resolve(1, noon)[0].State; got != Idle {
		t.Errorf("state after the line that follows: got %s, want idle", got)
	}
	if got := r.Stats().Long; got != 1 {
		t.Errorf("long lines: got %d, want 1", got)
	}
}

func TestLogOfAnotherProgramIsDegraded(t *testing.T) {
	r := NewReader(SourceOptions{})
	for i := range 40 {
		r.Feed(fmt.Appendf(nil, "02:12.50 slot- 0 print_timi | task %d | PP\n", i), noon, func(e Event) {
			t.Errorf("event from another program's log: %+v", e)
		})
	}
	if !r.Degraded() {
		t.Error("degraded: got false, want true")
	}
	for _, c := range captures {
		r := NewReader(SourceOptions{})
		r.Feed(readFile(t, c.file), noon, func(Event) {})
		if r.Degraded() {
			t.Errorf("%s degraded: got true, want false", c.file)
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, name := range []string{"busy-0.4.0", "busy-b6673", "router-0.4.0"} {
		chunk := slotLines(t, "testdata/"+name+".log", 64<<10)
		r, tr := NewReader(SourceOptions{}), NewTracker()
		apply := tr.Apply
		for range 100 { // until the records that nobody takes are as many as there may be
			r.Feed(chunk, noon, apply)
		}
		if got := testing.AllocsPerRun(20, func() { r.Feed(chunk, noon, apply) }); got != 0 {
			t.Errorf("%s: allocations per %d bytes: got %v, want 0", name, len(chunk), got)
		}
	}
}
