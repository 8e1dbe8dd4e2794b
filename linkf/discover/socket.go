package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

var (
	group4 = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: port}
	group6 = &net.UDPAddr{IP: net.ParseIP("ff02::fb"), Port: port}
)

// hops is the TTL that packets of mDNS have (RFC 6762 section 11).
const hops = 255

// sockets are the machine's networks, by IPv4 and IPv6. The port is shared with other
// programs that speak mDNS.
type sockets struct {
	v4 *ipv4.PacketConn // nil: there is no IPv4
	v6 *ipv6.PacketConn // likewise

	in      chan packet
	closed  chan struct{}
	once    sync.Once
	reading sync.WaitGroup

	joined map[int]bool // interfaces, by index; of the sender's goroutine
}

// listen takes the port, beside others that have it. net.ListenMulticastUDP would join the
// group on the interface of the default route, and fail where there is none.
func listen(network string) (net.PacketConn, error) {
	l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var sharing error
		err := c.Control(func(fd uintptr) { sharing = share(fd) })
		return errors.Join(err, sharing)
	}}
	return l.ListenPacket(context.Background(), network, net.JoinHostPort("", strconv.Itoa(port)))
}

func open4() (*ipv4.PacketConn, error) {
	c, err := listen("udp4")
	if err != nil {
		return nil, err
	}
	p := ipv4.NewPacketConn(c)
	_ = p.SetControlMessage(ipv4.FlagInterface, true) // where it is not possible, the source tells
	if err := errors.Join(p.SetMulticastLoopback(true), p.SetMulticastTTL(hops), p.SetTTL(hops)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

func open6() (*ipv6.PacketConn, error) {
	c, err := listen("udp6")
	if err != nil {
		return nil, err
	}
	p := ipv6.NewPacketConn(c)
	_ = p.SetControlMessage(ipv6.FlagInterface, true)
	if err := errors.Join(p.SetMulticastLoopback(true), p.SetMulticastHopLimit(hops), p.SetHopLimit(hops)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// open takes the port, by IPv4 and IPv6 or the one that there is.
func open() (*sockets, error) {
	s := &sockets{in: make(chan packet), closed: make(chan struct{}), joined: make(map[int]bool)}
	var err4, err6 error
	s.v4, err4 = open4()
	s.v6, err6 = open6()
	if s.v4 == nil && s.v6 == nil {
		return nil, fmt.Errorf("multicast DNS: %w", errors.Join(err4, err6))
	}
	if s.v4 != nil {
		s.reading.Go(func() {
			s.read(func(b []byte) (int, int, net.Addr, error) {
				n, cm, from, err := s.v4.ReadFrom(b)
				if cm == nil {
					return n, 0, from, err
				}
				return n, cm.IfIndex, from, err
			})
		})
	}
	if s.v6 != nil {
		s.reading.Go(func() {
			s.read(func(b []byte) (int, int, net.Addr, error) {
				n, cm, from, err := s.v6.ReadFrom(b)
				if cm == nil {
					return n, 0, from, err
				}
				return n, cm.IfIndex, from, err
			})
		})
	}
	return s, nil
}

// read hands on the packets of one socket until it is closed.
func (s *sockets) read(from func([]byte) (n, ifindex int, addr net.Addr, err error)) {
	b := make([]byte, maxPacket+1)
	for {
		n, index, addr, err := from(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		udp, ok := addr.(*net.UDPAddr)
		if err != nil || !ok {
			// An interface that went, mostly. It is not the end, and should not keep a core busy.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-s.closed:
				return
			}
		}
		at := udp.AddrPort()
		p := packet{append([]byte(nil), b[:n]...), netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), index}
		select {
		case s.in <- p:
		case <-s.closed:
			return
		}
	}
}

func (s *sockets) receive() (packet, error) {
	select {
	case p := <-s.in:
		return p, nil
	case <-s.closed:
		return packet{}, net.ErrClosed
	}
}

func (s *sockets) interfaces() ([]iface, error) {
	system, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []iface
	here := make(map[int]bool)
	for _, x := range system {
		const wanted = net.FlagUp | net.FlagMulticast
		if x.Flags&wanted != wanted || x.Flags&net.FlagLoopback != 0 {
			continue
		}
		i := iface{index: x.Index, name: x.Name, prefixes: prefixesOf(x)}
		if len(i.prefixes) == 0 || !s.joined[x.Index] && !s.join(&x) {
			continue
		}
		here[x.Index] = true
		all = append(all, i)
	}
	s.joined = here
	return all, nil
}

// join has packets come by an interface; false: it takes part in neither IPv4 nor IPv6.
func (s *sockets) join(x *net.Interface) bool {
	ok := s.v4 != nil && joins(s.v4.JoinGroup(x, group4))
	if s.v6 != nil && joins(s.v6.JoinGroup(x, group6)) {
		ok = true
	}
	return ok
}

func prefixesOf(x net.Interface) (all []netip.Prefix) {
	addrs, err := x.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, netip.PrefixFrom(p.Addr().Unmap().WithZone(""), p.Bits()))
		}
	}
	return all
}

func (s *sockets) send(o outgoing) error {
	x, err := net.InterfaceByIndex(o.iface)
	if err != nil {
		return err
	}
	if o.to.IsValid() {
		to := net.UDPAddrFromAddrPort(o.to)
		if o.to.Addr().Is4() {
			if s.v4 == nil {
				return errors.New("there is no IPv4")
			}
			_, err = s.v4.WriteTo(o.data, nil, to)
			return err
		}
		if s.v6 == nil {
			return errors.New("there is no IPv6")
		}
		_, err = s.v6.WriteTo(o.data, nil, to)
		return err
	}
	// It is enough if it goes out by one of both.
	err4, err6 := errors.New("there is no IPv4"), errors.New("there is no IPv6")
	if s.v4 != nil {
		if err4 = s.v4.SetMulticastInterface(x); err4 == nil {
			_, err4 = s.v4.WriteTo(o.data, nil, group4)
		}
	}
	if s.v6 != nil {
		if err6 = s.v6.SetMulticastInterface(x); err6 == nil {
			_, err6 = s.v6.WriteTo(o.data, nil, group6)
		}
	}
	if err4 != nil && err6 != nil {
		return errors.Join(err4, err6)
	}
	return nil
}

func (s *sockets) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		if s.v4 != nil {
			err = s.v4.Close()
		}
		if s.v6 != nil {
			err = errors.Join(err, s.v6.Close())
		}
		s.reading.Wait()
	})
	return err
}

// joins: the system says so, or that it was so before.
func joins(err error) bool { return err == nil || errors.Is(err, syscall.EADDRINUSE) }
