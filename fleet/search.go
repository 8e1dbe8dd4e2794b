package fleet

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// found is what a search through the fleet came to.
type found struct {
	able    []candidate // up, ready and fit to serve
	resting []candidate // as able, on nodes that fail more than others
	other   []candidate // up and ready, but second choice: to repeat the answer, begin it anew, or go on with another build
	cold    []*instance // not loaded, and a request loads them

	length struct{ estimated, learned Tokens } // of the prompt

	known  int       // instances that serve the model, usable or not
	widest Tokens    // of their contexts
	narrow int       // of them, those that are too small for the request
	unlike int       // of them, those that cannot go on with the answer
	unseen int       // nodes that never said what they serve
	hope   bool      // something may come back that could serve
	next   time.Time // when that is probed next
}

// search looks at all instances of the policy's nodes. What it found is good until
// the next search.
func (m *Manager) search(w *waiter, now time.Time) found {
	f := found{able: m.scratch.able[:0]}
	w.room = room{}
	model := w.Model
	if model == "" {
		model = onlyModel(w.policy.nodes)
	}
	for _, n := range w.policy.nodes {
		if !n.learned {
			f.unseen++
			f.hopes(n, n.down == nil || now.Sub(n.added) < w.policy.Wait)
			continue
		}
		for _, i := range n.instances {
			if !i.gone && model != "" && i.Serves(model) {
				if f.known == 0 {
					f.length.estimated = w.size()
					f.length.learned = Tokens(math.Ceil(m.models[i.Model].promptOf(w)))
				}
				f.see(n, i, w, now)
			}
		}
	}
	m.scratch.able = f.able
	return f
}

// onlyModel is the model of a fleet that serves one; empty: it serves none or many.
func onlyModel(nodes []*node) string {
	var only string
	for _, n := range nodes {
		for _, i := range n.instances {
			if i.gone || i.Model == only {
				continue
			}
			if only != "" {
				return ""
			}
			only = i.Model
		}
	}
	return only
}

// see sorts one instance that serves the model in.
func (f *found) see(n *node, i *instance, w *waiter, now time.Time) {
	failed := w.failedOn(n)
	f.known++
	f.widest = max(f.widest, i.Context)
	narrowest(&w.room.estimated, i.Context, f.length.estimated)
	narrowest(&w.room.learned, i.Context, f.length.learned)
	narrow := w.needs.Prompt > 0 && i.Context > 0 && i.Context < w.needs.Prompt
	if failed != nil && failed.max > 0 {
		f.widest, narrow = max(f.widest, failed.max), true
	}
	like, second := w.suits(&i.Instance)
	switch {
	case narrow:
		f.narrow++
	case failed != nil, n.down != nil && w.everFailedOn(n): // nobody waits for its return
	case !like && !second:
		f.unlike++
	case n.drain != nil: // nobody knows whether it comes back
	case len(i.owed) > 0 || !n.away.IsZero():
		f.hopes(n, true)
	case n.down != nil:
		f.hopes(n, now.Sub(n.down.since) < w.policy.Wait)
	case i.evicted: // it goes, and may come back
		f.hopes(n, true)
	case n.cold(i) && !w.Loaded:
		f.hopes(n, true)
		f.cold = append(f.cold, i)
	case !i.loaded():
		f.hopes(n, i.State == StateLoading)
	case !like:
		f.other = append(f.other, i.candidate())
	case n.rests(now):
		f.resting = append(f.resting, i.candidate())
	default:
		f.able = append(f.able, i.candidate())
	}
}

// narrowest makes room the context if that is large enough and smaller.
func narrowest(room *Tokens, context, length Tokens) {
	if context >= length && context > 0 && (*room == 0 || context < *room) {
		*room = context
	}
}

func (i *instance) candidate() candidate {
	return candidate{
		Instance: &i.Instance, owner: i, index: i.node.index,
		held: i.occupied(), sessions: i.sessions, known: i.speed.speed,
	}
}

// suits reports whether the instance can go on with the answer exactly, and whether it
// would do where none can: to repeat it, begin it anew, or go on with another build.
func (w *waiter) suits(i *Instance) (like, second bool) {
	able := i.Features.Has(w.needs.Features)
	same := w.needs.Fingerprint == i.Fingerprint
	return w.needs.Fingerprint == "" || same && able, w.needs.Anew || w.needs.Repeat && same || w.Mixed && able
}

func (f *found) hopes(n *node, hope bool) {
	f.hope = f.hope || hope
	if n.down != nil && (f.next.IsZero() || n.down.nextProbe.Before(f.next)) {
		f.next = n.down.nextProbe
	}
}

// nobody says why nothing can serve w now: as its answer, or, while something may
// come back, as w.why.
func (m *Manager) nobody(w *waiter, f found, now time.Time) error {
	away := &RequestError{
		Reason:     ReasonNoNode,
		Message:    "no server that serves this model is up",
		RetryAfter: max(time.Second, f.next.Sub(now)),
	}
	switch {
	case len(w.policy.nodes) == 0:
		away.Message, away.RetryAfter = "no server is configured", 0
		return away
	case f.hope:
		w.why = away
		return nil
	case f.known > 0 && f.narrow == f.known:
		return &RequestError{
			Reason:  ReasonTooLong,
			Message: fmt.Sprintf("the request is %d tokens long; the largest context is %d tokens", w.needs.Prompt, f.widest),
			Len:     w.needs.Prompt, Max: f.widest,
		}
	case f.known == 0 && f.unseen == 0:
		return &RequestError{Reason: ReasonUnknownModel, Message: unknownModel(w.Model)}
	case f.known == 0:
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
