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
// continue_final_message says what to go on with, whoever's message it is; without it, or
// with true, that is the content, unless only reasoning is there.
func (j *Job) readPrefill() (p prefill) {
	d := &j.doc
	last := &d.last
	if j.kind.api == apiResponses {
		// It joins all items of the assistant at the end into one message, in a way of
		// its own, so that what is delivered cannot be joined to them.
		p.odd = last.is(d.body, "assistant") || last.kindIs(d.body, "reasoning") || last.kindIs(d.body, "function_call")
		return p
	}
	how, _ := d.text(fieldContinue)
	p.explicit = j.kind.api == apiChat && d.messages > 0 &&
		(d.isTrue(fieldContinue) || how == "content" || how == "reasoning_content")
	if !j.kind.chats() || !p.explicit && !last.is(d.body, "assistant") {
		return p
	}
	var odd, odd2 bool
	p.content, odd = d.string(last.content)
	if j.kind.api == apiMessages {
		p.how, p.echoes, p.odd = prefillContent, true, odd || len(p.content) == 0
		return p
	}
	p.reasoning, odd2 = d.string(last.reasoning)
	p.odd = odd || odd2 || last.tools.given(d.body)
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

// mustRepeat reports whether an answer to this request can only be gone on with by
// having it given again from its beginning.
func (j *Job) mustRepeat() bool {
	d := &j.doc
	format, _ := d.text(fieldReasoningFormat)
	switch {
	case j.expect > 1 || j.kind.once || j.prefill.odd:
		return true
	case !j.kind.chats():
		return !d.onePrompt() || d.given(fieldGenerationPrompt) && d.value(fieldGenerationPrompt)[0] != '"'
	case j.kind.api == apiMessages:
		return false
	case j.kind.api == apiResponses && d.given(fieldContinue):
		return true
	}
	return j.grammar() || format == "none" || d.isFalse(fieldAddPrompt) && !j.prefill.explicit
}

// grammar reports whether the client gave a grammar of its own.
func (j *Job) grammar() bool {
	text, is := j.doc.text(fieldGrammar)
	return j.doc.given(fieldGrammar) && (!is || text != "")
}

// schema reports whether the answer is bound by a form that servers go on with in
// part only.
func (j *Job) schema() bool {
	switch j.kind.api {
	case apiChat, apiResponses:
		return j.doc.given(fieldResponseFormat) || j.doc.given(fieldJSONSchema)
	case apiCompletion, apiNative:
		return j.doc.given(fieldJSONSchema) || j.grammar()
	}
	return false
}

// unresumable returns why nobody can go on from what was delivered, in words for
// the client; empty: somebody can.
func (j *Job) unresumable() string {
	r := &j.relay
	switch {
	case j.opts.Resume != ResumeOn:
		return "continuing is switched off"
	case j.kind.api == apiAudio:
		return "a transcription cannot be continued"
	case j.kind.chats() && !j.doc.given(j.kind.turns), !j.kind.chats() && !j.kind.once && !j.doc.given(fieldPrompt):
		return "there is nothing it answers"
	case r.full:
		return "it had outgrown what can be kept of an answer"
	}
	for k := range r.choices {
		switch ch := &r.choices[k]; {
		case ch.done.tools && !ch.done.finished:
			return "a tool call in progress cannot be continued"
		case ch.done.opaque:
			return "a part of it is of a kind that cannot be continued"
		case j.prefill.how == prefillContent && !j.repeats && ch.done.content == 0:
			return "what it began with cannot be continued"
		}
	}
	return ""
}

// way is how an attempt goes on.
type way uint8

const (
	wayFresh  way = iota // the client has nothing yet
	wayOn                // from behind what was delivered
	wayRepeat            // from the beginning; what the client has is not sent again
)

// way decides what the next attempt begins from: what was delivered, or, where the
// client has nothing yet and this instance cannot go on, the beginning.
func (j *Job) way(i fleet.Instance) (way, error) {
	if !j.begun() {
		return wayFresh, nil
	}
	why := j.unresumable()
	switch {
	case !j.streams && (why != "" || j.repeats || !j.suits(i)):
		j.relay = relay{}
		return wayFresh, nil
	case why != "":
		return 0, lost(why)
	case j.repeats || j.schema() && !i.Features.Has(j.features()):
		return wayRepeat, nil
	}
	return wayOn, nil
}

// suits reports whether the instance can go on from what was delivered.
func (j *Job) suits(i fleet.Instance) bool {
	return i.Fingerprint == j.relay.home && i.Features.Has(j.features())
}

// features are what going on takes.
func (j *Job) features() (f fleet.Features) {
	schema := j.schema()
	switch j.kind.api {
	case apiCompletion, apiNative:
		if schema {
			return fleet.GenerationPrompt
		}
		return 0
	case apiResponses:
		f = fleet.ContinueResponses
	case apiMessages:
		f = fleet.ContinueMessages
	}
	if schema {
		f |= fleet.ContinueGrammar
	}
	switch {
	case j.relay.choices[0].done.content == 0:
		f |= fleet.ContinueReasoning
	case j.kind.api != apiMessages:
		f |= fleet.ContinueContent
	}
	return f
}

func lost(why string) *fleet.RequestError {
	return &fleet.RequestError{
		Reason:  fleet.ReasonLost,
		Message: "the server was lost in the middle of its answer, and " + why + "; send the request again",
	}
}

// begun reports whether a part of the answer was delivered. Roles, progress and
// pings are none.
func (j *Job) begun() bool { return j.relay.begun }

// Needs returns what an instance must have to go on from what was delivered. An
// instance whose fingerprint is unknown has no equal: what it began, nobody ends.
func (j *Job) Needs() (fleet.Needs, error) {
	switch {
	case j.finished():
		return fleet.Needs{Done: true}, nil
	case !j.begun():
		return fleet.Needs{}, nil
	}
	why := j.unresumable()
	switch {
	case !j.streams && (why != "" || j.repeats):
		return fleet.Needs{}, nil
	case why != "":
		return fleet.Needs{}, lost(why)
	case j.repeats:
		return fleet.Needs{Fingerprint: j.relay.home}, nil
	}
	left, limited := j.left()
	if limited && left <= 0 {
		return fleet.Needs{Done: true}, nil
	}
	return fleet.Needs{
		Fingerprint: j.relay.home, Features: j.features(),
		Anew: !j.streams, Repeat: j.streams && j.schema(),
		Prompt: j.promptNow(), Left: left,
	}, nil
}

// promptNow is the length of the next prompt: the first one and what came since.
func (j *Job) promptNow() fleet.Tokens {
	f := j.relay.first()
	if f.prompt == 0 {
		f.prompt = j.doc.guess()
	}
	return f.prompt + fleet.Tokens(j.relay.tokens())
}

// left returns how many tokens the client's limit leaves.
func (j *Job) left() (n fleet.Tokens, limited bool) {
	limit, _ := j.budget()
	if limit == 0 {
		return 0, false
	}
	return limit - fleet.Tokens(j.relay.tokens()), true
}

// exhausted reports whether what was delivered fills the client's limit, which is
// the one finish that may be derived.
func (j *Job) exhausted() bool {
	left, limited := j.left()
	return limited && left <= 0 && j.begun() && !j.repeats && j.unresumable() == ""
}

// writeRest makes the request one for the rest.
func (j *Job) writeRest(w *writer) {
	j.writeLeft(w)
	ch := &j.relay.choices[0]
	content, reasoning := ch.content[:ch.done.content], ch.reasoning[:ch.done.reasoning]
	switch j.kind.api {
	case apiCompletion, apiNative:
		j.writeCompletion(w)
		return
	case apiMessages:
		j.writeBlocks(w, content, reasoning)
		return
	case apiResponses:
		j.writeItems(w, content, reasoning)
	default:
		if j.prefill.how == prefillNone {
			j.writeMessage(w, content, reasoning)
		} else {
			j.writePrefill(w, content, reasoning)
		}
	}
	how := `"content"`
	if len(content) == 0 {
		how = `"reasoning_content"`
	}
	w.set(fieldContinue, []byte(how))
	w.set(fieldAddPrompt, no)
	w.drop(fieldEcho)
}

// writeLeft sets what is left of the client's limit, in one field.
func (j *Job) writeLeft(w *writer) {
	left, limited := j.left()
	if !limited {
		return
	}
	_, winner := j.budget()
	if winner == noField {
		winner = j.kind.budget[0]
	}
	for _, f := range j.kind.budget {
		if f == winner {
			w.set(f, strconv.AppendInt(nil, int64(left), 10))
		} else {
			w.drop(f)
		}
	}
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
