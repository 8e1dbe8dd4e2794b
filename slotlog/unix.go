//go:build unix

package slotlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// onUnix says whether there are FIFOs and process groups.
const onUnix = true

func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends a program and all it started that stayed in its group.
func killGroup(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }

var errOtherFIFO = errors.New("another one took its place")

// fifo is a named pipe, open at both ends: so opening it does not wait for a writer,
// and there is no end when one leaves.
type fifo struct {
	*os.File
	path string
	held fs.FileInfo
}

func openFIFO(path string) (streamReader, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeNamedPipe == 0 {
		return nil, fmt.Errorf("%s is no FIFO: make one with mkfifo", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("a FIFO is opened for reading and writing: %w", err)
	}
	held, err := f.Stat()
	if err == nil && held.Mode()&fs.ModeNamedPipe == 0 {
		err = errOtherFIFO
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &fifo{f, path, held}, nil
}

// check notices a FIFO that was removed or made anew: whoever opens it writes to
// another one.
func (f *fifo) check() error {
	now, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if !os.SameFile(now, f.held) {
		return errOtherFIFO
	}
	return nil
}
