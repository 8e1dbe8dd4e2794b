package openai

import (
	"encoding/json"
	"net/http"

	"github.com/slotfleet/slotfleet/fleet"
)

// Count returns the call by which a server tells how many tokens the prompt has: it
// takes the body of the request. For completions there is none.
func (j *Job) Count(i fleet.Instance) (fleet.Call, bool) {
	path := ""
	switch j.kind.api {
	case apiChat, apiResponses:
		path = j.kind.path + "/input_tokens"
	case apiMessages:
		path = j.kind.path + "/count_tokens"
	default:
		return fleet.Call{}, false
	}
	b := writer{doc: &j.doc}
	j.nameFor(&b, i)
	return fleet.Call{
		Op: fleet.OpAsk, Method: http.MethodPost, Path: path, ContentType: "application/json", Body: b.bytes(),
	}, true
}

// Counted reads the answer. Servers that do not know the path tell nothing.
func (j *Job) Counted(r fleet.Reply) (fleet.Tokens, bool) {
	var a struct {
		Tokens fleet.Tokens `json:"input_tokens"`
	}
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &a) != nil {
		return 0, false
	}
	return a.Tokens, a.Tokens > 0
}

var _ fleet.Counter = (*Job)(nil)
