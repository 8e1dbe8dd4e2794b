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
	f.timings = readTimings(data[timings:])
	return &f.timings, nil
}

func readTimings(object []byte) (t fleet.Timings) {
	for m := (members{rest: object}); m.next(); {
		switch string(m.name) {
		case "cache_n":
			t.Cached = m.tokens()
		case "prompt_n":
			t.Prompt = m.tokens()
		case "predicted_n":
			t.Predicted = m.tokens()
		case "prompt_per_second":
			t.PromptPerSecond = m.rate()
		case "predicted_per_second":
			t.PredictedPerSecond = m.rate()
		}
	}
	return t
}

func readProgress(object []byte) (p fleet.Progress) {
	for m := (members{rest: object}); m.next(); {
		switch string(m.name) {
		case "total":
			p.Total = m.tokens()
		case "cache":
			p.Cached = m.tokens()
		case "processed":
			p.Processed = m.tokens()
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
	n := 0
	for n < len(b) && plain[b[n]] {
		n++
	}
	if n == 0 {
		return false
	}
	m.value, m.rest = b[:n], b[n:]
	return true
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

// tokens is the value as a count; 0 where it is none.
func (m *members) tokens() fleet.Tokens {
	const digits = 18 // more do not fit
	if len(m.value) > digits {
		return 0
	}
	var n fleet.Tokens
	for _, c := range m.value {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + fleet.Tokens(c-'0')
	}
	return n
}

// rate is the value as a speed; 0 where it is none: null, for one.
func (m *members) rate() float64 {
	if len(m.value) > 32 || m.value[0] < '0' || m.value[0] > '9' {
		return 0
	}
	f, err := strconv.ParseFloat(string(m.value), 64)
	if err != nil {
		return 0
	}
	return f
}
