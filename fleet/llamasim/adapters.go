package llamasim

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// LoRA adapters: the server knows those that it was started with, by their place, and
// each has a scale. They change nothing of what the stand-in says.

func newScales(n int) []float64 {
	scales := make([]float64, max(0, n))
	for i := range scales {
		scales[i] = 1
	}
	return scales
}

// adapters is GET /lora-adapters.
func (in *instance) adapters() []fieldList {
	in.mu.Lock()
	defer in.mu.Unlock()
	list := []fieldList{}
	for i, scale := range in.scales {
		list = append(list, fieldList{
			{"id", i},
			{"path", fmt.Sprintf("%s/adapter-%d.gguf", modelsDir, i)},
			{"scale", scale},
			{"task_name", ""},
			{"prompt_prefix", ""},
		})
	}
	return list
}

// setAdapters is POST /lora-adapters. As with the real server, those that the list does
// not name are off then, and it says success to ids that it does not have.
func (in *instance) setAdapters(w http.ResponseWriter, _ *http.Request, body []byte) error {
	var list []struct {
		ID    int     `json:"id"`
		Scale float64 `json:"scale"`
	}
	if err := json.Unmarshal(body, &list); err != nil || list == nil {
		return badRequest("Request body must be an array")
	}
	in.mu.Lock()
	clear(in.scales)
	for _, a := range list {
		if a.ID >= 0 && a.ID < len(in.scales) {
			in.scales[a.ID] = a.Scale
		}
	}
	in.mu.Unlock()
	writeJSON(w, http.StatusOK, fieldList{{"success", true}})
	return nil
}
