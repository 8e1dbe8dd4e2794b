package linkf

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

const (
	// complaintGap is how long the log hears nothing more of a kind of fault from where
	// one came: who knocks all the time must not fill it.
	complaintGap = 10 * time.Second

	// complaintsMost bounds the kinds and places that are told apart.
	complaintsMost = 256
)

// complaints logs what goes wrong with peers.
type complaints struct {
	log *slog.Logger

	mu    sync.Mutex
	told  map[fault]*toldOf
	swept time.Time
}

// fault is a kind of fault and where it came from.
type fault struct{ from, kind string }

type toldOf struct {
	at    time.Time
	since int // that were not logged
	err   error
}

// line is one of the log.
type line struct {
	what string
	args []any
}

// warn logs an error with a peer, unless one like it was logged shortly before; then it
// is counted, and the next line says how many there were.
func (c *complaints) warn(what, from string, err error, args ...any) {
	args = append([]any{"address", from, "error", err}, args...)
	for _, l := range c.due(time.Now(), fault{network(from), kindOf(err)}, err, line{what, args}) {
		c.log.Warn(l.what, l.args...)
	}
}

// due notes a fault and returns what is to be logged now.
func (c *complaints) due(now time.Time, f fault, err error, l line) []line {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.sweep(now)
	if c.told[f] == nil && len(c.told) >= complaintsMost {
		f.from = "elsewhere"
	}
	t := c.told[f]
	if t != nil && now.Sub(t.at) < complaintGap {
		t.since, t.err = t.since+1, err
		return lines
	}
	if t != nil && t.since > 0 {
		l.args = append(l.args, "not_logged", t.since)
	}
	if c.told == nil {
		c.told = make(map[fault]*toldOf)
	}
	c.told[f] = &toldOf{at: now}
	return append(lines, l)
}

// sweep forgets what was long ago, and says how often it came after it was logged.
func (c *complaints) sweep(now time.Time) (lines []line) {
	if now.Sub(c.swept) < complaintGap {
		return nil
	}
	c.swept = now
	for f, t := range c.told {
		if now.Sub(t.at) < 2*complaintGap {
			continue
		}
		delete(c.told, f)
		if t.since > 0 {
			lines = append(lines, line{"it came again since", []any{"address", f.from, "error", t.err, "not_logged", t.since}})
		}
	}
	return lines
}

// network is the network of an address, if it is one: of IPv6 one peer has as many as it
// likes, of IPv4 they may lie side by side.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 24
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return address
	}
	return p.String()
}

// kindOf names the kind of an error: texts differ with ports and names.
func kindOf(err error) string {
	var r Refusal
	var timeout net.Error
	var answer *upgradeError
	var closed *closedByPeer
	switch {
	case errors.As(err, &closed) && closed.refusal != 0:
		return closed.refusal.Error()
	case errors.As(err, &r):
		return r.Error()
	case errors.As(err, &answer):
		return answer.Error()
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	for _, x := range []error{fleet.ErrNameInUse, fleet.ErrFull, fleet.ErrNotTaken, errNotAllowed, errNotLinkf, syscall.ECONNREFUSED} {
		if errors.Is(err, x) {
			return x.Error()
		}
	}
	return "other"
}
