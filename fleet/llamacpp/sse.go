package llamacpp

import (
	"bytes"
	"errors"
	"io"
)

// maxEvent bounds the bytes of one event. A chunk with "verbose" carries the whole
// prompt, so lines of megabytes are real.
const maxEvent = 16 << 20

var errEventTooLong = errors.New("an event of the stream is longer than 16 MiB")

// frameKind says what a frame is.
type frameKind uint8

const (
	frameData  frameKind = iota + 1
	framePing            // a comment
	frameError           // an event named error, or an old server's "error:" line
	frameJunk            // text that is no server-sent event
)

// frame is one thing of a stream. Its data is valid until the next one is read.
type frame struct {
	kind frameKind
	data []byte
	torn bool // the stream ended inside it, before the line did
}

// sseReader finds the server-sent events in a stream. It reads into one buffer
// that grows to the longest event and returns parts of it, so that an event costs
// no allocation. It takes LF and CRLF.
type sseReader struct {
	r   io.Reader
	buf []byte
	max int

	start int // of the current event
	line  int // of the current line
	seen  int // no line end between line and here
	end   int // of what was read
	err   error

	has     bool // data lines were found: they are buf[from:to], joined
	from    int
	to      int
	isError bool
	empty   int // reads in a row that gave neither bytes nor an error
}

func newSSEReader(r io.Reader) *sseReader {
	return &sseReader{r: r, buf: make([]byte, 8<<10), max: maxEvent}
}

// next returns the next frame. At a clean end the last event counts even without
// the blank line after it, then comes io.EOF; any other end drops what is unfinished.
func (s *sseReader) next() (frame, error) {
	for {
		i := bytes.IndexByte(s.buf[s.seen:s.end], '\n')
		if i < 0 {
			if s.seen = s.end; s.end-s.start > s.max {
				return frame{}, errEventTooLong
			}
			if s.err == nil {
				s.fill()
				continue
			}
			return s.last()
		}
		stop := s.seen + i
		if stop-s.start > s.max {
			return frame{}, errEventTooLong
		}
		line := s.buf[s.line:stop]
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		at := s.line
		s.line, s.seen = stop+1, stop+1
		if f := s.take(line, at); f.kind != 0 {
			return f, nil
		}
	}
}

// more reports whether the next frame is an event with an object and needs no read.
func (s *sseReader) more() bool {
	rest := s.buf[s.line:s.end]
	if named, ok := bytes.CutPrefix(rest, eventField); ok {
		_, rest, _ = bytes.Cut(named, lineEnd)
	}
	return bytes.HasPrefix(rest, objectField) && bytes.Contains(rest, emptyLine)
}

// What llama-server writes. Where it comes in another form, events are only handed on
// without knowing of the next.
var (
	eventField  = []byte("event: ")
	objectField = []byte("data: {")
	lineEnd     = []byte("\n")
	emptyLine   = []byte("\n\n")
)

// last returns what stands at the end of the stream.
func (s *sseReader) last() (frame, error) {
	if s.err != io.EOF {
		return frame{}, s.err
	}
	torn := s.line < s.end
	if torn {
		line, at := s.buf[s.line:s.end], s.line
		s.line = s.end
		if f := s.take(line, at); f.kind != 0 {
			f.torn = true
			return f, nil
		}
	}
	if s.has {
		f := s.dispatch()
		f.torn = torn
		return f, nil
	}
	return frame{}, io.EOF
}

// take reads one line, which stands at that place of the buffer.
func (s *sseReader) take(line []byte, at int) frame {
	if len(line) == 0 {
		if s.has {
			return s.dispatch()
		}
		s.reset()
		return frame{}
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		colon = len(line)
	}
	name, value, skip := line[:colon], line[min(colon+1, len(line)):], colon+1
	if len(value) > 0 && value[0] == ' ' {
		value, skip = value[1:], skip+1
	}
	switch string(name) {
	case "data":
		if !s.has {
			s.has, s.from, s.to = true, at+skip, at+skip+len(value)
			if len(value) == 0 {
				s.from, s.to = at, at
			}
			return frame{}
		}
		// The name of the field leaves room for the line end before it.
		s.buf[s.to] = '\n'
		s.to += 1 + copy(s.buf[s.to+1:], value)
	case "event":
		s.isError = string(value) == "error"
	case "id", "retry":
	case "":
		if !s.has {
			s.start = s.line
		}
		return frame{kind: framePing}
	case "error":
		s.reset()
		return frame{kind: frameError, data: value}
	default:
		s.reset()
		return frame{kind: frameJunk, data: line}
	}
	return frame{}
}

// dispatch returns the event whose lines were taken.
func (s *sseReader) dispatch() frame {
	f := frame{kind: frameData, data: s.buf[s.from:s.to]}
	if s.isError {
		f.kind = frameError
	}
	s.reset()
	return f
}

func (s *sseReader) reset() {
	s.has, s.isError = false, false
	s.start = s.line
}

// fill reads more, after making room for it.
func (s *sseReader) fill() {
	if s.start > 0 && (s.start == s.end || s.end == len(s.buf)) {
		n := s.start
		copy(s.buf, s.buf[n:s.end])
		s.start, s.line, s.seen, s.end = 0, s.line-n, s.seen-n, s.end-n
		s.from, s.to = s.from-n, s.to-n
	}
	if s.end == len(s.buf) {
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	n, err := s.r.Read(s.buf[s.end:])
	s.end += n
	s.err = err
	if s.empty++; n > 0 {
		s.empty = 0
	}
	if s.empty >= 100 && err == nil {
		s.err = io.ErrNoProgress
	}
}
