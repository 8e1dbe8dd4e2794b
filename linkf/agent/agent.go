package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/llamacpp"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/slotlog"
)

// Options say which server an [Agent] runs, and for whom.
type Options struct {
	// Heads are those to dial, as [linkf.Node.Join] has them: host:port, or the URL of a
	// fleet_join. Each gets a link of its own, but for those that lead to one head.
	Heads []string

	// HeadTLS is for heads behind https. Default: the system's roots.
	HeadTLS *tls.Config

	// Seek has the node look for heads on the local network and dial those that it finds.
	Seek bool

	// Listener takes heads that dial the node. The agent closes it. Default: none.
	Listener net.Listener

	// Tokens are those that the heads know, the one to use first in front. Default:
	// none, so that nothing is proved.
	Tokens []linkf.Token

	// Identity is what heads call the node. Default: the host's name.
	Identity string

	// Upstream is the URL of the llama-server, as [llamacpp.Options] have it.
	Upstream string

	// Key is sent to the server as a bearer token. Default: none.
	Key string

	// TLS for a server behind https. Default: the system's roots.
	TLS *tls.Config

	// Log is the server's log. The caller closes it. Default: none, so the load of
	// others than the heads is unknown.
	Log *slotlog.Source

	// Lanes bounds the generations of all heads. Default: what the server has.
	Lanes int

	// Logger for what nobody gets as an error. Default: none.
	Logger *slog.Logger
}

// Agent is a node at work.
type Agent struct {
	node     *linkf.Node
	listener net.Listener
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

// Start links the server to its heads. It does no I/O that can fail but asking for the
// host's name; heads that cannot be reached are dialled again.
func Start(o Options) (*Agent, error) {
	if len(o.Heads) == 0 && !o.Seek && o.Listener == nil {
		return nil, errors.New("a node needs a head to dial or to look for, or an address to listen on")
	}
	for _, h := range o.Heads {
		if err := linkf.CheckHead(h); err != nil {
			return nil, fmt.Errorf("head: %w", err)
		}
	}
	if o.Identity == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("the host has no name, so the node needs an identity: %w", err)
		}
		o.Identity = name
	}
	up, err := llamacpp.New(llamacpp.Options{
		Name: o.Identity, URL: o.Upstream, Key: o.Key, TLS: o.TLS, Source: o.Log, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	n, err := linkf.NewNode(linkf.NodeOptions{
		Identity: o.Identity, Upstream: up, Lanes: o.Lanes, Tokens: o.Tokens, TLS: o.HeadTLS, Logger: o.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, up.Close("the node did not start"))
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Agent{node: n, listener: o.Listener, stop: stop}
	if o.Log != nil {
		n.Show(logOf(o.Log.Snapshot(time.Now()))) // before the first head hears anything
		a.wg.Go(func() { showSlots(ctx, o.Log, n.Show) })
	}
	for _, h := range o.Heads {
		a.wg.Go(func() {
			learn(ctx, up)
			n.Join(ctx, h)
		})
	}
	if o.Seek {
		log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
		a.wg.Go(func() {
			learn(ctx, up)
			seek(ctx, n, log)
		})
	}
	if o.Listener != nil {
		a.wg.Go(func() { _ = n.Serve(o.Listener) }) // nil: it was closed
	}
	return a, nil
}

// learnLimit is how long a head waits for a node that asks its server what it is.
const learnLimit = 2 * time.Second

// learn asks the server what it is, so that a head which knew the node before it
// started anew can use it at once. A server that does not answer is asked again by the
// heads.
func learn(ctx context.Context, up *llamacpp.Link) {
	ctx, cancel := context.WithTimeout(ctx, learnLimit)
	defer cancel()
	_, _ = up.Call(ctx, fleet.Call{Op: fleet.OpProbe})
}

// Rest has the agent dial no head until it is told to go on, while another of its name
// does so. Links that stand stay.
func (a *Agent) Rest(on bool) { a.node.Rest(on) }

// Drain takes nothing new, has the heads move what can go on elsewhere, and waits until
// nothing runs or ctx ends. Close is to follow.
func (a *Agent) Drain(ctx context.Context) { a.node.Drain(ctx) }

// Close ends what the node runs, tells the heads, and waits until all of it is over.
func (a *Agent) Close() error {
	var err error
	if a.listener != nil {
		err = a.listener.Close()
	}
	err = errors.Join(err, a.node.Close())
	a.stop()
	a.wg.Wait()
	return err
}
