package caddymodule

import (
	"slices"
	"sync"

	"github.com/slotfleet/slotfleet/linkf/agent"
)

// namesakes are the agents of this process by what fleets call them. During a reload
// there may be two of a name, and either may end first: the old one, or the new one
// because another app could not start. The last to start dials: fleets would take two
// that dial in turns for two machines.
var namesakes nameHolders

type nameHolders struct {
	mu  sync.Mutex
	all map[string][]*agent.Agent
}

// start starts an agent, in the place of those of its name.
func (h *nameHolders) start(o agent.Options) (*agent.Agent, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.all[o.Identity] {
		x.Rest(true)
	}
	a, err := agent.Start(o)
	if err != nil {
		h.goOn(o.Identity)
		return nil, err
	}
	if h.all == nil {
		h.all = make(map[string][]*agent.Agent)
	}
	h.all[o.Identity] = append(h.all[o.Identity], a)
	return a, nil
}

// end ends an agent. The last of those that are left dials.
func (h *nameHolders) end(identity string, a *agent.Agent) error {
	err := a.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[identity] = slices.DeleteFunc(h.all[identity], func(x *agent.Agent) bool { return x == a })
	h.goOn(identity)
	return err
}

// goOn has the last agent of a name dial. Called under the mutex.
func (h *nameHolders) goOn(identity string) {
	if n := len(h.all[identity]); n > 0 {
		h.all[identity][n-1].Rest(false)
	} else {
		delete(h.all, identity)
	}
}
