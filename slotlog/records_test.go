package slotlog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The captures' clients wrote down what they were told: tokens of the prompt, those
// of it that were cached, and tokens generated.
func TestRecordsAreWhatTheClientsWereTold(t *testing.T) {
	for file, want := range map[string][]string{
		"testdata/busy-0.4.0.log": {
			"cancelled", "cancelled",
			"done 140/0/900", "done 148/127/60", "done 23/7/40", "done 24/7/300", "done 24/7/50", "done 24/7/50", "done 25/7/150",
		},
		"testdata/busy-b6673.log": {
			"cancelled", "cancelled",
			"done 140/0/900", "done 148/127/60", "done 23/7/40", "done 24/0/300", "done 25/7/150",
		},
	} {
		tr := NewTracker()
		NewReader(SourceOptions{}).Feed(readFile(t, file), noon, tr.Apply)
		var got []string
		for _, r := range append(tr.TakeRecords(), tr.TakeRecords()...) {
			s := string(r.Outcome)
			if r.Outcome == OutcomeDone {
				s = fmt.Sprintf("%s %d/%d/%d", s, *r.PromptTokens, *r.CachedTokens, *r.Generated)
			}
			got = append(got, s)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: outcome, prompt/cached/generated (-told +read):\n%s", file, diff)
		}
	}
}

func TestRecordsNobodyTakesAreBoundedAndCounted(t *testing.T) {
	var log strings.Builder
	const n = 3000
	for i := range n {
		fmt.Fprintf(&log, "0.12.345.678 I slot launch_slot_: id  0 | task %d | processing task\n"+
			"0.12.345.678 W srv          stop: cancel task, id_task = %d\n"+
			"0.12.345.678 I slot      release: id  0 | task %d | stop processing: n_tokens = 9, truncated = 0\n", i, i, i)
	}
	tr := track(log.String())
	got := tr.TakeRecords()
	if len(got) != maxRecords || got[0].Task != n-maxRecords || got[maxRecords-1].Task != n-1 {
		t.Errorf("records: got %d, want the last %d in order", len(got), maxRecords)
	}
	if dropped := tr.RecordsDropped(); dropped != n-maxRecords {
		t.Errorf("dropped: got %d, want %d", dropped, n-maxRecords)
	}
}

func TestEndsOfATask(t *testing.T) {
	const (
		launch  = "slot launch_slot_: id  0 | task 5 | processing task\n"
		cancel  = "srv          stop: cancel task, id_task = 5\n"
		fail    = "srv    send_error: task id = 5, error: the request exceeds the available context size\n"
		release = "slot      release: id  0 | task 5 | stop processing: n_tokens = 99, truncated = 0\n"
		full    = "slot      release: id  0 | task 5 | stop processing: n_tokens = 99, truncated = 1\n"
		timing  = "slot print_timing: id  0 | task 5 |        eval time =     697.41 ms /    90 tokens (    7.84 ms per token,   127.62 tokens per second)\n"
		next    = "slot launch_slot_: id  0 | task 6 | processing task\n"
	)
	for _, tt := range []struct{ name, log, want string }{
		{"runs", launch, ""},
		{"to its end", launch + timing + release, "task 5 of slot 0 done prompt 10 gen 90 rate 127.62"},
		{"timings after the release", launch + release + timing, "task 5 of slot 0 done prompt 10 gen 90 rate 127.62"},
		{"without timings, as embeddings", launch + release, "task 5 of slot 0 done"},
		{"cancelled before its launch", cancel + launch + release, "task 5 of slot 0 cancelled"},
		{"cancelled", launch + cancel + release, "task 5 of slot 0 cancelled"},
		{"cancel told after the release", launch + release + cancel, "task 5 of slot 0 cancelled"},
		{"cancelled too late", launch + timing + cancel + release, "task 5 of slot 0 done prompt 10 gen 90 rate 127.62"},
		{"failed", launch + fail + release, "task 5 of slot 0 failed failure context_exceeded"},
		{"failed, and cancelled by its server", launch + fail + release + cancel, "task 5 of slot 0 failed failure context_exceeded"},
		{"context full", launch + timing + full, "task 5 of slot 0 truncated gen 90 rate 127.62"},
		{"release lost", launch + next, "task 5 of slot 0 lost"},
		{"pick shows that the release was lost", launch + "slot get_availabl: id  0 | task 5 | selected slot by LRU, t_last = 1\n", "task 5 of slot 0 lost"},
		{"server restarts", launch + "srv    load_model: loading model 'x'\n", "task 5 of slot 0 lost"},
		{"server goes down", launch + "srv    operator(): operator(): cleaning up before exit...\n", "task 5 of slot 0 lost"},
		{"all are idle", launch + "srv  update_slots: all slots are idle\n", "task 5 of slot 0 lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			for line := range strings.Lines(inWords(track(tt.log), noon)) {
				if strings.HasPrefix(line, "task 5 ") {
					got += strings.TrimSpace(line)
				}
			}
			if got != tt.want {
				t.Errorf("record:\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestServerStates(t *testing.T) {
	const (
		load  = "0.01.000.000 I srv    load_model: loading model 'x'\n"
		lanes = "0.02.000.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'true'\n"
		ready = "0.03.000.000 I srv  llama_server: model loaded\n"
		sleep = "0.09.000.000 I que    start_loop: entering sleeping state\n0.09.000.001 I srv  handle_sleep: server is entering sleeping state\n"
		wake  = "0.19.000.000 I que    start_loop: exiting sleeping state\n"
		again = "0.19.000.001 I srv    load_model: loading model 'x'\n"
	)
	for _, tt := range []struct{ name, log, want string }{
		{"loading", load, "port 1 loading"},
		{"ready", load + lanes + ready, "port 1 ready lanes 2 context 8192 unified true"},
		{"sleeping", load + lanes + ready + sleep, "port 1 sleeping"},
		{"waking", load + lanes + ready + sleep + wake, "port 1 loading"},
		{"awake, which is no restart", load + lanes + ready + sleep + wake + again + strings.ReplaceAll(lanes+ready, "0.0", "0.2"), "port 1 ready lanes 2 context 8192 unified true"},
		{"restarted", load + lanes + ready + load, "port 1 loading restarts 1"},
		{"going down", load + lanes + ready + "0.09.000.000 I srv    operator(): operator(): cleaning up before exit...\n", "port 1 exited lanes 2 context 8192 unified true"},
		{"model cannot be loaded", load + "0.04.000.000 E srv    load_model: failed to load model, 'x'\n", "port 1 exited backend load_failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, _ := strings.Cut(inWords(track(tt.log), noon), "\n")
			if got != tt.want {
				t.Errorf("server:\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}
