package openai

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// statusClientClosed is what logs say of a client that left; nobody receives it.
const statusClientClosed = 499

// retrySoon is when to come again where nobody knows better: a model loads or a
// node comes back within seconds.
const retrySoon = 2 * time.Second

// Error is an error as the client gets it.
type Error struct {
	Status  int
	Type    string
	Code    string
	Param   string // the field that is wrong; empty: null
	Message string

	// RetryAfter is when trying again makes sense; 0: not said.
	RetryAfter time.Duration

	// ShouldRetry tells client libraries whether to try again; nil: as they think.
	ShouldRetry *bool

	len, max fleet.Tokens
	body     []byte // the model server's own words, passed as they are
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Body returns the error in the form of the OpenAI API. An error made here bears
// the mark "source":"slotfleet"; one of the model server is passed as it came.
func (e *Error) Body() []byte {
	if e.body != nil {
		return e.body
	}
	b := appendString([]byte(`{"error":{"message":`), []byte(e.Message))
	b = appendString(append(b, `,"type":`...), []byte(e.Type))
	b = appendOrNull(append(b, `,"param":`...), e.Param)
	b = appendOrNull(append(b, `,"code":`...), e.Code)
	if e.len > 0 {
		b = strconv.AppendInt(append(b, `,"n_prompt_tokens":`...), int64(e.len), 10)
	}
	if e.max > 0 {
		b = strconv.AppendInt(append(b, `,"n_ctx":`...), int64(e.max), 10)
	}
	if e.ShouldRetry != nil {
		b = strconv.AppendBool(append(b, `,"retryable":`...), *e.ShouldRetry)
	}
	return append(b, `,"source":"slotfleet"}}`...)
}

// BodyIn returns the error in the form that a path's clients read.
func (e *Error) BodyIn(s Shape) []byte {
	if s == ShapeOpenAI {
		return e.Body()
	}
	b := appendString([]byte(`{"type":"error","error":{"type":`), []byte(anthropicType(e.Status)))
	b = appendString(append(b, `,"message":`...), []byte(e.Message))
	if e.body == nil {
		b = appendString(append(b, `,"code":`...), []byte(e.Code))
		b = append(b, `,"source":"slotfleet"`...)
	}
	return append(b, "}}"...)
}

// anthropicType is what Anthropic's API calls an error of a status.
func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// event is the error as an event of Responses.
func (e *Error) event() []byte {
	b := append([]byte(`{"type":"error","code":`), appendOrNull(nil, cmp.Or(e.Code, e.Type))...)
	b = appendString(append(b, `,"message":`...), []byte(e.Message))
	b = appendOrNull(append(b, `,"param":`...), e.Param)
	return append(b, '}')
}

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, []byte(s))
}

// Headers returns the headers that belong to the error, besides Content-Type.
func (e *Error) Headers() map[string]string {
	h := map[string]string{}
	if e.RetryAfter > 0 {
		s := max(1, (e.RetryAfter+time.Second-1)/time.Second)
		h["Retry-After"] = strconv.FormatInt(int64(s), 10)
	}
	if e.ShouldRetry != nil {
		h["x-should-retry"] = strconv.FormatBool(*e.ShouldRetry)
	}
	return h
}

func invalid(param, code, message string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Param: param,
		Message: message, ShouldRetry: new(false),
	}
}

// ErrorFor returns what the client gets for err; nil for nil. It shows nothing of
// an error that it does not know, and of a lost node only that it was lost.
func ErrorFor(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*fleet.RequestError](err); ok {
		return forRequest(e)
	}
	if _, ok := errors.AsType[*fleet.NodeLost](err); ok {
		return lostEarly()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return cancelled()
	case errors.Is(err, context.DeadlineExceeded):
		return expired()
	}
	return &Error{
		Status: http.StatusInternalServerError, Type: "server_error", Code: "internal_error",
		Message: "the request failed for a reason inside the gateway; its log says more",
	}
}

func forRequest(r *fleet.RequestError) *Error {
	// What one server says of its own context may be less than the widest has.
	if r.Reply != nil && r.Reason != fleet.ReasonTooLong {
		if e := passed(r.Reply); e != nil {
			if r.Reason == fleet.ReasonDeclined { // what no server can do will not be done a second later
				e.ShouldRetry = new(false)
			}
			return e
		}
	}
	e := byReason(r.Reason)
	if r.Message != "" {
		e.Message = r.Message
	}
	if r.Reply != nil && r.Reason == fleet.ReasonRefused {
		// What has no JSON body comes from in front of the model: 413 and the like.
		e.Status = http.StatusBadGateway
		if 400 <= r.Reply.Status && r.Reply.Status < 500 {
			e.Status = r.Reply.Status
		}
	}
	if r.RetryAfter > 0 {
		e.RetryAfter = r.RetryAfter
	}
	if r.Reason == fleet.ReasonTooLong {
		e.len, e.max = r.Len, r.Max
	}
	return e
}

func byReason(r fleet.Reason) *Error {
	server := func(status int, code, message string) *Error {
		return &Error{Status: status, Type: "server_error", Code: code, Message: message}
	}
	later := func(e *Error) *Error { e.RetryAfter = retrySoon; return e }
	switch r {
	case fleet.ReasonTooLong:
		e := invalid("", "context_length_exceeded", "the prompt is longer than any server of this model holds; shorten it")
		e.Type = "exceed_context_size_error" // llama-server's word, beside OpenAI's code
		return e
	case fleet.ReasonUnknownModel:
		e := invalid("model", "model_not_found", "the model does not exist here; GET /v1/models lists those that do")
		e.Status = http.StatusNotFound
		return e
	case fleet.ReasonNoNode:
		return later(server(http.StatusServiceUnavailable, "no_node", "no server of this model is up; try again soon"))
	case fleet.ReasonStopping:
		return later(server(http.StatusServiceUnavailable, "stopping", "the gateway is stopping; try again soon"))
	case fleet.ReasonOverloaded:
		return later(server(http.StatusServiceUnavailable, "overloaded", "too many requests are waiting; try again later"))
	case fleet.ReasonExpired:
		return expired()
	case fleet.ReasonCancelled:
		return cancelled()
	case fleet.ReasonRefused:
		return invalid("", "refused", "the model server refused the request")
	case fleet.ReasonDeclined:
		e := server(http.StatusNotImplemented, "not_supported", "no server of this model can do what the request asks")
		e.ShouldRetry = new(false)
		return e
	case fleet.ReasonBroken:
		return server(http.StatusBadGateway, "broken_output", "the model's output did not have the form that was asked for; try again")
	case fleet.ReasonLost:
		return lostEarly()
	case fleet.ReasonAborted:
		e := server(http.StatusServiceUnavailable, "aborted", "the operator of the gateway ended the request")
		e.ShouldRetry = new(false)
		return e
	case fleet.ReasonQuarantined:
		e := invalid("", "quarantined", "two servers crashed under this request; it is refused for a while")
		e.Status = http.StatusUnprocessableEntity
		return e
	}
	return server(http.StatusInternalServerError, "internal_error", "the request failed for a reason inside the gateway; its log says more")
}

func expired() *Error {
	return &Error{
		Status: http.StatusGatewayTimeout, Type: "server_error", Code: "timeout",
		Message: "no server became free in time; try again later",
	}
}

func cancelled() *Error {
	return &Error{
		Status: statusClientClosed, Type: "invalid_request_error", Code: "cancelled",
		Message: "the client left",
	}
}

// lostEarly is the end of a request of whose answer nothing was delivered.
func lostEarly() *Error {
	return &Error{
		Status: http.StatusBadGateway, Type: "server_error", Code: "node_lost",
		Message: "the servers that were asked failed before they answered; try again",
	}
}

// lostLate is the end of an answer that nobody can go on with.
func lostLate(message string) *Error {
	if message == "" {
		message = "the server was lost in the middle of its answer; send the request again"
	}
	return &Error{
		Status: http.StatusBadGateway, Type: "server_error", Code: "node_lost_unresumable",
		Message: message, ShouldRetry: new(true),
	}
}

// passed returns the model server's own error, nil where it is not one. A server
// that refuses our key is our trouble, and a status that is no error would hide one.
func passed(r *fleet.Reply) *Error {
	switch {
	case r.Status == http.StatusUnauthorized, r.Status == http.StatusForbidden, r.Status == http.StatusProxyAuthRequired:
		return &Error{
			Status: http.StatusBadGateway, Type: "server_error", Code: "bad_gateway",
			Message: "the gateway could not log in to the model server; its operator has to look at the key",
		}
	case r.Status < 400 || r.Status > 599:
		return nil
	}
	fault := faultOf(r.Body)
	if fault == nil {
		return nil
	}
	e := &Error{Status: r.Status, body: bytes.Clone(r.Body)}
	for key, v := range members(fault, allOf(fault)) {
		text := said(v.of(fault))
		switch string(key) {
		case "message":
			e.Message = text
		case "type":
			e.Type = text
		case "code":
			e.Code = text
		case "param":
			e.Param = text
		}
	}
	if e.Status == http.StatusBadRequest && e.Code == "500" {
		// What llama-server says of a request that is wrong contradicts the status it
		// should have had.
		return invalid("", "refused", e.Message)
	}
	return e
}

// said returns what a string says, a number as it stands, and nothing for null.
func said(v []byte) string {
	switch {
	case len(v) > 1 && v[0] == '"':
		return string(appendText(nil, v[1:len(v)-1]))
	case len(v) == 0 || v[0] == 'n':
		return ""
	}
	return string(v)
}

// faultOf returns the object under "error" of an error body; nil: it is not one.
func faultOf(body []byte) []byte {
	var fault []byte
	var buf [64]byte
	s := scanner{b: body}
	for s.enter('{'); s.more('}'); {
		is := string(name(s.key().of(s.b), &buf)) == "error"
		if v := s.value(); is && v.ok() && body[v.from] == '{' {
			fault = v.of(body)
		}
	}
	if s.end(); s.fault != "" {
		return nil
	}
	return fault
}
