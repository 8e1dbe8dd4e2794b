package slotlog

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	// drainLimit is how long after a program's end its output is still read: a
	// process that it left behind may hold the other end of the pipe.
	drainLimit = time.Second

	// maxComplaint is how much is kept of what a program says on standard error.
	maxComplaint = 200
)

// program is a program whose output is a log. It runs in a process group of its own,
// which is killed at the end.
type program struct {
	name      string
	cmd       *exec.Cmd
	out       *os.File
	complaint complaint
	exited    chan struct{} // closed when it ended and err is set
	err       error
	closed    sync.Once
}

// startProgram runs argv, without a shell. With both, its standard error is part of
// the log; else the first line of it is told when the program ends.
func startProgram(argv []string, both bool) (*program, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p := &program{name: argv[0], cmd: exec.Command(argv[0], argv[1:]...), out: out, exited: make(chan struct{})}
	p.cmd.Stdout = in
	p.cmd.Stderr = &p.complaint
	if both {
		p.cmd.Stderr = in
	}
	p.cmd.WaitDelay = drainLimit
	ownGroup(p.cmd)
	if err := p.cmd.Start(); err != nil {
		_ = out.Close()
		return nil, err
	}
	go func() {
		defer close(p.exited)
		p.err = p.cmd.Wait()
		killGroup(p.cmd)
		_ = out.SetReadDeadline(time.Now().Add(drainLimit))
	}()
	return p, nil
}

// Read reads the output. Its end is an error that says how the program ended.
func (p *program) Read(b []byte) (int, error) {
	n, err := p.out.Read(b)
	if err == nil {
		return n, nil
	}
	p.kill() // it closed its output
	return n, p.verdict()
}

func (p *program) verdict() error {
	how := "it ended"
	if p.err != nil {
		how = p.err.Error()
	}
	if said := p.complaint.String(); said != "" {
		return fmt.Errorf("%s: %s: %s", p.name, how, said)
	}
	return fmt.Errorf("%s: %s", p.name, how)
}

// Close kills the program and waits for its end.
func (p *program) Close() error {
	p.closed.Do(func() {
		p.kill()
		_ = p.out.Close()
	})
	return nil
}

// kill ends the group and waits. The number of one that ended may be another's.
func (p *program) kill() {
	select {
	case <-p.exited:
	default:
		killGroup(p.cmd)
		<-p.exited
	}
}

func (p *program) check() error { return nil }

// complaint keeps the first line that is written to it, as far as it can be shown.
type complaint struct {
	mu   sync.Mutex
	text []byte
	full bool
}

// Write never fails.
func (c *complaint) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	if c.full {
		return n, nil
	}
	line, _, ended := bytes.Cut(b, []byte("\n"))
	c.text = append(c.text, line[:min(len(line), maxComplaint-len(c.text))]...)
	c.full = ended && len(bytes.TrimSpace(c.text)) > 0 || len(c.text) == maxComplaint
	return n, nil
}

func (c *complaint) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(c.text), "?")))
}

// Interface guards.
var (
	_ streamReader = (*program)(nil)
	_ io.Writer    = (*complaint)(nil)
)
