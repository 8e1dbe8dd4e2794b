package slotlog

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// modelFiles is a file system in memory with one log, its writer and whoever rotates
// it. Before each call of the tail, disturb may change it.
type modelFiles struct {
	names   map[string]*modelFile
	ids     int
	disturb func()
	now     time.Time
	within  func() // called once, in the middle of a read; nil: not
}

type modelFile struct {
	id   int
	data []byte
}

func (f *modelFile) truncate() { f.data = nil }

// writeAt leaves zeros where nothing was written.
func (f *modelFile) writeAt(b []byte, off int) {
	if gap := off - len(f.data); gap > 0 {
		f.data = append(f.data, make([]byte, gap)...)
	}
	f.data = append(f.data[:off], b...)
}

func (m *modelFiles) create(path string) *modelFile {
	m.ids++
	f := &modelFile{id: m.ids}
	m.names[path] = f
	return f
}

func (m *modelFiles) stat(path string) (fs.FileInfo, error) {
	m.disturb()
	if f := m.names[path]; f != nil {
		return modelInfo{f, int64(len(f.data)), m.now}, nil
	}
	return nil, fs.ErrNotExist
}

func (m *modelFiles) open(path string) (openedFile, error) {
	m.disturb()
	if f := m.names[path]; f != nil {
		return &modelHandle{m, f}, nil
	}
	return nil, fs.ErrNotExist
}

func (m *modelFiles) resolve(path string) string { return path }

func (m *modelFiles) same(a, b fs.FileInfo) bool { return a.(modelInfo).f == b.(modelInfo).f }

type modelInfo struct {
	f    *modelFile
	size int64
	at   time.Time
}

func (i modelInfo) Name() string       { return "s.log" }
func (i modelInfo) Size() int64        { return i.size }
func (i modelInfo) Mode() fs.FileMode  { return 0o644 }
func (i modelInfo) ModTime() time.Time { return i.at }
func (i modelInfo) IsDir() bool        { return false }
func (i modelInfo) Sys() any           { return nil }

type modelHandle struct {
	m *modelFiles
	f *modelFile
}

func (h *modelHandle) Stat() (fs.FileInfo, error) {
	h.m.disturb()
	return modelInfo{h.f, int64(len(h.f.data)), h.m.now}, nil
}

func (h *modelHandle) ReadAt(b []byte, off int64) (int, error) {
	h.m.disturb()
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	first := b
	if h.m.within != nil && len(b) > seamBytes {
		first = b[:seamBytes]
	}
	n := copy(first, h.f.data[off:])
	if len(first) < len(b) {
		h.m.within()
		h.m.within = nil
		n += copy(b[n:], h.f.data[min(off+int64(n), int64(len(h.f.data))):])
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *modelHandle) Close() error { return nil }

// modelSink takes lines out of what the tail feeds, as a Reader would.
type modelSink struct {
	part  []byte
	skip  bool
	lines []string
	old   map[string]bool
}

func (s *modelSink) feed(b []byte, _ time.Time, old bool) {
	s.part = append(s.part, b...)
	for {
		line, rest, ok := bytes.Cut(s.part, []byte("\n"))
		if !ok {
			return
		}
		s.part = bytes.Clone(rest)
		if s.skip {
			s.skip = false
			continue
		}
		text := string(bytes.TrimLeft(line, "\x00"))
		s.lines = append(s.lines, text)
		s.old[text] = old
	}
}

func (s *modelSink) cut(inLine, _ bool) { s.part, s.skip = nil, inLine }

func (s *modelSink) status(FileState, error, int64, time.Time) {}

// modelWriter is a server and a logrotate. Every line that it writes is another one.
type modelWriter struct {
	t      *rapid.T
	files  *modelFiles
	to     *modelFile // that it has open
	off    int        // where it writes next, unless it appends
	append bool
	half   string // what lacks of the line that was begun

	n    int
	ever map[string]bool // lines that stood in a file at some time
	late map[string]bool // those written to a file whose successor had content already
}

const modelPath = "/log/s.log"

func (w *modelWriter) write(text string) {
	if w.to == nil {
		return
	}
	if w.append {
		w.off = len(w.to.data)
	}
	w.to.writeAt([]byte(text), w.off)
	w.off += len(text)
	named := w.files.names[modelPath]
	for _, l := range w.lines(w.to) {
		w.late[l] = w.late[l] || !w.ever[l] && named != nil && named != w.to && len(named.data) > 0
		w.ever[l] = true
	}
}

// lines are the whole lines that stand in a file.
func (w *modelWriter) lines(f *modelFile) []string {
	var out []string
	if f == nil {
		return nil
	}
	for line := range bytes.Lines(f.data) {
		if whole, ok := bytes.CutSuffix(line, []byte("\n")); ok {
			out = append(out, string(bytes.TrimLeft(whole, "\x00")))
		}
	}
	return out
}

// op does one thing that happens to a log.
func (w *modelWriter) op() string {
	kind := rapid.SampledFrom([]string{
		"line", "line", "line", "lines", "long", "half", "rest", "rename", "reopen", "truncate", "remove", "copytruncate and line",
	}).Draw(w.t, "op")
	switch kind {
	case "line", "lines", "long":
		for range map[string]int{"line": 1, "lines": 40, "long": 1}[kind] {
			w.rest()
			w.n++
			pad := ""
			if kind == "long" {
				pad = strings.Repeat("x", chunkBytes+w.n)
			}
			w.write(fmt.Sprintf("line %d%s.\n", w.n, pad))
		}
	case "half":
		w.rest()
		w.n++
		w.half = fmt.Sprintf("second half %d.\n", w.n)
		w.write(fmt.Sprintf("first half %d, ", w.n))
	case "rest":
		w.rest()
	case "rename":
		if f := w.files.names[modelPath]; f != nil {
			delete(w.files.names, modelPath)
			w.files.names[fmt.Sprint(modelPath, ".", f.id)] = f
		}
	case "reopen":
		w.reopen()
	case "truncate", "copytruncate and line":
		if f := w.files.names[modelPath]; f != nil {
			f.truncate()
		}
		if kind != "truncate" {
			w.n++
			w.rest()
			w.write(fmt.Sprintf("line %d.\n", w.n))
		}
	case "remove":
		delete(w.files.names, modelPath)
	}
	return kind
}

func (w *modelWriter) rest() {
	half := w.half
	w.half = ""
	if half != "" {
		w.write(half)
	}
}

// reopen opens the path as fopen(…, "a") or "w" does.
func (w *modelWriter) reopen() {
	w.half = ""
	w.append = rapid.Bool().Draw(w.t, "append")
	w.to = w.files.names[modelPath]
	if w.to == nil {
		w.to = w.files.create(modelPath)
	}
	if !w.append {
		w.to.truncate()
	}
	w.off = len(w.to.data)
}

// Whatever happens to a log, and whenever: what stands in the file while nothing
// happens during a whole look is read once, whole and in order. Only what was
// overwritten, or written to a file that had lost its name, may be missing.
func TestTailNeitherLosesNorDoublesNorTearsALine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &modelFiles{names: map[string]*modelFile{}, now: time.Unix(1e9, 0), disturb: func() {}}
		w := &modelWriter{t: t, files: m, append: true, ever: map[string]bool{}, late: map[string]bool{}}
		got := &modelSink{old: map[string]bool{}}
		tl := &tail{
			files: m, to: got, path: modelPath, start: 1 << 40, stop: make(chan struct{}),
			opened: func(string) {}, now: func() time.Time { return m.now },
		}
		if rapid.Bool().Draw(t, "there at the start") {
			w.reopen()
			for range rapid.IntRange(0, 5).Draw(t, "before") {
				w.op()
			}
		}
		var held *modelFile // that the tail has open, unless it gave it up
		news := -1          // how many lines the first look read
		for round := range rapid.IntRange(1, 25).Draw(t, "rounds") {
			gone := false // a successor may have been there and gone again
			budget := rapid.IntRange(0, 3).Draw(t, "disturbances")
			m.disturb = func() {
				if budget > 0 && rapid.IntRange(0, 3).Draw(t, "now?") == 0 {
					budget--
					w.op()
					gone = true
				}
			}
			tl.look()
			m.disturb = func() {}
			if news < 0 {
				news = len(got.lines)
			}
			if rapid.IntRange(0, 9).Draw(t, "late?") == 0 {
				m.now = m.now.Add(orphanGrace + time.Second)
				held = nil
			}
			for range rapid.IntRange(0, 4).Draw(t, "ops") {
				w.op()
			}
			tl.look()
			for _, f := range []*modelFile{held, m.names[modelPath]} {
				for _, l := range w.lines(f) {
					if !w.late[l] && !slices.Contains(got.lines, l) {
						t.Fatalf("round %d: %.40q stands in the file and was not read; read: %.40q", round, l, got.lines)
					}
				}
			}
			now := (*modelFile)(nil)
			if tl.f != nil {
				now = tl.f.(*modelHandle).f
			}
			if next := m.names[modelPath]; held != nil && now != held && next == nil && !gone {
				t.Fatalf("round %d: the file was given up though nothing took its place", round)
			}
			held = now
		}
		seen := map[string]bool{}
		for i, l := range got.lines {
			if seen[l] {
				t.Fatalf("line %d, %.40q, was read twice; read: %.40q", i, l, got.lines)
			}
			seen[l] = true
			if !w.ever[l] {
				t.Fatalf("line %d, %.40q, never stood in a file like that; read: %.40q", i, l, got.lines)
			}
			if i >= news && got.old[l] {
				t.Fatalf("line %d, %.40q, is news and was taken as old", i, l)
			}
		}
	})
}

// A hole is skipped only as far as it goes: the text behind it may begin before the
// place where the tail was, when another server had written the file meanwhile.
func TestTextBehindAShorterHoleIsRead(t *testing.T) {
	m := &modelFiles{names: map[string]*modelFile{}, now: time.Unix(1e9, 0), disturb: func() {}}
	got := &modelSink{old: map[string]bool{}}
	tl := &tail{
		files: m, to: got, path: modelPath, start: 1 << 40, stop: make(chan struct{}),
		opened: func(string) {}, now: func() time.Time { return m.now },
	}
	f := m.create(modelPath)
	before := strings.Repeat("before\n", 200)
	f.writeAt([]byte(before), 0)
	tl.look()
	f.truncate()
	f.writeAt([]byte(strings.Repeat("after\n", 300)), 600)
	tl.look()
	if want := 500; len(got.lines) != want {
		t.Errorf("lines: got %d, want %d", len(got.lines), want)
	}
	f.truncate()
	f.writeAt([]byte("last\n"), 1<<20)
	fed := 0
	tl.to = countingSink{got, &fed}
	tl.look()
	if got.lines[len(got.lines)-1] != "last" || fed > 1<<20 {
		t.Errorf("got %q after %d bytes, want the last line without the part of the hole that was text before", got.lines[len(got.lines)-1], fed)
	}
}

// What is emptied and written anew while one call reads it comes back as the old seam
// with new bytes behind it.
func TestLogEmptiedWithinOneReadIsNotTorn(t *testing.T) {
	m := &modelFiles{names: map[string]*modelFile{}, now: time.Unix(1e9, 0), disturb: func() {}}
	got := &modelSink{old: map[string]bool{}}
	tl := &tail{
		files: m, to: got, path: modelPath, start: 1 << 40, stop: make(chan struct{}),
		opened: func(string) {}, now: func() time.Time { return m.now },
	}
	f := m.create(modelPath)
	f.writeAt([]byte(strings.Repeat("before\n", 100)), 0)
	tl.look()
	m.within = func() {
		f.truncate()
		f.writeAt([]byte(strings.Repeat("behind it\n", 100)), 0)
	}
	tl.look()
	want := append(slices.Repeat([]string{"before"}, 100), slices.Repeat([]string{"behind it"}, 100)...)
	if diff := cmp.Diff(want, got.lines); m.within != nil || diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// countingSink counts the bytes besides.
type countingSink struct {
	sink
	fed *int
}

func (c countingSink) feed(b []byte, at time.Time, old bool) {
	*c.fed += len(b)
	c.sink.feed(b, at, old)
}
