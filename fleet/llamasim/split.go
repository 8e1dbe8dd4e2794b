package llamasim

import (
	"crypto/rand"
	"strings"
)

// delta is what a piece of generated text adds to a message.
type delta struct {
	reasoning string
	content   string
	call      *callDelta
}

// callDelta adds to a call of an answer; the first of each has id and name.
type callDelta struct {
	index     int
	id, name  string
	arguments string
}

// splitter sorts generated text into reasoning, content and a call.
type splitter struct {
	raw  bool // reasoning_format none: all is content
	mode splitMode
	skip int // newlines the template owns

	calls  int             // so far
	call   strings.Builder // raw text of the call, up to its arguments
	name   string
	opened bool // the delta with id and name was sent
	depth  int  // of the arguments' braces
	quote  bool // inside a string of the arguments
	escape bool
}

type splitMode int

const (
	inContent splitMode = iota
	inReasoning
	inCall
	inArguments
	afterArguments
)

// write takes the next text.
func (s *splitter) write(u unit) []delta {
	if s.raw {
		return []delta{{content: u.text}}
	}
	if u.mark {
		switch u.text {
		case markThink:
			s.mode, s.skip = inReasoning, 1
			return nil
		case markThinkEnd:
			s.mode, s.skip = inContent, 2
			return nil
		case markCall:
			s.mode, s.opened = inCall, false
			s.call.Reset()
			s.calls++
			return nil
		case markCallEnd:
			// A newline may stand between two calls.
			s.mode, s.skip = inContent, 1
			return nil
		}
	}
	text := u.text
	for s.skip > 0 && strings.HasPrefix(text, "\n") {
		text = text[1:]
		s.skip--
	}
	if text == "" {
		return nil
	}
	s.skip = 0
	switch s.mode {
	case inReasoning:
		return []delta{{reasoning: text}}
	case inCall, inArguments, afterArguments:
		return s.writeCall(text)
	}
	return []delta{{content: text}}
}

// writeCall reads `{"name": "f", "arguments": {...}}`, of which only the name and
// the arguments' text are shown.
func (s *splitter) writeCall(text string) []delta {
	if s.mode == inCall {
		s.call.WriteString(text)
		_, rest, ok := strings.Cut(s.call.String(), "\"name\": \"")
		if !ok {
			return nil
		}
		name, rest, ok := strings.Cut(rest, "\", \"arguments\": ")
		if !ok || rest == "" {
			return nil
		}
		s.name, s.mode, text = name, inArguments, rest
	}
	if s.mode == afterArguments {
		return nil
	}
	n := s.arguments(text)
	if n == 0 {
		return nil
	}
	d := &callDelta{index: s.calls - 1, arguments: text[:n]}
	if !s.opened {
		s.opened = true
		d.id, d.name = randomID(), s.name
	}
	return []delta{{call: d}}
}

// arguments is how much of text belongs to the arguments; it notices their end.
func (s *splitter) arguments(text string) int {
	for i := range len(text) {
		c := text[i]
		switch {
		case s.escape:
			s.escape = false
		case s.quote && c == '\\':
			s.escape = true
		case c == '"':
			s.quote = !s.quote
		case s.quote:
		case c == '{' || c == '[':
			s.depth++
		case c == '}' || c == ']':
			if s.depth--; s.depth == 0 {
				s.mode = afterArguments
				return i + 1
			}
		}
	}
	return len(text)
}

// prefilled reads what the prompt already holds of the answer. A call that goes on
// gets a new id and its whole name again, but only the new arguments (P35).
func (s *splitter) prefilled(p prompt) {
	if s.raw {
		return
	}
	if p.thinking {
		s.mode = inReasoning
	}
	for _, t := range tokenize(p.prefill.content) {
		s.write(unit{t.text, isMark(t.text)})
	}
	s.opened = false
}

const idLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// randomID is 32 letters and digits, as the ids of completions and calls have.
func randomID() string {
	var b [32]byte
	_, _ = rand.Read(b[:])
	for i := range b {
		b[i] = idLetters[int(b[i])%len(idLetters)]
	}
	return string(b[:])
}
