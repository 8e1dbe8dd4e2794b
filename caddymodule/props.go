package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/fleet/openai"
)

// shownProps are the properties of a llama-server that clients may see: what its model
// is and does. Paths, ports, arguments, what of its API is open and its user interface's
// settings are nobody's business.
var shownProps = []string{
	"default_generation_settings", "total_slots", "model_alias", "model_ftype", "modalities",
	"chat_template", "chat_template_tool_use", "chat_template_caps", "bos_token", "eos_token",
	"build_info", "is_sleeping",
}

// askProps makes work of GET /props: a question to one node of the model, which leaves
// a node that sleeps or has not loaded it as it is.
func (h *Handler) askProps(p *reply, r *http.Request, l lease, _ *share) (work, error) {
	model := r.URL.Query().Get("model")
	if to, ok := h.Aliases[model]; ok {
		model = to
	}
	models := l.manager.Models(l.Applied)
	if model == "" && len(models) == 1 {
		model = models[0].Model
	}
	model, err := h.choose(p.who, models, model)
	if err != nil {
		return work{}, err
	}
	path := "/props?" + url.Values{"model": {model}, "autoload": {"false"}}.Encode()
	return work{
		call: &fleet.Call{Op: fleet.OpAsk, Method: http.MethodGet, Path: path},
		only: whitelist,
		want: fleet.Request{Model: model, Light: true, Loaded: true},
	}, nil
}

// whitelist leaves of a node's properties what clients may see.
func whitelist(body []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, &openai.Error{
			Status: http.StatusBadGateway, Type: "server_error", Code: "bad_gateway",
			Message: "the model server answers in a form that is not understood",
		}
	}
	shown := make(map[string]json.RawMessage, len(shownProps))
	for _, name := range shownProps {
		if v, ok := all[name]; ok {
			shown[name] = v
		}
	}
	out, err := json.Marshal(shown)
	if err != nil {
		return nil, fmt.Errorf("writing the properties of a node: %w", err)
	}
	return out, nil
}
