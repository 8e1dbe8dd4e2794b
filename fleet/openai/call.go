package openai

import (
	"net/http"

	"github.com/slotfleet/slotfleet/fleet"
)

// Call is a request that is answered whole: what to ask a node, and what placement has
// to know.
type Call struct {
	Path  Path
	Body  []byte // the client's, with the model's served name in it
	Model string // as it is served; empty: the client named none

	want fleet.Request
}

// ParseCall reads a request for one of the [Paths] that is no job. The body is kept,
// not copied, unless the model has an alias. A non-nil error is an [*Error]: 400 for a
// body that is wrong, 404 for a path that is not served.
func ParseCall(path string, body []byte, o Options) (*Call, error) {
	p, ok := PathOf(path)
	if !ok || p.Use == UseJob {
		return nil, &Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Code: "not_found",
			Message: "there is nothing at this path",
		}
	}
	j := &Job{kind: callKind(path), shape: p.Shape, opts: o}
	j.doc.turns = j.kind.turns
	if err := j.doc.read(body); err != nil {
		return nil, err
	}
	j.model, _ = j.doc.text(fieldModel)
	if err := j.nameModel(); err != nil {
		return nil, err
	}
	c := &Call{Path: p, Model: j.model, Body: body, want: fleet.Request{
		Model: j.model, Session: j.session(), Prompt: j.doc.guess(), Bytes: int64(len(body)),
	}}
	if j.alias {
		var e edits
		e.replace(j.doc.field[fieldModel].val, appendString(nil, []byte(j.model)))
		c.Body = e.apply(nil, body)
	}
	return c, nil
}

// callKind says where the turns stand in the body of a call.
func callKind(path string) *kind {
	switch path {
	case "/v1/responses/input_tokens", "/responses/input_tokens":
		return responses
	case "/v1/messages/count_tokens":
		return messages
	case "/apply-template", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens":
		return chat
	}
	return native
}

// Want returns what placement has to know. A call leaves nothing behind that would be
// warm, so that no blocks are told.
func (c *Call) Want() fleet.Request { return c.want }

// Ask returns the call for a node.
func (c *Call) Ask() fleet.Call {
	return fleet.Call{Op: fleet.OpAsk, Method: c.Path.Method, Path: c.Path.Path, ContentType: "application/json", Body: c.Body}
}
