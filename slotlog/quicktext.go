package slotlog

// quickMain reads what the server says under `main: `.
func (r *Reader) quickMain(p *process, f *frameWindow, at int) (next int) {
	if f[6] == ' ' || f[6] == '|' { // a collector's column, perhaps
		return 0
	}
	if next = r.quickNext(at); next == 0 {
		return 0
	}
	if p.shape != shapeBare {
		if r.doubt(p, shapeBare) {
			return next
		}
		return 0
	}
	r.accept(p)
	r.mainLine(p, r.upTo(at, next))
	return next
}

// quickText passes a line that cannot be a server's, nor have one behind something else:
// no such line begins as this one does. w is its first four bytes.
func (r *Reader) quickText(p *process, f *frameWindow, w uint32, at int) (next int) {
	known := false
	switch c, c1 := f[0], f[1]; {
	case c == '\n':
		r.stats.Lines++
		return at + 1
	case isName[c]:
		if isDigit(c) || textStarts.have(uint64(w)) || !isText(f) {
			return 0
		}
	case c == '{':
		if c1 != '%' && c1 != '{' {
			return 0
		} else if next = r.quickNext(at); next > 0 {
			r.stats.Lines++
			r.unknown()
		}
		return next
	case c == '.':
		n := 1
		for n < 200 && f[n] == '.' {
			n++
		}
		if known = f[n] == '\n'; n == 200 || f[n] < ' ' && !known {
			return 0
		}
	case c <= ' ' || c >= 0x7f || c == '!' || c == '[' ||
		c == '-' && (c1 == '-' || c1 == '>') || c == '<' && isDigit(c1):
		return 0
	}
	if next = r.quickNext(at); next > 0 {
		if r.pass(p); !known {
			r.unknown()
		}
	}
	return next
}

// isText reports whether a line that begins with a letter does so with a word, and not
// with a name: that of a container, a library or a function.
func isText(f *frameWindow) bool {
	i := 1
	for i < 64 && isNameByte(f[i]) {
		i++
	}
	if i == 64 || f[i-1] == ':' {
		return false
	}
	for i < 128 && f[i] == ' ' {
		i++
	}
	return f[i] != '|' && f[i] != ':' && i < 128
}

// textStarts is what lines begin with that isText takes for text, and are not.
var textStarts = newWordSet(4,
	"slot", "srv ", "que ", "res ", "cmn ", "main", "cmd_", "prom", "eval", "tota", "draf",
	"INFO", "WARN", "VERB", "ERR ", "prin", "Avai", "syst", "upda", "all ", "unex", "task", "llam",
	"time", "Supp", "Jan ", "Feb ", "Mar ", "Apr ", "May ", "Jun ", "Jul ", "Aug ", "Sep ", "Oct ", "Nov ", "Dec ",
	"Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun ",
)
