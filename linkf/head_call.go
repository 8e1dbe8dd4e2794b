package linkf

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/slotfleet/slotfleet/fleet"
)

// headCall is something short that the node was asked. It may be asked again on the
// next connection.
type headCall struct {
	id     uint64
	c      fleet.Call
	body   *outgoing
	whole  bool
	sent   bool
	queued bool
	gone   bool // nobody waits for it any more
}

// ask has the node do something short. The answer is an action of the same number.
func (h *headMachine) call(now time.Duration, c fleet.Call) (id uint64, err error) {
	h.advance(now)
	if len(h.calls) >= maxCalls {
		return 0, h.declined("has %d calls open", maxCalls)
	}
	if err := h.carries(c.Body, c.Path, c.ContentType, c.Model, c.Unload, c.Method); err != nil {
		return 0, err
	}
	h.lastCall++
	x := &headCall{id: h.lastCall, c: c}
	h.calls[x.id] = x
	h.ask(x)
	return x.id, nil
}

// hangUp says that nobody waits for a call any more.
func (h *headMachine) hangUp(now time.Duration, id uint64) {
	h.advance(now)
	x := h.calls[id]
	if x == nil {
		return
	}
	delete(h.calls, id)
	if h.wire != nil && x.body != nil && !x.whole {
		h.wire.abandon(x.body)
	}
	x.gone = true
	if x.sent {
		h.ask(x)
	}
}

func (h *headMachine) ask(x *headCall) {
	if h.ready && !x.queued {
		x.queued = true
		h.asking = append(h.asking, x)
	}
}

// pullCall writes what a call has to send.
func (h *headMachine) pullCall(b []byte, x *headCall) []byte {
	x.queued = false
	switch {
	case x.gone && x.sent:
		return h.wire.put(b, typeCallCancel, callID{x.id}, h.now)
	case x.gone || x.sent:
		return b
	}
	m := call{
		ID: x.id, Op: uint8(x.c.Op), Method: x.c.Method, Path: x.c.Path, ContentType: x.c.ContentType,
		Model: x.c.Model, Unload: x.c.Unload, First: millis(x.c.Patience.First), Stall: millis(x.c.Patience.Stall),
	}
	if len(x.c.Body) > maxInline {
		if !x.whole {
			if x.body == nil {
				x.body = h.wire.out.add(x.c.Body, func(aborted string) { h.callBody(x, aborted) })
			}
			return b
		}
		m.Transfer = x.body.id
	} else {
		m.Body = x.c.Body
	}
	x.sent = true
	return h.wire.put(b, typeCall, m, h.now)
}

// callBody goes on with a call whose body is with the node, or was refused.
func (h *headMachine) callBody(x *headCall, aborted string) {
	if aborted != "" {
		h.answer(x, headAction{err: h.refusedBody(aborted)})
		return
	}
	x.whole = true
	h.ask(x)
}

func (h *headMachine) refusedBody(why string) error {
	return h.declined("does not take the body: %s", clip(why, maxText))
}

// declined is what this node cannot do, and another one may.
func (h *headMachine) declined(format string, a ...any) error {
	return &fleet.RequestError{Reason: fleet.ReasonDeclined, Again: true, Err: fmt.Errorf("node %s %w", h.node, fmt.Errorf(format, a...))}
}

// carries reports whether messages can carry the body and texts. A node would end the
// link for all over one text that it cannot read.
func (h *headMachine) carries(body []byte, texts ...string) error {
	if len(body) > maxTransfer {
		return h.declined("is behind a link, which carries a body of at most %d bytes, not %d", maxTransfer, len(body))
	}
	n := 0
	for _, s := range texts {
		if n += len(s); n > maxText || !utf8.ValidString(s) {
			return h.declined("is behind a link, which carries a path, content type and model of %d bytes of UTF-8 in all", maxText)
		}
	}
	return nil
}

// replied is the answer to a call, or to one that nobody waits for any more.
func (h *headMachine) replied(m reply) error {
	parts, err := h.wire.in.take(m.Transfer)
	if err != nil {
		return fmt.Errorf("reply to call %d: %w", m.ID, err)
	}
	x := h.calls[m.ID]
	if x == nil {
		return nil
	}
	a := headAction{reply: fleet.Reply{Status: m.Status, ContentType: m.ContentType, Body: m.Body}, parts: parts}
	if m.Outcome != nil {
		a = headAction{err: m.Outcome.err(h.node)}
	}
	h.answer(x, a)
	return nil
}

// answer ends a call with the reply or error of an action.
func (h *headMachine) answer(x *headCall, a headAction) {
	if h.calls[x.id] != x {
		return
	}
	delete(h.calls, x.id)
	if h.wire != nil && x.body != nil && !x.whole {
		h.wire.abandon(x.body)
	}
	x.gone, x.sent = true, false
	a.kind, a.call = headReply, x.id
	h.act(a)
}
