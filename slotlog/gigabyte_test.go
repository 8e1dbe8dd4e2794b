package slotlog

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// readEnv names the log that the test binary reads instead of testing, so that the
// figures are those of a whole process.
const readEnv = "SLOTLOG_READ"

// readWhole is that process: a Reader and a Tracker over one file.
func readWhole(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, tr := NewReader(SourceOptions{}), NewTracker()
	buf := make([]byte, chunkBytes)
	for {
		n, err := f.Read(buf)
		r.FeedTo(tr, buf[:n], time.Now())
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	st := r.Stats()
	fmt.Printf("%d lines, %d about slots, %d tokens\n", st.Lines, st.Framed, tr.TakeGeneratedTokens())
	return nil
}

// gigabyte writes the busy and the router captures again and again until there are
// 1 GiB of them.
func gigabyte(b *testing.B) (path string, size int64) {
	path = filepath.Join(b.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	var once []byte
	for _, name := range []string{"busy-0.4.0", "busy-b6673", "router-0.4.0"} {
		once = append(once, readFile(b, "testdata/"+name+".log")...)
	}
	for size < 1<<30 {
		n, err := w.Write(once)
		if err != nil {
			b.Fatal(err)
		}
		size += int64(n)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return path, size
}

// BenchmarkGigabyte reads 1 GiB in a process of its own, and has wc and grep read the
// same file in turns. GB/cpu-s is by the processor time of the process, which a busy
// machine disturbs less than the clock.
func BenchmarkGigabyte(b *testing.B) {
	path, size := gigabyte(b)
	commands := []struct {
		name string
		make func() *exec.Cmd
	}{
		{"slotlog", func() *exec.Cmd {
			c := exec.Command(os.Args[0]) //nolint:gosec // this test binary
			c.Env = append(os.Environ(), readEnv+"="+path)
			return c
		}},
		{"wc -l", func() *exec.Cmd { return exec.Command("wc", "-l", path) }},
		{"grep -c slot", func() *exec.Cmd { return exec.Command("grep", "-c", "slot ", path) }},
	}
	for _, command := range commands {
		b.Run(command.name, func(b *testing.B) {
			if _, err := exec.LookPath(command.make().Path); err != nil {
				b.Skipf("no %s here: %v", command.name, err)
			}
			var cpu time.Duration
			for b.Loop() {
				c := command.make()
				if out, err := c.CombinedOutput(); err != nil {
					b.Fatalf("%s: %v: %s", command.name, err, out)
				}
				cpu += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
			}
			b.SetBytes(size)
			b.ReportMetric(float64(size)*float64(b.N)/cpu.Seconds()/1e9, "GB/cpu-s")
		})
	}
}
