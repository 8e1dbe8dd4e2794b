package llamasim

import (
	"fmt"
	"net/http"
	"time"
)

// What a router says of its models: the list, and the events of /models/sse.

// serveEvents is /models/sse.
func (r *router) serveEvents(w http.ResponseWriter, req *http.Request) {
	news := make(chan []byte, 1024)
	r.mu.Lock()
	r.readers[news] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.readers, news)
	}()
	rp := r.in.newReply(w, req, &request{stream: true})
	defer rp.close()
	if rp.open() != nil {
		return
	}
	for {
		select {
		case b := <-news:
			if rp.chunk(b) != nil {
				return
			}
		case <-rp.ctx.Done():
			return
		case <-r.in.term:
			return
		}
	}
}

// say tells those who follow /models/sse. One that does not read loses events rather
// than holding the router up. The caller holds r.mu.
func (r *router) say(m *routed, event string, data fieldList) {
	b := eventOf("", fieldList{{"model", m.Name}, {"event", event}, {"data", data}})
	for news := range r.readers {
		select {
		case news <- b:
		default:
		}
	}
}

// become is a new status of a model. The caller holds r.mu.
func (r *router) become(m *routed, status string, more ...field) {
	m.status = status
	m.tell()
	r.say(m, "status_change", append(fieldList{{"status", status}}, more...))
}

// progress is how far a load has come. The caller holds r.mu.
func (r *router) progress(m *routed, share float64) {
	r.say(m, "status_change", fieldList{{"status", "loading"}, {"progress", fieldList{
		{"stages", []string{"text_model"}}, {"current", "text_model"}, {"value", share},
	}}})
}

// info is what a loaded model says of itself. The caller holds r.mu.
func (r *router) info(m *routed) fieldList {
	o := r.in.o.child(m.Model)
	return modelEntry(o, r.in.can)
}

// serveModels lists the models with their status (P04).
func (r *router) serveModels(w http.ResponseWriter) {
	r.mu.Lock()
	data := []fieldList{}
	for _, m := range r.models {
		data = append(data, r.entry(m))
	}
	r.mu.Unlock()
	writeJSON(w, http.StatusOK, fieldList{{"data", data}, {"object", "list"}})
}

func (r *router) entry(m *routed) fieldList {
	value := m.status
	if value == "unloading" {
		value = "loaded"
	}
	o := r.in.o.child(m.Model)
	status := fieldList{
		{"value", value},
		{"args", r.args(m)},
		{"preset", fmt.Sprintf("[%s]\njinja = 1\nmetrics = 1\nslots = 1\nctx-size = %d\nmodel = %s\nparallel = %d\nthreads = 1\n\n",
			m.Name, o.Slots*o.Context, modelPath(o), o.Slots)},
	}
	if m.failed && value == "unloaded" {
		status = append(status, field{"exit_code", m.exitCode}, field{"failed", true})
	}
	e := fieldList{
		{"id", m.Name},
		{"aliases", append([]string{}, m.Aliases...)},
		{"tags", []string{}},
		{"object", "model"},
		{"owned_by", "llamacpp"},
		{"created", time.Now().Unix()},
		{"status", status},
		{"architecture", fieldList{{"input_modalities", modalities(o)}, {"output_modalities", []string{"text"}}}},
		{"source", "models_dir"},
		{"can_remove", false},
	}
	if value == "loaded" || value == "sleeping" {
		e = append(e, field{"meta", modelMeta(o, r.in.can)})
	}
	return e
}

func modalities(o Options) []string {
	list := []string{"text"}
	if o.Vision {
		list = append(list, "image")
	}
	if o.Audio {
		list = append(list, "audio")
	}
	return list
}

func (r *router) props() fieldList {
	return fieldList{
		{"role", "router"},
		{"max_instances", r.in.o.ModelsMax},
		{"models_autoload", !r.in.o.NoAutoload},
		{"model_alias", "llama-server"},
		{"model_path", "none"},
		{"default_generation_settings", fieldList{{"params", nil}, {"n_ctx", 0}}},
		{"ui_settings", fieldList{}},
		{"build_info", buildInfo},
		{"cors_proxy_enabled", false},
	}
}
