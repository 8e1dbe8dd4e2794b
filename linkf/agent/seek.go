package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/discover"
)

// seekAgain is the wait until heads are looked for again where that was not possible.
const seekAgain = 30 * time.Second

// seeker keeps a link to each head that is on the local network.
type seeker struct {
	node *linkf.Node
	wg   sync.WaitGroup // links

	mu    sync.Mutex
	at    map[string][]string // where each head is; none: it is not there any more
	links map[string]bool     // heads that a link is kept to
}

// seek looks for heads until ctx ends.
func seek(ctx context.Context, n *linkf.Node, log *slog.Logger) {
	s := &seeker{node: n, links: make(map[string]bool)}
	defer s.wg.Wait()
	for {
		err := discover.Find(ctx, log, func(all []discover.Head) { s.found(ctx, all) })
		if ctx.Err() != nil {
			return
		}
		log.Error("heads on the local network cannot be looked for", "error", err, "again_in", seekAgain)
		select {
		case <-ctx.Done():
			return
		case <-time.After(seekAgain):
		}
	}
}

// found takes the heads that are there. A link that stands is left alone, whatever the
// network says of its head.
func (s *seeker) found(ctx context.Context, all []discover.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = make(map[string][]string)
	for _, h := range all {
		s.at[h.Name] = h.Addresses
		if s.links[h.Name] {
			continue
		}
		s.links[h.Name] = true
		s.wg.Go(func() { s.node.JoinAny(ctx, h.Name, func() []string { return s.addresses(h.Name) }) })
	}
}

// addresses are those to dial; none: the head is gone, and so is its link.
func (s *seeker) addresses(head string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.at[head]
	if len(all) == 0 {
		delete(s.links, head)
	}
	return all
}
