package linkf

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The bounds of what says who a side is.
const (
	instanceLen = 16
	maxIdentity = 255
)

// commonVersion is the highest version that both ranges hold; ok is false if none is.
func commonVersion(aFrom, aTo, bFrom, bTo uint16) (v uint16, ok bool) {
	from, to := max(aFrom, bFrom), min(aTo, bTo)
	return to, from <= to
}

// who is a side as its peer knows it.
type who struct {
	instance [instanceLen]byte
	identity string
}

func whoIs(instance []byte, identity string) (who, error) {
	if len(instance) != instanceLen {
		return who{}, fmt.Errorf("the peer's instance has %d bytes, not %d", len(instance), instanceLen)
	}
	return who{[instanceLen]byte(instance), identity}, checkIdentity("peer", identity)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// checkIdentity refuses what cannot be told as the identity of a side.
func checkIdentity(side, identity string) error {
	if identity == "" || len(identity) > maxIdentity || !utf8.ValidString(identity) || strings.ContainsFunc(identity, unprintable) {
		return fmt.Errorf("the %s's identity, of %d bytes, is not fit to be shown: want 1 to %d bytes of printable characters", side, len(identity), maxIdentity)
	}
	return nil
}

// newWho is this run of a side.
func newWho(side, identity string) (w who, err error) {
	w.identity = identity
	_, _ = rand.Read(w.instance[:]) // never fails
	return w, checkIdentity(side, identity)
}

// greeting is the head's first exchange on a connection, before it is known which
// node that is.
type greeting struct {
	wire *wire
	me   who
	sent bool
	node who // once done
	done bool
}

func newGreeting(me who, now time.Duration) *greeting {
	return &greeting{wire: &wire{lastIn: now, lastOut: now}, me: me}
}

// pull is what to send.
func (g *greeting) pull(b []byte, now time.Duration) []byte {
	if !g.sent {
		g.sent = true
		b = g.wire.put(b, typeHello, hello{
			From: Version, To: Version, Instance: g.me.instance[:], Identity: g.me.identity,
			Limits: limits{Transfer: maxTransfer},
		}, now)
	}
	return g.wire.rest(b, 0, now)
}

// receive takes bytes until the node's answer is there. What follows it stays in the
// wire, for the machine that takes over.
func (g *greeting) receive(data []byte, now time.Duration) error {
	err := g.wire.read(data, now, func(f frame) error {
		if f.typ == typeClose {
			_, err := g.wire.common(f)
			return err
		}
		if f.typ != typeHelloAck {
			return fmt.Errorf("%s, where the answer to hello was due", f.typ)
		}
		m, err := decode[helloAck](f)
		if err != nil {
			return err
		}
		if m.Version != Version {
			return fmt.Errorf("the node chose version %d of %d to %d", m.Version, Version, Version)
		}
		if g.node, err = whoIs(m.Instance, m.Identity); err != nil {
			return err
		}
		g.done = true
		return errGreeted
	})
	if errors.Is(err, errGreeted) {
		return nil
	}
	if err != nil {
		g.wire.fail(err.Error())
	}
	return err
}

// errGreeted ends the reading behind the answer.
var errGreeted = errors.New("greeted")
