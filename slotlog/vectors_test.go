package slotlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(readEnv); path != "" {
		if err := readWhole(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// scenario is one line of testdata/slot-activity.jsonl.gz.
type scenario struct {
	Name  string `json:"name"`
	Steps []step `json:"steps"`
}

type step struct {
	Op        string          `json:"op"`
	Seq       uint64          `json:"seq"`
	TS        int64           `json:"ts"`
	Port      int             `json:"port"`
	Slot      *int            `json:"slot"`
	Task      int             `json:"task"`
	Message   string          `json:"message"`
	Raw       string          `json:"raw"`
	Now       int64           `json:"now"`
	Expected  *int            `json:"expected"`
	Watermark uint64          `json:"watermark"`
	Slots     []SeedSlot      `json:"slots"`
	Ports     []int           `json:"ports"`
	Want      json.RawMessage `json:"want"`
}

func scenarios(t testing.TB) []scenario {
	t.Helper()
	f, err := os.Open("testdata/slot-activity.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []scenario
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 8<<20)
	for sc.Scan() {
		var s scenario
		if err := json.Unmarshal(sc.Bytes(), &s); err != nil {
			t.Fatalf("scenario %d: %v", len(out), err)
		}
		out = append(out, s)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func readGzip(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTrackerAnswersEveryVector(t *testing.T) {
	all := scenarios(t)
	if len(all) != 400 {
		t.Fatalf("scenarios: got %d, want 400", len(all))
	}
	for _, sc := range all {
		tr := NewTracker()
		for i, s := range sc.Steps {
			if got, want := answer(t, tr, s); got != want {
				t.Fatalf("%s step %d, %s port %d:\n got %s\nwant %s", sc.Name, i, s.Op, s.Port, got, want)
			}
		}
	}
}

// answer makes the call that a step names and returns what came back, in the
// vectors' own JSON, and what was wanted.
func answer(t *testing.T, tr *Tracker, s step) (got, want string) {
	t.Helper()
	now := time.UnixMilli(s.Now)
	var v any
	switch s.Op {
	case "observe":
		l := ParseLine([]byte(s.Raw))
		l.Seq, l.Time = s.Seq, time.UnixMilli(s.TS)
		tr.Observe(l)
		return "", ""
	case "needsSeed":
		expected := 0
		if s.Expected != nil {
			expected = *s.Expected
		}
		v = tr.NeedsSeed(s.Port, now, expected)
	case "beginSeed":
		v = tr.BeginSeed(s.Port, now)
	case "applySeed":
		tr.ApplySeed(s.Port, s.Watermark, s.Slots, now)
		return "", ""
	case "resolve":
		v = tr.Resolve(s.Port, now)
	case "takeGeneratedTokens":
		v = tr.TakeGeneratedTokens()
	case "retain":
		tr.Retain(s.Ports)
		return "", ""
	case "resync":
		tr.Resync()
		return "", ""
	default:
		t.Fatalf("unknown op %q", s.Op)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, s.Want); err != nil {
		t.Fatal(err)
	}
	return string(b), compact.String()
}

func TestParseLineTakesEveryVectorLineApart(t *testing.T) {
	lines := 0
	for _, sc := range scenarios(t) {
		for i, s := range sc.Steps {
			if s.Op != "observe" {
				continue
			}
			lines++
			want := Line{Port: s.Port, Message: s.Message}
			if s.Slot != nil {
				want.HasFrame, want.Frame = true, Frame{Slot: *s.Slot, Task: s.Task}
			}
			if diff := cmp.Diff(want, ParseLine([]byte(s.Raw))); diff != "" {
				t.Fatalf("%s step %d: %q (-want +got):\n%s", sc.Name, i, s.Raw, diff)
			}
		}
	}
	if lines != 9379 {
		t.Fatalf("lines: got %d, want 9379", lines)
	}
}
