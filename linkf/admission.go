package linkf

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	handshakesMost    = 64 // that are not finished
	handshakesAddress = 4  // of these, from one address
)

// accepted hands on what a listener takes, until that is closed or ctx ends.
func accepted(ctx context.Context, ln net.Listener, log *slog.Logger, take func(net.Conn)) error {
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			take(c)
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			// Out of files, mostly: it goes on when there are some again.
			log.Warn("accept a peer", "address", ln.Addr().String(), "error", err)
			if !pause(ctx, 100*time.Millisecond) {
				return nil
			}
		}
	}
}

// admission bounds the handshakes that are not finished, and what is logged of those
// that fail.
type admission struct {
	mu  sync.Mutex
	all int
	by  map[string]int // address

	next   time.Time // when the log may have a line, but for a few at once
	unsaid int       // lines that it did not get
}

// Of refused peers the log gets so many lines at once, and one a second.
const logBurst = 10

// warn logs what became of a peer, unless there was much of the kind: anybody can
// dial in all day.
func (d *admission) warn(log *slog.Logger, message, address string, err error) {
	d.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-(logBurst - 1) * time.Second); d.next.Before(earliest) {
		d.next = earliest
	}
	if d.next.After(now) {
		d.unsaid++
		d.mu.Unlock()
		return
	}
	unsaid := d.unsaid
	d.next, d.unsaid = d.next.Add(time.Second), 0
	d.mu.Unlock()
	log.Warn(message, "address", address, "error", err, "not_logged_before", unsaid)
}

// admit counts a connection in, until leave is called with its address. One beyond the
// bounds is refused and closed at once.
func (d *admission) admit(c net.Conn) (address string, ok bool) {
	address = hostOf(c)
	if !d.enter(address) {
		_ = writeAll(c, refusal(RefusedFull), time.Second)
		_ = c.Close()
		return "", false
	}
	return address, true
}

func (d *admission) enter(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all >= handshakesMost || d.by[address] >= handshakesAddress {
		return false
	}
	if d.by == nil {
		d.by = make(map[string]int)
	}
	d.all++
	d.by[address]++
	return true
}

func (d *admission) leave(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	if d.by[address]--; d.by[address] == 0 {
		delete(d.by, address)
	}
}

// hostOf is the host at the other end.
func hostOf(c net.Conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}
