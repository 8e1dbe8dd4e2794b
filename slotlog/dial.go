package slotlog

import "math/bits"

// dial is the clock that a process printed last, as it is printed: `M.SS.mmm.uuu L `. As
// long as the minute stays, a further one is checked by whole words, and what it amounts to
// is not reckoned.
type dial struct {
	width         int    // of the minutes, 1 to 7; 0: the dial stands still
	minutes, mask uint64 // their digits, and where these are
	base          int64  // microseconds that they amount to

	last, next dialText // of the last line, and of the one in hand
	moved      bool     // last is newer than the process's clock
}

// dialText is `.SS.mmm.`, and `uuu L ` with what follows.
type dialText struct{ millis, micros uint64 }

var (
	dialMillis = eightOf(".00.000.")
	dialMicros = eightOf("000     ") &^ (0xff<<32 | 0xffff<<48)
)

// isAt reports whether the dial's minute is printed here.
func (d *dial) isAt(c *clockWindow) bool {
	return d.width != 0 && (c.at(0)^d.minutes)&d.mask == 0
}

// isTime reports whether this is a time, and a level. It may be, and yet report false.
func (t dialText) isTime() bool {
	// After the xor a dot or a blank is 0 and a digit is its value; the sum carries into a
	// byte's top bit when it is neither, or when it is a sixth ten of seconds.
	ms, us := t.millis^dialMillis, t.micros^dialMicros
	return ((ms+0x7f7676767f767a7f|ms)&eightTops|(us+0x00007f007f767676|us)&0x0000800080808080) == 0 && ms != 0 && isLevel(byte(us>>32))
}

// second rises with the seconds.
func (t dialText) second() uint16 { return bits.ReverseBytes16(uint16(t.millis >> 8)) }

// time is what the last line's clock amounts to.
func (d *dial) time() (us int64) {
	for _, at := range [...]int{8, 16, 32, 40, 48} {
		us = us*10 + int64(d.last.millis>>at&15)
	}
	for _, at := range [...]int{0, 8, 16} {
		us = us*10 + int64(d.last.micros>>at&15)
	}
	return d.base + us
}

// wind makes d a dial of the minute that b begins with, when the process's clock goes on
// from where it stands to there.
func (p *process) wind(d *dial, b []byte) bool {
	clock, n := clockAt(b, 0)
	p.readDial()
	if n == 0 || n > 12+7 || p.clock == 0 || uint64(clock-p.clock+clockSlack) > clockSlack+clockLeap {
		return false
	}
	d.width = n - 12
	d.mask = 1<<(8*d.width) - 1
	d.minutes = eight(b, 0) & d.mask
	d.base = clock - clock%60_000_000
	d.last = dialText{dialMillis, dialMicros}
	return true
}

// readDial brings the process's clock up to its dial.
func (p *process) readDial() {
	if p.dial.moved {
		p.clock, p.dial.moved = p.dial.time(), false
	}
}
