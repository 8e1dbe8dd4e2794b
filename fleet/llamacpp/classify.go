package llamacpp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/slotfleet/slotfleet/fleet"
)

// verdict says what an answer of the server means for a request.
type verdict uint8

const (
	verdictRefused  verdict = iota // the request is wrong, for every server
	verdictDeclined                // this server cannot do it as it is
	verdictFull                    // this server has no room for it now
	verdictTooLong                 // the prompt is longer than this server's context
	verdictBroken                  // the model's output did not parse
	verdictCrashed                 // the engine failed
	verdictLoading                 // the model is not loaded yet
	verdictClosed                  // what stood behind the server went away
)

// rule matches the text of an error: all of prefix, then somewhere has, suffix at
// the end. Texts may quote what a client sent, so every rule is tied to a
// beginning that a client cannot choose.
type rule struct {
	prefix, has, suffix string
	verdict             verdict
	message             string // for the client, where the server's own text is not
	quotes              bool   // behind prefix stands what somebody else wrote
}

const (
	msgCannot = "the model server does not support this request"
	msgModel  = "the model server does not serve this model"
	msgFull   = "the model server has no context memory left"
)

// routerLost begins what a router says when it loses its child.
const routerLost = "proxy error: "

// rules are the texts of llama-server from February 2025 to v0.4.0, the ones that
// another server may answer otherwise first. The status does not decide: 500 is
// also what broken JSON and a missing image projector get.
var rules = []rule{
	{prefix: "Loading model", verdict: verdictLoading},
	{prefix: "Stream owner model is loading", verdict: verdictLoading},
	{prefix: "no slot available", verdict: verdictFull, message: "the model server has no free slot"},

	{prefix: "Context size has been exceeded", verdict: verdictFull, message: msgFull},
	{prefix: "Compute error", verdict: verdictCrashed},
	{prefix: "Invalid input batch", verdict: verdictCrashed},
	{prefix: "decode() failed", verdict: verdictCrashed},
	{prefix: "pre_decode() failed", verdict: verdictCrashed},
	{prefix: "post_decode() failed", verdict: verdictCrashed},
	{prefix: "got exception: ", verdict: verdictCrashed, quotes: true},
	{prefix: "failed to process mtmd chunk", verdict: verdictCrashed},
	{prefix: "failed to decode ", verdict: verdictCrashed},

	{prefix: routerLost, verdict: verdictClosed},
	{prefix: "model name=", suffix: " failed to load", verdict: verdictDeclined, message: msgModel},
	{prefix: "model name=", suffix: " is not running", verdict: verdictDeclined, message: msgModel},
	{prefix: "model '", suffix: "' not found", verdict: verdictDeclined, message: msgModel},
	{prefix: "model is not loaded", verdict: verdictDeclined, message: msgModel},
	{prefix: "model limit reached, try again later", verdict: verdictFull, message: "the model server has no room for this model now"},

	{prefix: "request (", has: " exceeds the available context size", verdict: verdictTooLong},
	{prefix: "the request exceeds the available context size", verdict: verdictTooLong},
	{prefix: "input (", has: " is too large to process", verdict: verdictDeclined, message: "the input is too large for the batch size of the model server"},
	{prefix: "input is too large to process", verdict: verdictDeclined, message: "the input is too large for the batch size of the model server"},

	{prefix: "This server does not support ", verdict: verdictDeclined, message: msgCannot},
	{prefix: "Infill is not supported by this model", verdict: verdictDeclined, message: msgCannot},
	{prefix: "The current model does not support ", verdict: verdictDeclined, message: msgCannot},
	{prefix: "image input is not supported", verdict: verdictDeclined, message: "the model server takes no images"},
	{prefix: "audio input is not supported", verdict: verdictDeclined, message: "the model server takes no audio"},
	{prefix: "video input is not supported", verdict: verdictDeclined, message: "the model server takes no video"},
	{prefix: "tools param requires --jinja flag", verdict: verdictDeclined, message: "the model server takes no tools"},
	{prefix: "this feature is disabled", verdict: verdictDeclined, message: msgCannot},
	{prefix: "Assistant response prefill is incompatible with enable_thinking", verdict: verdictDeclined, message: "the model server cannot go on with an answer of a thinking model"},

	{prefix: "[json.exception.", verdict: verdictRefused},
	{prefix: "Failed to parse messages: ", verdict: verdictRefused},
	{prefix: "Failed to parse tools: ", verdict: verdictRefused},
	{prefix: "Unknown reasoning format: ", verdict: verdictRefused, quotes: true},
	{prefix: "'messages' is required", verdict: verdictRefused},
	{prefix: "'input' is required", verdict: verdictRefused},

	{prefix: "The model produced output that does not match the expected ", verdict: verdictBroken},
}

// maxSaid bounds how much of a server's own words gets into an error.
const maxSaid = 200

// said is what of a text that matches may stand in an error, and so in a log: the
// words of the server, up to where they may go on with what it was sent. Keys and
// prompts come back in quotes, behind a colon or as JSON.
func (r *rule) said(text string) string {
	n := len(r.prefix)
	for !r.quotes && n < len(text) && n < maxSaid && plainWord(text[n]) {
		n++
	}
	if n == len(text) {
		return text
	}
	return text[:n] + "…"
}

func plainWord(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte(" .,()]_-", c) >= 0
}

// stray is what to say of text in a stream that is no event: it may be half of an
// answer, so only the last words of a router are repeated.
func stray(line []byte) error {
	r := rule{prefix: routerLost}
	if text := string(line); r.matches(text) {
		return errors.New(r.said(text))
	}
	return fmt.Errorf("%d bytes of text that is no event", len(line))
}

func (r *rule) matches(text string) bool {
	rest, ok := strings.CutPrefix(text, r.prefix)
	return ok && strings.Contains(rest, r.has) && strings.HasSuffix(strings.TrimRight(rest, ".\n"), r.suffix)
}

// complaint is an error as llama-server writes it.
type complaint struct {
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
	Type    string          `json:"type"`

	PromptTokens json.RawMessage `json:"n_prompt_tokens"`
	Context      json.RawMessage `json:"n_ctx"`
}

// readComplaint finds the error in a body: inside "error", bare as in the events of
// /v1/messages and of servers of early 2025, or plain text as a router writes it.
func readComplaint(body []byte) complaint {
	var outer struct {
		Error json.RawMessage `json:"error"`
		complaint
	}
	if json.Unmarshal(body, &outer) != nil {
		return complaint{Message: strings.TrimSpace(string(body))}
	}
	if len(outer.Error) == 0 {
		return outer.complaint
	}
	var c complaint
	if json.Unmarshal(outer.Error, &c) != nil {
		c.Message = text(outer.Error)
	}
	return c
}

// classify says what an answer that is not 200 means. It returns a
// [*fleet.NodeLost] without the node's name, or a [*fleet.RequestError].
//
// Order: the type of the error where it is clear, then its text, then the status.
// An unknown 500 is asked for once more elsewhere: if that says the same, it was the
// request after all. llama-server itself never answers 429, 502 or 504, so those come
// from something in front of it.
//
// Errors are logged and shown to operators. They repeat the server only where its
// text matches a rule, and then by [rule.said]; of other texts they tell the length.
// A client gets the text whole in the reply.
func classify(status int, body []byte) error {
	c := readComplaint(body)
	if status == http.StatusUnauthorized {
		return lockedOut()
	}
	if c.Type == "exceed_context_size_error" {
		return tooLong(status, body, c)
	}
	for i := range rules {
		if r := &rules[i]; r.matches(c.Message) {
			return r.judge(status, body, c)
		}
	}
	switch {
	case status >= 200 && status < 300:
		return declined("the model server answers in a form that is not understood", nil)
	case status < 400:
		return declined("the model server sends its callers elsewhere", nil)
	case status == http.StatusNotFound:
		return declined("the model server does not know this path", reply(status, body))
	case status == http.StatusNotImplemented:
		return declined(msgCannot, reply(status, body))
	case status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return lockedOut()
	case status == http.StatusTooManyRequests:
		return full("the model server takes no more requests now")
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		return &fleet.NodeLost{Cause: fleet.CauseClosed, Err: errors.New(http.StatusText(status))}
	}
	e := refused(status, body, fmt.Sprintf("the model server refuses the request (status %d, %d bytes)", status, len(body)))
	e.Again = status >= 500
	return e
}

// classifyEvent says what an error event of a stream means: what the same error
// would have meant as an answer.
func classifyEvent(payload []byte) error {
	status := int(figure(readComplaint(payload).Code))
	if status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	return classify(status, payload)
}

func (r *rule) judge(status int, body []byte, c complaint) error {
	switch r.verdict {
	case verdictDeclined:
		return declined(r.message, reply(status, body))
	case verdictFull:
		return full(r.message)
	case verdictTooLong:
		return tooLong(status, body, c)
	case verdictBroken:
		return &fleet.RequestError{
			Reason: fleet.ReasonBroken, Message: "the model's output did not have the form that was asked for",
			Again: true, Reply: reply(status, body),
		}
	case verdictCrashed:
		return &fleet.NodeLost{Cause: fleet.CauseCrashed, Err: errors.New(r.said(c.Message))}
	case verdictLoading:
		return &fleet.NodeLost{Cause: fleet.CauseLoading, Err: errors.New(r.said(c.Message))}
	case verdictClosed:
		return &fleet.NodeLost{Cause: fleet.CauseClosed, Err: errors.New(r.said(c.Message))}
	}
	e := refused(status, body, r.said(c.Message))
	if status >= 500 {
		// llama-server says 500 for broken messages too, and a client that gets 500
		// sends the same again.
		e.Reply.Status = http.StatusBadRequest
	}
	return e
}

func declined(message string, r *fleet.Reply) *fleet.RequestError {
	return &fleet.RequestError{Reason: fleet.ReasonDeclined, Message: message, Again: true, Reply: r}
}

// full says that this server has no room for the request now.
func full(message string) *fleet.RequestError {
	return &fleet.RequestError{Reason: fleet.ReasonOverloaded, Message: message, Again: true}
}

// lockedOut says that this server does not let us in: our trouble, not the client's.
func lockedOut() *fleet.RequestError {
	return &fleet.RequestError{
		Reason: fleet.ReasonNoNode, Message: "no server of this model can be used; its operator has to look at the gateway's log",
		Again: true,
	}
}

func tooLong(status int, body []byte, c complaint) *fleet.RequestError {
	return &fleet.RequestError{
		Reason: fleet.ReasonTooLong, Message: "the prompt is longer than the context of the model server",
		Len: fleet.Tokens(figure(c.PromptTokens)), Max: fleet.Tokens(figure(c.Context)),
		Again: true, Reply: reply(status, body),
	}
}

func refused(status int, body []byte, message string) *fleet.RequestError {
	return &fleet.RequestError{Reason: fleet.ReasonRefused, Message: message, Reply: reply(status, body)}
}

// reply is the server's answer for the client. What is not JSON was not written by
// llama-server and may name what stands between: only its status goes on.
func reply(status int, body []byte) *fleet.Reply {
	r := &fleet.Reply{Status: status}
	if json.Valid(body) {
		r.Body = append(r.Body, body...)
	}
	return r
}
