package discover

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

var (
	t0   = time.Unix(1_800_000_000, 0)
	eth0 = iface{2, "eth0", []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fe80::1/64")}}
)

// talking is an announcer that has said on eth0 what it had to.
func talking() *announcer {
	a := &announcer{head: head{"slotfleet-1", 8454}}
	a.interfaces(t0, []iface{eth0})
	for at := a.wake(); !at.IsZero(); at = a.wake() {
		a.tick(at)
	}
	return a
}

// asked is a question from a machine of the network.
func asked(name string, typ dnsmessage.Type, class dnsmessage.Class, from string, known ...dnsmessage.Resource) packet {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: class}},
		Answers:   known,
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packet{b, netip.MustParseAddrPort(from), 2}
}

func TestQuestionsAreAnswered(t *testing.T) {
	const in, mdns = dnsmessage.ClassINET, "10.0.0.7:5353"
	ptr := func(ttl uint32) dnsmessage.Resource {
		r := head{"slotfleet-1", 8454}.records(nil)[0]
		r.Header.TTL = ttl
		return r
	}
	for name, x := range map[string]struct {
		p    packet
		want string // how: by "multicast", "unicast" or not at all
	}{
		"who serves":                         {asked(service, dnsmessage.TypePTR, in, mdns), "multicast"},
		"who serves, in other letters":       {asked("_SlotFleet._TCP.Local.", dnsmessage.TypePTR, in, mdns), "multicast"},
		"anything of the service":            {asked(service, dnsmessage.TypeALL, dnsmessage.ClassANY, mdns), "multicast"},
		"who serves, by unicast":             {asked(service, dnsmessage.TypePTR, in|topBit, mdns), "unicast"},
		"where":                              {asked("slotfleet-1."+service, dnsmessage.TypeSRV, in, mdns), "multicast"},
		"the address":                        {asked("slotfleet-1.local.", dnsmessage.TypeA, in, mdns), "multicast"},
		"the other address":                  {asked("slotfleet-1.local.", dnsmessage.TypeAAAA, in, mdns), "multicast"},
		"which services there are":           {asked(meta, dnsmessage.TypePTR, in, mdns), "multicast"},
		"one that knows nothing of mDNS":     {asked(service, dnsmessage.TypePTR, in, "10.0.0.7:40000"), "legacy"},
		"who serves, and that is known":      {asked(service, dnsmessage.TypePTR, in, mdns, ptr(4000)), ""},
		"who serves, and soon forgets it":    {asked(service, dnsmessage.TypePTR, in, mdns, ptr(2000)), "multicast"},
		"another service":                    {asked("_http._tcp.local.", dnsmessage.TypePTR, in, mdns), ""},
		"another head":                       {asked("slotfleet-2."+service, dnsmessage.TypeSRV, in, mdns), ""},
		"another type":                       {asked(service, dnsmessage.TypeA, in, mdns), ""},
		"another class":                      {asked(service, dnsmessage.TypePTR, dnsmessage.ClassCHAOS, mdns), ""},
		"one who is elsewhere":               {asked(service, dnsmessage.TypePTR, in, "10.0.1.7:5353"), ""},
		"one who is elsewhere, without mDNS": {asked(service, dnsmessage.TypePTR, in, "8.8.8.8:53"), ""},
	} {
		a := talking()
		now := t0.Add(time.Minute)
		out := a.receive(now, x.p)
		got := ""
		switch {
		case len(out) == 1 && x.p.from.Port() == port:
			got = "unicast"
		case len(out) == 1:
			got = "legacy"
		case !a.wake().IsZero():
			got = "multicast"
			if wait := a.wake().Sub(now); wait < delayLeast || wait > delayMost {
				t.Errorf("%s: answered after %v, want %v to %v", name, wait, delayLeast, delayMost)
			}
			out = a.tick(a.wake())
		}
		if got != x.want {
			t.Errorf("%s: got an answer by %q, want %q", name, got, x.want)
			continue
		}
		if got == "" {
			continue
		}
		checkReply(t, name, got, x.p, out[0])
	}
}

func checkReply(t *testing.T, name, how string, p packet, o outgoing) {
	t.Helper()
	m, ok := parse(o.data)
	if !ok || !m.Response || !m.Authoritative || o.iface != 2 || o.to.IsValid() != (how != "multicast") || o.to.IsValid() && o.to != p.from {
		t.Errorf("%s: got %+v to %v, want an answer", name, m.Header, o.to)
	}
	legacy := how == "legacy"
	if (m.ID == 77) != legacy || (len(m.questions) == 1) != legacy {
		t.Errorf("%s: got id %d and %d questions; want those of the question for a resolver that knows no mDNS, else none", name, m.ID, len(m.questions))
	}
	found := ""
	for _, r := range m.records {
		if r.typ == dnsmessage.TypeSRV {
			found = r.target
		}
		if r.name == "slotfleet-1.local." && r.addr == netip.MustParseAddr("10.0.0.1") && strings.HasPrefix(found, "slotfleet-1") {
			found = "whole"
		}
		if legacy && (r.ttl > ttlLegacy || r.unique) {
			t.Errorf("%s: got a record for %v, unique %v; want at most %v, and not", name, r.ttl, r.unique, ttlLegacy)
		}
	}
	if found != "whole" {
		t.Errorf("%s: got %+v, want where the head is", name, m.records)
	}
}

func TestAFloodOfQuestionsIsAnsweredAFewTimes(t *testing.T) {
	a := talking()
	multicast, unicast := 0, 0
	for i := range 10_000 { // in 10 s
		now := t0.Add(time.Minute + time.Duration(i)*time.Millisecond)
		if at := a.wake(); !at.IsZero() && !now.Before(at) {
			multicast += len(a.tick(now))
		}
		class := dnsmessage.ClassINET
		if i%2 == 0 {
			class |= topBit
		}
		unicast += len(a.receive(now, asked(service, dnsmessage.TypePTR, class, "10.0.0.7:5353")))
	}
	if multicast > 11 || unicast > unicastBurst+10*unicastRate {
		t.Errorf("got %d multicasts and %d answers in 10 s, want at most 11 and %d", multicast, unicast, unicastBurst+10*unicastRate)
	}
	if multicast < 5 || unicast < 10*unicastRate {
		t.Errorf("got %d multicasts and %d answers in 10 s, want it to go on answering", multicast, unicast)
	}
}

func TestInterfacesAreToldTwiceAndWhenTheirAddressesChange(t *testing.T) {
	a := &announcer{head: head{"slotfleet-1", 8454}}
	a.interfaces(t0, []iface{eth0})
	first := a.tick(t0)
	if len(first) != 1 || a.wake() != t0.Add(time.Second) {
		t.Errorf("got %d announcements and the next at %v, want one and the next after a second", len(first), a.wake())
	}
	if a.tick(t0.Add(time.Second)); !a.wake().IsZero() {
		t.Errorf("got a third announcement at %v", a.wake())
	}
	a.interfaces(t0.Add(time.Minute), []iface{eth0})
	if !a.wake().IsZero() {
		t.Error("nothing changed, and it is announced again")
	}
	a.interfaces(t0.Add(time.Minute), []iface{{2, "eth0", []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}})
	if out := a.tick(t0.Add(time.Minute)); len(out) != 1 {
		t.Errorf("got %d announcements of a new address, want one", len(out))
	}
	// A head that listens on one address is not announced where that is not.
	a.only = netip.MustParseAddr("10.0.0.1")
	a.interfaces(t0, []iface{{2, "eth0", []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}, {3, "eth1", eth0.prefixes}})
	if len(a.on) != 1 || a.on[0].index != 3 || len(a.on[0].addrs) != 1 {
		t.Errorf("got %+v, want the interface with its address, and that alone", a.on)
	}
	for _, o := range a.goodbye() {
		m, _ := parse(o.data)
		for _, r := range m.records {
			if r.ttl != 0 || r.name == meta {
				t.Errorf("the goodbye holds %s with %v", r.name, r.ttl)
			}
		}
	}
}
