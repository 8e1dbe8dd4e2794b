package linkf

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	handshakesMost    = 64 // that are not finished
	handshakesAddress = 4  // of these, from one address
)

// accepted hands on what a listener takes, until that is closed or ctx ends.
func accepted(ctx context.Context, ln net.Listener, say *complaints, take func(net.Conn)) error {
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			take(c)
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			// Out of files, mostly: it goes on when there are some again.
			say.warn("accept a peer", "", err)
			if !pause(ctx, 100*time.Millisecond) {
				return nil
			}
		}
	}
}

// admission bounds the handshakes that are not finished.
type admission struct {
	mu  sync.Mutex
	all int
	by  map[string]int // address
}

// admit counts a connection in, until leave is called with its address. One beyond the
// bounds is told so.
func (d *admission) admit(c net.Conn, address string) error {
	if d.enter(address) {
		return nil
	}
	_ = writeAll(c, refusal(RefusedFull), time.Second)
	return RefusedFull
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
