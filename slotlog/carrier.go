package slotlog

import "bytes"

// maxNesting is how many carriers and objects may be around one line: a collector's
// object, a container's name, a date and a sender, a router's object, a mark and the
// child's object are six.
const maxNesting = 8

// opened is what was found before a line.
type opened struct {
	n     int  // bytes of the carrier; 0: none
	part  byte // 'P': the rest of the line follows in a later entry; 'F': it ends here
	noise bool // what follows is the carrier's own, unless it is a server's line
	err   bool // from the stream for errors

	name []byte // of a container
}

// openCarrier looks for what a collector or a wrapper puts before a line. It knows
// no state: each line is looked at alone, so formats may mix.
func openCarrier(b []byte) (o opened) {
	switch c := b[0]; {
	case c == '<':
		if o.n = scanRFC5424(b); o.n == 0 {
			o.n = openSyslog(b)
		}
	case c == '[':
		return openBracket(b)
	case isDigit(c):
		if o = openDate(b); o.n == 0 {
			if o.n = openSeconds(b); o.n == 0 {
				return openColumn(b)
			}
		}
	case c >= 'A' && c <= 'Z':
		if o.n = openSyslog(b); o.n == 0 {
			if o = openDate(b); o.n == 0 {
				return openColumn(b)
			}
		}
	case c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_':
		return openColumn(b)
	}
	return o
}

// openSyslog reads RFC 3164 and what journalctl prints.
func openSyslog(b []byte) int {
	i := scanPriority(b)
	n := scanSyslogDate(b[i:])
	if n == 0 {
		if n = scanDate(b[i:]); i == 0 || n == 0 {
			return 0
		}
	}
	i += n
	if n = scanSender(b[i:], !startsNative(b[i:])); n == 0 {
		return 0
	}
	return i + n
}

// openDate reads a date and what kubectl, containerd, journalctl and LM Studio put
// behind it.
func openDate(b []byte) (o opened) {
	n := scanDate(b)
	if n == 0 {
		if n = scanDayTime(b); n == 0 {
			return o
		}
	}
	rest := b[n:]
	if len(rest) == 0 {
		return opened{n: n, noise: true}
	}
	if rest[0] != ' ' {
		return o
	}
	if i, ok := skipLit(rest, 1, "stdout "); ok {
		return openStream(rest, n, i, false)
	}
	if i, ok := skipLit(rest, 1, "stderr "); ok {
		return openStream(rest, n, i, true)
	}
	if i := levelInBrackets(rest[1:]); i > 0 {
		return opened{n: min(n+1+i+1, len(b)), noise: true}
	}
	if i := scanSender(rest, !startsNative(rest)); i > 0 {
		return opened{n: n + i}
	}
	return opened{n: n + 1}
}

// openStream reads the tag of the container runtime interface: F for a whole line, P
// for a part of one.
func openStream(rest []byte, n, i int, err bool) (o opened) {
	if i >= len(rest) || rest[i] != 'F' && rest[i] != 'P' || i+1 < len(rest) && rest[i+1] != ' ' {
		return o
	}
	return opened{n: n + min(i+2, len(rest)), part: rest[i], err: err}
}

// openSeconds reads `1413732.123456 HOST IDENT[PID]: `.
func openSeconds(b []byte) int {
	_, i, ok := scanUint(b, 0)
	if !ok || i >= len(b) || b[i] != '.' || !digitsAt(b, i+1, 6) {
		return 0
	}
	i += 7
	if n := scanSender(b[i:], false); n > 0 {
		return i + n
	}
	return 0
}

// openColumn reads `NAME   | `, by docker compose and process managers.
func openColumn(b []byte) (o opened) {
	i := 0
	for i < len(b) && i <= maxSender && isNameByte(b[i]) {
		i++
	}
	end := skipBlanks(b, i)
	if i == 0 || end == i || end >= len(b) || b[end] != '|' {
		return o
	}
	if end+1 == len(b) {
		return opened{n: end + 1, name: b[:i]}
	}
	if b[end+1] != ' ' {
		return o
	}
	return opened{n: end + 2, name: b[:i]}
}

func isNameByte(c byte) bool {
	return isWordByte(c) || c == '-' || c == '.' || c == '/' || c == '|' || c == ':' || c == '@'
}

// openBracket reads `[seconds] `, `[date] `, `[name] ` and groups of them.
func openBracket(b []byte) (o opened) {
	i := 0
	for i < len(b) && b[i] == '[' {
		n := bytes.IndexByte(b[i:min(len(b), i+maxSender)], ']')
		if n < 2 {
			return opened{}
		}
		inner := b[i+1 : i+n]
		switch {
		case isSeconds(inner), scanDate(inner) == len(inner):
		case levelInBrackets(b[i:]) > 0:
			o.noise = true
		case i == 0 && isBracketName(inner):
			o.noise = true
		default:
			return opened{}
		}
		i += n + 1
	}
	if n := scanSender(b[i:], false); n > 0 {
		o.n = i + n
		return o
	}
	if i < len(b) && b[i] != ' ' {
		return opened{}
	}
	o.n = min(i+1, len(b))
	return o
}

// isSeconds takes seconds since 1970, of 10 digits, and seconds since boot, which
// have a fraction.
func isSeconds(b []byte) bool {
	i := skipBlanks(b, 0)
	start := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	if i == len(b) {
		return start == 0 && len(b) == 10
	}
	return i > start && b[i] == '.' && len(b)-i == 7 && digitsAt(b, i+1, 6)
}

func isBracketName(b []byte) bool {
	letter := false
	for _, c := range b {
		if !isNameByte(c) {
			return false
		}
		letter = letter || c|0x20 >= 'a' && c|0x20 <= 'z'
	}
	return letter
}

// levelInBrackets reads `[INFO]` and its sisters.
func levelInBrackets(b []byte) int {
	if len(b) < 5 || b[0] != '[' {
		return 0
	}
	n := bytes.IndexByte(b[:min(len(b), 9)], ']')
	if n < 0 {
		return 0
	}
	switch string(b[1:n]) {
	case "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "TRACE", "FATAL":
		return n + 1
	}
	return 0
}

// isWrapperLine knows what collectors and wrappers say themselves. cut reports that
// lines are missing there.
func isWrapperLine(b []byte) (known, cut bool) {
	switch b[0] {
	case 't':
		return hasPrefix(b, "time=") && bytes.Contains(b, []byte(" level=")), false
	case '[':
		return bytes.HasSuffix(b, []byte("B blob data]")), true
	case '-':
		return hasPrefix(b, "-- "), true
	case 'S':
		return hasPrefix(b, "Suppressed ") && bytes.Contains(b, []byte(" messages from ")), true
	case 0xe2:
		return hasPrefix(b, "— ") && bytes.HasSuffix(b, []byte(" bytes dropped —")), true
	case 'l':
		return hasPrefix(b, "llama-swap "), false
	case '!':
		return hasPrefix(b, "!!! "), false
	case '.':
		return len(bytes.TrimLeft(b, ".")) == 0, false
	}
	return false, false
}
