package discover

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// A question that many answer is answered after a random delay (RFC 6762 section 6).
	delayLeast = 20 * time.Millisecond
	delayMost  = 120 * time.Millisecond

	// multicastGap is the least time between two multicasts of a record on an interface.
	multicastGap = time.Second

	// unicastRate bounds the answers by unicast in a second, and unicastBurst those that
	// may come at once: an answer is larger than its question.
	unicastRate  = 20
	unicastBurst = 40

	maxSaid = 32 // addresses that are announced on an interface
)

// announcer says on each interface that a head is there, and answers who asks. It has no
// clock, goroutine or socket.
type announcer struct {
	head head
	only netip.Addr // the one address that it listens on; zero: all
	on   []*announced

	tokens   float64 // for answers by unicast
	tokensAt time.Time
}

// announced is an interface with what is to be said there.
type announced struct {
	iface
	addrs []netip.Addr
	left  int       // unsolicited announcements
	due   time.Time // of the next multicast; zero: none
	said  time.Time // when the last was
}

// interfaces says which there are. A new one, or one with other addresses, is told at
// once and a second later (section 8.3).
func (a *announcer) interfaces(now time.Time, all []iface) {
	before := a.on
	a.on = nil
	for _, i := range all {
		addrs := a.addresses(i)
		if len(addrs) == 0 {
			continue
		}
		x := &announced{iface: i, addrs: addrs, left: 2, due: now}
		for _, old := range before {
			if old.index == i.index && slices.Equal(old.addrs, addrs) {
				old.iface = i
				x = old
			}
		}
		a.on = append(a.on, x)
	}
}

// addresses are those of an interface by which the head can be reached there.
func (a *announcer) addresses(i iface) (all []netip.Addr) {
	for _, p := range i.prefixes {
		if addr := p.Addr().WithZone(""); (!a.only.IsValid() || addr == a.only) && len(all) < maxSaid {
			all = append(all, addr)
		}
	}
	return all
}

func (a *announcer) ifaces() (all []iface) {
	for _, x := range a.on {
		all = append(all, x.iface)
	}
	return all
}

// receive answers a packet, or notes that an answer is due.
func (a *announcer) receive(now time.Time, p packet) []outgoing {
	i, ok := by(p, a.ifaces())
	if !ok || !isQuery(p.data) {
		return nil
	}
	m, ok := parse(p.data)
	if !ok {
		return nil
	}
	x := a.on[slices.IndexFunc(a.on, func(x *announced) bool { return x.index == i.index })]
	m.questions = slices.DeleteFunc(m.questions, func(q dnsmessage.Question) bool { return !a.head.has(q.Name.String()) })
	if len(m.questions) == 0 {
		return nil
	}
	legacy := p.from.Port() != port
	if !legacy && slices.ContainsFunc(m.questions, func(q dnsmessage.Question) bool { return q.Class&topBit == 0 }) {
		a.answerAll(now, x, m)
		return nil
	}
	if !a.mayAnswer(now) {
		return nil
	}
	answers, more := a.answer(x, m)
	if len(answers) == 0 {
		return nil
	}
	var asked *message
	if legacy {
		asked = &m
	}
	if b := reply(answers, more, asked); b != nil {
		return []outgoing{{b, p.from, x.index}}
	}
	return nil
}

// answerAll has a question answered to all who listen, unless it will be already.
func (a *announcer) answerAll(now time.Time, x *announced, m message) {
	if !x.due.IsZero() {
		return
	}
	if answers, _ := a.answer(x, m); len(answers) == 0 {
		return
	}
	x.due = now.Add(delayLeast + rand.N(delayMost-delayLeast))
	if soonest := x.said.Add(multicastGap); x.due.Before(soonest) {
		x.due = soonest
	}
}

// answer returns the records that were asked for and not known, and the others.
func (a *announcer) answer(x *announced, m message) (answers, more []dnsmessage.Resource) {
	for _, r := range a.head.records(x.addrs) {
		switch {
		case slices.ContainsFunc(m.questions, func(q dnsmessage.Question) bool { return asks(q, r) }) && !known(m, r):
			answers = append(answers, r)
		case r.Header.Name.String() != meta:
			more = append(more, r)
		}
	}
	return answers, more
}

func asks(q dnsmessage.Question, r dnsmessage.Resource) bool {
	class := q.Class &^ topBit
	return strings.EqualFold(q.Name.String(), r.Header.Name.String()) &&
		(q.Type == r.Header.Type || q.Type == dnsmessage.TypeALL) &&
		(class == dnsmessage.ClassINET || class == dnsmessage.ClassANY)
}

// known reports whether who asks for a pointer has it, for half of its time at least
// (section 7.1).
func known(m message, r dnsmessage.Resource) bool {
	ptr, ok := r.Body.(*dnsmessage.PTRResource)
	return ok && slices.ContainsFunc(m.records, func(k record) bool {
		return k.typ == dnsmessage.TypePTR && strings.EqualFold(k.name, r.Header.Name.String()) &&
			strings.EqualFold(k.target, ptr.PTR.String()) && 2*k.ttl >= ttlOther
	})
}

func (a *announcer) mayAnswer(now time.Time) bool {
	a.tokens = min(unicastBurst, a.tokens+unicastRate*now.Sub(a.tokensAt).Seconds())
	a.tokensAt = now
	if a.tokens < 1 {
		return false
	}
	a.tokens--
	return true
}

// tick returns what is to be said now.
func (a *announcer) tick(now time.Time) (out []outgoing) {
	for _, x := range a.on {
		if x.due.IsZero() || now.Before(x.due) {
			continue
		}
		x.said, x.due = now, time.Time{}
		if x.left > 0 {
			if x.left--; x.left > 0 {
				x.due = now.Add(multicastGap)
			}
		}
		out = append(out, outgoing{data: reply(a.head.records(x.addrs), nil, nil), iface: x.index})
	}
	return out
}

// wake is when tick has something to do; zero: not before something happens.
func (a *announcer) wake() (at time.Time) {
	for _, x := range a.on {
		if !x.due.IsZero() && (at.IsZero() || x.due.Before(at)) {
			at = x.due
		}
	}
	return at
}

// goodbye takes back all that was said (section 10.1).
func (a *announcer) goodbye() (out []outgoing) {
	for _, x := range a.on {
		all := a.head.records(x.addrs)
		for i := range all {
			all[i].Header.TTL = 0
		}
		// Other hosts may offer the service, too.
		all = slices.DeleteFunc(all, func(r dnsmessage.Resource) bool { return r.Header.Name.String() == meta })
		out = append(out, outgoing{data: reply(all, nil, nil), iface: x.index})
	}
	return out
}
