package llamacpp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// heardFrame is a frame that outlives its reader.
type heardFrame struct {
	Kind frameKind
	Data string
	Torn bool
}

func frames(r io.Reader, limit int) (all []heardFrame, err error) {
	s := newSSEReader(r)
	s.max = limit
	s.buf = s.buf[:16] // so that even short streams move and outgrow it
	for {
		f, err := s.next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, heardFrame{f.kind, string(f.data), f.torn})
	}
}

// pieces gives a stream in pieces of the given sizes, the last one repeated.
type pieces struct {
	b     []byte
	sizes []int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := p.sizes[0]
	if len(p.sizes) > 1 {
		p.sizes = p.sizes[1:]
	}
	n = min(max(n, 1), len(b), len(p.b))
	copy(b, p.b[:n])
	p.b = p.b[n:]
	return n, nil
}

func TestEventsAreFound(t *testing.T) {
	data := func(s string) heardFrame { return heardFrame{Kind: frameData, Data: s} }
	ping := heardFrame{Kind: framePing}
	for _, tt := range []struct {
		name, in string
		want     []heardFrame
	}{
		{"nothing", "", nil},
		{"blank lines", "\n\r\n\n", nil},
		{"one", "data: a\n\n", []heardFrame{data("a")}},
		{"no blank after the colon", "data:a\n\n", []heardFrame{data("a")}},
		{"only one blank is cut", "data:  a\n\n", []heardFrame{data(" a")}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []heardFrame{data("a"), data("b")}},
		{"several lines", "data: a\ndata: b\ndata:\ndata\ndata:c\n\n", []heardFrame{data("a\nb\n\n\nc")}},
		{"several lines, first empty", "data\ndata: b\n\n", []heardFrame{data("\nb")}},
		{"several lines, CRLF", "data: a\r\ndata: b\r\n\r\n", []heardFrame{data("a\nb")}},
		{"comments", ":\n\n: hello\ndata: a\n\n", []heardFrame{ping, ping, data("a")}},
		{"a comment inside", "data: a\n:\ndata: b\n\n", []heardFrame{ping, data("a\nb")}},
		{"other fields", "event: x\nid: 7\nretry: 3\ndata: a\n\n", []heardFrame{data("a")}},
		{"an event without data", "event: x\n\ndata: a\n\n", []heardFrame{data("a")}},
		{"an error event", "event: error\ndata: a\n\ndata: b\n\n", []heardFrame{{Kind: frameError, Data: "a"}, data("b")}},
		{"an old error line", "error: {\"code\":500}\n\n", []heardFrame{{Kind: frameError, Data: `{"code":500}`}}},
		{"end without blank line", "data: a\n", []heardFrame{data("a")}},
		{"end inside a line", "data: a", []heardFrame{{frameData, "a", true}}},
		{"no event at the end", "data: a\n\nproxy error: Failed", []heardFrame{data("a"), {frameJunk, "proxy error: Failed", true}}},
		{"carriage return inside", "data: a\rb\n\n", []heardFrame{data("a\rb")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 1 << 20} {
				got, err := frames(&pieces{[]byte(tt.in), []int{size}}, maxEvent)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("in pieces of %d (-want +got):\n%s", size, d)
				}
			}
		})
	}
}

func TestEventsOfSeveralLinesSurviveAMoveInTheBuffer(t *testing.T) {
	var in strings.Builder
	var want []heardFrame
	for i := range 200 {
		first := strings.Repeat("x", i%13)
		fmt.Fprintf(&in, "data: %s\ndata: y%d\ndata: z\n\n", first, i)
		want = append(want, heardFrame{Kind: frameData, Data: fmt.Sprintf("%s\ny%d\nz", first, i)})
	}
	for _, size := range []int{1, 5, 17, 1 << 20} {
		got, err := frames(&pieces{[]byte(in.String()), []int{size}}, maxEvent)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Fatalf("in pieces of %d: error %v (-want +got):\n%s", size, err, d)
		}
	}
}

func TestRecordedStreamsReadTheSameHoweverSplit(t *testing.T) {
	all := streams(t)
	everyByte := map[string]bool{"chat-stream": true, "chat-stream-progress": true, "responses-stream": true}
	for name, body := range all {
		want, err := frames(strings.NewReader(body), maxEvent)
		if err != nil || len(want) == 0 {
			t.Fatalf("%s: %d events, error %v", name, len(want), err)
		}
		if n := strings.Count("\n"+body, "\ndata: "); n != len(want) {
			t.Errorf("%s: got %d events, the body has %d", name, len(want), n)
		}
		if everyByte[name] {
			for i := range body {
				got, err := frames(&pieces{[]byte(body), []int{i, len(body)}}, maxEvent)
				if err != nil || !cmp.Equal(want, got) {
					t.Fatalf("%s split at byte %d: error %v, differs:\n%s", name, i, err, cmp.Diff(want, got))
				}
			}
			delete(everyByte, name)
		}
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 1))
			sizes := make([]int, 500)
			for i := range sizes {
				sizes[i] = 1 + r.IntN(1<<r.IntN(12))
			}
			got, err := frames(&pieces{[]byte(body), sizes}, maxEvent)
			if err != nil || !cmp.Equal(want, got) {
				t.Fatalf("%s, seed %d: error %v, differs:\n%s", name, seed, err, cmp.Diff(want, got))
			}
		}
	}
	if len(everyByte) > 0 {
		t.Errorf("no recording of %v", everyByte)
	}
}

func TestLongEventPassesAndTooLongEventEnds(t *testing.T) {
	long := strings.Repeat("x", 300<<10)
	got, err := frames(strings.NewReader("data: "+long+"\n\ndata: b\n\n"), maxEvent)
	if err != nil || len(got) != 2 || got[0].Data != long || got[1].Data != "b" {
		t.Fatalf("got %d events, error %v, want both", len(got), err)
	}
	for _, in := range []string{
		"data: " + strings.Repeat("x", 60) + "\n\n",
		strings.Repeat("data: xx\n", 9) + "\n",
		"data: a\n" + strings.Repeat(":\n", 40) + "\n",
	} {
		if _, err := frames(&pieces{[]byte(in), []int{7}}, 50); !errors.Is(err, errEventTooLong) {
			t.Errorf("%.20q…: got %v, want that the event is too long", in, err)
		}
	}
	// Many short events and pings are no long one.
	if _, err := frames(strings.NewReader(strings.Repeat("data: x\n\n:\n", 100)), 50); err != nil {
		t.Error(err)
	}
}

func TestBrokenConnectionDropsTheUnfinishedEvent(t *testing.T) {
	broken := errors.New("broken")
	in := io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken))
	got, err := frames(in, maxEvent)
	if !errors.Is(err, broken) || len(got) != 1 {
		t.Fatalf("got %v, %v, want one event and the error", got, err)
	}
}

func TestReaderThatGivesNothingEnds(t *testing.T) {
	if _, err := frames(readerFunc(func([]byte) (int, error) { return 0, nil }), maxEvent); !errors.Is(err, io.ErrNoProgress) {
		t.Fatalf("got %v, want no progress", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func FuzzSSE(f *testing.F) {
	for _, body := range streams(f) {
		f.Add([]byte(body[:min(len(body), 600)]), uint64(1))
	}
	f.Add([]byte("data: a\r\ndata:b\n:\n\nevent: error\ndata\n\nproxy error: x"), uint64(2))
	f.Add([]byte("error: {}\n\ndata: [DONE]"), uint64(3))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		const limit = 200
		want, wantErr := frames(bytes.NewReader(in), limit)
		r := rand.New(rand.NewPCG(seed, 2))
		sizes := make([]int, 64)
		for i := range sizes {
			sizes[i] = 1 + r.IntN(40)
		}
		got, err := frames(&pieces{bytes.Clone(in), sizes}, limit)
		if err != wantErr || !cmp.Equal(want, got) {
			t.Fatalf("in one piece: %v, in several: %v (-want +got):\n%s", wantErr, err, cmp.Diff(want, got))
		}
		var fig figures
		for _, g := range got {
			fig.read([]byte(g.Data))
			isErrorEvent([]byte(g.Data))
		}
	})
}

// endless repeats a stream.
type endless struct {
	b  []byte
	at int
}

func (e *endless) Read(b []byte) (int, error) {
	n := copy(b, e.b[e.at:])
	e.at = (e.at + n) % len(e.b)
	return n, nil
}

func benchmarkStream(tb testing.TB) *endless {
	return &endless{b: []byte(streams(tb)["chat-stream-timings"])}
}

func TestReadingEventsAllocatesNothing(t *testing.T) {
	s := newSSEReader(benchmarkStream(t))
	var fig figures
	if n := testing.AllocsPerRun(5000, func() {
		f, err := s.next()
		if err != nil {
			t.Fatal(err)
		}
		isErrorEvent(f.data)
		fig.read(f.data)
	}); n != 0 {
		t.Fatalf("got %v allocations an event, want 0", n)
	}
}

func BenchmarkSSE(b *testing.B) {
	for _, figuresToo := range []bool{false, true} {
		b.Run(fmt.Sprintf("figures=%t", figuresToo), func(b *testing.B) {
			s := newSSEReader(benchmarkStream(b))
			var fig figures
			var bytes int64
			b.ReportAllocs()
			for b.Loop() {
				f, err := s.next()
				if err != nil {
					b.Fatal(err)
				}
				bytes += int64(len(f.data))
				if figuresToo {
					fig.read(f.data)
				}
			}
			b.SetBytes(bytes / int64(b.N))
		})
	}
}

func TestReaderTellsWhetherTheNextEventIsHere(t *testing.T) {
	for _, c := range []struct {
		rest string
		want bool
	}{
		{"data: {\"b\":1}\n\n", true},
		{"event: message\ndata: {\"b\":1}\n\n", true},
		{"", false},
		{"data: {\"b\":1}\n", false},
		{"data: [DONE]\n\n", false},
		{"data: null\n\n", false},
		{": ping\n\ndata: {\"b\":1}\n\n", false},
		{"event: message\n\ndata: {\"b\":1}\n\n", false},
	} {
		s := newSSEReader(strings.NewReader("data: {\"a\":1}\n\n" + c.rest))
		if f, err := s.next(); err != nil || string(f.data) != `{"a":1}` {
			t.Fatalf("got %q, %v", f.data, err)
		}
		if got := s.more(); got != c.want {
			t.Errorf("before %q: got %v, want %v", c.rest, got, c.want)
		}
	}
}
