package linkf

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

const (
	// writeLimit bounds one write: as long as silence of an idle peer is borne.
	writeLimit = heartbeats * heartbeatIdle

	// writeWaits is after how long a write that waits is looked after.
	writeWaits = time.Second

	dialLimit = 2 * time.Second
)

// began is when the time of all machines of this process began. It is monotonic.
var began = time.Now()

func clockNow() time.Duration { return time.Since(began) }

// end is a machine's end of one connection.
type end interface {
	// receive takes bytes and has pull called if there is something to send.
	receive(data []byte)

	// pull returns what to send behind b, and when to ask again at the latest. over is
	// not nil once the connection is to be closed, after b was sent.
	pull(b []byte) (out []byte, again time.Duration, over error)

	// late does what is due while a write waits, and returns why the connection is over,
	// if it is.
	late() error
}

// pump moves bytes between a connection and a machine until either ends it, and
// returns why. kick has pull asked before its time. The connection is closed when it
// returns.
func pump(c net.Conn, s *secure, e end, kick chan struct{}) error {
	var reading error
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		reading = read(c, s, e)
	}()
	err := send(c, s, e, kick, broken)
	_ = c.Close()
	<-broken
	if err != nil {
		return err
	}
	return reading
}

// The bytes that are read at once: the least, so that a thousand idle links cost little,
// and the most, for bodies.
const (
	readLeast = 4 << 10
	readMost  = 64 << 10
)

func read(c net.Conn, s *secure, e end) error {
	buf := make([]byte, readLeast)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			plain, err := s.open(buf[:n])
			if err != nil {
				return err
			}
			if len(plain) > 0 {
				e.receive(plain)
			}
			giveWay(n)
		}
		if err != nil {
			return err
		}
		switch {
		case n == len(buf) && n < readMost:
			buf = make([]byte, 2*n)
		case n < len(buf)/16 && len(buf) > readLeast:
			buf = make([]byte, readLeast)
		}
	}
}

// giveWay lets others run after so many bytes, if that is a part of a body. Reader and
// writer of a link with a body under way never wait as long as the other end keeps up;
// on a machine with few cores whoever has a token would wait for their time slice of
// 10 ms to end, at each of its steps.
func giveWay(bytes int) {
	if bytes > readLeast {
		runtime.Gosched()
	}
}

// fitted is b without its content, or nothing if it is far larger than what it is to
// hold now: what an idle link keeps is not what its largest body took.
func fitted(b []byte, need int) []byte {
	if cap(b) > readLeast && need < cap(b)/16 {
		return nil
	}
	return b[:0]
}

// send writes what the machine wants sent until that is done with the connection. It
// returns nil if reading broke and the machine does not know why.
func send(c net.Conn, s *secure, e end, kick, broken chan struct{}) error {
	var plain, sealed []byte
	timer := time.NewTimer(0)
	defer timer.Stop()
	waits := watchWrites(c, e)
	defer waits.Stop()
	for {
		var again time.Duration
		var over, err error
		plain, again, over = e.pull(plain[:0])
		if len(plain) > 0 {
			if sealed, err = s.seal(sealed[:0], plain, clockNow()); err == nil {
				waits.Reset(writeWaits)
				err = writeAll(c, sealed, writeLimit)
				waits.Stop()
				giveWay(len(sealed))
			}
			again = 0
		}
		if over != nil || err != nil {
			return errors.Join(over, err)
		}
		if again > 0 {
			timer.Reset(again)
			select {
			case <-kick:
			case <-timer.C:
				plain, sealed = fitted(plain, 0), fitted(sealed, 0)
			case <-broken:
			}
		}
		select {
		case <-broken:
			// What the peer said last may be why.
			_, _, over = e.pull(plain[:0])
			return over
		default:
		}
	}
}

// watchWrites returns a timer that is to run during a write. When that waits it ends the
// connection if nothing comes of it any more: what it carries goes on by another way.
func watchWrites(c net.Conn, e end) (t *time.Timer) {
	t = time.AfterFunc(writeLimit, func() {
		if e.late() != nil {
			_ = c.Close()
		} else {
			t.Reset(writeWaits)
		}
	})
	t.Stop()
	return t
}

func writeAll(c net.Conn, b []byte, limit time.Duration) error {
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// secured runs the handshake on a connection. The peer is told of a refusal where it
// can be. The deadline stays on the connection.
func secured(c net.Conn, role Role, keys *Keyring) (h *handshake, s *secure, rest []byte, err error) {
	if err := c.SetDeadline(time.Now().Add(greetLimit)); err != nil {
		return nil, nil, nil, err
	}
	h, out, err := newHandshake(role, keys, rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	buf := make([]byte, 4096)
	for {
		if len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				return nil, nil, nil, fmt.Errorf("handshake: %w", err)
			}
		}
		n, err := c.Read(buf)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("the peer ended the handshake: %w", err)
		}
		if out, s, rest, err = h.receive(buf[:n]); err != nil {
			if len(out) > 0 {
				_ = writeAll(c, out, time.Second)
			}
			return nil, nil, nil, err
		}
		if s != nil {
			if len(out) > 0 {
				if _, err := c.Write(out); err != nil {
					return nil, nil, nil, fmt.Errorf("handshake: %w", err)
				}
			}
			return h, s, rest, nil
		}
	}
}

// noDelay has small writes go at once.
func noDelay(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
}

// pause waits; false: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wakeUp fills a channel of one.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
