package linkf

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"hash"

	"golang.org/x/crypto/blake2s"
)

// Role is which side of a link somebody is.
type Role uint8

// The roles.
const (
	RoleHead Role = 0
	RoleNode Role = 1
)

// Refusal is why a handshake was refused.
type Refusal uint8

// The refusals.
const (
	RefusedToken   Refusal = 1
	RefusedVersion Refusal = 2
	RefusedFull    Refusal = 3
	RefusedName    Refusal = 4
	RefusedLinked  Refusal = 5 // by a node that dialled: never before a handshake
)

// Error tells the operator of either side what to do.
func (r Refusal) Error() string {
	switch r {
	case RefusedToken:
		return "unknown token: head and node must have the same one"
	case RefusedVersion:
		return "it speaks another version of linkf: head and node must be of versions that know each other"
	case RefusedFull:
		return "too many nodes: try again later"
	case RefusedName:
		return "the identity is in use by another node, or this token may not use it"
	case RefusedLinked:
		return "the node has a link to this head already"
	default:
		return fmt.Sprintf("refused with code %d", uint8(r))
	}
}

const (
	magic           = "linkf"
	preambleVersion = 1

	preambleLen = 48
	refusalLen  = 8
	refusalRole = 0xFF
	nonceLen    = 16
	hintLen     = 24
)

// preamble is what each side sends first, in the clear.
type preamble struct {
	role  Role
	nonce [nonceLen]byte
	hint  [hintLen]byte // zero: no token
}

func newPreamble(role Role, t Token, nonce [nonceLen]byte) preamble {
	return preamble{role: role, nonce: nonce, hint: hint(t, role, nonce)}
}

// hint shows which token is meant to those who have it, and nothing to others.
func hint(t Token, role Role, nonce [nonceLen]byte) (h [hintLen]byte) {
	if t.IsZero() {
		return h
	}
	mac, err := blake2s.New256(t.key[:])
	if err != nil {
		panic(err) // only for a key longer than 32 bytes
	}
	write(mac, []byte("linkf hint 1"), []byte{byte(role)}, nonce[:])
	copy(h[:], mac.Sum(nil))
	return h
}

func write(h hash.Hash, parts ...[]byte) {
	for _, p := range parts {
		_, _ = h.Write(p) // a hash takes all
	}
}

// knows reports whether the sender has this token.
func (p preamble) knows(t Token) bool {
	want := hint(t, p.role, p.nonce)
	return subtle.ConstantTimeCompare(p.hint[:], want[:]) == 1
}

func (p preamble) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, preambleVersion, byte(p.role), 0)
	b = append(b, p.nonce[:]...)
	return append(b, p.hint[:]...)
}

// refusal is what is sent instead of a preamble, before closing.
func refusal(r Refusal) []byte {
	return append([]byte(magic), preambleVersion, refusalRole, byte(r))
}

// readPreamble reads the peer's preamble from the front of b; n is its length, 0 while
// more is needed. What the peer refused comes back as a [Refusal], and one that cannot
// be understood because of its version, too.
func readPreamble(b []byte, from Role) (p preamble, n int, err error) {
	if k := min(len(b), len(magic)); !bytes.Equal(b[:k], []byte(magic)[:k]) {
		return p, 0, errNotLinkf
	}
	if len(b) < refusalLen {
		return p, 0, nil
	}
	role := b[6]
	switch {
	case role == refusalRole:
		return p, 0, &refusedError{Refusal(b[7])}
	case b[5] != preambleVersion:
		return p, 0, RefusedVersion
	case role != byte(from):
		return p, 0, fmt.Errorf("the peer says it is a %s too", roleName(role))
	case b[7] != 0:
		return p, 0, RefusedVersion // flags come with a version that knows them
	case len(b) < preambleLen:
		return p, 0, nil
	}
	p.role = from
	copy(p.nonce[:], b[8:])
	copy(p.hint[:], b[8+nonceLen:])
	return p, preambleLen, nil
}

func roleName(r byte) string {
	switch Role(r) {
	case RoleHead:
		return "head"
	case RoleNode:
		return "node"
	}
	return fmt.Sprintf("role %d", r)
}
