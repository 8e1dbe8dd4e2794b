package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamacpp"
)

// SlotlogApp reads the logs of llama-servers and knows what each of their slots is
// doing. A server is asked only where `server` is set, once, for what its log does
// not tell.
//
// The admin API shows the slots at `/slotlog/slots`, changes of them at
// `/slotlog/events`, and the readers at `/slotlog/sources`. A node of the `fleet` app
// takes its load from a source with `log source NAME`. A log is read once, however
// many names it has, and reading goes on through reloads.
type SlotlogApp struct {
	// The logs. Each needs a name of its own.
	Sources []*LogSource `json:"sources,omitempty"`

	run *slotlogRun
}

// slotlogRun is one SlotlogApp at work.
type slotlogRun struct {
	state   *state
	logger  *slog.Logger
	logs    []namedLog
	seeds   []func() (*llamacpp.Seeder, error) // of the sources with a server
	behind  background
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
// opens, runs and asks nothing.
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
		if src == nil || src.Name == "" {
			return errors.New("a log source has no name")
		}
		if _, ok := a.log(src.Name); ok {
			return fmt.Errorf("source %s is there twice: give each source its own name", src.Name)
		}
		if err := a.add(src); err != nil {
			return fmt.Errorf("source %s: %w", src.Name, err)
		}
	}
	return nil
}

func (a *SlotlogApp) add(src *LogSource) error {
	o, err := src.options()
	if err != nil {
		return err
	}
	seeder, err := src.seeder(a.run.logger)
	if err != nil {
		return err
	}
	t, err := holdTail(o)
	if err != nil {
		return err
	}
	a.run.logs = append(a.run.logs, namedLog{name: src.Name, tail: t})
	if seeder != nil {
		a.run.seeds = append(a.run.seeds, func() (*llamacpp.Seeder, error) { return seeder(t.start()) })
	}
	return nil
}

// log returns the log of a source. A nil app has none.
func (a *SlotlogApp) log(name string) (*tail, bool) {
	if a == nil {
		return nil, false
	}
	for _, l := range a.run.logs {
		if l.name == name {
			return l.tail, true
		}
	}
	return nil, false
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

// Start begins to follow the logs.
func (a *SlotlogApp) Start() error {
	for _, l := range a.run.logs {
		l.tail.start()
	}
	work := []func(context.Context){
		func(ctx context.Context) { keepEye(ctx, a.run.logger, a.run.logs) },
	}
	for _, open := range a.run.seeds {
		s, err := open()
		if err != nil {
			return err
		}
		work = append(work, s.Run)
	}
	a.run.behind.begin(work...)
	a.run.state.sources.add(a.run)
	return nil
}

// Stop takes the sources out of what the admin API and the metrics show.
func (a *SlotlogApp) Stop() error {
	a.run.behind.stop()
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
		a.run.behind.stop()
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
