package openai

import (
	"bytes"

	"github.com/slotfleet/slotfleet/fleet"
)

// again is the text that the present node has to give once more, before what is new.
type again struct {
	content, reasoning []byte
	noReasoning        bool // what follows it is content; the reasoning may be missing
	came               bool // some of it did
}

// due reports whether an end comes too early. A node that has nothing to add need not
// give back what it was given.
func (a *again) due() bool {
	return a.came && (len(a.content) > 0 || len(a.reasoning) > 0 && !a.noReasoning)
}

// takeText records the text of a part. It returns false if nothing is left of a
// chunk, because the node only repeated what it was given or what the client has.
func (j *Job) takeText(c *chunk, ch *choice, p *part) (left bool, err error) {
	r := &j.relay
	left = !p.says() || p.finish.ok() || p.tools.ok()
	ch.again.came = ch.again.came || p.says()
	if hasText(p.reasoning) {
		text, more, err := j.record(c, p.reasoning, ch.reasoning, &ch.again.reasoning, unless(r.now.sawReasoning, r.sent.reasoning))
		if err != nil || more && (ch.again.noReasoning || len(ch.again.content) > 0) {
			return false, diverged()
		}
		ch.reasoning, ch.now.reasoning, r.now.sawReasoning = text, len(text), true
		left = left || more
	}
	if hasText(p.content) {
		if ch.again.noReasoning {
			ch.again.reasoning = nil
		} else if len(ch.again.reasoning) > 0 {
			return false, diverged()
		}
		before := len(ch.content)
		text, more, err := j.record(c, p.content, ch.content, &ch.again.content, unless(r.now.sawContent, r.sent.content))
		if err != nil {
			return false, err
		}
		ch.content, ch.now.content, r.now.sawContent = text, len(text), true
		j.takeIDs(c, ch, text[min(before, len(text)):])
		left = left || more
	}
	if p.opens != 0 {
		r.ids.note(c, p.opens)
	}
	if p.finish.ok() && ch.again.due() {
		return false, diverged()
	}
	return left, nil
}

// diverged is about an answer that another node was to repeat and did not.
func diverged() *fleet.RequestError { return lost("another server's answer was not the same") }

// record appends to text what the string at a place of the chunk says, if texts are
// kept. What has to come again, and an echo of sent, is cut, there too. more: something
// is left of the string.
func (j *Job) record(c *chunk, at span, text []byte, due *[]byte, sent []byte) (_ []byte, more bool, err error) {
	r := &j.relay
	from := len(text)
	text = appendText(text, inside(at).of(c.data))
	known := 0
	switch {
	case len(*due) > 0:
		known = min(len(*due), len(text)-from)
		if !bytes.Equal(text[from:from+known], (*due)[:known]) {
			return text[:from], false, diverged()
		}
		*due = (*due)[known:]
	case echoed(text[from:], sent):
		known = len(sent)
	}
	if known > 0 {
		text = append(text[:from], text[from+known:]...)
		scratch := len(r.scratch)
		r.scratch = appendString(r.scratch, text[from:])
		r.edits.replace(at, r.scratch[scratch:])
	}
	more = len(text) > from
	switch {
	case j.streams && j.opts.Resume != ResumeOn:
		text = text[:from]
	case j.streams && r.full:
		text = text[:from]
	}
	r.size += len(text) - from
	return text, more, nil
}

// unless returns what was sent, which only the first text can be an echo of.
func unless(saw bool, sent []byte) []byte {
	if saw {
		return nil
	}
	return sent
}

// longestPiece is more bytes than one token brings.
const longestPiece = 256

// echoed reports whether the first text that a node sends begins with all that it
// was given to go on with, although it was asked not to repeat it. A model may
// repeat itself too, so only what is too long for one piece is taken for an echo.
func echoed(text, sent []byte) bool {
	return len(sent) > longestPiece && bytes.HasPrefix(text, sent)
}
