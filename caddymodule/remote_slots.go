package caddymodule

import (
	"time"

	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
	"github.com/slotfleet/slotfleet/slotlog"
)

// agentLink is the link to a node that runs an agent.
type agentLink struct {
	node string
	down bool
	link *linkf.Link
}

func (s *state) agentLinks() (all []agentLink) {
	for _, n := range s.manager.Links() {
		if l, ok := n.Link.(*linkf.Link); ok {
			all = append(all, agentLink{n.Node, n.Down, l})
		}
	}
	return all
}

// remoteLog is what an agent says of its server's slots.
type remoteLog struct {
	name  string // as a source
	node  string
	ports []slotlog.PortState
	log   linkf.Log
}

// remoteLogs lists what agents say. The last word of one that lost its link stays until the
// node is down. A source that is read here keeps its name: the configuration cannot
// know what nodes that dial in are called.
func (s *state) remoteLogs() (all []remoteLog) {
	taken := make(map[string]bool)
	for _, src := range s.known() {
		taken[src.name] = true
		for _, name := range src.also {
			taken[name] = true
		}
	}
	for _, n := range s.agentLinks() {
		log, ok := n.link.Log()
		if !ok || n.down && !log.Lost.IsZero() {
			continue
		}
		name := n.node
		for taken[name] {
			name = "node " + name
		}
		taken[name] = true
		all = append(all, remoteLog{name, n.node, agent.Ports(log), log})
	}
	return all
}

func (r remoteLog) degraded() bool { return r.log.Unsure != "" || !r.log.Lost.IsZero() }

// slots is it at /slotlog/slots.
func (r remoteLog) slots(now time.Time) sourceSlots {
	out := sourceSlots{
		Source: r.name, Node: r.node, Ports: slotsByPort(r.ports),
		Degraded: r.degraded(), Reason: r.log.Unsure, Age: since(r.log.At, now),
	}
	if !r.log.Lost.IsZero() {
		out.Stale, out.Reason = true, "the link to the node was lost: this is its last word"
	}
	return out
}
