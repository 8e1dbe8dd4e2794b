package openai

import "github.com/slotfleet/slotfleet/fleet"

// Held is how many bytes the job has allocated besides the client's body: the body
// that the node was sent, the answer's text as far as it is kept, tool calls that wait.
// The text of a whole answer counts twice, for the answer is written out of it.
func (j *Job) Held() int64 {
	r := &j.relay
	n := 0
	for k := range r.choices {
		ch := &r.choices[k]
		n += cap(ch.content) + cap(ch.reasoning) + cap(ch.ids) + cap(ch.logprobs) + cap(ch.tokens) +
			cap(ch.wait.events) + ch.wait.size + cap(ch.finish) + cap(ch.last)
	}
	if !j.streams {
		n *= 2
	}
	return int64(n + r.asked)
}

// Asking is how many bytes, about, the next [Job.Request] is going to allocate.
func (j *Job) Asking() int64 {
	n := j.size()
	for k := range j.relay.choices {
		ch := &j.relay.choices[k]
		n += int64(ch.done.content + ch.done.reasoning + ch.done.ids)
	}
	return n
}

// size is that of the client's body.
func (j *Job) size() int64 { return int64(len(j.doc.body) + len(j.form.body)) }

// LetGo gives up what is kept only to go on from: the answer itself goes on, a loss of
// its node is its end. It returns false where what is kept is the answer, which is one
// that was asked for as a whole, or one of Responses that several nodes gave: its last
// events say all of the text once more.
func (j *Job) LetGo() bool {
	r := &j.relay
	if !j.streams || j.kind.api == apiResponses && j.moved() {
		return false
	}
	if r.full {
		return true
	}
	r.full = true
	for k := range r.choices {
		ch := &r.choices[k]
		if len(ch.again.content)+len(ch.again.reasoning) > 0 {
			continue // it has yet to be compared with
		}
		r.size -= len(ch.content) + len(ch.reasoning) + len(ch.ids)
		ch.content, ch.reasoning, ch.ids = nil, nil, nil
		ch.now.forget()
		ch.done.forget()
	}
	return true
}

// forget is for a choice whose text is not kept any more.
func (m *choiceMark) forget() { m.content, m.reasoning, m.ids, m.tokens = 0, 0, 0, false }

// outgrown is about a text that has to be kept to its end and is too long for that.
func outgrown() *fleet.RequestError { return lost("its text had grown too long to be told once more") }
