package slotlog

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// FuzzFeed checks that no bytes make the reader panic, that events do not depend
// on where chunks end, and that no event holds a figure that JSON cannot.
func FuzzFeed(f *testing.F) {
	for _, sc := range scenarios(f)[:20] {
		for _, s := range sc.Steps {
			if s.Raw != "" {
				f.Add([]byte(s.Raw+"\n"), uint64(len(s.Raw)))
			}
		}
	}
	f.Add(readFile(f, "testdata/busy-0.4.0.log"), uint64(1))
	f.Add(readFile(f, "testdata/busy-b6673.log"), uint64(2))
	f.Add(readFile(f, "testdata/router-0.4.0.log"), uint64(3))
	for _, log := range eraLogs {
		for _, around := range carriersOf {
			f.Add([]byte(around(log)), uint64(5))
		}
		f.Add([]byte(inUTF16(log, binary.LittleEndian)), uint64(6))
	}
	for _, c := range captures {
		b := readFile(f, c.file)
		for range 4 { // clocks that go back, and lines in a lesser shape than the ones before
			f.Add(append(append([]byte(nil), b[len(b)/2:]...), b...), uint64(7))
			b = b[len(b)/3:]
		}
	}
	f.Add([]byte("\x00\x00\n\x00slot\r\n\x1b[0m\x1b[\n[   1] \n"), uint64(4))
	o := SourceOptions{MaxLine: 512}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		ParseLine(b)
		want, wantStats := feed(o, b, whole)
		rng := rand.New(rand.NewPCG(seed, 0))
		got, gotStats := feed(o, b, func() int { return 1 + rng.IntN(700) })
		if !reflect.DeepEqual(got, want) {
			t.Errorf("events:\n got %+v\nwant %+v", got, want)
		}
		if gotStats != wantStats {
			t.Errorf("stats: got %+v, want %+v", gotStats, wantStats)
		}
		long, longStats, degraded := feedLongWay(o, b)
		if !reflect.DeepEqual(long, want) || longStats != wantStats {
			t.Errorf("the long way, %+v:\n%+v\nthe short way, %+v:\n%+v", longStats, long, wantStats, want)
		}
		if r := NewReader(o); r.feedAll(b) != degraded {
			t.Errorf("degraded: the short way says %v", !degraded)
		}
		if crlf, ok := inCRLF(b, o.MaxLine); ok {
			got, gotStats := feed(o, crlf, whole)
			if !reflect.DeepEqual(got, want) || gotStats.Unknown != wantStats.Unknown {
				t.Errorf("lines that end in CRLF, %d unknown:\n got %+v\nin LF, %d unknown:\n    %+v", gotStats.Unknown, got, wantStats.Unknown, want)
			}
		}
		tr := NewTracker()
		for _, e := range want {
			if e.Port < 1 || e.Port > maxContainers<<16 || math.IsNaN(e.Rate) || math.IsInf(e.Rate, 0) || e.Rate < 0 || e.Tokens < 0 {
				t.Errorf("event out of range: %+v", e)
			}
			tr.Apply(e)
		}
		if n := len(tr.Servers()); n > maxPorts {
			t.Errorf("ports: got %d, want at most %d", n, maxPorts)
		}
		checkTracker(t, tr)
		if n := tr.TakeGeneratedTokens(); n < 0 {
			t.Errorf("generated tokens: got %d, want at least 0", n)
		}
	})
}

// feedLongWay is feed for a reader that keeps all lines off the short way.
func feedLongWay(o SourceOptions, b []byte) ([]Event, Stats, bool) {
	r := NewReader(o)
	r.ahead = longWay
	var events []Event
	r.Feed(b, noon, func(e Event) { events = append(events, e) })
	return events, r.Stats(), r.Degraded()
}

// feedAll feeds b and reports whether the log counts as degraded.
func (r *Reader) feedAll(b []byte) (degraded bool) {
	r.Feed(b, noon, func(Event) {})
	return r.Degraded()
}

// inCRLF ends all lines of b with CR and LF, unless that would change what they are.
func inCRLF(b []byte, longest int) ([]byte, bool) {
	if bytes.ContainsAny(b, "\r\x00") || len(b) > 0 && b[0] >= 0xfe {
		return nil, false
	}
	for line := range bytes.Lines(b) {
		if len(line) >= longest-1 {
			return nil, false
		}
	}
	return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")), true
}
