package openai

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// blockSize is how many bytes of the rendering one hash stands for.
const blockSize = 256

// Before the text of a block a hash takes the fleet's key and the hash of the block
// before.
const (
	blockKeyed = 16
	blockHead  = blockKeyed + 8
)

// These separate the parts of the rendering; no text has them.
const (
	markPart    = 0xfe
	markMessage = 0xff
)

// rendering hashes a prompt while it is written out: 256 bytes at a time, each hash
// over all before it. What does not fill a block has none.
type rendering struct {
	buf  [blockHead + blockSize]byte
	n    int // bytes of the present block
	sums []uint64
}

func (r *rendering) write(b []byte) {
	for len(b) > 0 {
		n := copy(r.buf[blockHead+r.n:], b)
		b = b[n:]
		if r.n += n; r.n == blockSize {
			r.sum()
		}
	}
}

func (r *rendering) sum() {
	h := xxhash.Sum64(r.buf[:])
	r.sums = append(r.sums, h)
	binary.LittleEndian.PutUint64(r.buf[blockKeyed:], h)
	r.n = 0
}

func (r *rendering) mark(m byte) {
	r.buf[blockHead+r.n] = m
	if r.n++; r.n == blockSize {
		r.sum()
	}
}

// text writes what a string says, its quotes cut.
func (r *rendering) text(raw []byte) {
	var one [8]byte
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			r.write(raw)
			return
		}
		r.write(raw[:i])
		n := 2
		if raw[i+1] == 'u' {
			_, n = escaped(raw[i:])
		}
		r.write(appendText(one[:0], raw[i:i+n]))
		raw = raw[i+n:]
	}
}

// json writes a value without the white space between its tokens.
func (r *rendering) json(v []byte) {
	from := 0
	for i := 0; i < len(v); {
		switch v[i] {
		case '"':
			i = pastString(v, i)
		case ' ', '\t', '\r', '\n':
			r.write(v[from:i])
			i++
			from = i
		default:
			i++
		}
	}
	r.write(v[from:])
}

// large writes what is too long to be kept as text and is the same or is not: an
// image.
func (r *rendering) large(raw []byte) {
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], xxhash.Sum64(raw))
	r.write(sum[:])
}

// blocks hashes the prompt as a server would read it: the model, the tools, and the
// messages in their order; not the fields that only say how to answer.
func (j *Job) blocks() []uint64 {
	d := &j.doc
	r := &rendering{sums: make([]uint64, 0, len(d.body)/blockSize+1)}
	copy(r.buf[:blockKeyed], j.opts.BlockKey[:])
	r.write([]byte(j.model))
	r.mark(markPart)
	if d.given(fieldTools) {
		r.json(d.value(fieldTools))
	}
	switch j.kind.api {
	case apiCompletion, apiNative:
		for _, f := range []field{fieldInputExtra, fieldInputPrefix, fieldInputSuffix, fieldPrompt} {
			r.value(d, f)
		}
	default:
		for _, f := range []field{fieldSystem, fieldInstructions} {
			if d.given(f) {
				r.mark(markMessage)
				r.write([]byte("system"))
				r.value(d, f)
			}
		}
		r.turns(d)
	}
	return r.sums
}

func (r *rendering) value(d *document, f field) {
	if !d.given(f) {
		return
	}
	r.mark(markPart)
	r.content(d.body, d.field[f].val)
}

// turns writes the messages, or the input, which may be one text.
func (r *rendering) turns(d *document) {
	if !d.given(d.turns) {
		return
	}
	at := d.field[d.turns].val
	if d.body[at.from] != '[' {
		r.mark(markMessage)
		r.write([]byte("user"))
		r.mark(markPart)
		r.content(d.body, at)
		return
	}
	s := scanner{b: d.body[:at.to], i: at.from, known: true}
	for s.enter('['); s.more(']'); {
		if s.peek() != '{' {
			s.value()
			continue
		}
		r.turn(&s)
	}
}

// turn writes a message: whose it is, and what it says, in an order of ours.
func (r *rendering) turn(s *scanner) {
	var m message
	var output member // of a tool, in Responses
	var buf [64]byte
	from := s.i
	for s.enter('{'); s.more('}'); {
		key := name(s.key().of(s.b), &buf)
		to := m.find(key)
		if string(key) == "output" || string(key) == "arguments" {
			to = &output
		}
		if v := s.value(); to != nil {
			to.val = v
		}
	}
	r.mark(markMessage)
	if m.role.given(s.b) {
		r.content(s.b, m.role.val)
	}
	if !m.role.ok() && !m.content.ok() { // an item that is no message
		r.mark(markPart)
		r.json(s.b[from:s.i])
		return
	}
	for _, part := range []*member{&m.reasoning, &m.content, &m.tools, &output} {
		if part.given(s.b) {
			r.mark(markPart)
			r.content(s.b, part.val)
		}
	}
}

// content writes a text, or a list of parts of which some are texts: both in the same
// way, because a server reads them so.
func (r *rendering) content(b []byte, at span) {
	switch b[at.from] {
	case '"':
		r.text(inside(at).of(b))
	case '[':
		s := scanner{b: b[:at.to], i: at.from, known: true}
		for s.enter('['); s.more(']'); {
			if s.peek() == '{' {
				r.part(&s)
				continue
			}
			v := s.value().of(b)
			r.json(v)
			r.mark(markPart)
		}
	default:
		r.json(at.of(b))
	}
}

// part writes one part of a content. What has a text is that text.
func (r *rendering) part(s *scanner) {
	var text, inner span
	var buf [64]byte
	from := s.i
	for s.enter('{'); s.more('}'); {
		key := string(name(s.key().of(s.b), &buf))
		c := s.peek()
		v := s.value()
		switch {
		case (key == "text" || key == "thinking") && c == '"':
			text = v
		case key == "content" && (c == '"' || c == '['):
			inner = v // a tool's result, in Messages
		}
	}
	switch {
	case text.ok():
		r.text(inside(text).of(s.b))
	case inner.ok():
		r.content(s.b, inner)
	case s.i-from > 2*blockSize:
		r.large(s.b[from:s.i])
	default:
		r.json(s.b[from:s.i])
	}
}
