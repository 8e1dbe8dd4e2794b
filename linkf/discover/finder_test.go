package discover

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// looking is a finder with one interface.
func looking() *finder {
	f := new(finder)
	f.interfaces(t0, []iface{eth0})
	return f
}

// says is what a head announces, as it comes from another address.
func says(label string, from string, addrs ...string) packet {
	var all []netip.Addr
	for _, a := range addrs {
		all = append(all, netip.MustParseAddr(a))
	}
	return packet{reply(head{label, 8454}.records(all), nil, nil), netip.MustParseAddrPort(from), 2}
}

func TestOnlyWhatIsOnTheNetworkIsBelieved(t *testing.T) {
	good := says("a", "10.0.0.7:5353", "10.0.0.7", "fe80::7")
	noIndex := good
	noIndex.iface = 0
	query := good
	query.data = slices.Clone(good.data)
	query.data[2] &^= 0x80
	failed := good
	failed.data = slices.Clone(good.data)
	failed.data[3] |= 3
	dots := packet{reply([]dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(service), Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET, TTL: 100},
		Body:   &dnsmessage.PTRResource{PTR: dnsmessage.MustNewName("x.y." + service)},
	}}, nil, nil), good.from, 2}
	for name, x := range map[string]struct {
		p    packet
		want string
	}{
		"a head":                              {good, "[10.0.0.7:8454 [fe80::7%eth0]:8454]"},
		"where the interface is not told":     {noIndex, "[10.0.0.7:8454 [fe80::7%eth0]:8454]"},
		"from a link-local address":           {says("a", "[fe80::7%eth0]:5353", "10.0.0.7"), "[10.0.0.7:8454]"},
		"from elsewhere":                      {says("a", "10.0.1.7:5353", "10.0.0.7"), ""},
		"from another port":                   {says("a", "10.0.0.7:5354", "10.0.0.7"), ""},
		"an address elsewhere":                {says("a", "10.0.0.7:5353", "192.168.7.7"), ""},
		"an address elsewhere beside another": {says("a", "10.0.0.7:5353", "1.1.1.1", "10.0.0.8"), "[10.0.0.8:8454]"},
		"loopback":                            {says("a", "10.0.0.7:5353", "127.0.0.1", "::1"), ""},
		"without an address":                  {says("a", "10.0.0.7:5353"), ""},
		"a question":                          {query, ""},
		"an error":                            {failed, ""},
		"a name of two labels":                {dots, ""},
		"no DNS":                              {packet{[]byte("GET / HTTP/1.1\r\n\r\n"), good.from, 2}, ""},
	} {
		f := looking()
		f.receive(t0, x.p)
		got := ""
		for _, h := range f.here() {
			got += fmt.Sprint(h.Addresses)
		}
		if got != x.want {
			t.Errorf("%s: got %q, want %q", name, got, x.want)
		}
	}
}

func TestAddressesThatAHeadHasNoMoreAreForgotten(t *testing.T) {
	f := looking()
	f.receive(t0, says("a", "10.0.0.7:5353", "10.0.0.7", "10.0.0.8"))
	f.receive(t0, says("a", "10.0.0.9:5353", "10.0.0.9"))
	if got := f.here(); len(got) != 1 || !slices.Equal(got[0].Addresses, []string{"10.0.0.9:8454"}) {
		t.Errorf("got %+v, want what was said last", got)
	}
}

// Else two links to one head would throw each other out.
func TestAddressIsThatOfOneHeadOnly(t *testing.T) {
	f := looking()
	f.receive(t0, says("b", "10.0.0.7:5353", "10.0.0.7"))
	f.receive(t0, says("a", "10.0.0.66:5353", "10.0.0.7"))
	if got := f.here(); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("got %+v, want the head that came first", got)
	}
}

func TestAFloodOfHeadsIsBounded(t *testing.T) {
	f := looking()
	for i := range 5_000 {
		var addrs []string
		for k := range 10 {
			addrs = append(addrs, fmt.Sprintf("10.0.0.%d", (i+k)%250+1))
		}
		f.receive(t0, says(fmt.Sprint(i), "10.0.0.7:5353", addrs...))
		f.tick(t0)
	}
	n := 0
	for _, h := range f.heads {
		n += len(h.addrs)
	}
	if len(f.heads) > maxHeads || n > maxHeads*maxAddresses {
		t.Errorf("got %d heads with %d addresses, want at most %d with %d each", len(f.heads), n, maxHeads, maxAddresses)
	}
	// They are gone in time, and then others are taken.
	f.tick(t0.Add(ttlOther))
	f.receive(t0.Add(ttlOther), says("late", "10.0.0.7:5353", "10.0.0.7"))
	if got := f.here(); len(got) != 1 || got[0].Name != "late" {
		t.Errorf("after they expired: got %+v, want the one that came then", got)
	}
}

func TestQuestionsBecomeRare(t *testing.T) {
	f := looking()
	var gaps []time.Duration
	last, first := t0, true
	for last.Before(t0.Add(5 * time.Hour)) {
		at := f.wake()
		out := f.tick(at)
		if len(out) != 1 || out[0].iface != 2 {
			t.Fatalf("at %v: got %d packets, want one question", at.Sub(t0), len(out))
		}
		m, ok := parse(out[0].data)
		if !ok || len(m.questions) != 1 || m.questions[0].Class&topBit != 0 != first {
			t.Fatalf("got %+v, want one question, the first answered by unicast", m.questions)
		}
		if !first {
			gaps = append(gaps, at.Sub(last))
		}
		last, first = at, false
	}
	for i := 1; i < len(gaps); i++ {
		if gaps[0] < time.Second || gaps[i] < min(2*gaps[i-1], time.Hour) {
			t.Fatalf("got gaps %v, want each twice the one before, up to an hour", gaps)
		}
	}
}

func FuzzFinder(f *testing.F) {
	f.Add(says("a", "10.0.0.7:5353", "10.0.0.7", "fe80::7").data)
	f.Add(question(true))
	f.Fuzz(func(t *testing.T, data []byte) {
		x := looking()
		for range 2 {
			x.receive(t0, packet{data, netip.MustParseAddrPort("10.0.0.7:5353"), 2})
			for _, h := range x.here() {
				for _, a := range h.Addresses {
					if at, err := netip.ParseAddrPort(a); err != nil || !eth0.onLink(at.Addr()) {
						t.Fatalf("got the address %q, want one of the network", a)
					}
				}
			}
			x.tick(t0)
		}
		for at, n := x.wake(), 0; at.Before(t0.Add(2 * ttlOther)); at = x.wake() {
			x.tick(at)
			if n++; n > 200 {
				t.Fatalf("it woke %d times until %v", n, at.Sub(t0))
			}
		}
		if len(x.heads) > 0 {
			t.Fatalf("%d heads are left after their time", len(x.heads))
		}
	})
}

func FuzzAnnouncer(f *testing.F) {
	f.Add(asked(service, dnsmessage.TypePTR, dnsmessage.ClassINET, "10.0.0.7:5353").data, uint16(port))
	f.Add(asked(meta, dnsmessage.TypeALL, dnsmessage.ClassANY, "10.0.0.7:5353").data, uint16(40000))
	f.Fuzz(func(t *testing.T, data []byte, from uint16) {
		a := talking()
		now := t0.Add(time.Minute)
		out := a.receive(now, packet{data, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.7"), from), 2})
		out = append(out, a.tick(now.Add(time.Second))...)
		for _, o := range out {
			if m, ok := parse(o.data); !ok || !m.Response {
				t.Fatalf("got %x, want an answer that can be read", o.data)
			}
		}
		if len(out) > 1 {
			t.Fatalf("%d packets answer one", len(out))
		}
	})
}
