package slotlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// heapOver feeds what next gives until it gives nothing, and returns by how much the
// live heap of the reader and its tracker grew.
func heapOver(next func() []byte) (over int64, r *Reader) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := 0; ; i++ {
		b := next()
		if b == nil {
			break
		}
		r.Feed(b, noon, tr.Apply)
		if i%64 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			over = max(over, int64(now.HeapAlloc)-int64(before.HeapAlloc))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&now)
	over = max(over, int64(now.HeapAlloc)-int64(before.HeapAlloc))
	runtime.KeepAlive(tr)
	return over, r
}

func TestMemoryIsFlatOnAnyInput(t *testing.T) {
	const most = 16 << 20
	rng := rand.New(rand.NewPCG(7, 8))
	piece := make([]byte, 1<<20)
	times := func(n int, fill func(b []byte, i int) []byte) func() []byte {
		i := 0
		return func() []byte {
			if i++; i > n {
				return nil
			}
			return fill(piece, i)
		}
	}
	plain := bytes.Repeat([]byte("x"), 1<<20)
	for _, tt := range []struct {
		name string
		next func() []byte
	}{
		{"a line of 200 MiB", times(200, func([]byte, int) []byte { return plain })},
		{"an object of 200 MiB", times(200, func(b []byte, i int) []byte {
			if i == 1 {
				return []byte(`{"log":"`)
			}
			return plain
		})},
		{"a line of parts, 200 MiB", times(200, func(b []byte, _ int) []byte {
			return append(append(b[:0], "2026-09-20T10:11:12Z stderr P "...), append(plain[:1<<19:1<<19], '\n')...)
		})},
		{"entries of docker without an end", times(200, func(b []byte, _ int) []byte {
			return append(append(append(b[:0], `{"log":"`...), plain[:1<<19]...), "\",\"stream\":\"stderr\"}\n"...)
		})},
		{"random bytes", times(32, func(b []byte, _ int) []byte {
			for i := 0; i < len(b); i += 8 {
				v := rng.Uint64()
				for j := range 8 {
					b[i+j] = byte(v >> (8 * j))
				}
			}
			return b
		})},
		{"random bytes as UTF-16", times(32, func(b []byte, i int) []byte {
			if i == 1 {
				return []byte{0xff, 0xfe}
			}
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		})},
		{"slots, tasks, ports and models without end", times(12, func(b []byte, i int) []byte {
			b = b[:0]
			for n := range 2000 {
				v := rng.IntN(60000) + 1
				b = fmt.Appendf(b, "[%5d] 0.00.000.001 I slot launch_slot_: id %2d | task %d | processing task\n", v, v%300, n)
				b = fmt.Appendf(b, "0.00.000.001 I srv  proxy_reques: proxying request to model m%d on port %d\n", v*i, v)
				b = fmt.Appendf(b, "0.00.000.001 W srv          stop: cancel task, id_task = %d\n", v*i)
				b = fmt.Appendf(b, "name%d: text\nslot      release: id %2d | task %d | stop processing: n_tokens = 1, truncated = 0\n", v, v%255, v*i)
			}
			return b
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			over, r := heapOver(tt.next)
			if over > most {
				t.Errorf("heap over the baseline: got %d KiB, want at most %d", over>>10, most>>10)
			}
			if r.Stats().Bytes < 30<<20 && tt.name != "slots, tasks, ports and models without end" {
				t.Errorf("bytes fed: got %d, want a lot", r.Stats().Bytes)
			}
		})
	}
}

func TestLineAfterAHugeOneIsRead(t *testing.T) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	for range 200 {
		r.Feed(bytes.Repeat([]byte("slot launch_slot_: id  0 | task 1 | processing task "), 20000), noon, tr.Apply)
	}
	r.Feed([]byte("\nslot launch_slot_: id  0 | task 7 | processing task\n"), noon, tr.Apply)
	if got := *tr.Resolve(1, noon)[0].Task; got != 7 {
		t.Errorf("task: got %d, want 7", got)
	}
	if got := r.Stats(); got.Long != 1 || got.Lines != 2 {
		t.Errorf("got %d lines, %d of them long, want 2 and 1", got.Lines, got.Long)
	}
}
