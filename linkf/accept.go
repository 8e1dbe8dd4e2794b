package linkf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// HeadOptions say who a head is to its nodes.
type HeadOptions struct {
	// Identity of the head, the same over restarts: a node ends what an earlier run of
	// the same identity left there. 1 to 255 bytes.
	Identity string

	// Tokens of the nodes. Default: none, so that nothing is proved.
	Tokens *Keyring

	// Lease is how long a node goes on with a request without hearing of this head.
	// Default: 30s.
	Lease time.Duration

	// Logger for what nobody gets as an error. Default: none.
	Logger *slog.Logger
}

// Head is this process as its nodes see it.
type Head struct {
	me     who
	keys   atomic.Pointer[Keyring]
	log    *slog.Logger
	amiss  complaints
	epochs atomic.Uint64
	lease  atomic.Int64 // nanoseconds
	doors  admission
}

// NewHead returns a head.
func NewHead(o HeadOptions) (*Head, error) {
	me, err := newWho("head", o.Identity)
	if err != nil {
		return nil, err
	}
	h := &Head{me: me, log: o.Logger}
	h.Trust(o.Tokens)
	h.Lend(o.Lease)
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.amiss.log = h.log
	return h, nil
}

// Trust takes these tokens from now on in place of those before; nil: none, so that
// nothing is proved. Connections that stand go on.
func (h *Head) Trust(k *Keyring) { h.keys.Store(keysOrNone(k)) }

// Lend gives leases of this length from now on; 0: the default. Those that nodes have
// stay as they are until they are renewed.
func (h *Head) Lend(d time.Duration) { h.lease.Store(int64(cmp.Or(d, DefaultLease))) }

// keysOrNone is a ring with no token in it for none.
func keysOrNone(k *Keyring) *Keyring {
	if k == nil {
		k = new(Keyring)
		k.Add(Token{})
	}
	return k
}

// Dial returns a link to a node that listens on a host:port. It connects when it is
// asked to probe.
func (h *Head) Dial(name, address string) *Link { return newLink(h, name, address) }

// Joined returns a link to a node that dials in. It has no connection yet.
func (h *Head) Joined(name string) *Link { return newLink(h, name, "") }

// Joiner is a connection of a node that dialled in and showed who it is.
type Joiner struct {
	Identity string
	Address  string // the host that it dialled from

	head  *Head
	c     net.Conn
	s     *secure
	g     *greeting
	taken bool // by a link, which closes the connection
	said  bool // by a link: that there are two of the name
}

// Joining is what a manager adopts.
func (j *Joiner) Joining() fleet.Joining {
	return fleet.Joining{
		Identity: j.Identity, Address: j.Address, Attach: j.Attach, Rival: j.rival,
		Open: func() (fleet.Link, error) {
			l := j.head.Joined(j.Identity)
			return l, j.Attach(l)
		},
	}
}

// Attach gives the connection to the node's link, which must be one of [Head.Joined].
func (j *Joiner) Attach(link fleet.Link) error {
	l, ok := link.(*Link)
	if !ok || l.dial != "" {
		return errors.New("its link is not one of a node that dials in")
	}
	if err := l.attach(j.c, j.s, j.g); err != nil {
		return err
	}
	j.taken = true
	return nil
}

// Serve takes the nodes that dial in on a listener until that is closed, and waits for
// the handshakes that are not finished. adopt is called for each from a goroutine of
// its own; it attaches the joiner to a link or says why not, which the node is told.
func (h *Head) Serve(ln net.Listener, adopt func(*Joiner) error) error {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer wg.Wait()
	defer cancel()
	return accepted(ctx, ln, &h.amiss, func(c net.Conn) {
		wg.Go(func() {
			watch := func() func() bool { return context.AfterFunc(ctx, func() { _ = c.Close() }) }
			stop := watch()
			defer func() { stop() }()
			h.Accept(c, hostOf(c), func(j *Joiner) error {
				if !stop() {
					return net.ErrClosed
				}
				err := adopt(j) // its link outlives the listener
				if err != nil {
					stop = watch()
				}
				return err
			})
		})
	})
}

// Accept takes one connection of a node that dialled in from a host, and returns when it
// was attached or refused. Above the bounds on unfinished handshakes it is refused at once.
func (h *Head) Accept(c net.Conn, host string, adopt func(*Joiner) error) {
	if err := h.admit(c, host, adopt); err != nil {
		_ = c.Close()
		switch {
		case errors.Is(err, errTwins), errors.Is(err, errSaid): // the link said so once
		case errors.Is(err, RefusedLinked):
			h.log.Debug("a node that dialled in is linked already", "address", host)
		default:
			h.amiss.warn("a node that dialled in was not taken", host, err)
		}
	}
}

func (h *Head) admit(c net.Conn, host string, adopt func(*Joiner) error) error {
	if err := h.doors.admit(c, host); err != nil {
		return err
	}
	defer h.doors.leave(host)
	return h.join(c, host, adopt)
}

func (h *Head) join(c net.Conn, address string, adopt func(*Joiner) error) error {
	s, g, e, err := h.greet(c)
	if err != nil {
		return err
	}
	j := &Joiner{Identity: g.node.identity, Address: address, head: h, c: c, s: s, g: g}
	if err = e.allows(j.Identity); err == nil {
		err = adopt(j)
	}
	if err != nil && !j.taken {
		g.turnAway(c, s, err)
	}
	if err != nil && j.said {
		err = errors.Join(err, errSaid)
	}
	return err
}

var errSaid = errors.New("the log says so")

// turnAway tells a node that was greeted why it is not taken, and waits until it has read
// that: what it sent meanwhile would make a close a reset.
func (g *greeting) turnAway(c net.Conn, s *secure, why error) {
	if errors.Is(why, fleet.ErrNameInUse) || errors.Is(why, errNotAllowed) {
		g.wire.refusal = RefusedName
	}
	g.wire.fail(why.Error())
	if b, err := s.seal(nil, g.wire.rest(nil, 0, clockNow()), clockNow()); err == nil {
		_ = writeAll(c, b, time.Second)
		awaitClose(c)
	}
}

// greet does the handshake and learns who the node is, within greetLimit.
func (h *Head) greet(c net.Conn) (*secure, *greeting, entry, error) {
	noDelay(c)
	hs, s, rest, err := secured(c, RoleHead, h.keys.Load())
	if err != nil {
		return nil, nil, entry{}, err
	}
	g := newGreeting(h.me, clockNow())
	b, err := s.seal(nil, g.pull(nil, clockNow()), clockNow())
	if err == nil {
		_, err = c.Write(b)
	}
	buf := make([]byte, 4096)
	for err == nil && !g.done {
		var plain []byte
		if plain, err = s.open(rest); err != nil {
			break
		}
		if err = g.receive(plain, clockNow()); err != nil || g.done {
			break
		}
		var n int
		n, err = c.Read(buf)
		rest = buf[:n]
	}
	if err != nil {
		return nil, nil, entry{}, fmt.Errorf("the node did not say who it is: %w", err)
	}
	return s, g, hs.entry, c.SetDeadline(time.Time{})
}
