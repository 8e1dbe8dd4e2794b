//go:build unix

package slotlog

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeProgram puts a shell script into PATH under a name. The script finds the folder
// it may use as $DIR.
func fakeProgram(t *testing.T, name, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text := "#!/bin/sh\nDIR=" + dir + "\n" + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return dir
}

func TestProgramsAreReadAsTheyPrint(t *testing.T) {
	for _, tt := range []struct {
		o    SourceOptions
		name string
		args string
		to   string // the output that is the log
	}{
		{SourceOptions{Kind: SourceJournald, Target: "llama.service"}, "journalctl", "--follow --lines=0 --output=cat --all --quiet --no-pager --unit=llama.service", "1"},
		{SourceOptions{Kind: SourceDocker, Target: "llama"}, "docker", "logs --follow --tail=0 llama", "1"},
		{SourceOptions{Kind: SourceDocker, Target: "llama"}, "docker", "logs --follow --tail=0 llama", "2"},
		{SourceOptions{Kind: SourceKubectl, Target: "llama-0"}, "kubectl", "logs --follow --tail=0 llama-0", "1"},
		{SourceOptions{Kind: SourceCommand, Args: []string{"anything", "$HOME", "a b;"}}, "anything", "$HOME a b;", "1"},
	} {
		t.Run(string(tt.o.Kind)+tt.to, func(t *testing.T) {
			dir := fakeProgram(t, tt.name, fmt.Sprintf(`printf %%s "$*" > $DIR/args
printf '%%s' '%s' >&%s
exec sleep 1000`, launchLine(7), tt.to))
			s := follow(t, tt.o)
			awaitTask(t, s, 7)
			if got := string(readFile(t, filepath.Join(dir, "args"))); got != tt.args {
				t.Errorf("arguments: got %q, want %q", got, tt.args)
			}
		})
	}
}

// A program that ended is started again; what it printed before counts once, and what
// ran meanwhile is not known any more.
func TestProgramThatEndsIsStartedAgain(t *testing.T) {
	fakeProgram(t, "journalctl", fmt.Sprintf(`if [ -e $DIR/once ]; then
	printf '%%s' '%s'
	exec sleep 1000
fi
touch $DIR/once
printf '%%s' '%s'
echo "no journal here" >&2
echo "more of it" >&2
exit 3`, launchLine(2)+readoutLine(2, 40), launchLine(1)+readoutLine(1, 100)+"half a li"))
	s := follow(t, SourceOptions{Kind: SourceJournald, Target: "u"})
	snap := await(t, s, "the end of the program", func(n Snapshot) bool { return n.File == FileEnded })
	if !snap.Degraded || !strings.Contains(snap.Reason, "exit status 3") || !strings.Contains(snap.Reason, "no journal here") || strings.Contains(snap.Reason, "more of it") {
		t.Errorf("degraded, reason: got %v, %q, want the status and the first line of what it said", snap.Degraded, snap.Reason)
	}
	if slot0(snap) != nil {
		t.Errorf("slot: got %+v, want none", slot0(snap))
	}
	awaitTask(t, s, 2)
	snap = await(t, s, "40 decoded", func(n Snapshot) bool { d := slot0(n).Decoded; return d != nil && *d == 40 })
	if got := s.TakeGeneratedTokens(); got != 140 {
		t.Errorf("tokens: got %d, want 140", got)
	}
	if snap.Restarts != 1 || snap.Resyncs != 1 || snap.Degraded {
		t.Errorf("restarts, resyncs, degraded: got %d, %d, %v, want 1, 1, false", snap.Restarts, snap.Resyncs, snap.Degraded)
	}
}

func TestProgramThatIsNotThereIsToldByName(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := follow(t, SourceOptions{Kind: SourceKubectl, Target: "pod"})
	snap := await(t, s, "an error", func(n Snapshot) bool { return n.Err != nil })
	if !strings.Contains(snap.Reason, "kubectl") || !strings.Contains(snap.Reason, "not found") {
		t.Errorf("reason: got %q, want that kubectl was not found", snap.Reason)
	}
}

// What a program started ends with it, though it ignores every polite signal.
func TestCloseEndsAllThatAProgramStarted(t *testing.T) {
	dir := fakeProgram(t, "docker", `trap '' TERM INT HUP
sleep 1000 &
echo $! > $DIR/child
mv $DIR/child $DIR/pid
while :; do sleep 1000; done`)
	s := follow(t, SourceOptions{Kind: SourceDocker, Target: "c"})
	var pid int
	waitFor(t, "the child of the program", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "pid"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the child to end", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// waitFor waits for a condition of the system that nothing tells of.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func fifoAt(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("no FIFO here: %v", err)
	}
	return path
}

// writeFIFO writes as a program does that opens the pipe, writes and closes it.
func writeFIFO(t *testing.T, path, text string) {
	t.Helper()
	c := exec.Command("sh", "-c", `cat > "$0"`, path)
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("writing the FIFO: %v\n%s", err, out)
	}
}

func TestFIFOIsReadWhateverWritersComeAndGo(t *testing.T) {
	path := fifoAt(t)
	s := follow(t, SourceOptions{Kind: SourceFIFO, Path: path})
	for task := range 5 {
		writeFIFO(t, path, launchLine(task)+readoutLine(task, 10))
		awaitTask(t, s, task)
	}
	await(t, s, "10 decoded", func(n Snapshot) bool { d := slot0(n).Decoded; return d != nil && *d == 10 })
	if got := s.TakeGeneratedTokens(); got != 50 {
		t.Errorf("tokens: got %d, want 50", got)
	}
	if got := s.Snapshot(time.Now()).Resyncs; got != 0 {
		t.Errorf("resyncs: got %d, want 0", got)
	}
}

func TestFIFOThatIsMadeAnewIsReadAgain(t *testing.T) {
	path := fifoAt(t)
	s := follow(t, SourceOptions{Kind: SourceFIFO, Path: path})
	writeFIFO(t, path, launchLine(1))
	awaitTask(t, s, 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the FIFO missing", func(n Snapshot) bool { return n.File == FileMissing })
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, s, "the FIFO open", func(n Snapshot) bool { return n.File == FileOpen })
	writeFIFO(t, path, launchLine(2))
	awaitTask(t, s, 2)
}

func TestFIFOThatIsNoneIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plain")
	write(t, path, launchLine(1))
	s := follow(t, SourceOptions{Kind: SourceFIFO, Path: path})
	snap := await(t, s, "an error", func(n Snapshot) bool { return n.Err != nil })
	if !strings.Contains(snap.Reason, "is no FIFO") {
		t.Errorf("reason: got %q, want that it is no FIFO", snap.Reason)
	}
}

// A writer whose reader is gone is ended by a broken pipe: it does not wait for ever.
func TestWriterOfAFIFOIsNotHeldWhenTheSourceCloses(t *testing.T) {
	path := fifoAt(t)
	s := follow(t, SourceOptions{Kind: SourceFIFO, Path: path})
	await(t, s, "the FIFO open", func(n Snapshot) bool { return n.File == FileOpen })
	c := exec.Command("sh", "-c", `exec yes "srv  noise: nothing" > "$0"`, path)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, s, "some lines", func(n Snapshot) bool { return n.Lines > 1000 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		_ = c.Process.Kill()
		<-ended
		t.Fatal("the writer waits for a reader that is gone")
	}
}

// The standard input belongs to one source after the other, and nobody's lines hold
// the writer.
func TestStandardInputGoesToWhoeverReadsIt(t *testing.T) {
	r, w := io.Pipe()
	in := &input{from: r}
	read := func() (*Source, func()) {
		s := &Source{o: SourceOptions{Kind: SourceStdin}.withDefaults(), stop: make(chan struct{}), done: make(chan struct{}), subs: map[chan struct{}]int{}, file: FilePending}
		s.reader, s.tracker = NewReader(s.o), NewTracker()
		st := newStream(s.o, s, s.stop)
		st.open = in.open
		go func() {
			defer close(s.done)
			st.run()
		}()
		return s, func() { s.Close() }
	}
	one, stop := read()
	await(t, one, "the input open", func(n Snapshot) bool { return n.File == FileOpen })
	fmt.Fprint(w, launchLine(1))
	awaitTask(t, one, 1)
	stop()
	fmt.Fprint(w, launchLine(2))            // returns, though nobody wants it
	if _, err := w.Write(nil); err != nil { // taken only once the line before was dealt with
		t.Fatal(err)
	}
	two, stop := read()
	defer stop()
	await(t, two, "the input open", func(n Snapshot) bool { return n.File == FileOpen })
	fmt.Fprint(w, launchLine(3))
	awaitTask(t, two, 3)
	w.Close()
	snap := await(t, two, "the end of the input", func(n Snapshot) bool { return n.File == FileEnded })
	if got := snap.Lines; got != 1 {
		t.Errorf("lines of the second source: got %d, want 1", got)
	}
}
