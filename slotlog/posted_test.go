package slotlog

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestPostedLogsEndInTheStateTheyShow feeds each excerpt that somebody posted and
// compares what is known at its end.
func TestPostedLogsEndInTheStateTheyShow(t *testing.T) {
	want := map[string]string{}
	for part := range strings.SplitSeq(string(readFile(t, "testdata/posted/want.txt")), "== ") {
		name, words, _ := strings.Cut(part, "\n")
		if name != "" {
			want[name] = words
		}
	}
	files, err := filepath.Glob("testdata/posted/*.log")
	if err != nil || len(files) != 49 {
		t.Fatalf("excerpts: got %d (%v), want 49", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".log")
		t.Run(name, func(t *testing.T) {
			r, tr := NewReader(SourceOptions{}), NewTracker()
			r.Feed(append(readFile(t, file), '\n'), noon, tr.Apply)
			got := inWords(tr, noon)
			if diff := cmp.Diff(want[name], got); diff != "" {
				t.Errorf("state at the end (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPostedLogsAreUnderstood(t *testing.T) {
	// Lines of chat templates and of other programs, heads cut off, and a fork's own
	// format are the only ones that no rule knows.
	most := map[string]uint64{
		"07-llamacpp-11414-verbose-2025": 1, "10-llamacpp-14073-first-line-cut-task-ids-go-back": 1,
		"15-llamacpp-25121-n_decoded-progress": 10, "17-llamacpp-23269-router-prefixed": 4,
		"24-ollama-18123-operator-lines": 4, "27-ollama-2048-epoch-prefix-server-dies": 1,
		"29-beellama-140-fork-format": 8, "36-llamacpp-22447-router-journald-then-killed": 1,
		"42-llamacpp-9390-template-dump-then-chunked-prefill": 2, "49-llamaswap-57-garbled-loading": 1,
		"50-llamacpp-5936-json-other-key-order": 2,
	}
	files, _ := filepath.Glob("testdata/posted/*.log")
	for _, file := range files {
		_, stats := feed(SourceOptions{}, append(readFile(t, file), '\n'), whole)
		if name := strings.TrimSuffix(filepath.Base(file), ".log"); stats.Unknown > most[name] {
			t.Errorf("%s: lines not understood: got %d, want at most %d", name, stats.Unknown, most[name])
		}
	}
}

func TestSlotOfASilentServerIsUnknownInTheEndAndNotIdle(t *testing.T) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	r.Feed(readFile(t, "testdata/posted/01-llamacpp-4185-compose.log"), noon, tr.Apply)
	later := noon.Add(StaleAfter + time.Second)
	if got := tr.Details(1, later)[0].Phase; got != PhaseLost {
		t.Errorf("phase: got %s, want %s", got, PhaseLost)
	}
	if got := tr.Resolve(1, later)[0].State; got != Unknown {
		t.Errorf("state: got %s, want %s", got, Unknown)
	}
}

func TestTwoChildrenWithTheSameSlotsAreApart(t *testing.T) {
	a := strings.SplitAfter(string(readFile(t, "testdata/posted/17-llamacpp-23269-router-prefixed.log")), "\n")
	b := strings.SplitAfter(string(readFile(t, "testdata/posted/26-llamacpp-25452-router-prefill.log")), "\n")
	var merged strings.Builder
	for i := range max(len(a), len(b)) {
		for _, lines := range [][]string{a, b} {
			if i < len(lines) {
				merged.WriteString(lines[i])
			}
		}
	}
	tr := track(merged.String())
	want := "port 38939 unknown\n  slot 0 prefill task 0 processed 10538 progress 0.34\n" +
		"port 42031 unknown\n  slot 0 prefill task 191 prompt 42 of 65536\n"
	if diff := cmp.Diff(want, inWords(tr, noon)); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}

func TestChildThatIsKilledTakesItsSlotsAlong(t *testing.T) {
	const kill = "0.09.000.000 W srv    operator(): force-killing model instance name=qwen after 10 seconds timeout\n"
	const launch = "[36341] 0.01.000.000 I slot launch_slot_: id  3 | task 0 | processing task, is_child = 0\n"
	for _, tt := range []struct{ name, log, want string }{
		{
			"its port is known", "0.01.000.000 I srv  proxy_reques: proxying request to model qwen on port 36341\n" + launch + kill,
			"port 1 unknown backend killed\ntask 0 of slot 3 lost\n",
		},
		{
			"its port is not known", launch + kill,
			"port 1 unknown backend killed\nport 36341 unknown\n  slot 3 unknown\ntask 0 of slot 3 lost\n",
		},
		{
			"another's port is known", "0.01.000.000 I srv  proxy_reques: proxying request to model gemma on port 36341\n" + launch + kill,
			"port 1 unknown backend killed children [36341]\nport 36341 unknown model gemma\n  slot 3 busy task 0\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, inWords(track(tt.log), noon)); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}
