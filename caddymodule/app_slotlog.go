package caddymodule

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/caddyserver/caddy/v2"
)

// SlotlogApp reads the logs of llama-servers and knows what each of their slots is
// doing. The servers are not asked anything.
//
// The admin API shows the slots at `/slotlog/slots`, and the readers at
// `/slotlog/sources`. A node of the `fleet` app takes its load from a source with
// `log source NAME`. A file is read once, however many names it has, and reading
// goes on through reloads.
type SlotlogApp struct {
	// The logs. Each needs a name of its own.
	Sources []*LogSource `json:"sources,omitempty"`

	run *slotlogRun
}

// LogSource is one log.
type LogSource struct {
	// What the source is called in answers and metrics. Required, unique.
	Name string `json:"name,omitempty"`

	// The path of the log file. It need not exist yet, and may be rotated in any way.
	// Placeholders such as `{env.LLAMA_LOG}` are expanded. Required.
	File string `json:"file,omitempty"`
}

// slotlogRun is one SlotlogApp at work.
type slotlogRun struct {
	state   *state
	logger  *slog.Logger
	logs    []namedLog
	cleaned sync.Once
}

// CaddyModule returns the Caddy module information.
func (SlotlogApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "slotlog",
		New: func() caddy.Module { return new(SlotlogApp) },
	}
}

// Provision checks the configuration and takes its part in the shared state. It
// does not open the logs.
func (a *SlotlogApp) Provision(ctx caddy.Context) error {
	s, err := holdState()
	if err != nil {
		return err
	}
	a.run = &slotlogRun{state: s, logger: ctx.Slogger()}
	if err := registerMetrics(ctx, s.slotlog); err != nil {
		return err
	}
	for _, src := range a.Sources {
		if err := a.add(src); err != nil {
			return err
		}
	}
	return nil
}

func (a *SlotlogApp) add(src *LogSource) error {
	switch {
	case src == nil || src.Name == "":
		return errors.New("a log source has no name")
	case src.File == "":
		return fmt.Errorf("source %s: no file", src.Name)
	}
	if _, ok := a.path(src.Name); ok {
		return fmt.Errorf("source %s is there twice: give each source its own name", src.Name)
	}
	path, err := logPath(src.File)
	if err != nil {
		return fmt.Errorf("source %s: %w", src.Name, err)
	}
	t, err := holdTail(path)
	if err != nil {
		return fmt.Errorf("source %s: %w", src.Name, err)
	}
	a.run.logs = append(a.run.logs, namedLog{name: src.Name, tail: t})
	return nil
}

// path returns the file of a source. A nil app has none.
func (a *SlotlogApp) path(name string) (string, bool) {
	if a == nil {
		return "", false
	}
	for _, l := range a.run.logs {
		if l.name == name {
			return l.tail.path, true
		}
	}
	return "", false
}

// names lists the sources for a message.
func (a *SlotlogApp) names() string {
	if a == nil || len(a.run.logs) == 0 {
		return "none"
	}
	names := make([]string, 0, len(a.run.logs))
	for _, l := range a.run.logs {
		names = append(names, l.name)
	}
	return list(names)
}

// warnOfLogs says which logs are not there at the start. They are waited for, but it
// may as well be a wrong path.
func warnOfLogs(logger *slog.Logger, logs []namedLog) {
	for _, l := range logs {
		if _, err := os.Stat(l.tail.path); err != nil {
			logger.Warn("log is not there yet", "source", l.name, "path", l.tail.path, "error", err)
		}
	}
}

// Start begins to follow the logs.
func (a *SlotlogApp) Start() error {
	warnOfLogs(a.run.logger, a.run.logs)
	for _, l := range a.run.logs {
		l.tail.start()
	}
	a.run.state.sources.add(a.run)
	return nil
}

// Stop takes the sources out of what the admin API and the metrics show.
func (a *SlotlogApp) Stop() error {
	a.run.state.sources.remove(a.run)
	return nil
}

// Cleanup gives the logs and the state back. Those that others use stay open.
func (a *SlotlogApp) Cleanup() error {
	if a.run == nil {
		return nil
	}
	var err error
	a.run.cleaned.Do(func() {
		held := make([]*tail, 0, len(a.run.logs))
		for _, l := range a.run.logs {
			held = append(held, l.tail)
		}
		err = errors.Join(dropTails(held), dropState())
	})
	return err
}

// Interface guards.
var (
	_ caddy.App          = (*SlotlogApp)(nil)
	_ caddy.Provisioner  = (*SlotlogApp)(nil)
	_ caddy.CleanerUpper = (*SlotlogApp)(nil)
)
