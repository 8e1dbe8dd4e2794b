package slotlog

import (
	"bytes"
	"unicode/utf8"
)

// jsonFields walks the members of one flat object. Values that are objects or
// arrays are passed whole. It takes what llama-server and log collectors write,
// checks no more than it must to stay inside b, and allocates nothing.
type jsonFields struct {
	b []byte
	i int
}

// jsonValue is a member's value as it stands in the text. A string is without its
// quotes, its escapes are as they were.
type jsonValue struct {
	text    []byte
	isText  bool
	escaped bool
}

// objectFields begins the walk, when b looks like one whole object.
func objectFields(b []byte) (jsonFields, bool) {
	b = bytes.TrimRight(b, " \t")
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return jsonFields{}, false
	}
	return jsonFields{b: b, i: 1}, true
}

// next returns the next member; ok is false at the end, and at text that is no JSON.
func (f *jsonFields) next() (key []byte, v jsonValue, ok bool) {
	f.skip()
	k, ok := f.str()
	if !ok {
		return nil, v, false
	}
	f.skip()
	if f.i >= len(f.b) || f.b[f.i] != ':' {
		return nil, v, false
	}
	f.i++
	f.skip()
	v, ok = f.value()
	return k.text, v, ok
}

// skip goes past blanks and commas.
func (f *jsonFields) skip() {
	for f.i < len(f.b) && (f.b[f.i] == ' ' || f.b[f.i] == ',' || f.b[f.i] == '\t') {
		f.i++
	}
}

func (f *jsonFields) str() (v jsonValue, ok bool) {
	if f.i >= len(f.b) || f.b[f.i] != '"' {
		return v, false
	}
	f.i++
	start := f.i
	for {
		n := bytes.IndexByte(f.b[f.i:], '"')
		if n < 0 {
			return v, false
		}
		end := f.i + n
		slashes := 0
		for end-1-slashes >= start && f.b[end-1-slashes] == '\\' {
			slashes++
		}
		f.i = end + 1
		if slashes%2 == 0 {
			v.text, v.isText = f.b[start:end], true
			v.escaped = bytes.IndexByte(v.text, '\\') >= 0
			return v, true
		}
	}
}

func (f *jsonFields) value() (v jsonValue, ok bool) {
	if f.i >= len(f.b) {
		return v, false
	}
	switch f.b[f.i] {
	case '"':
		return f.str()
	case '{', '[':
		start, depth := f.i, 0
		for f.i < len(f.b) {
			switch f.b[f.i] {
			case '"':
				if _, ok := f.str(); !ok {
					return v, false
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			f.i++
			if depth == 0 {
				v.text = f.b[start:f.i]
				return v, true
			}
		}
		return v, false
	}
	start := f.i
	for f.i < len(f.b) && f.b[f.i] != ',' && f.b[f.i] != '}' && f.b[f.i] != ' ' {
		f.i++
	}
	v.text = f.b[start:f.i]
	return v, f.i > start
}

// appendText appends a string's text to dst, its escapes resolved.
func (v jsonValue) appendText(dst []byte) []byte {
	b := v.text
	if !v.escaped {
		return append(dst, b...)
	}
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 || i+1 >= len(b) {
			return append(dst, b...)
		}
		dst = append(dst, b[:i]...)
		c := b[i+1]
		b = b[i+2:]
		switch c {
		case 'n':
			c = '\n'
		case 't':
			c = '\t'
		case 'r':
			c = '\r'
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'u':
			if r, ok := hex4(b); ok {
				dst, b = utf8.AppendRune(dst, r), b[4:]
				continue
			}
		}
		dst = append(dst, c)
	}
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// appendBytes appends an array of byte values, which is how journalctl writes a
// message with control characters in it. An array of anything else gives nothing.
func (v jsonValue) appendBytes(dst []byte) []byte {
	kept := len(dst)
	b := v.text
	for i := 1; i < len(b); {
		n, next, ok := scanUint(b, skipBlanks(b, i))
		if !ok || n > 255 || next >= len(b) {
			return dst[:kept]
		}
		dst = append(dst, byte(n))
		if b[next] == ']' {
			return dst
		}
		i = next + 1
	}
	return dst[:kept]
}
