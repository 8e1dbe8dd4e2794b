package openai

import (
	"errors"

	"github.com/slotfleet/slotfleet/fleet"
)

// End returns what closes the answer. With a nil error that is what is still
// missing of a stream, or the whole answer; it is the error end too, if the answer
// is not complete, because a finish reason is never invented. The one that may be
// derived is "length", where what was delivered fills the client's limit.
func (j *Job) End(err error) []byte {
	if err == nil && !j.finished() && !j.exhausted() {
		err = &fleet.RequestError{Reason: fleet.ReasonLost}
	}
	if err != nil {
		return j.errorEnd(err)
	}
	if !j.streams {
		return j.wholeAnswer()
	}
	return j.tail()
}

// ErrorFor is [ErrorFor] for this request: it knows whether the client has a part
// of the answer already.
func (j *Job) ErrorFor(err error) *Error {
	e := ErrorFor(err)
	if e == nil || !j.streams || !j.begun() {
		return e
	}
	if r, ok := errors.AsType[*fleet.RequestError](err); ok && r.Reason == fleet.ReasonLost {
		return lostLate(r.Message)
	}
	if _, ok := errors.AsType[*fleet.NodeLost](err); ok {
		return lostLate("")
	}
	return e
}

func (j *Job) errorEnd(err error) []byte {
	body := j.ErrorFor(err).Body()
	if !j.streams {
		return body
	}
	b := append([]byte("data: "), body...)
	oneLine(b)
	return append(b, '\n', '\n')
}

// tail is what a stream still lacks: a finish that is derived, usage, [DONE].
func (j *Job) tail() []byte {
	var b []byte
	r := &j.relay
	derived := !j.finished()
	if derived {
		b = j.appendFinish(b)
	}
	if j.kind.chat && j.usage && r.done.usage == 0 && r.total().prompt > 0 {
		b = append(b, `data: {"choices":[]`...)
		b = r.appendEnvelope(b, envCreated, envID, envModel, envFingerprint, envObject)
		b = appendUsage(append(b, `,"usage":`...), r.total(), r.tokens())
		b = append(b, "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// appendFinish appends the chunk that ends an answer at the client's limit.
func (j *Job) appendFinish(b []byte) []byte {
	r := &j.relay
	if j.kind.chat {
		b = append(b, `data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}]`...)
		b = r.appendEnvelope(b, envCreated, envID, envModel, envFingerprint, envObject)
		return append(b, "}\n\n"...)
	}
	b = append(b, `data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}]`...)
	b = r.appendEnvelope(b, envCreated, envModel, envFingerprint, envObject)
	if r.total().prompt > 0 {
		b = appendUsage(append(b, `,"usage":`...), r.total(), r.tokens())
	}
	b = r.appendEnvelope(b, envID)
	return append(b, "}\n\n"...)
}

// Usage returns what is known of the answer's tokens. It is meant for its end.
func (j *Job) Usage() Usage {
	r := &j.relay
	f := r.total()
	var u Usage
	if f.prompt > 0 {
		u.Prompt = new(f.prompt)
	}
	if f.hasCached {
		u.Cached = new(f.cached)
	}
	n := fleet.Tokens(r.tokens())
	if j.expect > 1 && r.counted > 0 {
		n = fleet.Tokens(r.counted)
	}
	if n > 0 || j.finished() {
		u.Generated = new(n)
	}
	return u
}
