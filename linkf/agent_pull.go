package linkf

import "time"

// eventsFrame is about how many bytes of events go into one frame, and so how long
// another session's wait behind them.
const eventsFrame = 32 << 10

// pull writes behind b what a connection should send now, and stops soon after most
// bytes; a chunk of a transfer goes only when there was nothing else. It returns b as it
// was when nothing is to be sent.
func (a *agentMachine) pull(now time.Duration, conn uint64, b []byte, most int) []byte {
	a.advance(now)
	c := a.conns[conn]
	if c == nil || c.wire.closed {
		return b
	}
	began, w := len(b), c.wire
	b = w.control(b, a.now)
	if w.bye == "" {
		b = a.pullControl(b, c)
	}
	for len(c.replies) > 0 && len(b)-began < most && w.bye == "" {
		x := c.replies[0]
		c.replies = c.replies[1:]
		b = a.pullReply(b, x)
	}
	// The ends of generations go out before a close, too.
	for len(c.dirty) > 0 && len(b)-began < most {
		s := c.dirty[0]
		c.dirty = c.dirty[1:]
		b = a.pullSession(b, c, s)
	}
	return w.rest(b, began, a.now)
}

// owesState reports whether the status is to be sent, at the earliest statusGap after
// the one before.
func (a *agentMachine) owesState(c *agentConn) bool {
	return c.stateDue && c.reconciled && a.offers != nil
}

func (a *agentMachine) pullControl(b []byte, c *agentConn) []byte {
	w := c.wire
	if c.head != nil && !c.greeted {
		c.greeted = true
		b = w.put(b, typeHelloAck, helloAck{
			Version: c.version, Instance: a.me.instance[:], Identity: a.me.identity,
			Limits: limits{Transfer: maxTransfer, Sessions: maxSessions},
		}, a.now)
	}
	if c.ack != nil {
		b = w.put(b, typeReconcileAck, *c.ack, a.now)
		c.ack = nil
	}
	b = a.pullSlots(b, c)
	if a.owesState(c) && a.now-c.toldAt >= statusGap {
		c.stateDue, c.toldAt = false, a.now
		b = w.put(b, typeStatus, a.stateFor(c.head), a.now)
	}
	for _, m := range c.gones {
		b = w.put(b, typeGone, m, a.now)
	}
	c.gones = nil
	return b
}

// pullSession writes one frame of a session's events, and has it come again if there
// are more.
func (a *agentMachine) pullSession(b []byte, c *agentConn, s *agentSession) []byte {
	s.queued = false
	k := key{s.id, s.epoch}
	if s.head.conn != c || s.head.sessions[s.id] != s {
		return b
	}
	if s.renewDue {
		s.renewDue = false
		b = c.wire.put(b, typeRenew, k, a.now)
	}
	m := events{key: k, Generation: s.generation, First: s.sent}
	size := 0
	for i := s.sent - s.base; i < uint64(len(s.buf)) && size < eventsFrame; i++ {
		e := &s.buf[i]
		if e.upTo > s.limit {
			break
		}
		m.Items = append(m.Items, e.event)
		size += int(e.price)
	}
	if len(m.Items) == 0 {
		return b
	}
	s.sent += uint64(len(m.Items))
	if s.sent < s.count {
		a.mark(s)
	}
	return c.wire.put(b, typeEvents, m, a.now)
}
