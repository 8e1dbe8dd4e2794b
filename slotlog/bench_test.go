package slotlog

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// slotLines are the lines of a capture that a busy server prints, without its
// start, repeated to about size bytes.
func slotLines(t testing.TB, name string, size int) []byte {
	t.Helper()
	var once []byte
	for line := range bytes.Lines(readFile(t, name)) {
		if bytes.Contains(line, []byte(" | task ")) || bytes.Contains(line, []byte(" time = ")) {
			once = append(once, line...)
		}
	}
	return bytes.Repeat(once, size/len(once)+1)
}

func BenchmarkFeed(b *testing.B) {
	for _, name := range []string{"busy-0.4.0", "busy-b6673", "router-0.4.0"} {
		b.Run(name, func(b *testing.B) {
			chunk := slotLines(b, "testdata/"+name+".log", 256<<10)
			r := NewReader(SourceOptions{})
			at := time.Now()
			events := 0
			emit := func(Event) { events++ }
			b.SetBytes(int64(len(chunk)))
			b.ReportAllocs()
			for b.Loop() {
				r.Feed(chunk, at, emit)
			}
		})
	}
}

func BenchmarkFeedAndApply(b *testing.B) {
	chunk := slotLines(b, "testdata/busy-0.4.0.log", 256<<10)
	r, tr := NewReader(SourceOptions{}), NewTracker()
	at := time.Now()
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		r.FeedTo(tr, chunk, at)
	}
}

func BenchmarkFeedNoise(b *testing.B) {
	chunk := bytes.Repeat(readGzip(b, "testdata/lv4-0.4.0.log.gz"), 2)
	r := NewReader(SourceOptions{})
	at := time.Now()
	emit := func(Event) {}
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		r.Feed(chunk, at, emit)
	}
}

// BenchmarkKindsOfLines says what a line of each kind costs, slot states included.
func BenchmarkKindsOfLines(b *testing.B) {
	busy := readFile(b, "testdata/busy-0.4.0.log")
	old := readFile(b, "testdata/busy-b6673.log")
	isSlot := func(l string) bool { return strings.Contains(l, "slot ") && strings.Contains(l, "| task") }
	isService := func(l string) bool { return strings.Contains(l, " W srv") && !strings.Contains(l, "cancel") }
	isLibrary := func(l string) bool { return strings.HasPrefix(l, "print_info: ") }
	all := func(string) bool { return true }
	asRecord := func(l string) string {
		return `{"type":"log","time":1000000,"level":"info","msg":` + quoted(l[15:]+"\n") + "}"
	}
	for _, kind := range []struct {
		name   string
		log    []byte
		is     func(line string) bool
		around func(line string) string
	}{
		{"slots of v0.4.0", busy, isSlot, nil},
		{"slots of b6673", old, isSlot, nil},
		{"slots behind a container's name", busy, isSlot, func(l string) string { return "llama-1  | " + l }},
		{"slots in records", busy, isSlot, asRecord},
		{"service without a rule", busy, isService, nil},
		{"library", old, isLibrary, nil},
		{"all of b6673", old, all, nil},
	} {
		b.Run(kind.name, func(b *testing.B) {
			var chunk []byte
			lines := 0
			for len(chunk) < chunkBytes {
				for line := range strings.Lines(string(kind.log)) {
					if line = strings.TrimSuffix(line, "\n"); !kind.is(line) {
						continue
					}
					if kind.around != nil {
						line = kind.around(line)
					}
					chunk = append(append(chunk, line...), '\n')
					lines++
				}
			}
			r, tr := NewReader(SourceOptions{}), NewTracker()
			at := time.Now()
			b.SetBytes(int64(len(chunk)))
			for b.Loop() {
				r.FeedTo(tr, chunk, at)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*lines), "ns/line")
		})
	}
}
