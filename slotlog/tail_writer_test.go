//go:build unix

package slotlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process of its own writes the log, as a llama-server does: it is killed, its log is
// renamed and emptied under it, and the count of its tokens has to stay exact.

const writerEnv = "SLOTLOG_TEST_WRITER"

// init is the writer. It writes a task for each line of its standard input, each with
// its number of tokens, and says on its standard output when that is done. SIGHUP has
// it open its log again.
func init() {
	path, ok := os.LookupEnv(writerEnv)
	if !ok {
		return
	}
	flags := os.O_CREATE | os.O_WRONLY
	if os.Getenv(writerEnv+"_APPEND") != "" {
		flags |= os.O_APPEND
	}
	open := func() *os.File {
		f, err := os.OpenFile(path, flags, 0o644)
		if err != nil {
			panic(err)
		}
		return f
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	f := open()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		select {
		case <-hup:
			f.Close()
			f = open()
		default:
		}
		var task, tokens int
		fmt.Sscan(in.Text(), &task, &tokens)
		f.WriteString(launchLine(task))
		for n := 100; n < tokens; n += 100 {
			f.WriteString(readoutLine(task, n))
		}
		f.WriteString(readoutLine(task, tokens) + releaseLine(task))
		fmt.Println(task)
	}
	os.Exit(0)
}

type logWriter struct {
	t    *testing.T
	path string
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Scanner
	more []string
}

func (w *logWriter) start() {
	w.t.Helper()
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(append(os.Environ(), writerEnv+"="+w.path), w.more...)
	in, err := w.cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.in, w.out = in, bufio.NewScanner(out)
}

func (w *logWriter) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// run has a task written and waits for that.
func (w *logWriter) run(task, tokens int) {
	w.t.Helper()
	fmt.Fprintf(w.in, "%d %d\n", task, tokens)
	if !w.out.Scan() || w.out.Text() != strconv.Itoa(task) {
		w.t.Fatalf("the writer said %q, want %d", w.out.Text(), task)
	}
}

// awaitTasks waits until as many tasks are read as were written.
func awaitTasks(t *testing.T, s *Source, releases uint64) {
	t.Helper()
	await(t, s, fmt.Sprintf("%d lines", releases), func(n Snapshot) bool { return n.Lines >= releases })
}

func TestTokensStayExactWhateverHappensToServerAndLog(t *testing.T) {
	for name, more := range map[string][]string{"append": {writerEnv + "_APPEND=1"}, "own offset": nil} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.log")
			w := &logWriter{t: t, path: path, more: more}
			w.start()
			defer func() { w.kill() }()
			s := follow(t, SourceOptions{Path: path})
			awaitRead(t, s)
			var tokens int64
			var lines, before uint64 // of all, and without the last task
			task := 0
			write := func() {
				task++
				n := 100 + 37*(task%20)
				w.run(task, n)
				tokens += int64(n)
				before, lines = lines, lines+2+uint64((n+99)/100)
			}
			for round := range 30 {
				write()
				write()
				switch round % 5 {
				case 0: // kill -9, and a new server in the same file
					awaitTasks(t, s, lines)
					w.kill()
					if len(more) == 0 {
						// As fopen(…, "w") does; a writer that was told to open its log again may not have heard it.
						if err := os.Truncate(path, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
							t.Fatal(err)
						}
					}
					w.start()
				case 1: // rename and create, and the server is told
					// The server of the round before may have made the file just now: one that comes
					// and goes between two looks is never seen.
					awaitTasks(t, s, before)
					if err := os.Rename(path, fmt.Sprint(path, ".", round)); err != nil {
						t.Fatal(err)
					}
					write() // into the renamed file
					if err := w.cmd.Process.Signal(syscall.SIGHUP); err != nil {
						t.Fatal(err)
					}
					write() // the signal may come later than this line
				case 2, 3: // copytruncate
					awaitTasks(t, s, lines)
					if err := os.Truncate(path, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
						t.Fatal(err)
					}
				case 4: // nothing
				}
			}
			awaitTasks(t, s, lines)
			snap := s.Snapshot(time.Now())
			if got := s.TakeGeneratedTokens(); got != tokens {
				t.Errorf("tokens: got %d, want %d", got, tokens)
			}
			if snap.Lines != lines || snap.Unknown != 0 {
				t.Errorf("lines, unknown: got %d, %d, want %d, 0", snap.Lines, snap.Unknown, lines)
			}
			if held := heldFiles(t, filepath.Dir(path)); held != 1 {
				t.Errorf("files held open: got %d, want 1 of %s", held, strings.Join(descriptors(t), " "))
			}
		})
	}
}
