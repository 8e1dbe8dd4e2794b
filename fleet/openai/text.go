package openai

import (
	"bytes"
	"unicode/utf8"
)

// Texts are kept decoded, as UTF-8 in which a surrogate without its other half has
// the three bytes that its number would have. So it survives the way through us,
// and a pair whose halves came in two deltas is a pair again when it is written.

// appendText appends what a JSON string says. raw is what stands between its
// quotes and was scanned before.
func appendText(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		n := 2
		switch c := raw[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			var r rune
			r, n = escaped(raw[i:])
			dst = appendRune(dst, r)
		default:
			dst = append(dst, c)
		}
		raw = raw[i+n:]
	}
}

// escaped reads the \u escape that raw begins with, or two of them where they are
// a pair of surrogates.
func escaped(raw []byte) (r rune, n int) {
	r = hex4(raw[2:])
	if !isHigh(r) || len(raw) < 12 || raw[6] != '\\' || raw[7] != 'u' {
		return r, 6
	}
	low := hex4(raw[8:])
	if !isLow(low) {
		return r, 6
	}
	return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), 12
}

func isHigh(r rune) bool { return 0xd800 <= r && r < 0xdc00 }
func isLow(r rune) bool  { return 0xdc00 <= r && r < 0xe000 }

func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}

func appendRune(dst []byte, r rune) []byte {
	if isHigh(r) || isLow(r) {
		return append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(dst, r)
}

// appendString appends text as a JSON string with its quotes.
func appendString(dst, text []byte) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, text)
	return append(dst, '"')
}

// appendEscaped appends text as it stands between the quotes of a JSON string.
// Bytes that are no UTF-8 become U+FFFD, as every JSON reader reads them.
func appendEscaped(dst, text []byte) []byte {
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, text[from:i]...)
			dst = appendControl(dst, c)
			i++
			from = i
			continue
		}
		if r, n := utf8.DecodeRune(text[i:]); r != utf8.RuneError || n > 1 {
			i += n
			continue
		}
		dst = append(dst, text[from:i]...)
		r, n := surrogate(text[i:])
		dst = appendEscape(dst, r)
		i += n
		from = i
	}
	return append(dst, text[from:]...)
}

// surrogate reads half a pair as appendRune writes it; other bytes are U+FFFD.
func surrogate(b []byte) (r rune, n int) {
	if len(b) < 3 || b[0] != 0xed || b[1] < 0xa0 || b[1] > 0xbf || b[2] < 0x80 || b[2] > 0xbf {
		return utf8.RuneError, 1
	}
	return 0xd000 | rune(b[1]&0x3f)<<6 | rune(b[2]&0x3f), 3
}

func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	return appendEscape(dst, rune(c))
}

func appendEscape(dst []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
