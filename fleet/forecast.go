package fleet

import "cmp"

// outlooks of requests, learned from answers.

// modelFigures is what answers of a model taught about requests to it.
type modelFigures struct {
	stretch float64            // real over estimated length of prompts; 0: none seen
	out     map[string]float64 // length of answers by route, in tokens
	load    float64            // seconds until it is in memory; 0: never seen
}

const (
	// usualOut is the length of an answer, in tokens, until there was one.
	usualOut = 256

	// figureStep is how far one answer moves a figure; stretchMost bounds what one
	// may claim, for an estimate of a prompt with pictures says little of text.
	figureStep  = 0.05
	stretchMost = 8

	// mostFigures bounds how many models and routes of each are told apart.
	mostFigures = 1024
)

// promptOf is the length of the request's prompt, as far as is known.
func (f *modelFigures) promptOf(w *waiter) float64 {
	if w.needs.Prompt > 0 {
		return bounded(float64(w.needs.Prompt), 1, most)
	}
	p := float64(w.Prompt)
	if f != nil && f.stretch > 0 {
		p *= f.stretch
	}
	return bounded(p, 1, most)
}

// outOf is how long the request's answer will be: as others of its kind were, but no
// longer than it may be.
func (f *modelFigures) outOf(w *waiter) float64 {
	out := float64(usualOut)
	if f != nil {
		if x, ok := f.out[w.Route]; ok {
			out = x
		}
	}
	if limit := cmp.Or(w.needs.Left, w.Out); limit > 0 {
		out = min(out, float64(limit))
	}
	return bounded(out, 1, most)
}

// figures of a model; nil where there are too many already.
func (m *Manager) figures(model string) *modelFigures {
	f := m.models[model]
	if f == nil && len(m.models) < mostFigures {
		f = &modelFigures{out: make(map[string]float64)}
		m.models[model] = f
	}
	return f
}

// learn takes in one whole answer to r.
func (f *modelFigures) learn(r *Request, t Timings) {
	if f == nil {
		return
	}
	if prompt := t.Cached + t.Prompt; prompt > 0 && r.Prompt > 0 {
		ewma(&f.stretch, bounded(float64(prompt)/float64(r.Prompt), 1.0/stretchMost, stretchMost))
	}
	if t.Predicted > 0 {
		out, known := f.out[r.Route]
		if known || len(f.out) < mostFigures {
			ewma(&out, bounded(float64(t.Predicted), 1, most))
			f.out[r.Route] = out
		}
	}
}

func ewma(old *float64, now float64) {
	if *old == 0 {
		*old = now
		return
	}
	*old += (now - *old) * figureStep
}
