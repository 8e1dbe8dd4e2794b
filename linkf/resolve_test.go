package linkf

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/slotfleet/slotfleet/fleet"
)

// resolveTo has every name resolve to these IPv4 addresses until the test ends.
func resolveTo(t *testing.T, addrs ...[4]byte) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			for _, a := range addrs {
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
						Body:   &dnsmessage.AResource{A: a},
					})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(answer, from)
			}
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		_ = c.Close()
		<-done
	})
}

func TestAllAddressesOfANameAreTried(t *testing.T) {
	// Nobody listens at the first two.
	resolveTo(t, [4]byte{127, 0, 0, 3}, [4]byte{127, 0, 0, 2}, [4]byte{127, 0, 0, 1})
	named := func(ln net.Listener) string {
		_, port, err := net.SplitHostPort(ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort("fleet.example.", port)
	}
	t.Run("of a head", func(t *testing.T) {
		h := newEdge(t, tokenA)
		link, ln := h.Joined("box-a"), listen(t)
		came, served := make(chan string, 10), make(chan error, 1)
		go func() {
			served <- h.Serve(ln, func(j *Joiner) error {
				came <- j.Identity
				return j.Attach(link)
			})
		}()
		n := newNode(t, newServer(), token(t, tokenA))
		ctx, cancel := context.WithCancel(context.Background())
		go n.Join(ctx, named(ln))
		get(t, came, "the node")
		cancel()
		_ = n.Close()
		_ = ln.Close()
		<-served
		_ = link.Close("the test is over")
	})
	t.Run("of a node", func(t *testing.T) {
		h := newEdge(t, tokenA)
		ln, served := listen(t), make(chan error, 1)
		n := newNode(t, newServer(), token(t, tokenA))
		go func() { served <- n.Serve(ln) }()
		link := h.Dial("box-a", named(ln))
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if _, err := link.Call(ctx, fleet.Call{Op: fleet.OpProbe}); err != nil {
			t.Errorf("got %v, want the node at the last address of its name", err)
		}
		_ = link.Close("the test is over")
		_ = ln.Close()
		_ = n.Close()
		<-served
	})
}
