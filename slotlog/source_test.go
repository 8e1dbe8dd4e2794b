package slotlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// patience is how long a test waits for what must come; nothing waits that long
// when it passes.
const patience = 10 * time.Second

// follow opens a source on a path and closes it with the test.
func follow(t *testing.T, o SourceOptions) *Source {
	t.Helper()
	s := Open(o)
	t.Cleanup(func() { s.Close() })
	return s
}

// followWith is follow with a watcher of its own.
func followWith(t *testing.T, o SourceOptions, w *watcher) *Source {
	t.Helper()
	s := openWith(o, w, diskFiles{})
	t.Cleanup(func() { s.Close() })
	return s
}

// eventless is a watcher on a system without file events.
func eventless(every time.Duration) *watcher {
	return &watcher{every: every, make: func() (*fsnotify.Watcher, error) { return nil, errors.New("none left") }}
}

// await waits for a snapshot that holds, told of each by Subscribe.
func await(t *testing.T, s *Source, what string, holds func(Snapshot) bool) Snapshot {
	t.Helper()
	changed, cancel := s.Subscribe()
	defer cancel()
	deadline := time.After(patience)
	for {
		select {
		case <-changed:
			if snap := s.Snapshot(time.Now()); holds(snap) {
				return snap
			}
		case <-deadline:
			b, _ := json.Marshal(s.Snapshot(time.Now()))
			t.Fatalf("got %s\nwant %s", b, what)
		}
	}
}

func awaitRead(t *testing.T, s *Source) {
	t.Helper()
	await(t, s, "a first whole look", func(n Snapshot) bool { return !n.LookedAt.IsZero() })
}

// awaitLook waits for a look at the file that began after now. Looks that find
// nothing new are not told to subscribers.
func awaitLook(t *testing.T, s *Source) {
	t.Helper()
	begin := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for looks := 0; looks < 2; {
		<-tick.C
		if at := s.Snapshot(time.Now()).LookedAt; at.After(begin) {
			begin = at
			looks++
		}
		if time.Since(begin) > patience {
			t.Fatalf("got %d looks in %v, want 2", looks, patience)
		}
	}
}

// awaitTask waits until slot 0 of the only port runs a task.
func awaitTask(t *testing.T, s *Source, task int) Snapshot {
	t.Helper()
	return await(t, s, fmt.Sprintf("slot 0 with task %d", task), func(n Snapshot) bool {
		slot := slot0(n)
		return slot != nil && slot.Task != nil && *slot.Task == task
	})
}

func awaitIdle(t *testing.T, s *Source) {
	t.Helper()
	await(t, s, "slot 0 idle", func(n Snapshot) bool {
		slot := slot0(n)
		return slot != nil && slot.State == Idle
	})
}

func slot0(n Snapshot) *Slot {
	if len(n.Ports) == 0 || len(n.Ports[0].Slots) == 0 {
		return nil
	}
	return &n.Ports[0].Slots[0]
}

func launchLine(task int) string {
	return fmt.Sprintf("slot launch_slot_: id  0 | task %d | processing task, is_child = 0\n", task)
}

func releaseLine(task int) string {
	return fmt.Sprintf("slot      release: id  0 | task %d | stop processing: n_tokens = 10, truncated = 0\n", task)
}

func readoutLine(task, n int) string {
	return fmt.Sprintf("slot print_timing: id  0 | task %d | n_gen = %6d, tg =  54.33 t/s, tg_3s =  54.64 t/s\n", task, n)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// logFile makes a log with some text and a source that has read it.
func logFile(t *testing.T, text string) (*Source, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, text)
	s := follow(t, SourceOptions{Path: path})
	awaitRead(t, s)
	return s, path
}

func TestAppendedLinesShow(t *testing.T) {
	s, path := logFile(t, "")
	for task := range 20 {
		appendTo(t, path, launchLine(task))
		awaitTask(t, s, task)
		appendTo(t, path, releaseLine(task))
		awaitIdle(t, s)
	}
}

func TestAppendedLinesShowWithoutFileEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, launchLine(1))
	s := followWith(t, SourceOptions{Path: path}, eventless(time.Millisecond))
	awaitTask(t, s, 1)
	appendTo(t, path, launchLine(2))
	awaitTask(t, s, 2)
}

func TestLogTellsWhetherSlotsShareOneContext(t *testing.T) {
	for text, want := range map[string]*bool{
		", kv_unified = 'true'":  new(true),
		", kv_unified = 'false'": new(false),
		", kv_unified = 'maybe'": nil,
		"":                       nil,
	} {
		s, _ := logFile(t, "0.00.221.411 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192"+text+"\n"+
			"0.00.223.281 I srv  llama_server: listening on http://127.0.0.1:9101\n")
		snap := await(t, s, "port 9101 with 4 lanes", func(n Snapshot) bool {
			return len(n.Ports) == 1 && n.Ports[0].Port == 9101 && n.Ports[0].Lanes == 4
		})
		got := snap.Ports[0].KVUnified
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestSlotChangeShowsWithoutWaitingForTheNextLook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, "")
	s := followWith(t, SourceOptions{Path: path}, &watcher{every: time.Hour, make: fsnotify.NewWatcher})
	awaitRead(t, s)
	for task := range 20 {
		appendTo(t, path, launchLine(task))
		await(t, s, "the task", func(n Snapshot) bool {
			x := slot0(n)
			return x != nil && x.Task != nil && *x.Task == task
		})
	}
}

func TestOldLinesSetStatesButTheirTokensAreNoNews(t *testing.T) {
	s, path := logFile(t, launchLine(7)+readoutLine(7, 500))
	snap := awaitTask(t, s, 7)
	if got := *slot0(snap).Decoded; got != 500 {
		t.Errorf("decoded: got %d, want 500", got)
	}
	if got := s.TakeGeneratedTokens(); got != 0 {
		t.Errorf("tokens of old lines: got %d, want 0", got)
	}
	appendTo(t, path, readoutLine(7, 640))
	await(t, s, "640 decoded", func(n Snapshot) bool { return *slot0(n).Decoded == 640 })
	if got := s.TakeGeneratedTokens(); got != 140 {
		t.Errorf("tokens since the start: got %d, want 140", got)
	}
}

func TestLinesBehindWhatWasReadBeforeAreNews(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	before := launchLine(7) + readoutLine(7, 500)
	write(t, path, before+readoutLine(7, 640))
	s := Open(SourceOptions{Path: path, NewsFrom: int64(len(before))})
	t.Cleanup(func() { s.Close() })
	await(t, s, "640 decoded", func(n Snapshot) bool {
		x := slot0(n)
		return x != nil && x.Decoded != nil && *x.Decoded == 640
	})
	if got := s.TakeGeneratedTokens(); got != 140 {
		t.Errorf("tokens behind what was read: got %d, want 140", got)
	}
}

func TestTasksThatEndedInOldLinesAreNoNews(t *testing.T) {
	s, path := logFile(t, launchLine(7)+releaseLine(7)+launchLine(8))
	awaitTask(t, s, 8)
	for range 2 { // the first call lets a record wait for its timings
		if got := s.TakeRecords(); len(got) != 0 {
			t.Errorf("records of old lines: got %+v, want none", got)
		}
	}
	appendTo(t, path, releaseLine(8)+launchLine(9))
	awaitTask(t, s, 9)
	if got := s.TakeRecords(); len(got) != 1 || got[0].Task != 8 {
		t.Errorf("records since the start: got %+v, want that of task 8", got)
	}
}

func TestSlotOfAServerThatDiedLastWeekIsNotShownAsBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, launchLine(9))
	week := time.Now().Add(-7 * 24 * time.Hour)
	if err := os.Chtimes(path, week, week); err != nil {
		t.Fatal(err)
	}
	s := follow(t, SourceOptions{Path: path})
	awaitRead(t, s)
	snap := s.Snapshot(time.Now())
	if got := slot0(snap).State; got != Unknown {
		t.Errorf("state: got %s, want unknown", got)
	}
	if !snap.LastLine.Before(time.Now().Add(-time.Hour)) {
		t.Errorf("last line: got %v, want last week", snap.LastLine)
	}
}

func TestOnlyTheEndOfALongFileIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	text := "srv  llama_server: listening on http://127.0.0.1:9105\n" + launchLine(1) +
		strings.Repeat("srv  noise: nothing to see here\n", 20000) + launchLine(2)
	write(t, path, text)
	s := follow(t, SourceOptions{Path: path, StartBytes: 4096})
	awaitRead(t, s)
	snap := s.Snapshot(time.Now())
	if got := int(snap.Bytes); got > headBytes+4096+1 {
		t.Errorf("bytes read: got %d, want at most %d of %d", got, headBytes+4096+1, len(text))
	}
	if got := *slot0(snap).Task; got != 2 {
		t.Errorf("task: got %d, want 2", got)
	}
	if got := snap.Ports[0].Port; got != 9105 {
		t.Errorf("port, printed at the beginning only: got %d, want 9105", got)
	}
}

func TestALineThatBeginsWhereTheReadBeginsIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	last := launchLine(2)
	write(t, path, launchLine(1)+strings.Repeat("srv  noise: nothing to see here\n", 3000)+last)
	s := follow(t, SourceOptions{Path: path, StartBytes: int64(len(last))})
	awaitTask(t, s, 2)
}

func TestHalfALineIsNotJoinedToAnotherFile(t *testing.T) {
	half := launchLine(1)[:20]
	s, path := logFile(t, half)
	rename(t, path, path+".1")
	write(t, path, launchLine(2))
	awaitTask(t, s, 2)
}

func TestHalfALineSaysNothingUntilItsEnd(t *testing.T) {
	s, path := logFile(t, launchLine(0))
	line := readoutLine(0, 394)
	cut := strings.Index(line, "94,")
	appendTo(t, path, line[:cut])
	snap := await(t, s, "the half line read", func(n Snapshot) bool { return int(n.Bytes) == len(launchLine(0))+cut })
	if got := slot0(snap).Decoded; got != nil {
		t.Errorf("decoded after half a line: got %d, want none", *got)
	}
	appendTo(t, path, line[cut:])
	await(t, s, "394 decoded", func(n Snapshot) bool { d := slot0(n).Decoded; return d != nil && *d == 394 })
}

func TestRenamedFileIsReadToItsEndBeforeTheNewOne(t *testing.T) {
	s, path := logFile(t, launchLine(1))
	rename(t, path, path+".1")
	await(t, s, "the log missing", func(n Snapshot) bool { return n.File == FileMissing })
	appendTo(t, path+".1", readoutLine(1, 100)+releaseLine(1)) // the writer still has it open
	write(t, path, launchLine(2)+readoutLine(2, 30))
	await(t, s, "task 2 with 30 tokens", func(n Snapshot) bool {
		slot := slot0(n)
		return slot.Decoded != nil && *slot.Decoded == 30
	})
	if got := s.TakeGeneratedTokens(); got != 130 {
		t.Errorf("tokens of both files: got %d, want 130", got)
	}
	if got, want := heldFiles(t, filepath.Dir(path)), 1; got != want {
		t.Errorf("files held open: got %d, want %d", got, want)
	}
}

func TestRenamedFileIsFollowedWhileTheNewOneIsEmpty(t *testing.T) {
	// logrotate's create: the writer notices later, or never.
	s, path := logFile(t, launchLine(1))
	rename(t, path, path+".1")
	write(t, path, "")
	awaitLook(t, s)
	appendTo(t, path+".1", launchLine(2))
	awaitTask(t, s, 2)
	appendTo(t, path, launchLine(3))
	awaitTask(t, s, 3)
}

func TestCopytruncateLosesNothingAndRepeatsNothing(t *testing.T) {
	s, path := logFile(t, "")
	appendTo(t, path, strings.Repeat("srv  noise: nothing\n", 500)+launchLine(1)+readoutLine(1, 200))
	awaitTask(t, s, 1)
	before := await(t, s, "200 decoded", func(n Snapshot) bool { d := slot0(n).Decoded; return d != nil && *d == 200 })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, releaseLine(1))
	awaitIdle(t, s)
	if got, want := s.Snapshot(time.Now()).Lines, before.Lines+1; got != want {
		t.Errorf("lines: got %d, want %d", got, want)
	}
	if got := s.TakeGeneratedTokens(); got != 200 {
		t.Errorf("tokens: got %d, want 200", got)
	}
}

func TestCopytruncateUnderAWriterThatKeepsItsOffset(t *testing.T) {
	// llama-server --log-file opens without O_APPEND: after the truncation its next
	// write leaves a hole of NULs before it.
	path := filepath.Join(t.TempDir(), "s.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := follow(t, SourceOptions{Path: path})
	awaitRead(t, s)
	for task := range 5 {
		if _, err := f.WriteString(strings.Repeat("srv  noise: nothing\n", 5000) + launchLine(task)); err != nil {
			t.Fatal(err)
		}
		before := awaitTask(t, s, task)
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(releaseLine(task)); err != nil {
			t.Fatal(err)
		}
		awaitIdle(t, s)
		after := s.Snapshot(time.Now())
		if got, want := after.Lines, before.Lines+1; got != want {
			t.Errorf("lines after truncation %d: got %d, want %d", task, got, want)
		}
		if got, want := after.Bytes, before.Bytes+uint64(len(releaseLine(task))); got != want {
			t.Errorf("bytes after truncation %d: got %d, want %d (the hole is no text)", task, got, want)
		}
	}
}

func TestEachOfManyTruncationsIsSeen(t *testing.T) {
	s, path := logFile(t, "")
	for task := 10; task < 40; task++ { // lines of one length: the size alone says nothing
		write(t, path, launchLine(task))
		awaitTask(t, s, task)
	}
	if got := s.Snapshot(time.Now()).Lines; got != 30 {
		t.Errorf("lines: got %d, want 30", got)
	}
}

func TestMissingFileIsReadFromItsStartOnceItIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	path := filepath.Join(dir, "s.log")
	s := followWith(t, SourceOptions{Path: path}, eventless(5*time.Millisecond))
	snap := await(t, s, "the log missing", func(n Snapshot) bool { return n.File == FileMissing })
	if !snap.Degraded || !strings.Contains(snap.Reason, path) {
		t.Errorf("degraded, reason: got %v, %q, want true with the path", snap.Degraded, snap.Reason)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, path, launchLine(1)+readoutLine(1, 100))
	await(t, s, "100 decoded", func(n Snapshot) bool {
		slot := slot0(n)
		return slot != nil && slot.Decoded != nil && *slot.Decoded == 100
	})
	if got := s.TakeGeneratedTokens(); got != 100 {
		t.Errorf("tokens: got %d, want 100", got)
	}
	if snap := s.Snapshot(time.Now()); snap.Degraded || snap.File != FileOpen {
		t.Errorf("degraded, file: got %v, %s, want false, open", snap.Degraded, snap.File)
	}
}

func TestUnreadableFileIsReadOnceItCanBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.log")
	var allow func()
	if os.Getuid() == 0 { // root reads everything but a folder
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		allow = func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, launchLine(1))
		}
	} else {
		write(t, path, launchLine(1))
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		allow = func() {
			if err := os.Chmod(path, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := follow(t, SourceOptions{Path: path})
	await(t, s, "the log unreadable", func(n Snapshot) bool { return n.File == FileUnreadable && n.Err != nil })
	allow()
	awaitTask(t, s, 1)
}

func TestDeletedFileIsReportedAndItsSuccessorRead(t *testing.T) {
	s, path := logFile(t, launchLine(1))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the log missing", func(n Snapshot) bool { return n.File == FileMissing })
	write(t, path, launchLine(2))
	awaitTask(t, s, 2)
	if got := s.Snapshot(time.Now()).Err; got != nil {
		t.Errorf("error: got %v, want none", got)
	}
}

func TestLooksAtAMissingFileLeaveNothingBehind(t *testing.T) {
	s := followWith(t, SourceOptions{Path: filepath.Join(t.TempDir(), "no", "s.log")}, &watcher{every: time.Millisecond, make: fsnotify.NewWatcher})
	await(t, s, "the log missing", func(n Snapshot) bool { return n.File == FileMissing })
	files, routines := openDescriptors(t), runtime.NumGoroutine()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 200 {
		<-tick.C
	}
	if got := openDescriptors(t); got > files {
		t.Errorf("descriptors: got %d, want %d", got, files)
	}
	if got := runtime.NumGoroutine(); got > routines {
		t.Errorf("goroutines: got %d, want %d", got, routines)
	}
}

func TestServerThatStartsAnewInTheSameFileBeginsEmpty(t *testing.T) {
	s, path := logFile(t, "9.02.656.111 I slot launch_slot_: id  0 | task 900 | processing task, is_child = 0\n")
	awaitTask(t, s, 900)
	write(t, path, string(readFile(t, "testdata/busy-0.4.0.log")))
	snap := await(t, s, "port 9101 with two idle slots", func(n Snapshot) bool {
		return len(n.Ports) == 1 && n.Ports[0].Port == 9101 && len(n.Ports[0].Slots) == 2 &&
			n.Ports[0].Slots[0].State == Idle && n.Ports[0].Slots[1].State == Idle
	})
	if got := snap.Ports[0]; got.Lanes != 2 || got.LaneContext != 8192 {
		t.Errorf("lanes, context: got %d, %d, want 2, 8192", got.Lanes, got.LaneContext)
	}
	if got := s.TakeGeneratedTokens(); got != captures[0].tokens {
		t.Errorf("tokens: got %d, want %d", got, captures[0].tokens)
	}
}

func TestCloseTwiceIsFine(t *testing.T) {
	s := Open(SourceOptions{Name: "n", Path: filepath.Join(t.TempDir(), "s.log")})
	if got := s.Snapshot(time.Now()).Name; got != "n" {
		t.Errorf("name: got %q, want n", got)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: got %v, want nil", err)
		}
	}
}

// hungFiles is a file system that answers nothing until it is released.
type hungFiles struct {
	fileSystem
	asked    atomic.Int32
	released chan struct{}
}

func (h *hungFiles) stat(path string) (fs.FileInfo, error) {
	h.asked.Add(1)
	<-h.released
	return nil, fs.ErrNotExist
}

func TestCloseDoesNotWaitForAFileSystemThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := &hungFiles{released: make(chan struct{})}
		s := openWith(SourceOptions{Path: "/s.log"}, eventless(time.Second), hung)
		time.Sleep(3 * time.Second) // looks are due, too
		begin := time.Now()
		if err := s.Close(); err != nil {
			t.Errorf("close: got %v, want nil", err)
		}
		if got := time.Since(begin); got != closeLimit {
			t.Errorf("waited %v, want %v", got, closeLimit)
		}
		close(hung.released)
		<-s.done
		if got := hung.asked.Load(); got != 1 {
			t.Errorf("looks: got %d, want none after the one that hung", got)
		}
	})
}

// descriptors returns where the process's open descriptors lead.
func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	var out []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out = append(out, to)
		}
	}
	return out
}

func openDescriptors(t *testing.T) int { return len(descriptors(t)) }

func heldFiles(t *testing.T, dir string) int {
	n := 0
	for _, to := range descriptors(t) {
		if strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}
