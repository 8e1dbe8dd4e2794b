package slotlog

import "bytes"

// The functions below know what log collectors put before a line. Each returns how
// many bytes that is, 0 for something else.

// scanDate reads the times that begin a line: ISO 8601 with a blank or a T, with
// slashes as Go's logger has it, with a weekday before or a zone after it.
func scanDate(b []byte) int {
	i := 0
	if len(b) > 4 && isWeekday(b) {
		i = 4
	}
	day := b[i:]
	if len(day) < 19 || !digitsAt(day, 0, 4) || day[4] != '-' && day[4] != '/' || !digitsAt(day, 5, 2) ||
		day[7] != day[4] || !digitsAt(day, 8, 2) || day[10] != 'T' && day[10] != ' ' {
		return 0
	}
	n := scanDayTime(day[11:])
	if n == 0 {
		return 0
	}
	i += 11 + n
	switch {
	case i < len(b) && b[i] == 'Z':
		i++
	case i+5 <= len(b) && (b[i] == '+' || b[i] == '-') && digitsAt(b, i+1, 2):
		i += 3
		if i < len(b) && b[i] == ':' {
			i++
		}
		if !digitsAt(b, i, 2) {
			return 0
		}
		i += 2
	}
	return i
}

// scanDayTime reads `HH:MM:SS` and a fraction.
func scanDayTime(b []byte) int {
	if len(b) < 8 || !digitsAt(b, 0, 2) || b[2] != ':' || !digitsAt(b, 3, 2) || b[5] != ':' || !digitsAt(b, 6, 2) {
		return 0
	}
	i := 8
	if i+1 < len(b) && (b[i] == '.' || b[i] == ',') && isDigit(b[i+1]) {
		for i++; i < len(b) && isDigit(b[i]); i++ {
		}
	}
	return i
}

// scanSyslogDate reads `Mon DD HH:MM:SS`, the date of RFC 3164 and of journalctl.
func scanSyslogDate(b []byte) int {
	if len(b) < 15 || b[3] != ' ' || b[6] != ' ' || !isDigit(b[5]) || b[4] != ' ' && !isDigit(b[4]) {
		return 0
	}
	switch string(b[:3]) {
	case "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec":
	default:
		return 0
	}
	n := scanDayTime(b[7:])
	if n == 0 {
		return 0
	}
	return 7 + n
}

// scanSender reads ` HOST IDENT[PID]: `, where the host may be missing, and with
// plain also ` HOST IDENT: `. It begins at the blank after the date.
func scanSender(b []byte, plain bool) int {
	i := 0
	for token := range 3 { // a zone or a host, the host, the name
		start := skipBlanks(b, i)
		if start == i {
			return 0
		}
		for i = start; i < len(b) && isSenderByte(b[i]) && i-start <= maxSender; i++ {
		}
		word := b[start:i]
		if len(word) < 2 || i < len(b) && b[i] != ' ' {
			return 0
		}
		if word[len(word)-1] == ':' && (hasPID(word) || plain && token == 1) {
			return min(i+1, len(b)) // a copied log lost the blank of an empty line
		}
	}
	return 0
}

func isSenderByte(c byte) bool {
	return isNameByte(c) && c != '|' || c == '[' || c == ']' || c == '(' || c == ')' || c == '+' || c >= 0x80
}

// maxSender bounds a host or program name.
const maxSender = 255

// hasPID reports whether a word ends in `[DIGITS]:`.
func hasPID(word []byte) bool {
	i := len(word) - 2
	if i < 2 || word[i] != ']' {
		return false
	}
	for i--; i > 0 && isDigit(word[i]); i-- {
	}
	return i > 0 && word[i] == '[' && word[i+1] != ']'
}

// scanRFC5424 reads `<PRI>1 TIME HOST APP PROCID MSGID SD `; what follows may begin
// with a byte order mark.
func scanRFC5424(b []byte) int {
	i := scanPriority(b)
	if i == 0 || len(b) < i+2 || b[i] != '1' || b[i+1] != ' ' {
		return 0
	}
	i += 2
	for range 5 {
		n := bytes.IndexByte(b[i:], ' ')
		if n <= 0 || n > maxSender {
			return 0
		}
		i += n + 1
	}
	switch {
	case i < len(b) && b[i] == '-':
		i++
	case i < len(b) && b[i] == '[':
		for i < len(b) && b[i] == '[' {
			n := structuredData(b[i:])
			if n == 0 {
				return 0
			}
			i += n
		}
	default:
		return 0
	}
	if i < len(b) {
		if b[i] != ' ' {
			return 0
		}
		i++
	}
	if bytes.HasPrefix(b[i:], byteOrderMark) {
		i += len(byteOrderMark)
	}
	return i
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// structuredData reads `[id key="value" …]`.
func structuredData(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case b[i] == '\\' && quoted:
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == ']' && !quoted:
			return i + 1
		}
	}
	return 0
}

// scanPriority reads `<0>` to `<191>`.
func scanPriority(b []byte) int {
	if len(b) < 3 || b[0] != '<' {
		return 0
	}
	v, i, ok := scanUint(b, 1)
	if !ok || v > 191 || i >= len(b) || b[i] != '>' {
		return 0
	}
	return i + 1
}

func isWeekday(b []byte) bool {
	switch string(b[:4]) {
	case "Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun ":
		return true
	}
	return false
}

// digitsAt reports whether n digits stand at b[i:].
func digitsAt(b []byte, i, n int) bool {
	if len(b) < i+n {
		return false
	}
	for _, c := range b[i : i+n] {
		if !isDigit(c) {
			return false
		}
	}
	return true
}
