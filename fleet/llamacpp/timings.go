package llamacpp

import (
	"bytes"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// A quote inside a JSON string is escaped, so these bytes cannot stand in what a
// model wrote.
var (
	timingsKey  = []byte(`"timings":{`)
	progressKey = []byte(`"prompt_progress":{`)
)

// figures are the numbers found in one payload.
type figures struct {
	timings  fleet.Timings
	progress fleet.Progress
	layout   layout

	late bool   // timings are kept as they came, until somebody asks for the last
	kept []byte // an object of timings, and what stands behind it; empty: none came
}

// read finds the figures in a payload. Timings beside progress are those of the
// slot's request before, on servers of early 2026: they do not count.
func (f *figures) read(data []byte) (*fleet.Timings, *fleet.Progress) {
	timings := -1
	// Braces are few: looking at what stands before each costs less than two searches
	// for keys, which begin with the most frequent byte of JSON.
	for at := 0; ; {
		i := bytes.IndexByte(data[at:], '{')
		if i < 0 {
			break
		}
		at += i + 1
		switch {
		case at < len(timingsKey) || data[at-4] != 's': // both keys end with `s":{`
		case bytes.HasSuffix(data[:at], progressKey):
			f.progress = readProgress(data[at:])
			return nil, &f.progress
		case timings < 0 && bytes.HasSuffix(data[:at], timingsKey):
			timings = at
		}
	}
	if timings < 0 {
		return nil, nil
	}
	if f.late {
		f.kept = append(f.kept[:0], data[timings:]...)
		return nil, nil
	}
	if object := data[timings:]; !f.layout.follow(object, &f.timings) {
		f.timings = f.layout.read(object)
	}
	return &f.timings, nil
}

// last returns the timings that were kept, if there are some.
func (f *figures) last() (t fleet.Timings, ok bool) {
	if len(f.kept) == 0 {
		return t, false
	}
	return f.layout.read(f.kept), true
}

// timing is a member of timings.
type timing uint8

const (
	timingOther timing = iota
	timingCached
	timingPrompt
	timingPromptRate
	timingPredicted
	timingPredictedRate
)

func timingOf(name []byte) timing {
	switch string(name) {
	case "cache_n":
		return timingCached
	case "prompt_n":
		return timingPrompt
	case "prompt_per_second":
		return timingPromptRate
	case "predicted_n":
		return timingPredicted
	case "predicted_per_second":
		return timingPredictedRate
	}
	return timingOther
}

// set takes the value of a member.
func (is timing) set(t *fleet.Timings, value []byte) {
	switch is {
	case timingCached:
		t.Cached = tokens(value)
	case timingPrompt:
		t.Prompt = tokens(value)
	case timingPromptRate:
		t.PromptPerSecond = rate(value)
	case timingPredicted:
		t.Predicted = tokens(value)
	case timingPredictedRate:
		t.PredictedPerSecond = rate(value)
	}
}

// layout is what the timings of an answer have in common, chunk after chunk: all but
// their values. To compare it costs less than to read the names, and tells as much.
type layout struct {
	between []byte   // what stands before each value, one after the other
	ends    []int    // where in between that of a value ends
	members []timing // whose value it is

	promptRate []byte // as it was written; it stays what it is once the prompt was read
}

// read reads an object of timings, and keeps its layout.
func (l *layout) read(object []byte) (t fleet.Timings) {
	l.between, l.ends, l.members, l.promptRate = l.between[:0], l.ends[:0], l.members[:0], l.promptRate[:0]
	at := 0
	for m := (members{rest: object}); m.next(); {
		is, end := timingOf(m.name), len(object)-len(m.rest)
		is.set(&t, m.value)
		if is == timingPromptRate {
			l.promptRate = append(l.promptRate[:0], m.value...)
		}
		l.between = append(l.between, object[at:end-len(m.value)]...)
		l.ends, l.members = append(l.ends, len(l.between)), append(l.members, is)
		at = end
	}
	return t
}

// follow reads an object into t, which holds the one before, if it has that one's layout
// and no more than that.
func (l *layout) follow(object []byte, t *fleet.Timings) bool {
	from := 0
	for k, end := range l.ends {
		rest, ok := bytes.CutPrefix(object, l.between[from:end])
		if !ok {
			return false
		}
		value := rest[:plainEnd(rest)]
		if len(value) == 0 {
			return false
		}
		if is := l.members[k]; is != timingPromptRate || !bytes.Equal(value, l.promptRate) {
			is.set(t, value)
			if is == timingPromptRate {
				l.promptRate = append(l.promptRate[:0], value...)
			}
		}
		object, from = rest[len(value):], end
	}
	return from > 0 && len(object) > 0 && object[0] == '}'
}

func readProgress(object []byte) (p fleet.Progress) {
	for m := (members{rest: object}); m.next(); {
		switch string(m.name) {
		case "total":
			p.Total = tokens(m.value)
		case "cache":
			p.Cached = tokens(m.value)
		case "processed":
			p.Processed = tokens(m.value)
		}
	}
	return p
}

// members walks an object of plain values (numbers, null, true, false). It stops
// at whatever is something else, and at the object's end.
type members struct {
	rest  []byte // after the opening brace, or after a member
	name  []byte
	value []byte
}

func (m *members) next() bool {
	b := skip(m.rest)
	if len(b) > 0 && b[0] == ',' {
		b = skip(b[1:])
	}
	if len(b) == 0 || b[0] != '"' {
		return false
	}
	b = b[1:]
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return false
	}
	m.name, b = b[:end], skip(b[end+1:])
	if len(b) == 0 || b[0] != ':' {
		return false
	}
	b = skip(b[1:])
	n := plainEnd(b)
	if n == 0 {
		return false
	}
	m.value, m.rest = b[:n], b[n:]
	return true
}

// plainEnd is where the plain value ends that b begins with.
func plainEnd(b []byte) int {
	for n, c := range b {
		if !plain[c] {
			return n
		}
	}
	return len(b)
}

// skip returns b without the white space at its beginning.
func skip(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// plain are the bytes of numbers, null, true and false.
var plain = func() (is [256]bool) {
	for _, c := range []byte("0123456789abcdefghijklmnopqrstuvwxyz-+.E") {
		is[c] = true
	}
	return is
}()

// tokens is a value as a count; 0 where it is none.
func tokens(value []byte) fleet.Tokens {
	const digits = 18 // more do not fit
	if len(value) > digits {
		return 0
	}
	var n fleet.Tokens
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + fleet.Tokens(c-'0')
	}
	return n
}

// rate is a value as a speed; 0 where it is none: null, for one.
func rate(value []byte) float64 {
	if len(value) > 32 || value[0] < '0' || value[0] > '9' {
		return 0
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return 0
	}
	return f
}
