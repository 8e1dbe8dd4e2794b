package slotlog

import (
	"bytes"
	"os"
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
