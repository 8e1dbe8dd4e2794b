package openai

import "bytes"

// alike is what a chunk says besides its text and the numbers of its timings that grow with
// it. The chunks of an answer mostly have that in common, byte for byte: to compare it
// costs less than to scan it, and proves as much.
type alike struct {
	rest    []byte // all but those; empty: there is nothing to compare
	gaps    []int  // where in rest they stood: the text, then the numbers
	growing []int  // which of the chunk's numbers these are

	follows bool // the present chunk has all of that from the one before
}

// remember keeps what the chunks after this one may have in common with it, if all it
// brings is a text.
func (c *chunk) remember() {
	l := &c.alike
	l.rest, l.gaps, l.growing = l.rest[:0], l.gaps[:0], l.growing[:0]
	text := c.onlyText()
	if text == nil {
		return
	}
	if c.timings.ok() && (c.timings.val.from < text.to || !c.findNumbers()) {
		return
	}
	at := l.cut(c.data, 0, *text)
	for k, n := range c.numbers {
		if !c.ofPrompt(k) {
			at = l.cut(c.data, at, n)
			l.growing = append(l.growing, k)
		}
	}
	l.rest = append(l.rest, c.data[at:]...)
}

// ofPrompt reports whether a number is one that stays the same once the prompt was read.
func (c *chunk) ofPrompt(number int) bool {
	for _, is := range []timing{timingCache, timingPromptN, timingPromptMs} {
		if c.told[is] == number+1 {
			return true
		}
	}
	return false
}

// cut appends what stands before a gap, and returns where the gap ends.
func (l *alike) cut(data []byte, from int, gap span) int {
	l.rest = append(l.rest, data[from:gap.from]...)
	l.gaps = append(l.gaps, len(l.rest))
	return gap.to
}

// onlyText returns the text of a chunk that brings nothing else, timings aside; nil:
// it is another one.
func (c *chunk) onlyText() *span {
	if len(c.parts) != 1 || c.usage.ok() || c.progress.ok() || c.verbose.ok() || c.fault.ok() {
		return nil
	}
	p := &c.parts[0]
	switch {
	case p.finish.ok() || p.role.ok() || p.tools.ok() || p.logprobs.ok() || p.opaque:
		return nil
	case p.content.ok() && !p.reasoning.ok():
		return &p.content
	case p.reasoning.ok() && !p.content.ok():
		return &p.reasoning
	}
	return nil
}

// findNumbers notes where the numbers of the timings stand, and which are known. It
// reports whether there are some and nothing that is deeper.
func (c *chunk) findNumbers() bool {
	c.told = [timingKinds]int{}
	flat := true
	s := scanner{b: c.data[:c.timings.val.to], i: c.timings.val.from, known: true}
	var buf [64]byte
	for s.enter('{'); s.more('}'); {
		is := timingOf(name(s.key().of(s.b), &buf))
		first := s.peek()
		v := s.value()
		c.told[is] = 0
		switch {
		case beginsNumber(first):
			c.numbers = append(c.numbers, v)
			c.told[is] = len(c.numbers)
		case first == '{' || first == '[':
			flat = false
		}
	}
	return flat && len(c.numbers) > 0
}

func beginsNumber(c byte) bool { return c == '-' || '0' <= c && c <= '9' }

// follow reads a payload that has all in common with the one before, and returns false
// for any other.
func (c *chunk) follow(data []byte) bool {
	c.alike.follows = false
	if len(c.alike.rest) == 0 || c.stale {
		return false
	}
	was := c.numbersEnd()
	text, ok := c.match(data)
	if ok {
		c.data, c.alike.follows = data, true
		c.move(text, was)
	}
	return ok
}

// match compares a payload with what is expected of the next one, finds its numbers and
// returns where its text stands.
func (c *chunk) match(data []byte) (text span, ok bool) {
	l := &c.alike
	s := scanner{b: data}
	if !s.past(l.rest[:l.gaps[0]]) || s.i == len(data) || data[s.i] != '"' {
		return span{}, false
	}
	text = s.str()
	for k, from := range l.gaps[:len(l.gaps)-1] {
		if !s.past(l.rest[from:l.gaps[k+1]]) || s.i == len(data) || !beginsNumber(data[s.i]) {
			return span{}, false
		}
		at := s.i
		s.number()
		c.numbers[l.growing[k]] = span{at, s.i}
	}
	ok = s.past(l.rest[l.gaps[len(l.gaps)-1]:]) && s.fault == "" && s.i == len(data)
	return text, ok
}

// past goes over what is expected next, and reports whether it was there.
func (s *scanner) past(b []byte) bool {
	if !bytes.HasPrefix(s.b[s.i:], b) {
		return false
	}
	s.i += len(b)
	return true
}

// numbersEnd is where the last number that grows ends.
func (c *chunk) numbersEnd() int {
	g := c.alike.growing
	if len(g) == 0 {
		return len(c.data)
	}
	return c.numbers[g[len(g)-1]].to
}

// move puts the text in its place, and all that stands behind it or behind the numbers,
// whose end was somewhere else.
func (c *chunk) move(text span, numbersEnd int) {
	was := c.onlyText()
	behind, last := text.to-was.to, c.numbersEnd()-numbersEnd
	shift := func(at *int) {
		switch {
		case *at >= numbersEnd:
			*at += last
		case *at >= was.to:
			*at += behind
		}
	}
	for k := range c.envelope {
		m := &c.envelope[k]
		shift(&m.key)
		shift(&m.val.from)
		shift(&m.val.to)
	}
	shift(&c.parts[0].at.to)
	shift(&c.timings.key)
	shift(&c.timings.val.from)
	shift(&c.timings.val.to)
	*was = text
}
