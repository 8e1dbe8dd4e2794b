package llamacpp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

// Options say which server a [Link] reaches, and how.
type Options struct {
	// Name of the node in errors and logs.
	Name string

	// URL of the server: http://host:port, https://host:port or
	// unix//path/to.sock. A path after the host is kept as a prefix
	// (llama-server's --api-prefix).
	URL string

	// Key is sent as a bearer token, to this server only. Default: none.
	Key string

	// TLS for https. Default: the system's roots. Protocols named there are
	// ignored, because llama-server speaks nothing but HTTP/1.1.
	TLS *tls.Config

	// Source is the server's log, where it can be read. Default: none, so the
	// server's load is unknown.
	Source *slotlog.Source

	// Logger for what nobody gets as an error. Default: none.
	Logger *slog.Logger
}

// Link is a [fleet.Link] to one llama-server, or to a router of several.
type Link struct {
	name   string
	client *client
	source logSource // nil: none
	seeds  seedLog   // nil: none
	log    *slog.Logger

	life context.Context // ends with Close
	end  context.CancelCauseFunc

	learn chan struct{}  // held while the server is asked what it is
	sends sync.WaitGroup // requests whose head is waited for

	mu       sync.Mutex
	offer    *offer         // as learned last; nil: nothing yet. Never changed in place
	open     map[string]int // by model: generations that the server has accepted and not ended
	leaving  map[string]int // by model: those that we gave up and the server did not end
	watchers map[*watcher]struct{}
}

// watcher is a Watch that runs. Both channels hold one value.
type watcher struct {
	learned chan struct{} // a probe learned something
	woken   chan struct{} // what was learned may not be so any more
}

// New returns a link to the server. It checks the URL and does no I/O.
func New(o Options) (*Link, error) {
	c, err := newClient(o, nil)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	l := &Link{
		name:     o.Name,
		client:   c,
		log:      o.Logger,
		learn:    make(chan struct{}, 1),
		open:     make(map[string]int),
		leaving:  make(map[string]int),
		watchers: make(map[*watcher]struct{}),
	}
	if o.Source != nil {
		l.source, l.seeds = o.Source, o.Source
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.life, l.end = context.WithCancelCause(context.Background())
	return l, nil
}

// Close ends the link: generations that run end as lost, Watch returns.
func (l *Link) Close(reason string) error {
	l.mu.Lock()
	l.end(&closedError{reason})
	l.mu.Unlock()
	l.client.closeIdle()
	l.sends.Wait()
	return nil
}

// start runs f, which ends with the link; false: that has ended.
func (l *Link) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() != nil {
		return false
	}
	l.sends.Go(f)
	return true
}

// opens counts the generations that run.
func (l *Link) opens(model string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[model] += n; l.open[model] == 0 {
		delete(l.open, model)
	}
}

// closedError is the cause of a context that ended because its link did.
type closedError struct{ reason string }

func (e *closedError) Error() string { return "the link was closed: " + e.reason }

// bind returns a context that ends with the link too.
func (l *Link) bind(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })
	return ctx, func(err error) {
		stop()
		cancel(err)
		if l.life.Err() != nil {
			l.client.closeIdle()
		}
	}
}

// fault is what a failed exchange means. outer is the caller's context, inner the
// one that the exchange had, whose cause tells who ended it; err is what was seen.
func (l *Link) fault(outer, inner context.Context, err error) error {
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	var closed *closedError
	cause := context.Cause(inner)
	switch {
	case errors.As(cause, &closed):
		return &fleet.NodeLost{Node: l.name, Cause: fleet.CauseClosed, Err: closed}
	case errors.Is(cause, errStalled):
		return &fleet.NodeLost{Node: l.name, Cause: fleet.CauseStalled, Err: cause}
	case errors.Is(cause, errNoAnswer):
		return &fleet.NodeLost{Node: l.name, Cause: fleet.CauseTimedOut, Err: cause}
	}
	return &fleet.NodeLost{Node: l.name, Cause: causeOf(err), Err: seen(err)}
}

// objection is what an answer that is not 200 means, in the name of this node.
func (l *Link) objection(r fleet.Reply) error {
	err := classify(r.Status, r.Body)
	switch e := err.(type) {
	case *fleet.NodeLost:
		e.Node = l.name
	case *fleet.RequestError:
		if r.Status == http.StatusUnauthorized {
			e.Err = fmt.Errorf("node %s answers 401: the key configured for it is not one of its --api-key", l.name)
		}
	}
	return err
}

var _ fleet.Link = (*Link)(nil)
