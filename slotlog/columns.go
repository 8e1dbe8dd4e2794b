package slotlog

// The readouts that come most often are printed in columns, which only very large
// figures widen. Where every word is in its place the figures are, too, and reading them
// takes no search. What is anywhere else is left to readouts.go.

const (
	speedWidth   = len("      0.00 ms /     0 tokens (    0.00 ms per token,     0.00 tokens per second)")
	runningWidth = len("n_gen =      0, tg =   0.00 t/s, tg_3s =   0.00 t/s")
)

var (
	columnMs     = eightOf(" ms /   ") << 16
	columnTokens = eightOf(" tokens ")
	columnMsPer  = eightOf(" ms per ")
	columnToken  = eightOf(" token, ")
	columnPerSec = eightOf("per seco")
	columnSecond = eightOf(" second)")
	columnGen    = eightOf("n_gen = ")
	columnTg     = eightOf(", tg =  ") << 8
	columnRate   = eightOf(" t/s, tg")
	columnRecent = eightOf("tg_3s = ")
)

// speedColumns reads what readSpeed does. The times between the words are not looked at.
func (e *Event) speedColumns(b []byte) bool {
	b = b[:speedWidth]
	if eight(b, 10)<<16 != columnMs || eight(b, 21) != columnTokens || b[29] != '(' ||
		eight(b, 38) != columnMsPer || eight(b, 45) != columnToken ||
		eight(b, 61) != columnTokens || eight(b, 69) != columnPerSec || eight(b, 72) != columnSecond {
		return false
	}
	n, end, ok := scanUint(b, skipBlanks(b, 16))
	rate, known := hundredths(eight(b, 53))
	if !ok || end != 21 || !known {
		return false
	}
	e.Tokens, e.HasTokens = n, true
	e.Rate, e.HasRate = rate, true
	return true
}

// runningColumns reads what readRunning does.
func (e *Event) runningColumns(b []byte) bool {
	b = b[:runningWidth]
	if eight(b, 0) != columnGen || eight(b, 14)<<8 != columnTg || eight(b, 27) != columnRate ||
		eight(b, 33) != columnRecent || string(b[47:]) != " t/s" {
		return false
	}
	n, end, ok := scanUint(b, skipBlanks(b, 8))
	mean, hasMean := hundredths(eight(b, 19)&^0xffff | 0x2020)
	rate, hasRate := hundredths(eight(b, 39)&^0xffff | 0x2020)
	if !ok || end != 14 || !hasMean || !hasRate {
		return false
	}
	e.Kind, e.Tokens, e.HasTokens = KindRunning, n, true
	e.Rate, e.HasRate = rate, true
	e.Mean, e.HasMean = mean, true
	return true
}

// hundredths reads `%8.2f` of a figure that is not below 0.
func hundredths(w uint64) (figure float64, ok bool) {
	const whole = 0x10_10_10_10_10 // a bit of the bytes before the point that digits have and blanks have not
	blank := ^w & whole >> 4
	before := blank * 0xff
	// Or makes a blank the digit 0; after the xor a digit is its value and the point is 0.
	d := (w | whole) ^ 0x30302e3030303030
	if (d+0x76767f7676767676|d)&0x8080808080808080 != 0 || // something else
		d&before != 0 || // what became a digit was no blank
		before&(before+1) != 0 || before>>32 != 0 { // blanks behind a digit, or no digit
		return 0, false
	}
	tens := d*10 + d>>8 // each byte: the two digits that begin there
	n := ((tens&0xff)*100+tens>>16&0xff)*1000 + d>>32&0xff*100 + tens>>48&0xff
	return float64(n) / 100, true
}
