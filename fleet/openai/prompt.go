package openai

import "bytes"

// writeCompletion lengthens the prompt by what was delivered. The client's own part
// stays as it was written. What came as tokens goes back as tokens, so that nothing
// depends on how the text would be cut into them again.
func (j *Job) writeCompletion(w *writer) {
	ch := &j.relay.choices[0]
	text := ch.content[:ch.done.content]
	w.set(fieldPrompt, j.longerPrompt(text, ch.ids[:ch.done.ids]))
	if j.doc.given(fieldJSONSchema) || j.grammar() || j.doc.given(fieldGenerationPrompt) {
		// The grammar is fed this text, so that it goes on where it stood.
		w.set(fieldGenerationPrompt, j.longer(fieldGenerationPrompt, text))
	}
	if j.grammar() {
		// Servers feed it only to grammars that they take for their own.
		w.set(fieldGrammarType, []byte(`"tool_calls"`))
	}
}

// longerPrompt returns the prompt and what came of the answer, as text and as the
// elements of an array; these are empty where no token is known.
func (j *Job) longerPrompt(text, ids []byte) []byte {
	prompt := j.doc.value(fieldPrompt)
	isString := prompt[0] == '"'
	if len(ids) == 0 {
		if isString {
			return j.longer(fieldPrompt, text)
		}
		ids = appendString(nil, text)
		if j.doc.prompts() == 1 && !j.doc.tokens() { // two strings would be two prompts
			first := bytes.TrimSpace(prompt[1 : len(prompt)-1])
			return append(appendEscaped(bytes.Clone(first[:len(first)-1]), text), '"')
		}
	}
	b := []byte{'['}
	if isString {
		b = append(b, prompt...)
	} else {
		b = append(b, bytes.TrimSpace(prompt[1:len(prompt)-1])...)
	}
	return append(append(append(b, ','), ids...), ']')
}

// tokens reports whether the prompt has tokens in it.
func (d *document) tokens() bool {
	s := scanner{b: d.value(fieldPrompt)}
	for s.enter('['); s.more(']'); s.value() {
		if s.peek() != '"' {
			return true
		}
	}
	return false
}

func (j *Job) longer(f field, text []byte) []byte {
	s := []byte{'"'}
	if j.doc.given(f) {
		s = append(s, inside(j.doc.field[f].val).of(j.doc.body)...)
	}
	return append(appendEscaped(s, text), '"')
}

// takeIDs keeps the tokens of the text that a part brought. Where the server tells
// fewer than it counted (a character of several tokens has only the last), the text
// stands for them.
func (j *Job) takeIDs(c *chunk, ch *choice, text []byte) {
	r := &j.relay
	seen := ch.now.seen
	if c.predicted > 0 {
		ch.now.seen = c.predicted
	}
	if !j.keepsIDs() || len(text) == 0 || r.full {
		return
	}
	before := len(ch.ids)
	ids := bytes.TrimSpace(c.tokens.of(c.data))
	if n := len(ids); n > 2 && ids[0] == '[' && len(bytes.Trim(ids[1:n-1], " ,0123456789")) == 0 {
		ids = bytes.TrimSpace(ids[1 : n-1])
	} else {
		ids = nil
	}
	known := len(ids) > 0 && int64(bytes.Count(ids, []byte{','})+1) == c.predicted-seen
	if !known && !ch.now.tokens {
		return // so far text alone tells as much
	}
	if !ch.now.tokens && ch.now.content > len(text) {
		ch.ids = appendString(ch.ids, ch.content[:ch.now.content-len(text)])
	}
	if len(ch.ids) > 0 {
		ch.ids = append(ch.ids, ',')
	}
	if known {
		ch.ids = append(ch.ids, ids...)
	} else {
		ch.ids = appendString(ch.ids, text)
	}
	ch.now.ids, ch.now.tokens = len(ch.ids), true
	r.size += len(ch.ids) - before
}
