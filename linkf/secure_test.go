package linkf

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	tokenA = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	tokenB = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)

func token(t testing.TB, s string) Token {
	t.Helper()
	k, err := ParseToken(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func ring(tokens ...Token) *Keyring {
	k := new(Keyring)
	for _, x := range tokens {
		k.Add(x)
	}
	return k
}

// shake runs a handshake; the bytes go in pieces of at most size.
func shake(t testing.TB, head, node *Keyring, size int) (h, n *secure, refused []byte, err error) {
	t.Helper()
	hh, _, err := newHandshake(RoleHead, head, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	nn, toHead, err := newHandshake(RoleNode, node, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var toNode []byte
	for len(toHead)+len(toNode) > 0 {
		if len(toHead) > 0 {
			k := min(size, len(toHead))
			out, s, _, err := hh.receive(toHead[:k])
			toHead, toNode = toHead[k:], append(toNode, out...)
			if err != nil {
				return nil, nil, out, err
			}
			h = s
		}
		if len(toNode) > 0 {
			k := min(size, len(toNode))
			out, s, _, err := nn.receive(toNode[:k])
			toNode, toHead = toNode[k:], append(toHead, out...)
			if err != nil {
				return nil, nil, out, err
			}
			if s != nil {
				n = s
			}
		}
	}
	return h, n, nil, nil
}

func TestSidesOfOneTokenUnderstandEachOther(t *testing.T) {
	none := ring(Token{})
	two := ring(token(t, tokenB), token(t, tokenA))
	for name, c := range map[string][2]*Keyring{
		"one token": {ring(token(t, tokenA)), ring(token(t, tokenA))},
		"the head has two while they are rotated": {two, ring(token(t, tokenA))},
		"none on either side":                     {none, none},
	} {
		for _, size := range []int{1, 7, 4096} {
			h, n, _, err := shake(t, c[0], c[1], size)
			if err != nil || h == nil || n == nil {
				t.Fatalf("%s, %d bytes at a time: got %v, %v, %v; want two connections", name, size, h, n, err)
			}
			text := bytes.Repeat([]byte("words that nobody may read "), 9000)
			for _, way := range [][2]*secure{{h, n}, {n, h}} {
				b, err := way[0].seal(nil, text, 0)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(b, []byte("nobody")) {
					t.Errorf("%s: the text can be read on the way", name)
				}
				var got []byte
				for len(b) > 0 {
					k := min(50_000, len(b))
					p, err := way[1].open(b[:k])
					if err != nil {
						t.Fatal(err)
					}
					got, b = append(got, p...), b[k:]
				}
				if !bytes.Equal(got, text) {
					t.Errorf("%s: %d bytes came, want the %d that were sent", name, len(got), len(text))
				}
			}
		}
	}
}

func TestStrangersAreRefusedAndTold(t *testing.T) {
	a, b, none := ring(token(t, tokenA)), ring(token(t, tokenB)), ring(Token{})
	for name, c := range map[string][2]*Keyring{
		"another token": {a, b}, "no token at the node": {a, none}, "no token at the head": {none, a},
	} {
		_, _, told, err := shake(t, c[0], c[1], 4096)
		if !errors.Is(err, RefusedToken) || !bytes.Equal(told, refusal(RefusedToken)) {
			t.Errorf("%s: got %v and sent %x, want %v and its bytes", name, err, told, RefusedToken)
		}
	}
}

// A head that knows no token of the node's answers with a hint of its own; the node
// takes only one that is of its token.
func TestNodeRefusesHeadThatDoesNotKnowItsToken(t *testing.T) {
	n, _, err := newHandshake(RoleNode, ring(token(t, tokenA)), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	out, _, _, err := n.receive(newPreamble(RoleHead, token(t, tokenB), [nonceLen]byte{1}).append(nil))
	if !errors.Is(err, RefusedToken) || !bytes.Equal(out, refusal(RefusedToken)) {
		t.Errorf("got %x, %v; want the refusal of the token", out, err)
	}
}

func TestRefusalIsUnderstood(t *testing.T) {
	for _, r := range []Refusal{RefusedToken, RefusedVersion, RefusedFull, RefusedName, 77} {
		n, _, err := newHandshake(RoleNode, ring(token(t, tokenA)), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		out, _, _, err := n.receive(refusal(r))
		if !errors.Is(err, r) || out != nil || !strings.Contains(err.Error(), "the peer refused") {
			t.Errorf("refusal %d: got %v and sent %x, want it and nothing", r, err, out)
		}
	}
}

func TestOtherVersionsAndProgramsAreRefused(t *testing.T) {
	good := newPreamble(RoleNode, token(t, tokenA), [nonceLen]byte{}).append(nil)
	change := func(i int, b byte) []byte {
		p := bytes.Clone(good)
		p[i] = b
		return p
	}
	for name, c := range map[string]struct {
		in   []byte
		told []byte
	}{
		"version 2":      {change(5, 2), refusal(RefusedVersion)},
		"flags":          {change(7, 1), refusal(RefusedVersion)},
		"another head":   {change(6, 0), nil},
		"HTTP":           {[]byte("GET / HTTP/1.1\r\n"), nil},
		"one wrong byte": {[]byte("x"), nil},
	} {
		h, _, err := newHandshake(RoleHead, ring(token(t, tokenA)), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		out, s, _, err := h.receive(c.in)
		if err == nil || s != nil || !bytes.Equal(out, c.told) {
			t.Errorf("%s: got %v, sent %x; want an error and %x", name, err, out, c.told)
		}
	}
}

func TestReplayedHandshakeProvesNothing(t *testing.T) {
	keys := ring(token(t, tokenA))
	h, _, _ := newHandshake(RoleHead, keys, rand.Reader)
	n, hello, _ := newHandshake(RoleNode, keys, rand.Reader)
	first, _, _, err := h.receive(hello)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody recorded what the head sent, and says it to the node again.
	if _, _, _, err := n.receive(first); err != nil {
		t.Fatal(err)
	}
	again, _, _ := newHandshake(RoleNode, keys, rand.Reader)
	if _, s, _, err := again.receive(first); err == nil || s != nil {
		t.Errorf("a recorded handshake: got %v, %v; want an error, as the node's part differs", s, err)
	}
}

func TestRecordsThatAreChangedRepeatedOrLostEndTheLink(t *testing.T) {
	for name, spoil := range map[string]func(a, b []byte) []byte{
		"changed":  func(a, b []byte) []byte { a[5] ^= 1; return a },
		"repeated": func(a, b []byte) []byte { return append(bytes.Clone(a), a...) },
		"lost":     func(a, b []byte) []byte { return b },
		"short":    func(a, b []byte) []byte { return []byte{0, 15} },
	} {
		h, n, _, err := shake(t, ring(token(t, tokenA)), ring(token(t, tokenA)), 4096)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := h.seal(nil, []byte("first"), 0)
		b, _ := h.seal(nil, []byte("second"), 0)
		if _, err := n.open(spoil(a, b)); !errors.Is(err, errSecret) {
			t.Errorf("%s: got %v, want %v", name, err, errSecret)
		}
	}
}

func TestKeysAreChangedByTimeAndByCount(t *testing.T) {
	h, n, _, err := shake(t, ring(token(t, tokenA)), ring(token(t, tokenA)), 4096)
	if err != nil {
		t.Fatal(err)
	}
	send := func(now time.Duration, text string) int {
		b, err := h.seal(nil, []byte(text), now)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := n.open(b); err != nil || string(got) != text {
			t.Fatalf("at %v: got %q, %v; want %q", now, got, err, text)
		}
		return len(b)
	}
	plain := send(0, "text")
	if got := send(rekeyAfter, "text"); got != plain+2+tagLen {
		t.Errorf("after an hour %d bytes were sent, want the empty record before the %d", got, plain)
	}
	if got := send(rekeyAfter+time.Second, "text"); got != plain {
		t.Errorf("right after that %d bytes were sent, want %d", got, plain)
	}
	h.sent, n.got = rekeyRecords-1, rekeyRecords-1
	if got := send(rekeyAfter+time.Second, "text"); got != plain+2+tagLen {
		t.Errorf("at the last record of a key %d bytes were sent, want the empty record before the %d", got, plain)
	}
	// A peer that goes on with a key for too long is not followed.
	h.sent, n.got = 1, rekeyRecords
	b, _ := h.seal(nil, []byte("text"), rekeyAfter+time.Second)
	if _, err := n.open(b); !errors.Is(err, errSecret) {
		t.Errorf("beyond the last record of a key: got %v, want %v", err, errSecret)
	}
}

// fixed gives bytes that are the same in every run.
type fixed struct{ *mrand.ChaCha8 }

// The handshake's bytes are fixed for fixed random bytes.
func TestHandshakeHasTheBytesOfTheSpecification(t *testing.T) {
	keys := ring(token(t, tokenA))
	h, _, err := newHandshake(RoleHead, keys, fixed{mrand.NewChaCha8([32]byte{1})})
	if err != nil {
		t.Fatal(err)
	}
	n, one, err := newHandshake(RoleNode, keys, fixed{mrand.NewChaCha8([32]byte{2})})
	if err != nil {
		t.Fatal(err)
	}
	two, _, _, err := h.receive(one)
	if err != nil {
		t.Fatal(err)
	}
	three, ns, _, err := n.receive(two)
	if err != nil {
		t.Fatal(err)
	}
	_, hs, _, err := h.receive(three)
	if err != nil {
		t.Fatal(err)
	}
	four, _ := hs.seal(nil, []byte("head"), 0)
	five, _ := ns.seal(nil, []byte("node"), 0)
	var out strings.Builder
	fmt.Fprintf(&out, "token: %s\n", tokenA)
	fmt.Fprintf(&out, "key: %s\n", hex.EncodeToString(h.entry.token.key[:]))
	fmt.Fprintf(&out, "node preamble: %s\n", hex.EncodeToString(one))
	fmt.Fprintf(&out, "head preamble: %s\n", hex.EncodeToString(two[:preambleLen]))
	fmt.Fprintf(&out, "head handshake: %s\n", hex.EncodeToString(two[preambleLen:]))
	fmt.Fprintf(&out, "node handshake: %s\n", hex.EncodeToString(three))
	fmt.Fprintf(&out, "record \"head\" of the head: %s\n", hex.EncodeToString(four))
	fmt.Fprintf(&out, "record \"node\" of the node: %s\n", hex.EncodeToString(five))
	fmt.Fprintf(&out, "refusal, unknown token: %s\n", hex.EncodeToString(refusal(RefusedToken)))
	if *update {
		if err := os.WriteFile("testdata/handshake.txt", []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/handshake.txt")
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	doc, err := os.ReadFile("../docs/linkf.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), string(want)) {
		t.Error("docs/linkf.md does not hold testdata/handshake.txt")
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(true, newPreamble(RoleNode, Token{}, [nonceLen]byte{}).append(nil))
	f.Add(false, refusal(RefusedFull))
	f.Fuzz(func(t *testing.T, head bool, data []byte) {
		role := RoleNode
		if head {
			role = RoleHead
		}
		h, _, err := newHandshake(role, ring(token(t, tokenA)), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if _, s, _, _ := h.receive(data); s != nil {
			t.Fatal("bytes without the token made a connection")
		}
		if len(h.buf) > len(data) {
			t.Fatalf("%d bytes are kept of %d", len(h.buf), len(data))
		}
	})
}

func FuzzRecords(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		_, n, _, err := shake(t, ring(token(t, tokenA)), ring(token(t, tokenA)), 4096)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := n.open(data); err == nil && len(p) > 0 {
			t.Fatal("bytes that the peer did not send were taken")
		}
	})
}
