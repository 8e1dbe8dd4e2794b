package discover

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	maxHeads     = 16 // that are known at once
	maxAddresses = 8  // of one head

	// askFirst is the wait between the first two questions. It doubles, up to askMost
	// (RFC 6762 section 5.2).
	askFirst = time.Second
	askMost  = time.Hour
)

// Head is one that was found.
type Head struct {
	Name      string   // in the local network, of no other meaning
	Addresses []string // host:port, those to try first in front
}

// finder asks on all interfaces for heads and keeps those that answer, as long as they
// say. It has no clock, goroutine or socket.
type finder struct {
	on    []iface
	heads []*found

	ask  time.Time // when to ask next
	wait time.Duration
}

// found is what a head said of itself.
type found struct {
	instance string
	listed   time.Time // until when the service lists it; as long as told, from then on
	host     string
	port     uint16
	served   time.Time // until when host and port hold
	ttl      time.Duration
	addrs    []address
}

type address struct {
	netip.Addr     // with a zone, if it is one of a link only
	iface      int // by which it was heard
	until      time.Time
}

// interfaces says which there are. On new ones is asked at once.
func (f *finder) interfaces(now time.Time, all []iface) {
	isNew := func(i iface) bool {
		return !slices.ContainsFunc(f.on, func(old iface) bool { return old.index == i.index && slices.Equal(old.prefixes, i.prefixes) })
	}
	if slices.ContainsFunc(all, isNew) {
		f.ask, f.wait = now.Add(delayLeast+rand.N(delayMost-delayLeast)), 0
	}
	f.on = all
}

// receive takes what a head says.
func (f *finder) receive(now time.Time, p packet) []outgoing {
	i, ok := by(p, f.on)
	if !ok || isQuery(p.data) || p.from.Port() != port {
		return nil // section 11
	}
	m, ok := parse(p.data)
	if !ok {
		return nil
	}
	for _, r := range m.records {
		if r.typ == dnsmessage.TypePTR && r.name == service {
			f.lists(now, r)
		}
	}
	for _, r := range m.records {
		if r.typ == dnsmessage.TypeSRV {
			if h := f.named(r.name); h != nil {
				h.host, h.port, h.served, h.ttl = r.target, r.port, expiry(now, r.ttl), r.ttl
			}
		}
	}
	for _, h := range f.heads {
		h.reached(now, i, m.records)
	}
	return nil
}

// lists notes that there is a head, or that there is none any more.
func (f *finder) lists(now time.Time, r record) {
	label, ok := strings.CutSuffix(r.target, "."+service)
	if !ok || label == "" || strings.Contains(label, ".") {
		return
	}
	h := f.named(r.target)
	if h == nil {
		if r.ttl == 0 || len(f.heads) >= maxHeads {
			return
		}
		h = &found{instance: r.target}
		f.heads = append(f.heads, h)
	}
	h.listed = expiry(now, r.ttl)
}

func (f *finder) named(instance string) *found {
	for _, h := range f.heads {
		if h.instance == instance {
			return h
		}
	}
	return nil
}

// reached notes addresses of a head. Only those on the network that they were heard on
// are believed: nobody there can have us dial elsewhere.
func (h *found) reached(now time.Time, i iface, records []record) {
	theirs := func(r record) bool {
		return (r.typ == dnsmessage.TypeA || r.typ == dnsmessage.TypeAAAA) && h.host != "" && r.name == h.host && i.onLink(r.addr)
	}
	if slices.ContainsFunc(records, func(r record) bool { return theirs(r) && r.unique }) {
		h.addrs = slices.DeleteFunc(h.addrs, func(a address) bool { return a.iface == i.index })
	}
	for _, r := range records {
		if !theirs(r) {
			continue
		}
		a := address{r.addr, i.index, expiry(now, r.ttl)}
		if a.Is6() && a.IsLinkLocalUnicast() {
			a.Addr = a.WithZone(i.name)
		}
		h.addrs = slices.DeleteFunc(h.addrs, func(old address) bool { return old.Addr == a.Addr })
		if len(h.addrs) < maxAddresses {
			h.addrs = append(h.addrs, a)
		}
	}
}

// expiry is until when a record holds. One that is taken back holds a second more
// (section 10.1).
func expiry(now time.Time, ttl time.Duration) time.Time { return now.Add(max(ttl, time.Second)) }

// tick forgets what is over, and asks when it is time to.
func (f *finder) tick(now time.Time) (out []outgoing) {
	for _, h := range f.heads {
		h.addrs = slices.DeleteFunc(h.addrs, func(a address) bool { return !now.Before(a.until) })
		if h.host != "" && !now.Before(h.served) {
			h.host = ""
			f.ask, f.wait = now, 0 // it may be there, and its answers were lost
		}
	}
	f.heads = slices.DeleteFunc(f.heads, func(h *found) bool { return !now.Before(h.listed) })
	if len(f.on) == 0 || now.Before(f.asks()) {
		return nil
	}
	for _, i := range f.on {
		out = append(out, outgoing{data: question(f.wait == 0), iface: i.index})
	}
	f.wait = min(max(askFirst, 2*f.wait), askMost)
	f.ask = now.Add(f.wait)
	for _, h := range f.heads {
		h.ttl = h.served.Sub(now) // again when a fifth of the rest is left
	}
	return out
}

// asks is when the next question is due: by the schedule, or before what a head said is
// over (section 5.2).
func (f *finder) asks() time.Time {
	at := f.ask
	for _, h := range f.heads {
		if h.host == "" || h.ttl < 5*time.Second {
			continue
		}
		if refresh := h.served.Add(-h.ttl / 5); refresh.Before(at) {
			at = refresh
		}
	}
	return at
}

// wake is when tick has something to do; zero: not before something happens.
func (f *finder) wake() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(f.on) > 0 {
		sooner(f.asks())
	}
	for _, h := range f.heads {
		sooner(h.listed)
		if h.host != "" {
			sooner(h.served)
		}
		for _, a := range h.addrs {
			sooner(a.until)
		}
	}
	return at
}

// here are the heads that can be dialled, by name. An address that two claim is that of
// the one that came first, so that nobody is dialled twice.
func (f *finder) here() []Head {
	all := []Head{}
	claimed := make(map[netip.AddrPort]bool)
	for _, h := range f.heads {
		if h.host == "" || h.port == 0 {
			continue
		}
		x := Head{Name: strings.TrimSuffix(h.instance, "."+service)}
		addrs := slices.Clone(h.addrs)
		slices.SortStableFunc(addrs, func(a, b address) int { return cmp.Or(cmp.Compare(rank(a.Addr), rank(b.Addr)), a.Compare(b.Addr)) })
		for _, a := range addrs {
			if at := netip.AddrPortFrom(a.Addr, h.port); !claimed[at] {
				claimed[at] = true
				x.Addresses = append(x.Addresses, at.String())
			}
		}
		if len(x.Addresses) > 0 {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b Head) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// rank puts addresses that hold longest in front.
func rank(a netip.Addr) int {
	switch {
	case a.Is4():
		return 0
	case !a.IsLinkLocalUnicast():
		return 1
	}
	return 2
}
