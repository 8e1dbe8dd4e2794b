package caddymodule

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"

	"github.com/slotfleet/slotfleet/fleet"
)

// adapter is a LoRA adapter as llama-server's /lora-adapters takes it.
type adapter struct {
	ID    int     `json:"id"`
	Scale float64 `json:"scale"`
}

// loraWish says which adapters a model gets.
type loraWish struct {
	Model    string    `json:"model"`
	Adapters []adapter `json:"adapters"`
}

// loraResult is what one node made of it.
type loraResult struct {
	Node  string `json:"node"`
	Model string `json:"model"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func (o *loraWish) check() error {
	if o.Model == "" || len(o.Adapters) == 0 {
		return apiError(http.StatusBadRequest, "want a model and at least one adapter, as in {\"model\": \"m\", \"adapters\": [{\"id\": 0, \"scale\": 0.5}]}")
	}
	seen := make(map[int]bool)
	for _, a := range o.Adapters {
		switch {
		case a.ID < 0:
			return apiError(http.StatusBadRequest, "adapter %d: ids begin at 0", a.ID)
		case seen[a.ID]:
			return apiError(http.StatusBadRequest, "adapter %d is there twice", a.ID)
		case math.Abs(a.Scale) > 100:
			return apiError(http.StatusBadRequest, "adapter %d: a scale of %g is beyond anything sensible, want -100 to 100", a.ID, a.Scale)
		}
		seen[a.ID] = true
	}
	return nil
}

// controlLora sets the adapters on all nodes of a model.
func controlLora(s *state, r *http.Request, body []byte) (any, error) {
	var o loraWish
	if err := readControl(body, &o); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	list, err := json.Marshal(o.Adapters)
	if err != nil {
		return nil, apiError(http.StatusInternalServerError, "writing the adapters: %v", err)
	}
	results, err := s.manager.CallAll(r.Context(), o.Model, fleet.Call{
		Op: fleet.OpAsk, Method: http.MethodPost, Path: "/lora-adapters", ContentType: "application/json", Body: list,
	})
	logControl("model", o.Model, "lora", err)
	if e, ok := errors.AsType[*fleet.RequestError](err); ok {
		return nil, apiError(http.StatusNotFound, "no node serves the model: %s", e.Message)
	}
	if err != nil {
		return nil, apiError(http.StatusServiceUnavailable, "%v", err)
	}
	told := make([]loraResult, 0, len(results))
	for _, x := range results {
		l := loraResult{Node: x.Node, Model: x.Model, OK: x.Err == nil}
		if x.Err != nil {
			l.Error = x.Err.Error()
		}
		told = append(told, l)
	}
	return map[string]any{"results": told}, nil
}
