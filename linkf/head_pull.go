package linkf

import (
	"time"
)

// pull writes behind b what the connection should send now, and stops soon after max
// bytes; a chunk of a transfer goes only when there was nothing else. It returns b as it
// was when nothing is to be sent.
func (h *headMachine) pull(now time.Duration, b []byte, most int) []byte {
	h.advance(now)
	w := h.wire
	if w == nil || w.closed {
		return b
	}
	began := len(b)
	b = w.control(b, h.now)
	if !h.listed && w.bye == "" {
		b = h.list(b)
	}
	if h.word != "" && h.listed && w.bye == "" {
		b = w.put(b, typeNotice, notice{text(h.word)}, h.now)
		h.word = ""
	}
	// Revokes go out before a close, too: the node need not wait for leases to end.
	for len(h.dirty) > 0 && len(b)-began < most {
		s := h.dirty[0]
		h.dirty = h.dirty[1:]
		b = h.pullSession(b, s)
	}
	for len(h.asking) > 0 && len(b)-began < most && w.bye == "" {
		x := h.asking[0]
		h.asking = h.asking[1:]
		b = h.pullCall(b, x)
	}
	return w.rest(b, began, h.now)
}

// wants reports whether pull has something to send now, beside a keepalive that became
// due: most of what comes needs no answer.
func (h *headMachine) wants() bool {
	w := h.wire
	return w != nil && !w.closed && (!h.listed || h.word != "" || len(h.dirty)+len(h.asking) > 0 || w.wants())
}

// list writes all that the head wants of the node. What the node has besides, it drops.
func (h *headMachine) list(b []byte) []byte {
	h.listed = true
	var m reconcile
	for _, s := range h.sessions {
		switch {
		case s.revoked:
			h.forget(s)
		case s.known:
			m.Sessions = append(m.Sessions, wanted{key{s.id, s.epoch}, s.generation, s.next})
		}
	}
	return h.wire.put(b, typeReconcile, m, h.now)
}

func (h *headMachine) pullSession(b []byte, s *headSession) []byte {
	s.queued = false
	if h.sessions[s.id] != s {
		return b
	}
	w, k := h.wire, key{s.id, s.epoch}
	for s.cursor < len(s.cmds) {
		c := s.cmds[s.cursor]
		if c.typ == typeAppend && len(c.a.Body) > maxInline && !c.whole {
			if c.body == nil {
				c.body = w.out.add(c.a.Body, func(aborted string) { h.body(s, c, aborted) })
			}
			break // what follows needs it
		}
		b = h.pullCommand(b, s, c)
		s.cursor++
	}
	if s.grantDue {
		lease, renew := h.grants()
		b = w.put(b, typeGrant, grant{k, lease, renew}, h.now)
	}
	if s.ackDue {
		s.acked = s.paid
		b = w.put(b, typeAck, ack{k, s.generation, s.taken}, h.now)
	}
	if s.creditDue {
		s.limit = s.paid + creditRoom
		b = w.put(b, typeCredit, credit{k, s.generation, s.limit}, h.now)
	}
	s.grantDue, s.ackDue, s.creditDue = false, false, false
	if s.revoked && s.cursor == len(s.cmds) {
		h.forget(s)
	}
	return b
}

// grants is the lease that the node gets now, and from when on it should be renewed.
func (h *headMachine) grants() (lease, renew uint32) {
	d := h.lease()
	h.longest = max(h.longest, d)
	return millis(d), millis(d / 3)
}

func (h *headMachine) pullCommand(b []byte, s *headSession, c *headCommand) []byte {
	k := key{s.id, s.epoch}
	var m any
	switch c.typ {
	case typeAssign:
		s.known = true
		lease, renew := h.grants()
		m = assign{k, c.n, lease, renew, c.a.Model, c.a.Unload}
	case typeAppend:
		a := appendContent{key: k, Command: c.n, Path: c.a.Path, ContentType: c.a.ContentType}
		if c.body != nil {
			a.Transfer = c.body.id
		} else {
			a.Body = c.a.Body
		}
		m = a
	case typeGenerate:
		m = generate{k, c.n, c.generation, millis(c.a.Patience.First), millis(c.a.Patience.Stall), s.limit}
	default:
		m = command{k, c.n}
	}
	return h.wire.put(b, c.typ, m, h.now)
}

// body goes on with a session whose content is with the node, or was refused.
func (h *headMachine) body(s *headSession, c *headCommand, aborted string) {
	if h.sessions[s.id] != s {
		return
	}
	if aborted != "" {
		h.end(s, h.refusedBody(aborted))
		return
	}
	c.whole = true
	h.mark(s)
}
