package llamasim

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
)

// forms are the lines v0.4.0 writes at its default verbosity.
var forms = []string{
	`I cmn  common_param: common_params_print_info: verbosity = 3 \(adjust with the ` + "`-lv N`" + ` CLI arg\)`,
	`W srv  llama_server: .+`,
	`I srv    load_model: loading model '.+'`,
	`I cmn          init: llama threadpool init, n_threads = \d+`,
	`I srv    load_model: initializing, n_slots = \d+, n_ctx_slot = \d+, kv_unified = 'false'`,
	`I srv  llama_server: model loaded`,
	`I srv  llama_server: listening on http://127\.0\.0\.1:\d+`,
	`I slot get_availabl: id  \d \| task -1 \| selected slot by LRU, t_last = -?\d+`,
	`I slot get_availabl: id  \d \| task -1 \| selected slot by LCP similarity, f_sim_best = \d\.\d{3} \(> 0\.100 thold\), f_keep = \d\.\d{3}`,
	`I slot launch_slot_: id  \d \| task \d+ \| processing task, is_child = [01]`,
	`W slot   operator\(\): id  \d \| task \d+ \| need to evaluate at least 1 token for each active slot \(n_past = \d+, task\.n_tokens\(\) = \d+\)`,
	`W slot   operator\(\): id  \d \| task \d+ \| n_past was set to \d+`,
	`I slot print_timing: id  \d \| task \d+ \| prompt processing, n_tokens = [ \d]{6,}, progress = \d\.\d\d, t = [ \d]{3,}\.\d\d s / \d+\.\d\d tokens per second`,
	`I slot print_timing: id  \d \| task \d+ \| n_gen = [ \d]{6,}, tg = [ \d]{3,}\.\d\d t/s, tg_3s = [ \d]{3,}\.\d\d t/s`,
	`I slot print_timing: id  \d \| task \d+ \| prompt eval time = [ \d]{7,}\.\d\d ms / [ \d]{5,} tokens \([ \d]{5,}\.\d\d ms per token, [ \d]{5,}\.\d\d tokens per second\)`,
	`I slot print_timing: id  \d \| task \d+ \|        eval time = [ \d]{7,}\.\d\d ms / [ \d]{5,} tokens \([ \d]{5,}\.\d\d ms per token, [ \d]{5,}\.\d\d tokens per second\)`,
	`I slot print_timing: id  \d \| task \d+ \|       total time = [ \d]{7,}\.\d\d ms / [ \d]{5,} tokens`,
	`I slot print_timing: id  \d \| task \d+ \|    graphs reused = [ \d]{10,}`,
	`I slot      release: id  \d \| task \d+ \| stop processing: n_tokens = \d+, truncated = [01]`,
	`W srv          stop: cancel task, id_task = \d+`,
	`E srv    send_error: task id = \d+, error: .+`,
	`W srv    operator\(\): got exception: \{.+\}`,
	`W srv    operator\(\): unauthorized: Invalid API Key`,
	`I srv    operator\(\): operator\(\): cleaning up before exit\.\.\.`,
}

// TestLogIsWellFormed runs a bit of everything and reads the log.
func TestLogIsWellFormed(t *testing.T) {
	log := newLines()
	s := start(t, Options{Log: log})
	messages := user("hello there")
	ask(t, s, chatPath, dict{"messages": messages, "max_tokens": 20})
	ask(t, s, chatPath, dict{"messages": messages, "max_tokens": 20, "n": 2})
	post(t.Context(), t, s.URL()+chatPath, js(t, dict{"messages": user(strings.Repeat(" x", 5000))}))
	post(t.Context(), t, s.URL()+chatPath, "{}")
	s.SetFault(Fault{Kind: FaultError, Token: 2, Times: 1})
	ask(t, s, chatPath, dict{"messages": messages})
	_ = s.Close()
	close(log)

	stamp := regexp.MustCompile(`^\d+\.\d\d\.\d{3}\.\d{3} `)
	seen := map[string]int{}
	clock := ""
	for line := range log {
		text := strings.TrimSuffix(line, "\n")
		head := stamp.FindString(text)
		if head == "" || head < clock || !strings.HasSuffix(line, "\n") || strings.Count(line, "\n") != 1 {
			t.Errorf("stamp or end of line: %q after %q", line, clock)
		}
		clock = head
		form := formOf(strings.TrimPrefix(text, head))
		if form == "" {
			t.Errorf("no form has %q", text)
		}
		seen[form]++
	}
	for i, form := range forms {
		// Those left out here need seconds of work, a client that goes, or a key.
		if seen[form] == 0 && i != 12 && i != 13 && i != 19 && i != 22 {
			t.Errorf("no line has the form %s", form)
		}
	}
}

func formOf(text string) string {
	for _, form := range forms {
		if regexp.MustCompile("^" + form + "$").MatchString(text) {
			return form
		}
	}
	return ""
}

// TestLogShowsLongWork needs more than three seconds, the interval of the lines.
func TestLogShowsLongWork(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the lines of long work come every three seconds")
	}
	t.Parallel()
	log := newLines()
	s := start(t, Options{Log: log, Prefill: 1000, Decode: 70, Context: 8192})
	ask(t, s, chatPath, dict{"messages": user(strings.Repeat(" x", 3200)), "max_tokens": 230, "ignore_eos": true})
	for _, want := range []string{"prompt processing, n_tokens = ", "n_gen = "} {
		line := log.await(t, want)
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if formOf(text) == "" {
			t.Errorf("no form has %q", line)
		}
	}
}

// TestStuckLogReaderHoldsNothingUp has a reader that never reads.
func TestStuckLogReaderHoldsNothingUp(t *testing.T) {
	stuck := &stuckWriter{free: make(chan struct{})}
	s := start(t, Options{Log: stuck})
	t.Cleanup(func() { close(stuck.free) })
	began := time.Now()
	if st := ask(t, s, chatPath, dict{"messages": user("hi"), "max_tokens": 5}); !st.done {
		t.Error("no whole answer")
	}
	if spent := time.Since(began); spent > patience/2 {
		t.Errorf("it took %v", spent)
	}
}

type stuckWriter struct {
	free chan struct{}
	bytes.Buffer
}

// Write implements io.Writer.
func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.free
	return len(p), nil
}
