package linkf

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Token is the secret that head and node share. The zero Token is none: a link then
// proves nothing about its peer.
type Token struct {
	key  [32]byte // what the handshake takes
	some bool
}

// NewToken makes a token and returns the text that ParseToken reads.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ParseToken reads 64 hexadecimal digits; space around them is ignored. Errors do not
// repeat what they refuse.
func ParseToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	secret, err := hex.DecodeString(s)
	if err != nil || len(secret) != 32 {
		return Token{}, fmt.Errorf("a token is 64 hexadecimal digits, this one has %d characters; caddy fleet token makes one", len(s))
	}
	psk, err := hkdf.Key(sha256.New, secret, nil, "linkf psk 1", 32)
	if err != nil {
		return Token{}, fmt.Errorf("derive the token's key: %w", err)
	}
	return Token{key: [32]byte(psk), some: true}, nil
}

// IsZero reports whether it is no token.
func (t Token) IsZero() bool { return !t.some }

// String hides the token.
func (t Token) String() string {
	if t.IsZero() {
		return "no token"
	}
	return "a token"
}

// GoString hides it too.
func (t Token) GoString() string { return t.String() }

// Keyring is the tokens that a head takes, and who may use which.
type Keyring struct{ entries []entry }

type entry struct {
	token      Token
	identities []string // empty: any
}

// Add takes a token from nodes of these identities; of any, if none are given.
func (k *Keyring) Add(t Token, identities ...string) {
	k.entries = append(k.entries, entry{t, identities})
}

// ParseTokens reads a tokens file: a token a line, and behind it the identities that
// may use it, if not any. Empty lines and those that begin with # are skipped. Errors
// name the line, never the token.
func ParseTokens(data []byte) (*Keyring, error) {
	k := new(Keyring)
	for i, line := range strings.Split(string(data), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		t, err := ParseToken(words[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if slices.ContainsFunc(k.entries, func(e entry) bool { return e.token == t }) {
			return nil, fmt.Errorf("line %d: this token is there already; put its identities on one line", i+1)
		}
		k.Add(t, words[1:]...)
	}
	if len(k.entries) == 0 {
		return nil, errors.New("it holds no token")
	}
	return k, nil
}

// find returns the entry whose token made the node's hint. All are tried, so that time
// does not tell which one it was.
func (k *Keyring) find(p preamble) (entry, bool) {
	var found entry
	ok := false
	for _, e := range k.entries {
		if p.knows(e.token) {
			found, ok = e, true
		}
	}
	return found, ok
}

var errNotAllowed = errors.New("its token may not be used by")

// allows says why the token may not be used by a node of the identity.
func (e entry) allows(identity string) error {
	if len(e.identities) == 0 || slices.Contains(e.identities, identity) {
		return nil
	}
	return fmt.Errorf("%w %q", errNotAllowed, identity)
}
