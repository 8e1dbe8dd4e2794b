package caddymodule

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// Headers of ours that name a node. They are off unless asked for: they show what a
// fleet is made of.
const (
	headerNode   = "X-Slotfleet-Node"
	headerReason = "X-Slotfleet-Reason"
)

// serverTiming collects the figures of a Server-Timing header, in milliseconds.
type serverTiming []string

func (t *serverTiming) add(name string, d time.Duration) {
	ms := strconv.FormatFloat(float64(max(0, d))/float64(time.Millisecond), 'f', 3, 64)
	*t = append(*t, name+";dur="+ms)
}

func (t serverTiming) set(head http.Header) {
	if len(t) > 0 {
		head.Set("Server-Timing", strings.Join(t, ", "))
	}
}

// untilPlaced tells how long a request waited for a lane, and how long it took besides
// from its being read until it had one.
func untilPlaced(a *account, waited time.Duration) (t serverTiming) {
	if a.placed.IsZero() {
		return nil
	}
	t.add("queue", waited)
	t.add("place", a.placed.Sub(a.read)-waited)
	return t
}

// tellPlaced sets the headers of a stream, which begins once it has a node.
func (h *Handler) tellPlaced(head http.Header, a *account, r fleet.Record) {
	untilPlaced(a, r.Waited).set(head)
	if h.NodeHeaders && r.Node != "" {
		head.Set(headerNode, r.Node)
	}
}

// tell sets the headers of an answer that did not begin yet: all of it is known.
func (h *Handler) tell(p *reply, a *account, whole bool) {
	if p.begun() {
		return
	}
	head := p.w.Header()
	t := untilPlaced(a, a.Waited)
	if whole {
		if a.FirstToken > 0 {
			t.add("first", a.FirstToken)
		}
		t.add("total", time.Since(a.began))
	}
	t.set(head)
	if !h.NodeHeaders {
		return
	}
	if a.Node != "" {
		head.Set(headerNode, a.Node)
	}
	if a.Reason != "" {
		head.Set(headerReason, string(a.Reason))
	}
}
