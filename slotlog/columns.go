package slotlog

// The readouts that come most often are printed in columns, which only very large
// figures widen. Where every word is in its place the figures are, too, and reading them
// takes no search. What is anywhere else is left to readouts.go.

const (
	speedWidth   = len("      0.00 ms /     0 tokens (    0.00 ms per token,     0.00 tokens per second)")
	runningWidth = len("     0, tg =   0.00 t/s, tg_3s =   0.00 t/s")
)

var (
	columnMs     = eightOf(" ms /   ") << 16
	columnTokens = eightOf(" tokens ")
	columnMsPer  = eightOf(" ms per ")
	columnToken  = eightOf(" token, ")
	columnPerSec = eightOf("per seco")
	columnSecond = eightOf(" second)")
	columnTg     = eightOf(", tg =  ") << 8
	columnRate   = eightOf(" t/s, tg")
	columnRecent = eightOf("tg_3s = ")
	columnPer    = uint32(eightOf(" t/s    "))
)

// speedColumns reads what readSpeed does. The times between the words are not looked at,
// but for control characters.
func (e *Event) speedColumns(b []byte) bool {
	b = b[:speedWidth]
	if eight(b, 10)<<16 != columnMs || eight(b, 21) != columnTokens || b[29] != '(' ||
		eight(b, 38) != columnMsPer || eight(b, 45) != columnToken ||
		eight(b, 61) != columnTokens || eight(b, 69) != columnPerSec || eight(b, 72) != columnSecond ||
		lettersOf(eight(b, 0))&lettersOf(eight(b, 2))&lettersOf(eight(b, 30)) != allLetters {
		return false
	}
	n, ok := padded(eight(b, 13)&^0xffffff | 0x202020)
	rate, known := hundredths(eight(b, 53))
	if !ok || !known {
		return false
	}
	e.Tokens, e.HasTokens = n, true
	e.Rate, e.HasRate = rate, true
	return true
}

// runningColumns reads what readRunning does, behind the first word.
func (e *Event) runningColumns(b []byte) bool {
	b = b[:runningWidth]
	if eight(b, 6)<<8 != columnTg || eight(b, 19) != columnRate ||
		eight(b, 25) != columnRecent || uint32(eight(b, runningWidth-8)>>32) != columnPer {
		return false
	}
	n, ok := padded(eight(b, 0)<<16 | 0x2020)
	mean, hasMean := hundredths(eight(b, 11)&^0xffff | 0x2020)
	rate, hasRate := hundredths(eight(b, 31)&^0xffff | 0x2020)
	if !ok || !hasMean || !hasRate {
		return false
	}
	e.Kind, e.Tokens, e.HasTokens = KindRunning, n, true
	e.Rate, e.HasRate = rate, true
	e.Mean, e.HasMean = mean, true
	return true
}

// padded reads `%8d` of a number that is not below 0.
func padded(w uint64) (n int64, ok bool) {
	const tens = 0x10 * eightOnes // a bit that digits have and blanks have not
	blank := ^w & tens >> 4
	before := blank * 0xff
	d := (w | tens) ^ eightZeros
	if (d+0x76*eightOnes|d)&eightTops|d&before|before&(before+1)|before>>56 != 0 {
		return 0, false
	}
	return int64(eightDigits(d)), true
}

// hundredths reads `%8.2f` of a figure that is not below 0.
func hundredths(w uint64) (figure float64, ok bool) {
	const whole = 0x10_10_10_10_10 // a bit of the bytes before the point that digits have and blanks have not
	blank := ^w & whole >> 4
	before := blank * 0xff
	// Or makes a blank the digit 0; after the xor a digit is its value and the point is 0.
	// Then there must be nothing else, no digit that was no blank, no blank behind a digit,
	// and a digit before the point.
	d := (w | whole) ^ 0x30302e3030303030
	if (d+0x76767f7676767676|d)&eightTops|d&before|before&(before+1)|before>>32 != 0 {
		return 0, false
	}
	n := eightDigits(d>>48<<48 | d<<24>>16)
	return float64(int64(n)) / 100, true
}
