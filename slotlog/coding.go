package slotlog

import (
	"unicode/utf16"
	"unicode/utf8"
)

// coding turns UTF-16, which PowerShell writes into files, into UTF-8. Only a byte
// order mark at the beginning shows it; all else passes as it is.
type coding struct {
	plain bool // no more to do: not UTF-16
	big   bool
	known bool

	held  []byte // bytes too few to decide on, or half a letter
	high  uint16 // the first half of a surrogate pair
	space [4]byte
	out   []byte
}

// cut begins a new file, or leaves the middle of one.
func (c *coding) cut(inLine bool) {
	c.held, c.high = c.space[:0], 0
	if !inLine {
		c.plain, c.known = false, false
	} else if !c.known {
		c.plain = true
	}
}

// decode hands what b holds to take, in pieces.
func (c *coding) decode(b []byte, take func([]byte)) {
	if !c.known {
		if len(b) == 0 {
			return
		}
		if len(c.held) == 0 && b[0] != 0xfe && b[0] != 0xff {
			c.plain = true
			take(b)
			return
		}
		if len(c.held)+len(b) < 2 {
			c.held = append(c.space[:0], b...)
			return
		}
		if len(c.held) == 0 {
			c.held, b = append(c.space[:0], b[0]), b[1:]
		}
		switch {
		case c.held[0] == 0xff && b[0] == 0xfe:
			c.known, c.big = true, false
		case c.held[0] == 0xfe && b[0] == 0xff:
			c.known, c.big = true, true
		default:
			c.plain = true
			take(c.held)
			c.held = c.held[:0]
			take(b)
			return
		}
		c.held, b = c.held[:0], b[1:]
	}
	for len(b) > 0 {
		n := min(len(b), 4096)
		c.out = c.out[:0]
		for _, v := range b[:n] {
			c.add(v)
		}
		b = b[n:]
		take(c.out)
	}
}

// add takes one byte.
func (c *coding) add(v byte) {
	if len(c.held) == 0 {
		c.held = append(c.space[:0], v)
		return
	}
	u := uint16(c.held[0]) | uint16(v)<<8
	if c.big {
		u = uint16(c.held[0])<<8 | uint16(v)
	}
	c.held = c.held[:0]
	if c.high != 0 {
		r := utf16.DecodeRune(rune(c.high), rune(u))
		c.high = 0
		c.out = utf8.AppendRune(c.out, r)
		if r != utf8.RuneError {
			return
		}
	}
	if u >= 0xd800 && u < 0xdc00 {
		c.high = u
		return
	}
	c.out = utf8.AppendRune(c.out, rune(u))
}
