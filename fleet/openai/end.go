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

// wholeAnswer returns the body that llama-server gives for stream:false.
func (j *Job) wholeAnswer() []byte {
	switch j.kind.api {
	case apiNative:
		return j.nativeAnswer()
	case apiResponses:
		return j.responseAnswer()
	case apiMessages:
		return j.messageAnswer()
	case apiAudio:
		return j.relay.choices[0].last
	}
	return j.openAIAnswer()
}

// ErrorFor is [ErrorFor] for this request: it knows whether the client has a part
// of the answer already, and whose request a server refused.
func (j *Job) ErrorFor(err error) *Error {
	e := ErrorFor(err)
	if e == nil {
		return nil
	}
	late := j.streams && j.begun()
	if r, ok := errors.AsType[*fleet.RequestError](err); ok {
		switch {
		case j.refusesRest(r) && late:
			return lostLate(lost("no other server could go on").Message)
		case j.refusesRest(r):
			return lostEarly()
		case r.Reason == fleet.ReasonLost && late:
			return lostLate(r.Message)
		}
		return e
	}
	if _, ok := errors.AsType[*fleet.NodeLost](err); ok && late {
		return lostLate("")
	}
	return e
}

// refusesRest reports whether e is a server's no to going on with the answer, such
// as "Cannot continue an assistant message that contains tool calls": it is about a
// request that the client did not make.
func (j *Job) refusesRest(e *fleet.RequestError) bool {
	r := &j.relay
	return r.begun && !r.done.text && (e.Reason == fleet.ReasonRefused || e.Reason == fleet.ReasonDeclined)
}

func (j *Job) errorEnd(err error) []byte {
	e := j.ErrorFor(err)
	body := e.BodyIn(j.shape)
	if !j.streams {
		return body
	}
	var b []byte
	switch j.kind.api {
	case apiResponses:
		b, body = appendName(b, []byte("error")), e.event()
	case apiMessages:
		b = appendName(b, []byte("error"))
	}
	b = append(b, "data: "...)
	from := len(b)
	b = append(b, body...)
	oneLine(b[from:])
	return append(b, '\n', '\n')
}

// tail is what a stream still lacks: a finish that is derived, usage, [DONE].
func (j *Job) tail() []byte {
	var b []byte
	r := &j.relay
	derived := !j.finished()
	switch j.kind.api {
	case apiNative:
		if derived {
			b = append(append(append(b, "data: "...), j.chosenFields(j.appendDerived(nil, nil, nil))...), "\n\n"...)
		}
		return b
	case apiResponses:
		if derived {
			b = j.appendResponseEnd(b)
		}
		return b
	case apiMessages:
		if derived {
			b = j.appendMessageEnd(b)
		}
		return b
	}
	if derived {
		b = j.appendFinish(b)
	}
	if j.kind.api == apiChat && j.usage && j.expect == 1 && r.done.usage == 0 && r.total().prompt > 0 {
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
	if j.kind.api == apiChat {
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
