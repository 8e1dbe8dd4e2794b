package discover

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// lookEvery is how often it is looked for interfaces that came or went.
const lookEvery = 10 * time.Second

// network is how packets come and go.
type network interface {
	// interfaces are those with multicast; from now on packets come by them.
	interfaces() ([]iface, error)

	// receive waits for a packet. An error is the end.
	receive() (packet, error)

	send(outgoing) error
	Close() error
}

// machine is an announcer or a finder.
type machine interface {
	interfaces(now time.Time, all []iface)
	receive(now time.Time, p packet) []outgoing
	tick(now time.Time) []outgoing
	wake() time.Time
}

// run has a machine work on a network until ctx ends. after is called when the machine
// did something. It closes the network.
func run(ctx context.Context, n network, m machine, log *slog.Logger, after func()) {
	packets := make(chan packet)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(packets)
		for {
			p, err := n.receive()
			if err != nil {
				return
			}
			select {
			case packets <- p:
			case <-ctx.Done():
				return
			}
		}
	})
	defer reading.Wait()
	defer func() { _ = n.Close() }()
	r := &running{network: n, machine: m, log: log}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	r.look()
	for {
		r.send(m.tick(time.Now()))
		after()
		var due <-chan time.Time
		if at := m.wake(); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return
		case p, ok := <-packets:
			if !ok {
				log.Error("multicast DNS cannot be read any more")
				<-ctx.Done()
				return
			}
			r.send(m.receive(time.Now(), p))
		case <-look.C:
			r.look()
		case <-due:
		}
	}
}

type running struct {
	network
	machine
	log   *slog.Logger
	wrong string // what was complained of last
}

func (r *running) look() {
	all, err := r.network.interfaces()
	if err != nil {
		r.complain(fmt.Errorf("looking for interfaces: %w", err))
		return
	}
	r.machine.interfaces(time.Now(), all)
}

func (r *running) send(all []outgoing) {
	for _, o := range all {
		if err := r.network.send(o); err != nil {
			r.complain(fmt.Errorf("sending on interface %d: %w", o.iface, err))
		}
	}
}

// complain logs an error, once in a row.
func (r *running) complain(err error) {
	if text := err.Error(); text != r.wrong {
		r.wrong = text
		r.log.Warn("multicast DNS does not work as it should", "error", err)
	}
}

// Options say which head is announced.
type Options struct {
	// Identity of the head, from which its name on the network is made: the same over
	// restarts, and no other's. It cannot be told from the name.
	Identity string

	// Port on which it listens.
	Port uint16

	// Address on which it listens alone. Default: all.
	Address netip.Addr

	// Logger for what nobody gets as an error. Default: none.
	Logger *slog.Logger
}

// Announcer is a head that is announced.
type Announcer struct {
	stop context.CancelFunc
	done chan struct{}
}

// Announce tells the local networks that a head is here, until Close. An error means
// that the port of multicast DNS cannot be had.
func Announce(o Options) (*Announcer, error) {
	n, err := open()
	if err != nil {
		return nil, err
	}
	return announce(n, o), nil
}

func announce(n network, o Options) *Announcer {
	sum := sha256.Sum256([]byte("slotfleet head on the local network\x00" + o.Identity))
	m := &announcer{head: head{"slotfleet-" + hex.EncodeToString(sum[:8]), o.Port}, only: o.Address}
	ctx, cancel := context.WithCancel(context.Background())
	a := &Announcer{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		run(ctx, leaving{n, m}, m, cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), func() {})
	}()
	return a
}

// leaving is a network on which an announcer says goodbye at the end.
type leaving struct {
	network
	of *announcer
}

func (l leaving) Close() error {
	for _, o := range l.of.goodbye() {
		_ = l.send(o) // what is not heard is forgotten in two minutes
	}
	return l.network.Close()
}

// Close takes the announcement back and waits.
func (a *Announcer) Close() error {
	a.stop()
	<-a.done
	return nil
}

// Find looks for heads on the local networks until ctx ends, and calls changed, from this
// goroutine, with those that are there whenever that is another list. An error means that
// the port of multicast DNS cannot be had.
func Find(ctx context.Context, log *slog.Logger, changed func([]Head)) error {
	n, err := open()
	if err != nil {
		return err
	}
	find(ctx, n, log, changed)
	return nil
}

func find(ctx context.Context, n network, log *slog.Logger, changed func([]Head)) {
	f := new(finder)
	var told []Head
	run(ctx, n, f, log, func() {
		if here := f.here(); !slices.EqualFunc(here, told, sameHead) {
			told = here
			changed(here)
		}
	})
}

func sameHead(a, b Head) bool { return a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses) }
