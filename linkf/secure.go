package linkf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/flynn/noise"
)

const (
	maxPlain  = 65519 // of one record
	tagLen    = 16
	maxRecord = maxPlain + tagLen

	// A key encrypts at most so many records, for at most so long. The sender decides:
	// an empty record is its last under the old key.
	rekeyRecords = 1 << 20
	rekeyAfter   = time.Hour
)

var (
	errNotLinkf = errors.New("the peer does not speak linkf")
	errSecret   = errors.New("a record does not decrypt: it was changed, repeated or lost on the way")
)

// refusedError is what the peer said instead of a preamble.
type refusedError struct{ Refusal }

func (e *refusedError) Error() string { return "the peer refused: " + e.Refusal.Error() }
func (e *refusedError) Unwrap() error { return e.Refusal }

// secure encrypts one connection after its handshake. It holds at most one record.
type secure struct {
	out, in    *noise.CipherState
	sent, got  uint64 // records under the key in use
	since      time.Duration
	buf, plain []byte
}

// seal writes plain as records behind b.
func (s *secure) seal(b, plain []byte, now time.Duration) ([]byte, error) {
	for len(plain) > 0 {
		if s.sent >= rekeyRecords-1 || now-s.since >= rekeyAfter {
			var err error
			if b, err = s.record(b, nil); err != nil {
				return b, err
			}
			s.out.Rekey()
			s.sent, s.since = 0, now
		}
		n := min(len(plain), maxPlain)
		var err error
		if b, err = s.record(b, plain[:n]); err != nil {
			return b, err
		}
		plain = plain[n:]
	}
	return b, nil
}

func (s *secure) record(b, plain []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint16(b, uint16(len(plain)+tagLen))
	b, err := s.out.Encrypt(b, nil, plain)
	if err != nil {
		return b, fmt.Errorf("encrypt: %w", err)
	}
	s.sent++
	return b, nil
}

// open returns what the bytes hold in plain, valid until the next call. An error is
// final.
func (s *secure) open(data []byte) ([]byte, error) {
	if len(s.buf) == 0 {
		s.buf = fitted(s.buf, len(data))
	}
	s.buf = append(s.buf, data...)
	s.plain = fitted(s.plain, len(s.buf))
	b := s.buf
	for len(b) >= 2 {
		n := int(binary.BigEndian.Uint16(b))
		if n < tagLen || s.got >= rekeyRecords {
			return nil, errSecret
		}
		if len(b) < 2+n {
			break
		}
		var err error
		before := len(s.plain)
		if s.plain, err = s.in.Decrypt(s.plain, nil, b[2:2+n]); err != nil {
			return nil, errSecret
		}
		b = b[2+n:]
		s.got++
		if len(s.plain) == before {
			s.in.Rekey()
			s.got = 0
		}
	}
	s.buf = s.buf[:copy(s.buf, b)]
	return s.plain, nil
}

// handshake turns the first bytes of a connection into a secure one.
type handshake struct {
	role   Role
	tokens *Keyring // a node's has one entry
	random io.Reader

	mine, peer preamble
	entry      entry // whose token it is
	noise      *noise.HandshakeState
	buf        []byte
	done       *secure
}

// newHandshake begins one. A node says the token it uses; a head finds it in its ring.
// out is what to send at once.
func newHandshake(role Role, tokens *Keyring, random io.Reader) (h *handshake, out []byte, err error) {
	h = &handshake{role: role, tokens: tokens, random: random}
	if role == RoleHead {
		return h, nil, nil
	}
	h.entry = tokens.entries[0]
	if err := h.introduce(); err != nil {
		return nil, nil, err
	}
	return h, h.mine.append(nil), nil
}

func (h *handshake) introduce() error {
	var nonce [nonceLen]byte
	if _, err := io.ReadFull(h.random, nonce[:]); err != nil {
		return fmt.Errorf("random bytes for the handshake: %w", err)
	}
	h.mine = newPreamble(h.role, h.entry.token, nonce)
	return nil
}

// receive takes bytes of the peer and returns what to send, and once it is over the
// secure connection with what of the bytes belongs to that. At an error out is the
// refusal that the peer is to be told before the connection is closed, if any.
func (h *handshake) receive(data []byte) (out []byte, s *secure, rest []byte, err error) {
	h.buf = append(h.buf, data...)
	if h.noise == nil {
		p, n, err := readPreamble(h.buf, 1-h.role)
		if err != nil || n == 0 {
			var r Refusal
			if errors.As(err, &r) && !errors.As(err, new(*refusedError)) {
				return refusal(r), nil, nil, err
			}
			return nil, nil, nil, err
		}
		h.peer, h.buf = p, h.buf[n:]
		if out, err = h.begin(); err != nil {
			return out, nil, nil, err
		}
	}
	more, err := h.message()
	if err != nil {
		return nil, nil, nil, err
	}
	return append(out, more...), h.done, h.buf, nil
}

// begin starts Noise once the peer's preamble is there. The head is the initiator,
// whoever dialled.
func (h *handshake) begin() (out []byte, err error) {
	prologue := h.mine.append(nil)
	if h.role == RoleHead {
		e, ok := h.tokens.find(h.peer)
		if !ok {
			return refusal(RefusedToken), RefusedToken
		}
		h.entry = e
		if err := h.introduce(); err != nil {
			return nil, err
		}
		out = h.mine.append(nil)
		prologue = append(h.peer.append(nil), out...)
	} else {
		if !h.peer.knows(h.entry.token) {
			return refusal(RefusedToken), RefusedToken
		}
		prologue = h.peer.append(prologue)
	}
	h.noise, err = noise.NewHandshakeState(noise.Config{
		CipherSuite:  noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashBLAKE2s),
		Random:       h.random,
		Pattern:      noise.HandshakeNN,
		Initiator:    h.role == RoleHead,
		Prologue:     prologue,
		PresharedKey: h.entry.token.key[:],
	})
	if err != nil {
		return nil, fmt.Errorf("begin the handshake: %w", err)
	}
	if h.role == RoleHead {
		out, err = h.say(out)
	}
	return out, err
}

// messageLen is that of both handshake messages: a key and a tag.
const messageLen = 48

// message reads the peer's handshake message, once it is there.
func (h *handshake) message() (out []byte, err error) {
	if len(h.buf) < 2 {
		return nil, nil
	}
	if n := binary.BigEndian.Uint16(h.buf); n != messageLen {
		return nil, fmt.Errorf("a handshake message of %d bytes, not %d", n, messageLen)
	}
	if len(h.buf) < 2+messageLen {
		return nil, nil
	}
	_, a, b, err := h.noise.ReadMessage(nil, h.buf[2:2+messageLen])
	if err != nil {
		return nil, fmt.Errorf("the peer's handshake does not decrypt: %w", RefusedToken)
	}
	h.buf = h.buf[2+messageLen:]
	if h.role == RoleHead {
		h.done = &secure{out: a, in: b}
		return nil, nil
	}
	return h.say(nil)
}

// say writes our handshake message. The node's is the last one.
func (h *handshake) say(out []byte) ([]byte, error) {
	out = binary.BigEndian.AppendUint16(out, messageLen)
	out, a, b, err := h.noise.WriteMessage(out, nil)
	if err != nil {
		return nil, fmt.Errorf("write the handshake: %w", err)
	}
	if h.role == RoleNode {
		h.done = &secure{out: b, in: a}
	}
	return out, nil
}
