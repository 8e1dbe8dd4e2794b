package openai

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/slotfleet/slotfleet/fleet"
)

// Count returns the call by which a server tells how many tokens the prompt has: for a
// conversation it takes the body of the request, for a completion the text, the tokens, or
// both. There is none for several prompts: each of them has to fit by itself.
func (j *Job) Count(i fleet.Instance) (fleet.Call, bool) {
	c := fleet.Call{Op: fleet.OpAsk, Method: http.MethodPost, ContentType: "application/json"}
	switch j.kind.api {
	case apiChat, apiResponses:
		c.Path = j.kind.path + "/input_tokens"
	case apiMessages:
		c.Path = j.kind.path + "/count_tokens"
	case apiCompletion, apiNative:
		if !j.doc.given(fieldPrompt) || !j.doc.onePrompt() {
			return fleet.Call{}, false
		}
		c.Path = "/tokenize"
		c.Body = append([]byte(`{"add_special":true,"content":`), j.doc.value(fieldPrompt)...)
		c.Body = append(appendString(append(c.Body, `,"model":`...), []byte(i.Model)), '}')
		return c, true
	default:
		return fleet.Call{}, false
	}
	b := writer{doc: &j.doc}
	j.nameFor(&b, i)
	c.Body = b.bytes()
	return c, true
}

// Counted reads the answer. Servers that do not know the path tell nothing.
func (j *Job) Counted(r fleet.Reply) (fleet.Tokens, bool) {
	var a struct {
		Count  fleet.Tokens    `json:"input_tokens"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &a) != nil {
		return 0, false
	}
	if bytes.HasPrefix(a.Tokens, []byte{'['}) {
		s := scanner{b: a.Tokens}
		for s.enter('['); s.more(']'); s.value() {
			a.Count++
		}
	}
	return a.Count, a.Count > 0
}

var _ fleet.Counter = (*Job)(nil)
