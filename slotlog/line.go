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
