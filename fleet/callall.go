package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// NodeResult is what one instance made of a call that went to all.
type NodeResult struct {
	Node, Model string
	Reply       Reply
	Err         error // nil: it answered; a [*NodeLost] or [ErrNotLoaded] gets it later
}

// ErrNotLoaded: the instance is not loaded, and gets the call when it is.
var ErrNotLoaded = errors.New("it is not loaded, and gets this when it is")

// standing is a call that went to all instances of a model and that those get, too,
// which come later: what it sets must be set wherever a request may land.
type standing struct {
	model string
	call  Call
}

// callAllLimit is how long one instance may take for a call that goes to all.
const callAllLimit = 30 * time.Second

// CallAll makes a call, an [OpAsk] that sets something, to every instance of the model,
// and tells what each made of it, in the order of the nodes. It is repeated before an
// instance that was away, is new, was started again or is loaded again gets a request,
// but for the one that has its node load it; a later call with the same path takes its
// place. It is remembered as long as the manager lives.
//
// The error is a *[RequestError] where nothing serves the model; what failed on one
// instance stands in its result.
func (m *Manager) CallAll(ctx context.Context, model string, c Call) ([]NodeResult, error) {
	m.mu.Lock()
	a := m.inForce()
	var targets []*instance
	if a != nil {
		for _, n := range a.nodes {
			for _, i := range n.instances {
				if !i.gone && i.Serves(model) {
					targets = append(targets, i)
				}
			}
		}
	}
	if len(targets) == 0 {
		m.mu.Unlock()
		return nil, &RequestError{Reason: ReasonUnknownModel, Message: unknownModel(model)}
	}
	st := &standing{model: model, call: c}
	m.standing = slices.DeleteFunc(m.standing, func(x *standing) bool {
		return x.model == model && x.call.Path == c.Path
	})
	m.standing = append(m.standing, st)
	for _, i := range targets {
		if !i.loaded() {
			continue // the call would load it
		}
		i.owed = append(slices.DeleteFunc(i.owed, func(x *standing) bool { return x.model == model && x.call.Path == c.Path }), st)
	}
	m.mu.Unlock()
	results := make([]NodeResult, len(targets))
	var all sync.WaitGroup
	for at, i := range targets {
		all.Go(func() { results[at] = m.settleOwed(ctx, i, st) })
	}
	all.Wait()
	return results, nil
}

// settleOwed makes one call that an instance is owed.
func (m *Manager) settleOwed(ctx context.Context, i *instance, st *standing) NodeResult {
	n := i.node
	m.mu.Lock()
	r := NodeResult{Node: n.name, Model: i.Model}
	switch {
	case n.down != nil:
		r.Err = &NodeLost{Node: n.name, Cause: n.down.cause, Err: errors.New("it is down, and gets this when it is back")}
	case !i.loaded():
		r.Err = ErrNotLoaded
	}
	m.mu.Unlock()
	if r.Err != nil {
		return r
	}
	limited, cancel := context.WithTimeout(ctx, callAllLimit)
	defer cancel()
	c := st.call
	c.Model = r.Model
	r.Reply, r.Err = n.link.Call(limited, c)
	_, lost := errors.AsType[*NodeLost](r.Err)
	if lost || ctx.Err() != nil {
		return r // it stays owed
	}
	m.mu.Lock()
	i.owed = slices.DeleteFunc(i.owed, func(x *standing) bool { return x == st })
	m.pump()
	log := m.logger()
	m.mu.Unlock()
	if r.Err != nil {
		log.Warn("a call that all instances get was refused", "node", n.name, "model", r.Model, "path", c.Path, "error", r.Err)
	}
	return r
}

// owes makes instances of the node owed what stands, if they are loaded: they are new,
// or another process has them now. One that is not loaded is owed nothing until it is.
// Called under the mutex.
func (m *Manager) owes(n *node, fresh []*instance) {
	for _, i := range fresh {
		i.owed = nil
		for _, st := range m.standing {
			if i.loaded() && i.Serves(st.model) {
				i.owed = append(i.owed, st)
			}
		}
		if len(i.owed) > 0 {
			signal(n.doubt)
		}
	}
}

// catchUp makes the calls that the node's instances are owed.
func (m *Manager) catchUp(ctx context.Context, n *node) {
	type debt struct {
		instance *instance
		standing *standing
	}
	var debts []debt
	m.mu.Lock()
	for _, i := range n.instances {
		for _, st := range i.owed {
			debts = append(debts, debt{i, st})
		}
	}
	m.mu.Unlock()
	for _, d := range debts {
		if r := m.settleOwed(ctx, d.instance, d.standing); r.Err != nil {
			if _, lost := errors.AsType[*NodeLost](r.Err); lost && ctx.Err() == nil && m.markDown(n, r.Err) {
				n.nudge()
			}
		}
	}
}
