package slotlog

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkTracker holds what is true of a tracker after any events whatever.
func checkTracker(t failer, tr *Tracker) {
	t.Helper()
	servers := tr.Servers()
	if len(servers) > maxPorts {
		t.Fatalf("ports: got %d, want at most %d", len(servers), maxPorts)
	}
	total := 0
	for _, port := range servers {
		slots, details := tr.Resolve(port, noon), tr.Details(port, noon)
		if len(slots) != len(details) {
			t.Fatalf("port %d: got %d details of %d slots", port, len(details), len(slots))
		}
		total += len(slots)
		for i, s := range slots {
			d := details[i]
			if s.Slot != d.Slot || s.Slot < 0 || s.Slot >= maxLanes || i > 0 && s.Slot <= slots[i-1].Slot {
				t.Fatalf("port %d: slots %d and %d are out of order or reach", port, s.Slot, d.Slot)
			}
			if (s.State == Idle) != (d.Phase == PhaseIdle) || (s.State == Unknown) != (d.Phase == PhaseLost) {
				t.Fatalf("port %d slot %d: state %s, phase %s", port, s.Slot, s.State, d.Phase)
			}
			if s.State != Processing && (s.Task != nil || s.RateTps != nil || d.Task != nil || d.Rate != nil || d.Generated != nil) {
				t.Fatalf("port %d slot %d is %s and has figures of a task: %+v", port, s.Slot, s.State, d)
			}
			for _, n := range []*int64{s.PromptTokens, s.Decoded, d.PromptTokens, d.PromptProcessed, d.CachedTokens, d.Generated, d.ContextUsed, d.ContextSize, d.DraftAccepted, d.DraftGenerated} {
				if n != nil && *n < 0 {
					t.Fatalf("port %d slot %d: a count is %d", port, s.Slot, *n)
				}
			}
			for _, v := range []*float64{d.Progress, d.Similarity, d.KeptShare} {
				if v != nil && !(*v >= 0 && *v <= 1) {
					t.Fatalf("port %d slot %d: a share is %v", port, s.Slot, *v)
				}
			}
			if d.Last != nil && d.Last.Outcome == "" {
				t.Fatalf("port %d slot %d: a task that ended has no outcome", port, s.Slot)
			}
		}
		if _, err := json.Marshal(details); err != nil {
			t.Fatalf("details: %v", err)
		}
		if _, err := json.Marshal(tr.Server(port)); err != nil {
			t.Fatalf("server: %v", err)
		}
	}
	if total > maxSlots || total != tr.slots {
		t.Fatalf("slots: got %d, counted %d, want at most %d", total, tr.slots, maxSlots)
	}
	records := tr.TakeRecords()
	if len(records) > maxRecords {
		t.Fatalf("records: got %d, want at most %d", len(records), maxRecords)
	}
	for _, r := range records {
		if r.Outcome == "" || r.Generated != nil && *r.Generated < 0 {
			t.Fatalf("record: got %+v, want an outcome and no negative count", r)
		}
	}
}

func anyEvent(t *rapid.T, seq uint64) Event {
	count := rapid.Int64Range(0, 5000)
	share := rapid.Float32Range(0, 1)
	e := Event{
		Kind: Kind(rapid.IntRange(0, len(kindNames)-1).Draw(t, "kind")),
		Seq:  seq, Time: noon,
		Port:   rapid.IntRange(0, 3).Draw(t, "port"),
		Slot:   rapid.IntRange(-1, 3).Draw(t, "slot"),
		Task:   rapid.IntRange(-1, 5).Draw(t, "task"),
		Tokens: count.Draw(t, "tokens"), Count: count.Draw(t, "count"),
		Rate: rapid.Float64Range(0, 1e6).Draw(t, "rate"), Share: share.Draw(t, "share"), Kept: share.Draw(t, "kept"),
		HasTokens: rapid.Bool().Draw(t, "has tokens"), HasRate: rapid.Bool().Draw(t, "has rate"),
		HasShare: rapid.Bool().Draw(t, "has share"), Own: rapid.Bool().Draw(t, "own"),
		Truncated: rapid.Bool().Draw(t, "truncated"), Lanes: rapid.IntRange(0, 4).Draw(t, "lanes"),
	}
	if e.Kind == KindFailed || e.Kind == KindBackend {
		e.Failure = failureWords[rapid.IntRange(1, len(failureWords)-1).Draw(t, "failure")]
	}
	return e
}

func TestAnyEventsLeaveATrackerInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := NewTracker()
		for seq := range uint64(rapid.IntRange(1, 60).Draw(t, "events")) {
			e := anyEvent(t, seq+1)
			tr.Apply(e)
			checkTracker(t, tr)
			if e.Port == 0 || e.Slot < 0 {
				continue
			}
			s := tr.Resolve(e.Port, noon)
			for _, s := range s {
				if s.Slot != e.Slot {
					continue
				}
				if (e.Kind == KindRelease || e.Kind == KindIdle) && s.State != Idle {
					t.Fatalf("after %s: got %s, want idle", e.Kind, s.State)
				}
				if e.Kind == KindLaunch && (s.State != Processing || *s.Task != e.Task || s.Decoded != nil) {
					t.Fatalf("after a launch: got %+v", s)
				}
			}
			if n := tr.TakeGeneratedTokens(); n < 0 {
				t.Fatalf("tokens: got %d, want none below 0", n)
			}
		}
	})
}

// server is a model of a llama-server: it writes the lines of a true story, and knows
// what was generated.
type modelServer struct {
	log   []byte
	tasks [4]int // by slot, -1: free
	made  [4]int64
	next  int
	total int64
}

func (m *modelServer) line(format string, args ...any) { m.log = appendLine(m.log, format, args...) }

func (m *modelServer) step(t *rapid.T) {
	slot := rapid.IntRange(0, 3).Draw(t, "slot")
	task := m.tasks[slot]
	if task < 0 {
		m.tasks[slot], m.made[slot] = m.next, 0
		m.next++
		m.line("0.12.345.678 I slot launch_slot_: id %2d | task %d | processing task, is_child = 0", slot, m.tasks[slot])
		return
	}
	switch rapid.IntRange(0, 3).Draw(t, "what") {
	case 0:
		m.made[slot] += rapid.Int64Range(1, 300).Draw(t, "tokens")
		m.line("0.12.345.678 I slot print_timing: id %2d | task %d | n_gen = %6d, tg =  54.33 t/s, tg_3s =  54.64 t/s", slot, task, m.made[slot])
	case 1:
		m.made[slot] += rapid.Int64Range(1, 300).Draw(t, "tokens")
		m.line("0.12.345.678 I slot print_timing: id %2d | task %d |        eval time =    5739.57 ms / %5d tokens (   19.20 ms per token,    52.09 tokens per second)", slot, task, m.made[slot])
		m.release(slot)
	case 2:
		m.line("0.12.345.678 W srv          stop: cancel task, id_task = %d", task)
	case 3:
		m.release(slot)
	}
}

func (m *modelServer) release(slot int) {
	m.line("0.12.345.678 I slot      release: id %2d | task %d | stop processing: n_tokens = %d, truncated = 0", slot, m.tasks[slot], m.made[slot]+10)
	m.total += m.made[slot]
	m.tasks[slot] = -1
}

func TestEveryTaskOfAServerHasOneRecordAndEveryTokenCountsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &modelServer{tasks: [4]int{-1, -1, -1, -1}}
		r, tr := NewReader(SourceOptions{MaxLine: 4096}), NewTracker()
		var tokens int64
		seen := map[int]bool{}
		take := func() {
			tokens += tr.TakeGeneratedTokens()
			for _, rec := range tr.TakeRecords() {
				if seen[rec.Task] {
					t.Fatalf("task %d has two records", rec.Task)
				}
				seen[rec.Task] = true
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			m.step(t)
			for len(m.log) > 0 {
				n := rapid.IntRange(1, len(m.log)).Draw(t, "cut")
				r.Feed(m.log[:n], noon, tr.Apply)
				m.log = m.log[n:]
			}
			if rapid.Bool().Draw(t, "take") {
				take()
			}
			checkSlots(t, m, tr)
		}
		take()
		take()
		running := 0
		for slot, task := range m.tasks {
			if task >= 0 {
				running++
				m.total += m.made[slot]
			}
		}
		if tokens != m.total {
			t.Fatalf("tokens: got %d, want %d", tokens, m.total)
		}
		if len(seen) != m.next-running {
			t.Fatalf("records: got %d, want %d", len(seen), m.next-running)
		}
	})
}

func checkSlots(t *rapid.T, m *modelServer, tr *Tracker) {
	for _, s := range tr.Resolve(1, noon.Add(time.Minute)) {
		task := m.tasks[s.Slot]
		if (s.State == Processing) != (task >= 0) || s.Task != nil && *s.Task != task {
			t.Fatalf("slot %d: got %s %v, want task %d", s.Slot, s.State, s.Task, task)
		}
		if s.RateTps != nil && math.IsNaN(*s.RateTps) {
			t.Fatalf("slot %d: rate is no number", s.Slot)
		}
	}
}

func appendLine(b []byte, format string, args ...any) []byte {
	return append(fmt.Appendf(b, format, args...), '\n')
}
