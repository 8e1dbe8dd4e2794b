package slotlog

import (
	"bytes"
	"encoding/binary"
)

// The scanners below read one thing at b[i:] and return where it ends. They work
// on bytes alone: no regexp, no conversion, no allocation.

const (
	esc = 0x1b
	// maxDigits keeps every count and id well inside an int64.
	maxDigits = 15
)

func isDigit(c byte) bool { return c-'0' <= 9 }

// skipBlanks returns the index of the first byte at or after i that is no blank.
func skipBlanks(b []byte, i int) int {
	for i < len(b) && b[i] == ' ' {
		i++
	}
	return i
}

// skipLit returns the index after lit when b[i:] starts with it.
func skipLit(b []byte, i int, lit string) (int, bool) {
	if len(b)-i >= len(lit) && string(b[i:i+len(lit)]) == lit {
		return i + len(lit), true
	}
	return i, false
}

func hasPrefix(b []byte, lit string) bool {
	return len(b) >= len(lit) && string(b[:len(lit)]) == lit
}

// scanUint reads digits, at least one.
func scanUint(b []byte, i int) (v int64, next int, ok bool) {
	start := i
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		v = v*10 + int64(d)
	}
	// Too many digits overflow v, which then is not returned.
	if i == start || i-start > maxDigits {
		return 0, i, false
	}
	return v, i, true
}

// scanInt reads an optional minus and digits.
func scanInt(b []byte, i int) (v int64, next int, ok bool) {
	if i < len(b) && b[i] == '-' {
		v, next, ok = scanUint(b, i+1)
		return -v, next, ok
	}
	return scanUint(b, i)
}

var tenths = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}

// scanRate reads a printed rate after blanks. Builds before b10408 divide by zero
// and print nan or inf; that is a rate too, but not a known one.
func scanRate(b []byte, i int) (rate float64, known bool, next int, ok bool) {
	i = skipBlanks(b, i)
	start := i
	var m int64
	for i < len(b) && isDigit(b[i]) {
		m = m*10 + int64(b[i]-'0')
		i++
	}
	whole := i - start
	if whole == 0 {
		return scanNotNumber(b, i)
	}
	places := 0
	if i < len(b) && b[i] == '.' {
		i++
		for i < len(b) && isDigit(b[i]) {
			if whole+places < maxDigits && places < len(tenths)-1 { // more is beyond a float64
				m = m*10 + int64(b[i]-'0')
				places++
			}
			i++
		}
	}
	if whole > maxDigits {
		return 0, false, i, false
	}
	// One division of two exact numbers: the result is correctly rounded.
	return float64(m) / tenths[places], true, i, true
}

// scanNotNumber reads what C prints for a figure that is none: nan, -nan, inf,
// -inf, and a negative number, which no rate can be.
func scanNotNumber(b []byte, i int) (rate float64, known bool, next int, ok bool) {
	if i < len(b) && b[i] == '-' {
		i++
		if i < len(b) && isDigit(b[i]) {
			for i < len(b) && (isDigit(b[i]) || b[i] == '.') {
				i++
			}
			return 0, false, i, true
		}
	}
	if n, ok := skipLit(b, i, "nan"); ok {
		return 0, false, n, true
	}
	if n, ok := skipLit(b, i, "inf"); ok {
		return 0, false, n, true
	}
	return 0, false, i, false
}

// skipRate goes past a printed figure that nobody needs.
func skipRate(b []byte, i int) (next int, ok bool) {
	i = skipBlanks(b, i)
	start := i
	for i < len(b) && (isDigit(b[i]) || b[i] == '.') {
		i++
	}
	if i > start {
		return i, true
	}
	_, _, i, ok = scanNotNumber(b, i)
	return i, ok
}

// head is what stands before the words of a line.
type head struct {
	port    int   // of a router's child; 0: none printed
	clock   int64 // microseconds since the process started; valid when clocked
	clocked bool
	leveled bool // a level letter, with a clock or alone
	body    []byte
}

// scan reads the router's mark and the log prefix; body is what follows. Both
// are optional, so every line has a head.
func (h *head) scan(b []byte) {
	h.port, h.clocked, h.leveled = 0, false, false
	if len(b) > 0 && b[0] == '[' {
		if port, n := scanPort(b); n > 0 {
			h.port = port
			b = b[n:]
		}
	}
	if len(b) > 0 && isDigit(b[0]) {
		if us, n := scanClock(b); n > 0 {
			h.clock, h.clocked = us, true
			b = b[n:]
		}
	}
	// A level letter: after a clock, or alone (--log-prefix without timestamps).
	if len(b) >= 2 && b[1] == ' ' {
		switch b[0] {
		case 'I', 'W', 'E', 'D':
			b, h.leveled = b[2:], true
		}
	}
	h.body = b
}

// scanPort reads the router's `[%5d] `. The inner width is exactly five, which
// tells a port from an epoch or a pid in brackets. It returns 0, 0 for anything else.
func scanPort(b []byte) (port, n int) {
	if len(b) < 7 || b[0] != '[' || b[6] != ']' {
		return 0, 0
	}
	i := skipBlanks(b[:6], 1)
	v, next, ok := scanUint(b[:6], i)
	if !ok || next != 6 || v < 1 || v > 65535 {
		return 0, 0
	}
	if len(b) == 7 { // a copied log lost the blank of an empty line
		return int(v), 7
	}
	if b[7] != ' ' {
		return 0, 0
	}
	return int(v), 8
}

// scanClock reads a clock at the start of b; n is 0 when there is none.
func scanClock(b []byte) (us int64, n int) { return clockAt(b, 0) }

// clockAt reads `M.SS.mmm.uuu ` (common/log.cpp): minutes without end, seconds,
// milliseconds, microseconds since the process started. next is 0 when there is none.
func clockAt(b []byte, i int) (us int64, next int) {
	start := i
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		us = us*10 + int64(d)
	}
	if i == start || i-start > 9 || len(b) < i+12 {
		return 0, 0
	}
	// Twelve bytes as two words. After the xor a dot is 0 and a digit is its value;
	// the sum carries into a byte's top bit when it is neither.
	hi := eight(b, i) ^ 0x2e3030302e30302e                          // .SS.mmm.
	lo := binary.LittleEndian.Uint32(b[i+8:i+12:i+12]) ^ 0x20303030 // uuu and a blank
	if ((hi+0x7f7676767f76767f)|hi)&0x8080808080808080 != 0 ||
		((lo+0x7f767676)|lo)&0x80808080 != 0 {
		return 0, 0
	}
	tens := hi*10 + hi>>8 // each byte: the two digits that begin there
	sec, ms := int64(tens>>8&0xff), int64(tens>>32&0xff)*10+int64(hi>>48&0xff)
	frac := int64((lo*10+lo>>8)&0xff)*10 + int64(lo>>16&0xff)
	return ((us*60+sec)*1000+ms)*1000 + frac, i + 12
}

// scanFrame reads a frame at the start of b.
func scanFrame(b []byte) (f Frame, msg []byte, ok bool) {
	f, next := frameAt(b, 0)
	if next == 0 {
		return Frame{}, nil, false
	}
	return f, b[next:], true
}

// frameAt reads `slot %12.*s: id %2d | task %d | `, unchanged since b3761. The
// function name in the middle is always twelve wide and means nothing: builds
// moved messages between functions. next is 0 when there is none.
func frameAt(b []byte, i int) (f Frame, next int) {
	if len(b) < i+30 || eight(b, i)<<24 != frameSlot {
		return f, 0
	}
	next = i + 32
	// The id as it is printed below 100. After the xor a digit is its value.
	d := eight(b, i+17) ^ frameID
	ten, one := d>>40&0xff, d>>48
	if len(b) > next && eight(b, i+24) == frameTask && d<<24 == 0 && one <= 9 && (ten <= 9 || ten == ' '^'0') {
		f.Slot = int(ten&15*10 + one)
	} else if f.Slot, next = scanSlot(b, i+17); next == 0 {
		return f, 0
	}
	start := next
	for ; next < len(b); next++ {
		d := b[next] - '0'
		if d > 9 {
			break
		}
		f.Task = f.Task*10 + int(d)
	}
	if next == start || next-start > maxDigits {
		n, i, ok := scanInt(b, start)
		if !ok {
			return f, 0
		}
		f.Task, next = int(n), i
	}
	if len(b) < next+2 || b[next] != ' ' || b[next+1] != '|' {
		return f, 0
	}
	next += 2
	// Copied logs lose the blank that ends the header of a timing block.
	if next < len(b) {
		if b[next] != ' ' {
			return f, 0
		}
		next++
	}
	return f, next
}

var (
	frameSlot = eightOf("slot    ") << 24
	frameID   = eightOf(": id 00 ")
	frameTask = eightOf(" | task ")
)

// scanSlot reads `: id %2d | task ` where it is wider than usual. next is 0 when it is
// not there.
func scanSlot(b []byte, i int) (slot, next int) {
	i, ok := skipLit(b, i, ": id ")
	if !ok {
		return 0, 0
	}
	id, i, ok := scanInt(b, skipBlanks(b, i))
	if !ok {
		return 0, 0
	}
	if i, ok = skipLit(b, i, " | task "); !ok {
		return 0, 0
	}
	return int(id), i
}

// serviceWidth is how wide `srv  %12.*s: ` and its sisters are.
const serviceWidth = 19

// scanService reads `srv  %12.*s: ` and its sisters and returns the message.
func scanService(b []byte) (msg []byte, ok bool) {
	if !isServiceAt(b, 0) {
		return nil, false
	}
	return b[serviceWidth:], true
}

func isServiceAt(b []byte, i int) bool {
	return len(b) >= i+serviceWidth && b[i+17] == ':' && b[i+18] == ' ' && isService(uint32(eight(b, i)))
}

// isService knows the four letters that such a line begins with.
func isService(w uint32) bool {
	return w == serviceSrv || w == serviceCmn || w == serviceQue || w == serviceRes
}

var (
	serviceSrv = uint32(eightOf("srv     "))
	serviceQue = uint32(eightOf("que     "))
	serviceRes = uint32(eightOf("res     "))
	serviceCmn = uint32(eightOf("cmn     "))
)

// nameAt returns how long the `name: ` is with which the libraries under the
// server begin their lines; 0: none.
func nameAt(b []byte) int {
	for i, c := range b {
		if isName[c] && (i > 0 || !isDigit(c)) {
			continue
		}
		if c == ':' && i > 1 && i+1 < len(b) && b[i+1] == ' ' {
			return i + 2
		}
		break
	}
	return 0
}

// isName says which bytes a name is made of.
var isName = func() (t [256]bool) {
	for c := range t {
		t[c] = isWordByte(byte(c))
	}
	return t
}()

// trimLine takes off what carriers put around a line: carriage returns (Windows;
// b3761..b4325 print one before each timing line), NULs (the hole that copytruncate
// leaves before a writer without O_APPEND) and a byte order mark.
func trimLine(b []byte) []byte {
	for len(b) > 0 && (b[0] == 0 || b[0] == '\r') {
		b = b[1:]
	}
	b = bytes.TrimPrefix(b, byteOrderMark)
	for len(b) > 0 && (b[len(b)-1] == '\r' || b[len(b)-1] == 0) {
		b = b[:len(b)-1]
	}
	return b
}

// stripANSI appends b without its `ESC [ … letter` sequences to dst.
func stripANSI(dst, b []byte) []byte {
	for {
		i := bytes.IndexByte(b, esc)
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(dst, b[:i]...)
		b = b[i+1:]
		if len(b) == 0 || b[0] != '[' {
			continue
		}
		j := 1
		for j < len(b) && (b[j] < 0x40 || b[j] > 0x7e) {
			j++
		}
		b = b[min(j+1, len(b)):]
	}
}
