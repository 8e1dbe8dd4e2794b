package openai

import (
	"bytes"
	"encoding/binary"
	"iter"
	"unicode/utf8"
)

// maxDepth is how deep a body may be nested. The server's own parser and ours are
// recursive.
const maxDepth = 128

// span is a range of bytes; empty where nothing was found.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }
func (s span) ok() bool           { return s.to > s.from }

// scanner goes once over JSON and checks it. It takes what encoding/json takes,
// except that nesting is bounded and keys must be UTF-8. After a fault it stands
// at the end, more is false, and every further step does nothing.
type scanner struct {
	b     []byte
	i     int
	depth int
	fresh bool // the container was just entered: no comma yet
	known bool // it was scanned before and is right: strings are gone over faster

	fault string // what is wrong, for the client; empty: nothing
	at    int    // where
}

func (s *scanner) fail(what string) {
	if s.fault == "" {
		s.fault, s.at = what, s.i
	}
	s.i = len(s.b)
}

// peek returns the byte that comes next after white space, 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// enter begins the object or array whose opening byte comes next.
func (s *scanner) enter(open byte) {
	if s.peek() != open {
		s.fail("a value is missing")
		return
	}
	if s.depth++; s.depth > maxDepth {
		s.fail("nested too deep")
		return
	}
	s.i++
	s.fresh = true
}

// more reports whether the container has another member or element, which then
// comes next, and leaves the container if not.
func (s *scanner) more(end byte) bool {
	c := s.peek()
	if s.fault != "" {
		return false
	}
	if c == end {
		s.i++
		s.depth--
		s.fresh = false
		return false
	}
	if s.fresh {
		s.fresh = false
		return true
	}
	if c != ',' {
		s.fail("a comma or the end of an object or array is missing")
		return false
	}
	s.i++
	if s.peek() == end {
		s.fail("a comma stands before the end of an object or array")
		return false
	}
	return true
}

// key reads a key with its colon and returns what stands between its quotes.
func (s *scanner) key() span {
	if s.peek() != '"' {
		s.fail("a key is missing")
		return span{}
	}
	k := s.str()
	if s.fault != "" {
		return span{}
	}
	k = span{k.from + 1, k.to - 1}
	if !s.known && !utf8.Valid(k.of(s.b)) {
		s.i = k.from
		s.fail("a key is not UTF-8")
		return span{}
	}
	if s.peek() != ':' {
		s.fail("a colon is missing")
		return span{}
	}
	s.i++
	return k
}

// value goes over the value that comes next, whatever it is.
func (s *scanner) value() span {
	c := s.peek()
	from := s.i
	switch {
	case c == '"':
		return s.str()
	case c == '{':
		for s.enter('{'); s.more('}'); {
			s.key()
			s.value()
		}
	case c == '[':
		for s.enter('['); s.more(']'); {
			s.value()
		}
	case c == '-' || '0' <= c && c <= '9':
		s.number()
	case c == 't':
		s.literal("true")
	case c == 'f':
		s.literal("false")
	case c == 'n':
		s.literal("null")
	default:
		s.fail("a value is missing")
	}
	if s.fault != "" {
		return span{}
	}
	return span{from, s.i}
}

func (s *scanner) literal(word string) {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		s.fail("a value is misspelt")
		return
	}
	s.i += len(word)
}

func (s *scanner) number() {
	if s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		return
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		s.digits()
	}
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	if s.i == from {
		s.fail("a digit is missing")
		return false
	}
	return true
}

// str goes over a string and returns it with its quotes.
func (s *scanner) str() span {
	from := s.i
	if s.known {
		s.i = pastString(s.b, from)
		return span{from, s.i}
	}
	for s.i++; ; {
		s.i = plain(s.b, s.i)
		if s.i >= len(s.b) {
			s.fail("a string does not end")
			return span{}
		}
		switch s.b[s.i] {
		case '"':
			s.i++
			return span{from, s.i}
		case '\\':
			if !s.escape() {
				return span{}
			}
		default:
			s.fail("a control character stands in a string")
			return span{}
		}
	}
}

// pastString returns where a string that is known to be right ends.
func pastString(b []byte, from int) int {
	for i := from + 1; ; i++ {
		i += bytes.IndexByte(b[i:], '"')
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

func (s *scanner) escape() bool {
	rest := s.b[s.i+1:]
	if len(rest) == 0 {
		s.fail("a string does not end")
		return false
	}
	switch rest[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return true
	case 'u':
		if len(rest) >= 5 && isHex(rest[1]) && isHex(rest[2]) && isHex(rest[3]) && isHex(rest[4]) {
			s.i += 6
			return true
		}
	}
	s.fail("an escape in a string is wrong")
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// end says that nothing may follow.
func (s *scanner) end() {
	if s.peek(); s.i < len(s.b) {
		s.fail("something follows after the end")
	}
}

// plain returns the first index from i on whose byte ends a string or is special
// in it. Eight bytes at a time: a body is mostly long strings.
func plain(b []byte, i int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		quote := w ^ ones*'"'
		slash := w ^ ones*'\\'
		if ((w-ones*0x20)&^w|(quote-ones)&^quote|(slash-ones)&^slash)&highs != 0 {
			break
		}
		i += 8
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// members goes over an object: the name of each member, and where its value stands.
// Of anything else there are none. It is for what is read now and then; what is read of
// each chunk has loops of its own, which allocate nothing.
func members(b []byte, at span) iter.Seq2[[]byte, span] {
	return func(yield func([]byte, span) bool) {
		if !at.ok() || b[at.from] != '{' {
			return
		}
		var buf [64]byte
		s := scanner{b: b[:at.to], i: at.from}
		for s.enter('{'); s.more('}'); {
			key := name(s.key().of(s.b), &buf)
			if v := s.value(); s.fault != "" || !yield(key, v) {
				return
			}
		}
	}
}

// allOf is all of b.
func allOf(b []byte) span { return span{0, len(b)} }

// member is a member of an object that we read, set or cut.
type member struct {
	key int  // where its key begins, at the quote
	val span // its value
	ord int  // how many members stand before it
}

func (m member) ok() bool { return m.val.ok() }

// span is the whole of it, key and value.
func (m member) span() span { return span{m.key, m.val.to} }

// given reports whether the member is there and not null.
func (m member) given(b []byte) bool { return m.ok() && b[m.val.from] != 'n' }

// name returns what a key says. buf is used where it is written with escapes; a
// key too long for it is none of ours.
func name(raw []byte, buf *[64]byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	if len(raw) > 6*len(buf) {
		return nil
	}
	return appendText(buf[:0], raw)
}
