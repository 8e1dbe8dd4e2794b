package caddymodule

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/slotlog"
)

// LogSource is one log. Exactly one of the fields that say where it comes from is
// set. Placeholders such as `{env.LLAMA_LOG}` are expanded in all but the name.
type LogSource struct {
	// What the source is called in answers and metrics. Required, unique.
	Name string `json:"name,omitempty"`

	// The whole path of a log file. It need not exist yet, and may be rotated in any
	// way.
	File string `json:"file,omitempty"`

	// The whole path of a FIFO, readable and writable for Caddy. Unix only.
	FIFO string `json:"fifo,omitempty"`

	// Caddy's own standard input. Default: false.
	Stdin bool `json:"stdin,omitempty"`

	// The name of a systemd unit whose journal is read with `journalctl`. Unix only.
	Journald string `json:"journald,omitempty"`

	// The name of a container whose output is read with `docker logs`.
	Docker string `json:"docker,omitempty"`

	// The name of a pod whose output is read with `kubectl logs`.
	Kubectl string `json:"kubectl,omitempty"`

	// A program and its arguments, run without a shell, whose standard output is the
	// log. Only where Caddy was started with `SLOTFLEET_ALLOW_COMMANDS=1` in its
	// environment.
	Command []string `json:"command,omitempty"`

	// The llama-server that writes the log, as the address of a node is written. It is
	// asked once for the state of its slots when the log does not tell. Default: none.
	Server string `json:"server,omitempty"`

	// The API key that the server wants. Default: none.
	Key string `json:"key,omitempty"`
}

// allowCommands says whether sources may run any program. It is set when the process
// starts, so that no configuration can allow it to itself.
var allowCommands = os.Getenv("SLOTFLEET_ALLOW_COMMANDS") == "1"

// given lists the ways in which the source says where its log comes from.
func (s *LogSource) given() []slotlog.SourceOptions {
	var all []slotlog.SourceOptions
	add := func(set bool, o slotlog.SourceOptions) {
		if set {
			all = append(all, o)
		}
	}
	add(s.File != "", slotlog.SourceOptions{Kind: slotlog.SourceFile, Path: s.File})
	add(s.FIFO != "", slotlog.SourceOptions{Kind: slotlog.SourceFIFO, Path: s.FIFO})
	add(s.Stdin, slotlog.SourceOptions{Kind: slotlog.SourceStdin})
	add(s.Journald != "", slotlog.SourceOptions{Kind: slotlog.SourceJournald, Target: s.Journald})
	add(s.Docker != "", slotlog.SourceOptions{Kind: slotlog.SourceDocker, Target: s.Docker})
	add(s.Kubectl != "", slotlog.SourceOptions{Kind: slotlog.SourceKubectl, Target: s.Kubectl})
	add(len(s.Command) > 0, slotlog.SourceOptions{Kind: slotlog.SourceCommand, Args: s.Command})
	return all
}

// options checks where the log comes from, with placeholders expanded.
func (s *LogSource) options() (slotlog.SourceOptions, error) {
	all := s.given()
	if len(all) != 1 {
		return slotlog.SourceOptions{}, errors.New("want exactly one of file, fifo, stdin, journald, docker, kubectl and command")
	}
	return logOptions(all[0])
}

// logOptions expands placeholders and checks the rest.
func logOptions(o slotlog.SourceOptions) (slotlog.SourceOptions, error) {
	repl := caddy.NewReplacer()
	o.Args = slices.Clone(o.Args)
	for _, text := range append([]*string{&o.Path, &o.Target}, pointers(o.Args)...) {
		if *text == "" {
			continue
		}
		expanded, err := repl.ReplaceOrErr(*text, true, true)
		if err != nil {
			return o, fmt.Errorf("log: %w", err)
		}
		*text = expanded
	}
	if err := o.Check(); err != nil {
		return o, fmt.Errorf("log: %w", err)
	}
	if info, err := os.Stat(o.Path); o.Path != "" && err == nil && info.IsDir() {
		return o, fmt.Errorf("log %s is a folder: name the file in it", o.Path)
	}
	if o.Kind == slotlog.SourceCommand && !allowCommands {
		return o, errors.New("a command is run only by a Caddy that was started with SLOTFLEET_ALLOW_COMMANDS=1 in its environment")
	}
	return o, nil
}

func pointers(all []string) []*string {
	out := make([]*string, 0, len(all))
	for i := range all {
		out = append(out, &all[i])
	}
	return out
}

// seeder checks the server and returns what makes a seeder of it; nil: there is none.
func (s *LogSource) seeder(logger *slog.Logger) (func(*slotlog.Source) (*llamacpp.Seeder, error), error) {
	if s.Server == "" {
		if s.Key != "" {
			return nil, errors.New("key is that of a server, and none is named")
		}
		return nil, nil
	}
	repl := caddy.NewReplacer()
	o := llamacpp.Options{Name: "source " + s.Name, Logger: logger}
	var err error
	if o.URL, err = repl.ReplaceOrErr(s.Server, true, true); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if err := checkURL(o.URL); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if o.Key, err = repl.ReplaceOrErr(s.Key, true, true); err != nil {
		return nil, fmt.Errorf("the key cannot be read (%w): set it in the environment or file it comes from, or leave key out", err)
	}
	if err := tryOut(o); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return func(log *slotlog.Source) (*llamacpp.Seeder, error) {
		o.Source = log
		return llamacpp.NewSeeder(o)
	}, nil
}
