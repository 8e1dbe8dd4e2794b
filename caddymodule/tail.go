package caddymodule

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/slotlog"
)

// tail is one log, followed once, whatever it is called.
type tail struct {
	o   slotlog.SourceOptions
	key string

	mu        sync.Mutex
	source    *slotlog.Source // nil: not started
	generated int64           // tokens counted since it was started
	complains bool            // it was said that the log cannot be relied on
}

// holdTail takes a reference to the tail of a log. It does not touch the log. Each
// call needs one of dropTails.
func holdTail(o slotlog.SourceOptions) (*tail, error) {
	key := o.Key()
	v, _, err := tails.LoadOrNew(key, func() (caddy.Destructor, error) {
		return &tail{o: o, key: key}, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*tail), nil
}

func dropTails(held []*tail) error {
	var failed error
	for _, t := range held {
		if _, err := tails.Delete(t.key); err != nil && failed == nil {
			failed = fmt.Errorf("closing log %s: %w", t.o, err)
		}
	}
	return failed
}

// start begins to follow the log, the first time it is called.
func (t *tail) start() *slotlog.Source {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		t.source = slotlog.Open(t.o)
	}
	return t.source
}

// look returns what the log says and how many tokens it counted so far. false: it
// is not followed yet.
func (t *tail) look(now time.Time) (s slotlog.Snapshot, generated int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return slotlog.Snapshot{}, 0, false
	}
	t.generated += t.source.TakeGeneratedTokens()
	return t.source.Snapshot(now), t.generated, true
}

// followed returns what follows the log; nil: it is not started.
func (t *tail) followed() *slotlog.Source {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.source
}

// complain says once that the log cannot be relied on, and once that it can again,
// whatever configurations come and go meanwhile.
func (t *tail) complain(logger *slog.Logger, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return
	}
	s := t.source.Snapshot(time.Now())
	if s.Degraded == t.complains || s.File == slotlog.FilePending {
		return
	}
	t.complains = s.Degraded
	if s.Degraded {
		logger.Warn("log cannot be relied on", "source", name, "log", t.o.String(), "reason", s.Reason)
		return
	}
	logger.Info("log is read again", "source", name, "log", t.o.String())
}

// Destruct stops following the log.
func (t *tail) Destruct() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return nil
	}
	return t.source.Close()
}

// complainEvery is how often logs are looked at for what is wrong with them.
const complainEvery = time.Second

// keepEye says in the log of this process which logs cannot be relied on, until ctx
// ends.
func keepEye(ctx context.Context, logger *slog.Logger, logs []namedLog) {
	tick := time.NewTicker(complainEvery)
	defer tick.Stop()
	for {
		for _, l := range logs {
			l.tail.complain(logger, l.name)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// background runs what belongs to a started configuration, and ends it.
type background struct {
	running sync.WaitGroup
	end     context.CancelFunc
}

// begin runs each of the functions until stop is called.
func (b *background) begin(all ...func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	b.end = cancel
	for _, f := range all {
		b.running.Go(func() { f(ctx) })
	}
}

// stop ends them and waits. It may be called more than once, and before begin.
func (b *background) stop() {
	if b.end != nil {
		b.end()
	}
	b.running.Wait()
}

// Interface guards.
var _ caddy.Destructor = (*tail)(nil)
