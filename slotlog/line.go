package slotlog

import (
	"bytes"
	"time"
)

// Line is one line of a log, taken apart.
type Line struct {
	// Seq numbers the lines of a source, rising. [ParseLine] leaves it 0.
	Seq uint64

	// Time is when the line was read. [ParseLine] leaves it zero.
	Time time.Time

	// Port is the router child's port, as `[port]` before the line; 0: none.
	Port int

	// HasFrame says whether the line is about a slot; Frame counts only then.
	HasFrame bool

	// Frame names the slot and its task.
	Frame Frame

	// Message is the text after the frame, or after the prefix when there is none.
	Message string
}

// Frame is the slot and the task that a line is about.
type Frame struct {
	Slot, Task int // -1: none
}

// ParseLine takes one line apart, with or without its line end. It knows the
// router's mark, the clock and level prefix, colours, and the slot and service
// frames (llama.cpp b3761 and later). It never fails: a line that it does not
// know is all message.
func ParseLine(raw []byte) Line {
	raw = bytes.TrimSuffix(raw, []byte("\n"))
	if bytes.IndexByte(raw, esc) >= 0 {
		raw = stripANSI(nil, raw)
	}
	var h head
	h.scan(trimLine(raw))
	l := Line{Port: h.port}
	body := h.body
	if f, msg, ok := scanFrame(body); ok {
		l.HasFrame, l.Frame = true, f
		body = msg
	} else if msg, ok := scanService(body); ok {
		body = msg
	}
	l.Message = string(body)
	return l
}

// read finds the rule for the message of a slot frame, whatever its era, and sets
// Kind and figures. Seq, Time, Port, Slot and Task are set; the rest is zero. It
// reports whether the words are known.
//
// Messages are matched from the first byte; readouts and timings to the last, so
// that a spliced line gives no wrong count. A frame without a task speaks of a
// free slot, whatever its words.
func (e *Event) read(msg []byte) (known bool) {
	if e.Task < 0 {
		e.Kind = KindIdle
		return true
	}
	if len(msg) == 0 {
		return true
	}
	switch msg[0] {
	case 'p':
		e.readPrompt(msg)
	case 's':
		e.readRelease(msg)
	case 'n':
		e.readRunning(msg)
	case ' ', 'e':
		e.readTiming(msg)
	}
	return e.Kind != KindFrame || !endsInRate(msg)
}

// readPrompt reads `processing task…` and the forms of prefill progress. Until
// b6889 the context is n_past and n_tokens is the batch; from b6890 n_tokens is the
// context; from b9151 `prompt processing, n_tokens` is what was processed.
func (e *Event) readPrompt(msg []byte) {
	const launch = "processing task"
	i, ok := skipLit(msg, 0, "prompt ")
	if !ok {
		if hasPrefix(msg, launch) && (len(msg) == len(launch) || !isWordByte(msg[len(launch)])) {
			e.Kind = KindLaunch
		}
		return
	}
	if i < len(msg) && msg[i] == 'e' { // prompt eval time: frequent, and nothing to keep
		return
	}
	i, ok = skipLit(msg, i, "processing ")
	for _, words := range [...]string{"processing, ", "progress, ", "done, "} {
		if j, found := skipLit(msg, i, words); found {
			i, ok = j, true
			break
		}
	}
	if !ok {
		return
	}
	if n, next, ok := scanContext(msg, i); ok && next < len(msg) && msg[next] == ',' {
		e.Kind, e.Tokens, e.HasTokens = KindPrompt, n, true
	}
}

// readRelease reads `stop processing…`; its figure is n_past until b6889.
func (e *Event) readRelease(msg []byte) {
	i, ok := skipLit(msg, 0, "stop processing")
	if !ok || i < len(msg) && isWordByte(msg[i]) {
		return
	}
	e.Kind = KindRelease
	if i, ok = skipLit(msg, i, ": "); !ok {
		return
	}
	if n, _, ok := scanContext(msg, i); ok {
		e.Tokens, e.HasTokens = n, true
	}
}

// scanContext reads `n_tokens = N` or its older name `n_past = N`.
func scanContext(b []byte, i int) (n int64, next int, ok bool) {
	if j, ok := skipLit(b, i, "n_tokens = "); ok {
		return scanUint(b, skipBlanks(b, j))
	}
	if j, ok := skipLit(b, i, "n_past = "); ok {
		return scanUint(b, skipBlanks(b, j))
	}
	return 0, i, false
}

// readRunning reads `n_gen = N, tg = X t/s[, tg_3s = Y t/s]`, called n_decoded before
// b10408; tg_3s came with b9706 and is the better word for now. Debug lines begin
// with n_gen too, but have no tg.
func (e *Event) readRunning(msg []byte) {
	i, ok := skipLit(msg, 0, "n_gen = ")
	if !ok {
		if i, ok = skipLit(msg, 0, "n_decoded = "); !ok {
			return
		}
	}
	n, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, ", tg = "); !ok {
		return
	}
	rate, known, i, ok := scanRate(msg, i)
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, " t/s"); !ok {
		return
	}
	if j, ok := skipLit(msg, i, ", tg_3s = "); ok {
		if rate, known, i, ok = scanRate(msg, j); !ok {
			return
		}
		if i, ok = skipLit(msg, i, " t/s"); !ok {
			return
		}
	}
	if skipBlanks(msg, i) != len(msg) {
		return
	}
	e.Kind, e.Tokens, e.HasTokens = KindRunning, n, true
	e.Rate, e.HasRate = rate, known
}

// readTiming reads `eval time = T ms / N tokens (X ms per token, R tokens per
// second)` and leaves `prompt eval time` alone.
func (e *Event) readTiming(msg []byte) {
	i := skipBlanks(msg, 0)
	i, ok := skipLit(msg, i, "eval time = ")
	if !ok {
		return
	}
	if i, ok = skipRate(msg, i); !ok {
		return
	}
	if i, ok = skipLit(msg, i, " ms / "); !ok {
		return
	}
	n, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, " tokens ("); !ok {
		return
	}
	if i, ok = skipRate(msg, i); !ok {
		return
	}
	if i, ok = skipLit(msg, i, " ms per token, "); !ok {
		return
	}
	rate, known, i, ok := scanRate(msg, i)
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, " tokens per second)"); !ok || skipBlanks(msg, i) != len(msg) {
		return
	}
	e.Kind, e.Tokens, e.HasTokens = KindTiming, n, true
	e.Rate, e.HasRate = rate, known
}

// endsInRate reports whether an unknown message ends as readouts do, except for
// the prefill timings, which are known and say nothing that is kept.
func endsInRate(msg []byte) bool {
	switch msg[len(msg)-1] {
	case 's':
		return bytes.HasSuffix(msg, []byte(" t/s"))
	case ')':
		return bytes.HasSuffix(msg, []byte(" tokens per second)")) && !hasPrefix(msg, "prompt eval time")
	}
	return false
}

func isWordByte(c byte) bool {
	return c == '_' || isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z'
}
