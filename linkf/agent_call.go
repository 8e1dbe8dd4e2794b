package linkf

import (
	"errors"
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// agentAsked is a call that a head waits for on one connection.
type agentAsked struct {
	conn  *agentConn
	id    uint64 // the head's number for it
	run   uint64 // ours
	reply fleet.Reply
	err   error
	body  *outgoing
	whole bool
}

// asked starts a call.
func (a *agentMachine) asked(c *agentConn, m call) error {
	parts, err := c.wire.in.take(m.Transfer)
	if err != nil {
		return fmt.Errorf("call %d: %w", m.ID, err)
	}
	open := 0
	for _, x := range a.calls {
		if x.conn == c {
			if x.id == m.ID {
				return fmt.Errorf("call %d is asked again", m.ID)
			}
			open++
		}
	}
	if open >= maxCalls {
		return errors.New("it has too many calls open")
	}
	a.last++
	a.calls[a.last] = &agentAsked{conn: c, id: m.ID, run: a.last}
	a.act(agentAction{kind: agentCall, run: a.last, conn: c.id, parts: parts, call: fleet.Call{
		Op: fleet.Op(m.Op), Method: m.Method, Path: m.Path, ContentType: m.ContentType, Body: m.Body,
		Model: m.Model, Unload: m.Unload, Patience: fleet.Patience{First: duration(m.First), Stall: duration(m.Stall)},
	}})
	return nil
}

// hungUp drops a call that nobody waits for.
func (a *agentMachine) hungUp(c *agentConn, m callID) error {
	for n, x := range a.calls {
		if x.conn == c && x.id == m.ID {
			delete(a.calls, n)
			a.act(agentAction{kind: agentCallStop, run: n})
			if x.body != nil && !x.whole {
				c.wire.abandon(x.body)
			}
		}
	}
	return nil
}

// answer says what came of a call.
func (a *agentMachine) answer(now time.Duration, run uint64, r fleet.Reply, err error) {
	a.advance(now)
	x := a.calls[run]
	if x == nil || x.conn.wire.closed {
		return
	}
	if err == nil && len(r.Body) > maxTransfer {
		err = lost("", fleet.CauseUnusable, fmt.Errorf("an answer of %d bytes: a link carries at most %d", len(r.Body), maxTransfer))
	}
	r.ContentType = text(r.ContentType)
	x.reply, x.err = r, err
	if err != nil || len(r.Body) <= maxInline {
		x.conn.replies = append(x.conn.replies, x)
		return
	}
	x.body = x.conn.wire.out.add(r.Body, func(aborted string) {
		if aborted != "" {
			x.err = lost("", fleet.CauseUnusable, fmt.Errorf("the head did not take the answer: %s", clip(aborted, maxText)))
		}
		x.whole = true
		if a.calls[x.run] == x {
			x.conn.replies = append(x.conn.replies, x)
		}
	})
}

// pullReply writes one answer.
func (a *agentMachine) pullReply(b []byte, x *agentAsked) []byte {
	if a.calls[x.run] != x {
		return b
	}
	delete(a.calls, x.run)
	m := reply{ID: x.id}
	switch {
	case x.err != nil:
		m.Outcome = outcomeOf(x.err)
	case x.body != nil:
		m.Status, m.ContentType, m.Transfer = x.reply.Status, x.reply.ContentType, x.body.id
	default:
		m.Status, m.ContentType, m.Body = x.reply.Status, x.reply.ContentType, x.reply.Body
	}
	return x.conn.wire.put(b, typeReply, m, a.now)
}
