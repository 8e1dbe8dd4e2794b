package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/slotlog"
)

var readLogCommand = subcommand{
	use:   "read-log [--port <number>] [--json] [--follow] <file>",
	short: "Reads the log of a llama-server and prints the state of its slots",
	long: `
Reads a llama-server log (or a router's, or what is piped in when <file> is "-")
and prints the state that it leaves each slot in, how many tokens were generated
by what it shows, and how many lines were understood. Lines about a slot whose
words are not known are shown, with their numbers taken out.

--port shows the server on that port alone. A log of a single server often does
not say its port; its lines then count as that server's.

--follow goes on and prints what changes, until interrupted (or, for "-", until
the input ends). With --json each change is a line of JSON.

Exit codes:
  0  the log was read, whatever it says
  1  it could not be read
`,
	args: cobra.ExactArgs(1),
	flags: func(cmd *cobra.Command) {
		cmd.Flags().Int("port", 0, "Show the server on this port only")
		cmd.Flags().BoolP("follow", "f", false, "Go on and print what changes")
		jsonFlag(cmd)
	},
	run: cmdReadLog,
}

func cmdReadLog(fl caddycmd.Flags) (int, error) {
	c := logCommand{path: fl.Arg(0), port: fl.Int("port"), follow: fl.Bool("follow"), out: os.Stdout}
	if c.port < 0 || c.port > 65535 {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("--port %d: a port is a number from 1 to 65535", c.port)
	}
	c.print = printSlots
	if fl.Bool("json") {
		c.print = printSlotsJSON
	}
	ctx := context.Background()
	if c.follow && c.path != "-" {
		// Otherwise an interrupt ends the process, as with any command that reads.
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	if err := c.run(ctx); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// logCommand is one call of the command.
type logCommand struct {
	path   string
	port   int // 0: all
	follow bool
	out    io.Writer
	print  func(io.Writer, logReport) error
}

func (c logCommand) run(ctx context.Context) error {
	in := io.Reader(os.Stdin)
	if c.path != "-" {
		f, err := os.Open(c.path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("log %s does not exist", printable(c.path))
		} else if err != nil {
			return fmt.Errorf("opening the log: %w", err)
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return fmt.Errorf("%s is a folder: name the file in it", printable(c.path))
		}
		in = f
	}
	read := newLogReading(c.port)
	var size int64
	buf := make([]byte, 256<<10)
	for {
		n, err := in.Read(buf)
		read.feed(buf[:n], time.Now())
		size += int64(n)
		if err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("reading %s: %w", printable(c.path), err)
		}
		if c.follow && c.path == "-" {
			if err := c.print(c.out, read.changes(time.Now())); err != nil {
				return err
			}
		}
	}
	tail := c.follow && c.path != "-"
	if !tail && len(read.part) > 0 {
		read.feed([]byte("\n"), time.Now()) // the last line lacks its end
	}
	if err := c.print(c.out, read.report(time.Now())); err != nil || !tail {
		return err
	}
	return c.tail(ctx, read, size)
}

// tail follows the file, of which so many bytes were read, and prints what changes.
func (c logCommand) tail(ctx context.Context, read *logReading, size int64) error {
	path, err := filepath.Abs(c.path)
	if err != nil {
		return fmt.Errorf("following %s: %w", printable(c.path), err)
	}
	// What came since it was read is news, of an empty file all.
	s := slotlog.Open(slotlog.SourceOptions{Path: path, Port: read.fixedPort(), NewsFrom: max(1, size)})
	defer s.Close()
	changed, cancel := s.Subscribe()
	defer cancel()
	silence := time.NewTicker(5 * time.Second) // a slot nobody speaks of becomes unknown
	defer silence.Stop()
	var trouble string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-silence.C:
		}
		now := time.Now()
		snap := s.Snapshot(now)
		if snap.LookedAt.IsZero() && snap.Error == "" {
			continue // it has not read to the end yet, and shows the past
		}
		if snap.Error != trouble {
			trouble = snap.Error
			if trouble != "" {
				fmt.Fprintln(os.Stderr, printable(trouble))
			}
		}
		r := logReport{At: now, Change: true, Ports: read.changed.of(onlyPort(snap.Ports, c.port))}
		r.Tokens, r.Requests = s.TakeGeneratedTokens(), requestsOf(s.TakeRecords(), c.port)
		if err := c.print(c.out, r); err != nil {
			return err
		}
	}
}
