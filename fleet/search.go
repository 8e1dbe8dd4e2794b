package fleet

import (
	"fmt"
	"strings"
	"time"
)

// found is what a search through the fleet came to.
type found struct {
	able     []candidate // up, ready and fit to serve
	resting  []candidate // as able, on nodes that fail more than others
	other    []candidate // up and ready, but second choice: to repeat the answer, begin it anew, or go on with another build
	unloaded []*instance // not loaded, and a request loads them
	strange  []*instance // likewise, but second choice
}

// best are those to choose among, ready ones and others.
func (f found) best() (able []candidate, unloaded []*instance) {
	switch {
	case len(f.able) > 0:
		return f.able, f.unloaded
	case len(f.resting) > 0:
		return f.resting, f.unloaded
	}
	return f.other, append(f.unloaded, f.strange...)
}

// search looks at all instances that serve the request's model. What it found is good
// until the next search.
func (m *Manager) search(w *waiter, now time.Time) found {
	r := m.rosterFor(w)
	f := found{able: m.scratch.able[:0]}
	for _, i := range r.instances {
		switch w.fit(i, now) {
		case fitNow:
			f.able = append(f.able, candidate{instance: i})
		case fitResting:
			f.resting = append(f.resting, candidate{instance: i})
		case fitSecond:
			f.other = append(f.other, candidate{instance: i})
		case fitUnloaded:
			f.unloaded = append(f.unloaded, i)
		case fitStrange:
			f.strange = append(f.strange, i)
		}
	}
	m.scratch.able = f.able
	return f
}

// fit says whether an instance of the model can take a request, or why not.
type fit uint8

const (
	fitNow      fit = iota
	fitResting      // but its node fails more than others
	fitSecond       // where none else can: to repeat the answer, begin it anew, or go on with another build
	fitUnloaded     // a request loads it
	fitStrange      // likewise, and second choice

	fitNarrow // the request is too long for it
	fitUnlike // it cannot go on with the answer
	fitSpent  // it failed the request, or nobody knows whether it comes back
	fitAway   // it comes back, or may
	fitDown   // likewise, with its node
)

// fit sorts one instance that serves the model in.
func (w *waiter) fit(i *instance, now time.Time) fit {
	n := i.node
	like, second := true, false
	if w.needs.Fingerprint != "" {
		like, second = w.suits(&i.Instance)
	}
	failed := w.failedOn(n)
	switch {
	case failed != nil && failed.max > 0, w.needs.Prompt > 0 && i.Context > 0 && i.Context < w.needs.Prompt:
		return fitNarrow
	case failed != nil, n.down != nil && w.everFailedOn(n): // nobody waits for its return
		return fitSpent
	case !like && !second:
		return fitUnlike
	case n.drain != nil:
		return fitSpent
	case len(i.owed) > 0 || !n.away.IsZero():
		return fitAway
	case n.down != nil:
		return fitDown
	case i.evicted: // it goes
		return fitAway
	case n.wouldLoad(i) && !w.Loaded && like:
		return fitUnloaded
	case n.wouldLoad(i) && !w.Loaded:
		return fitStrange
	case i.State == StateLoading:
		return fitAway
	case !i.loaded():
		return fitSpent
	case !like:
		return fitSecond
	case n.rests(now):
		return fitResting
	}
	return fitNow
}

// suits reports whether the instance can go on with the answer exactly, and whether it
// would do where none can: to repeat it, begin it anew, or go on with another build.
func (w *waiter) suits(i *Instance) (like, second bool) {
	able := i.Features.Has(w.needs.Features)
	same := w.needs.Fingerprint == i.Fingerprint
	return w.needs.Fingerprint == "" || same && able, w.needs.Anew || w.needs.Repeat && same || w.Mixed && able
}

// hopes are what may come back that could serve a request.
type hopes struct {
	any  bool
	next time.Time // when it is probed next; zero: nobody knows
}

func (h *hopes) in(n *node, hope bool) {
	h.any = h.any || hope
	if n.down != nil && (h.next.IsZero() || n.down.nextProbe.Before(h.next)) {
		h.next = n.down.nextProbe
	}
}

// nobody says why nothing can serve w now: as its answer, or, while something may
// come back, as w.why.
func (m *Manager) nobody(w *waiter, now time.Time) error {
	var h hopes
	unseen := 0 // nodes that never said what they serve
	for _, n := range w.policy.nodes {
		if !n.learned {
			unseen++
			h.in(n, n.down == nil || now.Sub(n.added) < w.policy.Wait)
		}
	}
	known, narrow, widest := 0, 0, Tokens(0)
	for _, i := range m.roster(w.policy, w.Model).instances {
		known++
		widest = max(widest, i.Context)
		switch w.fit(i, now) {
		case fitNarrow:
			narrow++
			if f := w.failedOn(i.node); f != nil {
				widest = max(widest, f.max)
			}
		case fitAway, fitUnloaded, fitStrange:
			h.in(i.node, true)
		case fitDown:
			h.in(i.node, now.Sub(i.node.down.since) < w.policy.Wait)
		}
	}
	away := &RequestError{
		Reason:     ReasonNoNode,
		Message:    "no server that serves this model is up",
		RetryAfter: max(time.Second, h.next.Sub(now)),
	}
	switch {
	case len(w.policy.nodes) == 0:
		away.Message, away.RetryAfter = "no server is configured", 0
		return away
	case h.any:
		w.why = away
		return nil
	case known > 0 && narrow == known:
		return &RequestError{
			Reason:  ReasonTooLong,
			Message: fmt.Sprintf("the request is %d tokens long; the largest context is %d tokens", w.needs.Prompt, widest),
			Len:     w.needs.Prompt, Max: widest,
		}
	case known == 0 && unseen == 0:
		return &RequestError{Reason: ReasonUnknownModel, Message: unknownModel(w.Model)}
	case known == 0:
		away.Message = "no server that is up serves this model, and not every server was reached yet"
	}
	return away
}

func unknownModel(model string) string {
	if model == "" {
		return "the request names no model, and more than one is served; GET /v1/models lists them"
	}
	const shown = 128
	if len(model) > shown {
		model = strings.ToValidUTF8(model[:shown], "") + "…"
	}
	return fmt.Sprintf("the model %q does not exist; GET /v1/models lists those that do", model)
}
