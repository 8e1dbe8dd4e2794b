package fleet

import (
	"context"
	"math"
	"slices"
	"time"
)

// How long a prompt is, is estimated. Where that decides whether it fits into the
// context of some instances, and a larger one is there for it, a server is asked before it
// waits for the wrong ones.

// A Counter asks a model server how long a prompt is.
type Counter interface {
	// Count is the call for an instance, an [OpAsk]; false: no call tells.
	Count(Instance) (Call, bool)

	// Counted reads the answer. false: it told nothing.
	Counted(Reply) (Tokens, bool)
}

const (
	// countMargin is the share of a context by which an estimate may be off.
	countMargin = 1.0 / 8

	// countLimit bounds the time for counting; then the estimate decides.
	countLimit = time.Second
)

// count returns how long the request's prompt is, where that is worth asking; 0: the
// estimate has to do.
func (m *Manager) count(ctx context.Context, a *Applied, r *Request) Tokens {
	if r.Counter == nil {
		return 0
	}
	c := m.counting(a, r)
	if c == nil {
		return 0
	}
	defer m.giveBack(c)
	call, ok := r.Counter.Count(c.state)
	if !ok {
		return 0
	}
	call.Model = c.state.Model
	ctx, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	reply, err := c.instance.node.link.Call(ctx, call)
	if err != nil {
		return 0
	}
	n, ok := r.Counter.Counted(reply)
	if !ok || n <= 0 || n > saneMost {
		return 0
	}
	return n
}

// counting returns the place of a light request on an instance that is awake, if its
// server should count the prompt.
func (m *Manager) counting(a *Applied, r *Request) *claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	ro := m.roster(a, r.Model)
	w := &waiter{policy: a, Request: Request{Model: r.Model, Prompt: r.Prompt, Light: true, Loaded: true}}
	if m.closed || !ro.nearly(m.models[ro.model].promptOf(w)) {
		return nil
	}
	able, _ := m.search(w, time.Now()).best()
	able = slices.DeleteFunc(able, func(x candidate) bool { return x.State != StateReady })
	if len(able) == 0 {
		return nil
	}
	return m.takeLight(able)
}

// nearly reports whether a prompt is about as long as a context that is there, but not
// the largest: that one's server says by itself what is too long for it.
func (r *roster) nearly(prompt float64) bool {
	for _, c := range r.contexts[:max(0, len(r.contexts)-1)] {
		if math.Abs(prompt-float64(c)) <= countMargin*float64(c) {
			return true
		}
	}
	return false
}
