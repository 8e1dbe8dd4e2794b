package discover

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lan is a network of machines in memory, all with one interface.
type lan struct {
	mu    sync.Mutex
	hosts []*host
	sent  int
	lost  func(sent int) bool // nil: nothing is
}

// host is one of them.
type host struct {
	lan    *lan
	at     netip.AddrPort
	in     chan packet
	closed chan struct{}
}

func (l *lan) join(addr string) *host {
	h := &host{lan: l, at: netip.AddrPortFrom(netip.MustParseAddr(addr), port), in: make(chan packet, 1000), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts = append(l.hosts, h)
	return h
}

func (h *host) interfaces() ([]iface, error) {
	return []iface{{1, "eth0", []netip.Prefix{netip.PrefixFrom(h.at.Addr(), 24)}}}, nil
}

func (h *host) receive() (packet, error) {
	select {
	case p := <-h.in:
		return p, nil
	case <-h.closed:
		return packet{}, net.ErrClosed
	}
}

func (h *host) send(o outgoing) error {
	l := h.lan
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent++; l.lost != nil && l.lost(l.sent) {
		return nil
	}
	for _, to := range l.hosts {
		if !o.to.IsValid() || o.to == to.at {
			select {
			case to.in <- packet{o.data, h.at, 1}:
			default:
			}
		}
	}
	return nil
}

func (h *host) Close() error {
	close(h.closed)
	return nil
}

// finding is a Find that runs.
type finding struct {
	mu   sync.Mutex
	here []Head
}

func startFinding(t *testing.T, h *host) *finding {
	f := new(finding)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		find(ctx, h, slog.New(slog.DiscardHandler), func(all []Head) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.here = all
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// after returns what is found after a time.
func (f *finding) after(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := ""
	for _, h := range f.here {
		s += fmt.Sprint(h.Addresses)
	}
	return s
}

func TestHeadIsFoundAndItsGoodbyeHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(lan)
		a := announce(l.join("10.0.0.1"), Options{Identity: "a", Port: 8454})
		time.Sleep(time.Minute)
		f := startFinding(t, l.join("10.0.0.9"))
		if got := f.after(300 * time.Millisecond); got != "[10.0.0.1:8454]" {
			t.Errorf("after 300 ms: got %q, want the head", got)
		}
		b := announce(l.join("10.0.0.2"), Options{Identity: "b", Port: 1})
		if got := f.after(300 * time.Millisecond); got != "[10.0.0.1:8454][10.0.0.2:1]" && got != "[10.0.0.2:1][10.0.0.1:8454]" {
			t.Errorf("after a second one came: got %q, want both", got)
		}
		_ = a.Close()
		if got := f.after(1500 * time.Millisecond); got != "[10.0.0.2:1]" {
			t.Errorf("after the first one left: got %q, want the second", got)
		}
		_ = b.Close()
	})
}

// A head that comes when nobody has asked for hours is heard at once.
func TestHeadThatComesLaterIsFoundAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(lan)
		f := startFinding(t, l.join("10.0.0.9"))
		if got := f.after(10 * time.Hour); got != "" {
			t.Errorf("got %q, want nobody", got)
		}
		if l.sent > 30 {
			t.Errorf("%d packets in ten hours, want at most 30", l.sent)
		}
		a := announce(l.join("10.0.0.1"), Options{Identity: "a", Port: 8454})
		if got := f.after(100 * time.Millisecond); got != "[10.0.0.1:8454]" {
			t.Errorf("got %q, want the head", got)
		}
		_ = a.Close()
	})
}

func TestHeadStaysFoundWhileItAnswersAndIsForgottenWhenItDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lan{lost: func(sent int) bool { return sent%4 == 0 }}
		a := announce(l.join("10.0.0.1"), Options{Identity: "a", Port: 8454})
		f := startFinding(t, l.join("10.0.0.9"))
		if got := f.after(5 * time.Second); got == "" {
			t.Error("one packet of four is lost: the head was not found within 5 s")
		}
		missing := 0
		for range 3600 {
			if f.after(time.Second) == "" {
				missing++
			}
		}
		if missing > 30 {
			t.Errorf("one packet of four is lost: not found for %d seconds of an hour, want at most 30", missing)
		}
		if l.sent > 400 {
			t.Errorf("%d packets in an hour, want at most 400", l.sent)
		}
		l.mu.Lock()
		l.lost = func(int) bool { return true }
		l.mu.Unlock()
		if got := f.after(ttlHost); got != "" {
			t.Errorf("got %q of a head that has been silent for two minutes", got)
		}
		_ = a.Close()
	})
}

// Whatever the network says, nobody gets an answer to an answer.
func TestFindersAndAnnouncersDoNotSetEachOtherOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(lan)
		for i := range 10 {
			a := announce(l.join(fmt.Sprintf("10.0.0.%d", i+1)), Options{Identity: fmt.Sprint(i), Port: 8454})
			defer a.Close()
			startFinding(t, l.join(fmt.Sprintf("10.0.0.%d", 100+i)))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		l.mu.Lock()
		before := l.sent
		l.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := l.sent - before; got > 10*10*20 {
			t.Errorf("%d packets in ten minutes of ten heads and ten nodes, want at most 2000", got)
		}
	})
}
