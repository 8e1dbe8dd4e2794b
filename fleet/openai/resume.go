package openai

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// prefillHow is what the server makes of a final assistant message.
type prefillHow uint8

const (
	prefillNone prefillHow = iota
	prefillContent
	prefillReasoning // the message's content is dropped
)

// prefill is the client's own beginning of the answer.
type prefill struct {
	how      prefillHow
	explicit bool // by continue_final_message; else as the server does by itself
	echoes   bool // the server may repeat it in front of the answer

	content, reasoning []byte
	odd                bool // not plain strings, so that nothing can be joined to it
}

// readPrefill reads the last message. The rules are llama-server's since May 2026:
// continue_final_message says what to go on with; without it, or with true, that is
// the content, unless only reasoning is there.
func (j *Job) readPrefill() (p prefill) {
	d := &j.doc
	last := &d.last
	if !j.kind.chat || !last.is(d.body, "assistant") {
		return p
	}
	var odd, odd2 bool
	p.content, odd = d.string(last.content)
	p.reasoning, odd2 = d.string(last.reasoning)
	p.odd = odd || odd2 || last.tools.given(d.body)
	how, _ := d.text(fieldContinue)
	p.explicit = d.isTrue(fieldContinue) || how == "content" || how == "reasoning_content"
	p.how = prefillContent
	if how == "reasoning_content" || how != "content" && len(p.content) == 0 && len(p.reasoning) > 0 {
		p.how = prefillReasoning
	}
	p.echoes = !p.explicit || d.isTrue(fieldEcho) || !j.streams
	return p
}

// string returns what a member says; odd: it is neither a string nor null.
func (d *document) string(m member) (text []byte, odd bool) {
	if !m.given(d.body) {
		return nil, false
	}
	if d.body[m.val.from] != '"' {
		return nil, true
	}
	return appendText(nil, inside(m.val).of(d.body)), false
}

// obstacle returns why an answer to this request cannot be gone on with once a part
// of it was delivered; empty: it can be. Before that it can always be sent again.
func (j *Job) obstacle() string {
	d := &j.doc
	grammar, isText := d.text(fieldGrammar)
	switch format, _ := d.text(fieldReasoningFormat); {
	case j.expect > 1:
		return "several answers to one request cannot be continued"
	case d.given(fieldGrammar) && (!isText || grammar != ""):
		return "a grammar of its own cannot be continued"
	case j.kind.chat && !d.given(fieldMessages):
		return "there are no messages"
	case j.kind.chat && format == "none":
		return "raw reasoning cannot be continued"
	case j.kind.chat && j.prefill.odd:
		return "its last message cannot be continued"
	case j.kind.chat && d.isFalse(fieldAddPrompt) && !j.prefill.explicit:
		return "an answer without the assistant's header cannot be continued"
	case !j.kind.chat && (!d.given(fieldPrompt) || d.value(fieldPrompt)[0] != '"'):
		return "a prompt of tokens cannot be continued"
	case !j.kind.chat && d.given(fieldGenerationPrompt) && d.value(fieldGenerationPrompt)[0] != '"':
		return "its generation_prompt cannot be continued"
	}
	return ""
}

// unresumable returns why nobody can go on from what was delivered, in words for
// the client; empty: somebody can.
func (j *Job) unresumable() string {
	r := &j.relay
	switch {
	case j.opts.Resume != ResumeOn:
		return "continuing is switched off"
	case j.blocked != "":
		return j.blocked
	case r.full:
		return "it had grown too long to be continued"
	case len(r.choices) == 0:
		return ""
	}
	ch := &r.choices[0]
	switch {
	case len(r.choices) > 1:
		return "several answers to one request cannot be continued"
	case ch.done.tools:
		return "a tool call in progress cannot be continued"
	case ch.done.opaque:
		return "a part of it is of a kind that cannot be continued"
	case j.prefill.how == prefillContent && ch.done.content == 0:
		return "what it began with cannot be continued"
	}
	return ""
}

// settle decides what the next attempt begins from: what was delivered, or, where
// the client has nothing yet and this instance cannot go on, the beginning.
func (j *Job) settle(i fleet.Instance) error {
	if !j.begun() {
		return nil
	}
	why := j.unresumable()
	if why == "" && (j.streams || j.suits(i)) {
		return nil
	}
	if j.streams {
		return lost(why)
	}
	j.relay = relay{}
	return nil
}

// suits reports whether the instance can go on from what was delivered.
func (j *Job) suits(i fleet.Instance) bool {
	return i.Fingerprint == j.relay.home && i.Features.Has(j.features())
}

// features are what going on takes.
func (j *Job) features() fleet.Features {
	switch {
	case !j.kind.chat:
		return 0
	case j.relay.choices[0].done.content == 0:
		return fleet.ContinueReasoning
	}
	return fleet.ContinueContent
}

func lost(why string) *fleet.RequestError {
	return &fleet.RequestError{
		Reason:  fleet.ReasonLost,
		Message: "the server was lost in the middle of its answer, and " + why + "; send the request again",
	}
}

// begun reports whether a part of the answer was delivered. Roles, progress and
// pings are none.
func (j *Job) begun() bool { return j.relay.past.nodes > 0 || j.relay.done.text }

// Needs returns what an instance must have to go on from what was delivered. An
// instance whose fingerprint is unknown has no equal: what it began, nobody ends.
func (j *Job) Needs() (fleet.Needs, error) {
	r := &j.relay
	switch {
	case j.finished():
		return fleet.Needs{Done: true}, nil
	case !j.begun():
		return fleet.Needs{}, nil
	}
	if why := j.unresumable(); why != "" {
		if !j.streams {
			return fleet.Needs{}, nil
		}
		return fleet.Needs{}, lost(why)
	}
	left, limited := j.left()
	if limited && left <= 0 {
		return fleet.Needs{Done: true}, nil
	}
	return fleet.Needs{
		Fingerprint: r.home, Features: j.features(), Anew: !j.streams,
		Prompt: j.promptNow(), Left: left,
	}, nil
}

// promptNow is the length of the next prompt: the first one and what came since.
func (j *Job) promptNow() fleet.Tokens {
	f := j.relay.first()
	if f.prompt == 0 {
		f.prompt = j.Want().Prompt
	}
	return f.prompt + fleet.Tokens(j.relay.tokens())
}

// left returns how many tokens the client's limit leaves.
func (j *Job) left() (n fleet.Tokens, limited bool) {
	limit, f := j.doc.budget()
	if f == noField {
		return 0, false
	}
	return limit - fleet.Tokens(j.relay.tokens()), true
}

// exhausted reports whether what was delivered fills the client's limit, which is
// the one finish that may be derived.
func (j *Job) exhausted() bool {
	left, limited := j.left()
	return limited && left <= 0 && j.begun() && j.unresumable() == ""
}

// writeRest makes the request one for the rest.
func (j *Job) writeRest(w *writer) {
	if left, limited := j.left(); limited {
		_, winner := j.doc.budget()
		for _, f := range []field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxTokens} {
			if f == winner {
				w.set(f, strconv.AppendInt(nil, int64(left), 10))
			} else {
				w.drop(f)
			}
		}
	}
	if !j.kind.chat {
		j.writeCompletion(w)
		return
	}
	ch := &j.relay.choices[0]
	content, reasoning := ch.content[:ch.done.content], ch.reasoning[:ch.done.reasoning]
	if j.prefill.how == prefillNone {
		j.writeMessage(w, content, reasoning)
	} else {
		j.writePrefill(w, content, reasoning)
	}
	how := `"content"`
	if len(content) == 0 {
		how = `"reasoning_content"`
	}
	w.set(fieldContinue, []byte(how))
	w.set(fieldAddPrompt, []byte("false"))
	w.drop(fieldEcho)
}

// writeMessage appends what was delivered as the last message.
func (j *Job) writeMessage(w *writer, content, reasoning []byte) {
	if len(content) > 0 {
		reasoning = beforeThinkEnd(reasoning)
	}
	j.relay.sent = sent{content: content, reasoning: reasoning}
	var m []byte
	if j.doc.messages > 0 {
		m = append(m, ',')
	}
	m = appendString(append(m, `{"role":"assistant","content":`...), content)
	if len(reasoning) > 0 {
		m = appendString(append(m, `,"reasoning_content":`...), reasoning)
	}
	end := j.doc.field[fieldMessages].val.to - 1
	w.edits.replace(span{end, end}, append(m, '}'))
}

// beforeThinkEnd cuts the newline that ends a reasoning: the server streams the one
// in front of the think-end tag, and its template writes that again.
func beforeThinkEnd(reasoning []byte) []byte {
	return bytes.TrimSuffix(reasoning, []byte{'\n'})
}

// writePrefill joins the client's last message with what was delivered. Where the
// server repeated that message, the delivered text begins with it.
func (j *Job) writePrefill(w *writer, content, reasoning []byte) {
	p := &j.prefill
	var add []byte
	last := &j.doc.last
	put := func(m member, name string, text []byte) {
		if m.ok() {
			w.edits.replace(m.val, appendString(nil, text))
			return
		}
		add = append(append(append(add, '"'), name...), `":`...)
		add = append(appendString(add, text), ',')
	}
	if p.how == prefillContent {
		content = p.join(p.content, content)
		j.relay.sent = sent{content: content}
		put(last.content, "content", content)
	} else {
		reasoning = p.join(p.reasoning, reasoning)
		if len(content) > 0 {
			reasoning = beforeThinkEnd(reasoning)
		}
		j.relay.sent = sent{content: content, reasoning: reasoning}
		put(last.content, "content", content)
		put(last.reasoning, "reasoning_content", reasoning)
	}
	if len(add) > 0 { // the message has a role at least, so that a comma is right
		w.edits.replace(span{last.open, last.open}, add)
	}
}

// join puts the client's beginning in front of what was delivered, unless the
// server did.
func (p *prefill) join(begin, delivered []byte) []byte {
	if p.echoes && bytes.HasPrefix(delivered, begin) {
		return delivered
	}
	return append(slices.Clip(begin), delivered...)
}

// writeCompletion lengthens the prompt by what was delivered. The client's own text
// stays as it was written.
func (j *Job) writeCompletion(w *writer) {
	ch := &j.relay.choices[0]
	text := ch.content[:ch.done.content]
	w.set(fieldPrompt, j.longer(fieldPrompt, text))
	if j.doc.given(fieldJSONSchema) || j.doc.given(fieldGenerationPrompt) {
		// The grammar is fed this text, so that it goes on where it stood.
		w.set(fieldGenerationPrompt, j.longer(fieldGenerationPrompt, text))
	}
	j.relay.sent = sent{}
}

func (j *Job) longer(f field, text []byte) []byte {
	s := []byte{'"'}
	if j.doc.given(f) {
		s = append(s, inside(j.doc.field[f].val).of(j.doc.body)...)
	}
	return append(appendEscaped(s, text), '"')
}
