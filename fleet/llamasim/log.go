package llamasim

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// logger writes llama-server's log as v0.4.0 does at its default verbosity. Lines
// are formatted where they happen, so that their order and clock are true. A router
// and its children have a logger each and one sink.
type logger struct {
	*sink
	start time.Time
	port  string // "[12345] " in front of a child's lines
	ended atomic.Bool
}

// sink writes lines with a goroutine of its own: a slow reader must not slow the tokens.
type sink struct {
	w    io.Writer     // nil: no log
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	wake   *sync.Cond
	lines  []string
	closed bool // no more lines
	killed bool // what is not written is lost
}

// logBacklog bounds what a reader that stopped can cost. Beyond it lines are lost.
const logBacklog = 1 << 16

func newLogger(w io.Writer) *logger {
	l := &sink{w: w, done: make(chan struct{})}
	l.wake = sync.NewCond(&l.mu)
	if w == nil {
		close(l.done)
	} else {
		go l.run()
	}
	return &logger{sink: l, start: time.Now()}
}

// child is the logger of a router's child, which begins its own clock.
func (l *logger) child(port int) *logger {
	return &logger{sink: l.sink, start: time.Now(), port: fmt.Sprintf("[%5d] ", port)}
}

// run ends after stop or kill; wait waits for it.
func (l *sink) run() {
	defer close(l.done)
	for {
		l.mu.Lock()
		for len(l.lines) == 0 && !l.closed {
			l.wake.Wait()
		}
		lines := l.lines
		l.lines = nil
		if l.killed || len(lines) == 0 {
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for _, line := range lines {
			// A log that cannot be written is no reason to stop serving.
			_, _ = io.WriteString(l.w, line)
		}
	}
}

// stop ends a logger: of a child, its own lines; else all.
func (l *logger) stop() {
	l.ended.Store(true)
	if l.port != "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake.Signal()
}

// kill is a stop that loses what is not written yet; what a child wrote is its
// router's already.
func (l *logger) kill() {
	l.ended.Store(true)
	if l.port != "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.killed = true, true
	l.wake.Signal()
}

// wait is for the writer to end, but a log's reader may hang in Write for good.
func (l *logger) wait(most time.Duration) {
	if l.port != "" {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-l.done:
	case <-t.C:
	}
}

// write logs one line. The stamp is the time since the start, minutes without end.
func (l *logger) write(level byte, format string, args ...any) {
	if l.w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.ended.Load() || len(l.lines) >= logBacklog {
		return
	}
	us := time.Since(l.start).Microseconds()
	stamp := fmt.Sprintf("%d.%02d.%03d.%03d", us/60_000_000, us/1_000_000%60, us/1000%1000, us%1000)
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\\n")
	l.lines = append(l.lines, fmt.Sprintf("%s%s %c %s\n", l.port, stamp, level, text))
	l.wake.Signal()
}

// slot logs a line of a slot's; where is the function's name, cut and padded to 12.
func (l *logger) slot(level byte, where string, slot, task int, format string, args ...any) {
	l.write(level, "slot %12.12s: id %2d | task %d | %s", where, slot, task, fmt.Sprintf(format, args...))
}

// banner is what comes first, whatever kind of server it is.
func (l *logger) banner(o Options) {
	l.write('I', "cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)")
	if len(o.Models) > 0 {
		l.write('I', "srv   load_models: Loaded 0 cached model presets")
		l.write('I', "srv   load_models: Loaded %d local model presets from %s", len(o.Models), modelsDir)
		l.write('I', "srv    operator(): Available models (%d) (*: custom preset)", len(o.Models))
		for _, m := range o.Models {
			l.write('I', "srv    operator():     %s", m.Name)
		}
	}
	if o.APIKey == "" {
		l.framed("CORS is set to allow all origins ('*') and no API key is set",
			"this can be a security risk (cross-origin attacks)",
			"more info: https://github.com/ggml-org/llama.cpp/pull/25655")
	}
	if len(o.Models) > 0 {
		l.framed("the following feature(s) are enabled:", "    router mode", "do not expose the server to untrusted environments")
		l.write('I', "srv  llama_server: starting server in router mode. models will be automatically loaded on-demand")
	}
}

// framed is a warning between two lines.
func (l *logger) framed(lines ...string) {
	l.write('W', "srv  llama_server: -----------------")
	for _, line := range lines {
		l.write('W', "srv  llama_server: %s", line)
	}
	l.write('W', "srv  llama_server: -----------------")
}

// loaded is what loading a model ends with.
func (l *logger) loaded(o Options) {
	l.write('I', "cmn          init: llama threadpool init, n_threads = 2")
	l.write('I', "srv    load_model: initializing, n_slots = %d, n_ctx_slot = %d, kv_unified = '%t'", o.Slots, o.Context, o.KVUnified)
}

func (l *logger) listening(addr string) {
	l.write('I', "srv  llama_server: model loaded")
	l.write('I', "srv  llama_server: listening on http://%s", addr)
}

// timing logs a finished generation's four lines (section 2.4 of the log's notes).
func (l *logger) timing(g *gen, graphs int) {
	t := g.timings()
	total := g.promptTime + g.decodeTime
	say := func(format string, args ...any) { l.slot('I', "print_timing", g.slot.id, g.task, format, args...) }
	say("prompt eval time = %10.2f ms / %5d tokens (%8.2f ms per token, %8.2f tokens per second)",
		t.PromptMS, t.PromptN, t.PromptPerTokenMS, t.PromptPerSecond)
	say("       eval time = %10.2f ms / %5d tokens (%8.2f ms per token, %8.2f tokens per second)",
		t.PredictedMS, t.PredictedN, t.PredictedPerTokenMS, t.PredictedPerSecond)
	say("      total time = %10.2f ms / %5d tokens", milliseconds(total), t.PromptN+t.PredictedN)
	say("   graphs reused = %10d", graphs)
}
