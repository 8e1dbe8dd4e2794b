package slotlog

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// SourceKind is where a log comes from.
type SourceKind string

// The kinds. Of all but SourceFile only lines are read that are written from then on.
const (
	// SourceFile is a file at Path, followed through whatever rotates it.
	SourceFile SourceKind = "file"

	// SourceFIFO is a named pipe at Path, which somebody else makes. It has to be
	// readable and writable: a pipe with no reader ends whoever writes to it, so it
	// is held open at both ends from Open to Close. While the source is closed, a
	// writer waits, or is ended by a broken pipe. Unix only.
	SourceFIFO SourceKind = "fifo"

	// SourceStdin is the standard input of this process. It is read from the first
	// use to its end; what comes while no source has it is lost, so that whoever
	// writes never waits for one.
	SourceStdin SourceKind = "stdin"

	// SourceJournald is the journal of the systemd unit Target. Unix only.
	SourceJournald SourceKind = "journald"

	// SourceDocker is what the container Target prints, as `docker logs` has it.
	SourceDocker SourceKind = "docker"

	// SourceKubectl is what the pod Target prints, as `kubectl logs` has it.
	SourceKubectl SourceKind = "kubectl"

	// SourceCommand is what the program Args prints to its standard output.
	SourceCommand SourceKind = "command"
)

const (
	maxTarget   = 253
	maxArgs     = 64
	maxArgBytes = 4096
)

// Check says what is wrong with the options, without a look at the system: nothing is
// opened or run.
func (o SourceOptions) Check() error {
	o = o.withDefaults()
	if !onUnix && (o.Kind == SourceFIFO || o.Kind == SourceJournald) {
		return fmt.Errorf("a source of kind %s needs a Unix system", o.Kind)
	}
	if err := o.checkUnused(); err != nil {
		return err
	}
	switch o.Kind {
	case SourceFile, SourceFIFO:
		return checkPath(o.Path)
	case SourceStdin:
		return nil
	case SourceJournald:
		return checkTarget("unit", o.Target, "-_.:@\\")
	case SourceDocker:
		return checkTarget("container", o.Target, "-_.")
	case SourceKubectl:
		return checkTarget("pod", o.Target, "-.")
	case SourceCommand:
		return checkArgs(o.Args)
	}
	return fmt.Errorf("unknown kind of source %q", o.Kind)
}

// checkUnused refuses what the kind has no use for.
func (o SourceOptions) checkUnused() error {
	switch {
	case o.Path != "" && o.Kind != SourceFile && o.Kind != SourceFIFO:
		return fmt.Errorf("a source of kind %s takes no path", o.Kind)
	case o.Target != "" && o.Kind != SourceJournald && o.Kind != SourceDocker && o.Kind != SourceKubectl:
		return fmt.Errorf("a source of kind %s takes no target", o.Kind)
	case len(o.Args) > 0 && o.Kind != SourceCommand:
		return fmt.Errorf("a source of kind %s takes no arguments", o.Kind)
	}
	return nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return errors.New("the path is empty")
	case strings.ContainsRune(path, 0):
		return errors.New("the path holds a zero byte")
	case !filepath.IsAbs(path):
		return fmt.Errorf("the path %q is relative: write the whole path", path)
	case strings.HasSuffix(path, "/"):
		return fmt.Errorf("%s is a folder: name the file in it", path)
	}
	return nil
}

// checkTarget lets through names that a program cannot take for an option or a
// pattern. Besides ASCII letters and digits they may hold the marks.
func checkTarget(what, name, marks string) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", what)
	case len(name) > maxTarget:
		return fmt.Errorf("the name of the %s has %d bytes: at most %d are possible", what, len(name), maxTarget)
	case name[0] == '-' || name[0] == '.':
		return fmt.Errorf("the name of the %s, %q, begins with %q", what, name, name[0])
	}
	for _, r := range name {
		plain := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !plain && !strings.ContainsRune(marks, r) {
			return fmt.Errorf("the name of the %s, %q, holds %q: letters, digits and %s are possible", what, name, r, marks)
		}
	}
	return nil
}

func checkArgs(args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return errors.New("the command is empty")
	case args[0][0] == '-':
		return fmt.Errorf("the program of the command, %q, begins with a dash", args[0])
	case len(args) > maxArgs:
		return fmt.Errorf("the command has %d words: at most %d are possible", len(args), maxArgs)
	}
	for _, a := range args {
		if len(a) > maxArgBytes || strings.ContainsRune(a, 0) {
			return fmt.Errorf("a word of the command is longer than %d bytes, or holds a zero byte", maxArgBytes)
		}
	}
	return nil
}

// String names the log for people: "file /var/log/llama.log", "journald llama.service",
// "command ssh". Of a command only the program is told.
func (o SourceOptions) String() string {
	o.Kind = cmp.Or(o.Kind, SourceFile)
	switch o.Kind {
	case SourceStdin:
		return string(o.Kind)
	case SourceCommand:
		return string(o.Kind) + " " + strings.Join(o.Args[:min(1, len(o.Args))], "")
	}
	return string(o.Kind) + " " + o.Path + o.Target
}

// Key is equal for options that name one and the same log.
func (o SourceOptions) Key() string {
	path := o.Path
	if path != "" {
		path = filepath.Clean(path)
	}
	return strings.Join(append([]string{string(cmp.Or(o.Kind, SourceFile)), path, o.Target}, o.Args...), "\x00")
}

// program is the command line by which a log is read; nil: no program reads it. For
// docker both of its outputs are the log, since it keeps the container's apart.
func (o SourceOptions) program() (argv []string, both bool) {
	switch o.Kind {
	case SourceJournald:
		// Without --all, lines with a control character are shown as "blob data".
		return []string{
			"journalctl", "--follow", "--lines=0", "--output=cat", "--all", "--quiet", "--no-pager", "--unit=" + o.Target,
		}, false
	case SourceDocker:
		return []string{"docker", "logs", "--follow", "--tail=0", o.Target}, true
	case SourceKubectl:
		return []string{"kubectl", "logs", "--follow", "--tail=0", o.Target}, false
	case SourceCommand:
		return o.Args, false
	}
	return nil, false
}
