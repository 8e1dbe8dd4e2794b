package discover

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	service = "_slotfleet._tcp.local."
	meta    = "_services._dns-sd._udp.local." // where services are listed, RFC 6763 section 9

	port = 5353

	// A record about a host is short-lived, since addresses change; others are not
	// (RFC 6762 section 10).
	ttlHost  = 120 * time.Second
	ttlOther = 75 * time.Minute

	// ttlLegacy bounds what resolvers that know nothing of mDNS keep (section 6.7).
	ttlLegacy = 10 * time.Second

	// In mDNS the top bit of a class says of a question that its answer may come by
	// unicast, and of a record that it is the only one (sections 5.4 and 10.2).
	topBit = dnsmessage.Class(1 << 15)

	maxPacket    = 9000 // bytes, section 17
	maxQuestions = 32   // of a packet that are looked at
	maxRecords   = 128  // likewise
)

// iface is an interface of this machine.
type iface struct {
	index    int
	name     string
	prefixes []netip.Prefix // its addresses and networks
}

// onLink reports whether the address is on the interface's network.
func (i iface) onLink(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsLinkLocalUnicast() || slices.ContainsFunc(i.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// packet is one that came.
type packet struct {
	data  []byte
	from  netip.AddrPort
	iface int // 0: the system does not tell
}

// outgoing is one to be sent.
type outgoing struct {
	data  []byte
	to    netip.AddrPort // zero: to the group, on the interface
	iface int
}

// by returns the interface by which a packet came, if its source is on the network there.
func by(p packet, all []iface) (iface, bool) {
	for _, i := range all {
		if (p.iface == i.index || p.iface == 0) && i.onLink(p.from.Addr()) {
			return i, true
		}
	}
	return iface{}, false
}

// record is one of those that matter here.
type record struct {
	name   string // in lower case
	typ    dnsmessage.Type
	ttl    time.Duration
	unique bool       // there is no other than those of this packet
	target string     // of PTR and SRV, in lower case
	port   uint16     // of SRV
	addr   netip.Addr // of A and AAAA
}

// message is a packet as far as it matters here.
type message struct {
	dnsmessage.Header
	questions []dnsmessage.Question
	records   []record
}

// parse reads a packet; false: it is no message of DNS. What comes behind something
// that cannot be read is left out.
func parse(data []byte) (m message, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(data)
	if err != nil || len(data) > maxPacket || h.OpCode != 0 || h.RCode != 0 {
		return m, false
	}
	m.Header = h
	for {
		q, err := p.Question()
		if err != nil || len(m.questions) >= maxQuestions {
			break
		}
		m.questions = append(m.questions, q)
	}
	if p.SkipAllQuestions() != nil {
		return m, true
	}
	m.section(&p, p.AnswerHeader, p.SkipAnswer)
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return m, true
	}
	m.section(&p, p.AdditionalHeader, p.SkipAdditional)
	return m, true
}

func (m *message) section(p *dnsmessage.Parser, next func() (dnsmessage.ResourceHeader, error), skip func() error) {
	for range maxRecords {
		h, err := next()
		if err != nil {
			return
		}
		r := record{
			name: strings.ToLower(h.Name.String()), typ: h.Type, unique: h.Class&topBit != 0,
			ttl: min(time.Duration(h.TTL)*time.Second, ttlOther),
		}
		if h.Class&^topBit != dnsmessage.ClassINET || !r.body(p) {
			if skip() != nil {
				return
			}
			continue
		}
		m.records = append(m.records, r)
	}
}

// body reads what the record says; false: nothing that matters.
func (r *record) body(p *dnsmessage.Parser) bool {
	switch r.typ {
	case dnsmessage.TypePTR:
		x, err := p.PTRResource()
		r.target = strings.ToLower(x.PTR.String())
		return err == nil
	case dnsmessage.TypeSRV:
		x, err := p.SRVResource()
		r.target, r.port = strings.ToLower(x.Target.String()), x.Port
		return err == nil
	case dnsmessage.TypeA:
		x, err := p.AResource()
		r.addr = netip.AddrFrom4(x.A)
		return err == nil
	case dnsmessage.TypeAAAA:
		x, err := p.AAAAResource()
		r.addr = netip.AddrFrom16(x.AAAA).Unmap()
		return err == nil
	}
	return false
}

// question asks who serves; unicast: the answer may come to this machine alone.
func question(unicast bool) []byte {
	class := dnsmessage.ClassINET
	if unicast {
		class |= topBit
	}
	m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(service), Type: dnsmessage.TypePTR, Class: class}}}
	b, err := m.Pack()
	if err != nil {
		panic(err) // it is the same each time
	}
	return b
}

// head is what a head says of itself.
type head struct {
	label string // that is no other head's
	port  uint16
}

func (h head) instance() string { return h.label + "." + service }
func (h head) host() string     { return h.label + ".local." }

// has reports whether a name is one of those that the head has records of.
func (h head) has(name string) bool {
	return slices.ContainsFunc([]string{service, meta, h.instance(), h.host()}, func(n string) bool { return strings.EqualFold(n, name) })
}

// records are all that there is to say on an interface.
func (h head) records(addrs []netip.Addr) []dnsmessage.Resource {
	name := dnsmessage.MustNewName
	resource := func(of string, ttl time.Duration, unique bool, body dnsmessage.ResourceBody) dnsmessage.Resource {
		class := dnsmessage.ClassINET
		if unique {
			class |= topBit
		}
		return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name(of), Class: class, TTL: uint32(ttl.Seconds())}, Body: body}
	}
	all := []dnsmessage.Resource{
		resource(service, ttlOther, false, &dnsmessage.PTRResource{PTR: name(h.instance())}),
		resource(meta, ttlOther, false, &dnsmessage.PTRResource{PTR: name(service)}),
		resource(h.instance(), ttlHost, true, &dnsmessage.SRVResource{Port: h.port, Target: name(h.host())}),
		resource(h.instance(), ttlOther, true, &dnsmessage.TXTResource{TXT: []string{"linkf=1"}}),
	}
	for _, a := range addrs {
		if a.Is4() {
			all = append(all, resource(h.host(), ttlHost, true, &dnsmessage.AResource{A: a.As4()}))
		} else {
			all = append(all, resource(h.host(), ttlHost, true, &dnsmessage.AAAAResource{AAAA: a.As16()}))
		}
	}
	for i := range all {
		all[i].Header.Type = typeOf(all[i].Body)
	}
	return all
}

func typeOf(b dnsmessage.ResourceBody) dnsmessage.Type {
	switch b.(type) {
	case *dnsmessage.PTRResource:
		return dnsmessage.TypePTR
	case *dnsmessage.SRVResource:
		return dnsmessage.TypeSRV
	case *dnsmessage.TXTResource:
		return dnsmessage.TypeTXT
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

// reply is a response with these answers; a legacy one repeats the question and its id.
func reply(answers, more []dnsmessage.Resource, legacy *message) []byte {
	m := dnsmessage.Message{
		Header:  dnsmessage.Header{Response: true, Authoritative: true},
		Answers: answers, Additionals: more,
	}
	if legacy != nil {
		m.ID, m.Questions = legacy.ID, legacy.questions
		for _, list := range [][]dnsmessage.Resource{m.Answers, m.Additionals} {
			for i := range list {
				list[i].Header.Class &^= topBit
				list[i].Header.TTL = min(list[i].Header.TTL, uint32(ttlLegacy.Seconds()))
			}
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil // questions that cannot be repeated
	}
	return b
}

// isQuery reports whether a packet asks something, without reading it.
func isQuery(data []byte) bool {
	return len(data) >= 12 && binary.BigEndian.Uint16(data[2:])>>15 == 0
}
