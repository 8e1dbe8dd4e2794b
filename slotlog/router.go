package slotlog

import "bytes"

// routerLine reads what a router says of its children. Lines with a mark are a
// child's, and children have none.
func (r *Reader) routerLine(p *process, msg []byte) {
	if p.mark != 0 {
		return
	}
	switch msg[0] {
	case 'i':
		if name, ok := cutBetween(msg, "instance name=", " exited with status "); ok {
			name = clipName(name)
			r.drop(func(c *process) bool { return c.mark != 0 && c.model == string(name) })
		}
	case 'f':
		if name, ok := cutBetween(msg, "force-killing model instance name=", " after "); ok {
			r.killed(p, name)
		}
	case 'm':
		if name, ok := cutBetween(msg, "model name=", " is still loading, force-killing"); ok {
			r.killed(p, name)
		}
	case 's':
		if hasPrefix(msg, "starting server in router mode") {
			p.router = true
			r.restart(p)
		} else if name, port, ok := childOf(msg, "spawning server instance with name="); ok {
			r.child(p, name, port, true)
		}
	case 'r':
		if addr, ok := bytes.CutPrefix(msg, []byte("router server is listening on ")); ok {
			p.router = true
			r.listening(p, addr)
		}
	case 'p':
		if name, port, ok := childOf(msg, "proxying request to model "); ok {
			r.child(p, name, port, false)
		}
	}
}

// child takes a router's word on which model a port serves.
func (r *Reader) child(router *process, name []byte, port int, spawned bool) {
	router.router = true
	name = clipName(name)
	c := r.process(port)
	if !c.spoke {
		r.speak(c)
	}
	if spawned {
		c.asleep = false
		r.restart(c)
	}
	if c.model != string(name) {
		c.model = string(name)
	} else if !spawned {
		return
	}
	e := r.about(c, KindModel)
	e.Model, e.Count = c.model, int64(router.port)
	r.tell(e)
	if spawned {
		r.tell(r.about(c, KindLoading))
	}
}

// killed takes a router's word that it ends a child by force. A child whose model
// nobody named may be the one: what runs there is then not known any more.
func (r *Reader) killed(router *process, name []byte) {
	router.router = true
	e := r.about(router, KindBackend)
	model := string(clipName(name))
	e.Failure, e.Model = FailureKilled, model
	r.tell(e)
	known := len(r.procs)
	r.drop(func(c *process) bool { return c.mark != 0 && c.model == model })
	found := len(r.procs) < known
	if found {
		return
	}
	for _, c := range r.procs {
		if c.mark != 0 && c.model == "" {
			r.tell(r.about(c, KindStopping))
		}
	}
}

// childSays reads a child's word to its router: `ready`, or from b9732
// `state:{"state":"loading","payload":{…,"value":0.31}}`.
func (r *Reader) childSays(p *process, msg []byte) {
	state := msg
	share, known := float64(0), false
	if body, ok := bytes.CutPrefix(msg, []byte("state:")); ok {
		if state, share, known = childState(body); state == nil {
			return
		}
	}
	switch string(state) {
	case "ready":
		r.tell(r.about(p, KindReady))
	case "loading", "downloading":
		e := r.about(p, KindLoading)
		if known {
			e.Share, e.HasShare = min(float32(share), 1), true
		}
		r.tell(e)
	case "sleep", "sleeping":
		r.sleep(p)
	}
}

func childState(body []byte) (state []byte, share float64, known bool) {
	f, ok := objectFields(body)
	if !ok {
		return nil, 0, false
	}
	for {
		key, v, ok := f.next()
		if !ok {
			return state, share, known && f.i == len(f.b)-1
		}
		switch string(key) {
		case "state":
			state = v.text
		case "payload":
			inner, ok := objectFields(v.text)
			for ok {
				var key []byte
				if key, v, ok = inner.next(); ok && string(key) == "value" {
					share, known, _, _ = scanRate(v.text, 0)
				}
			}
		}
	}
}

// childOf reads `PREFIX NAME on port N`. Names are free text, so the port is taken
// from the end.
func childOf(msg []byte, prefix string) (name []byte, port int, ok bool) {
	if !hasPrefix(msg, prefix) {
		return nil, 0, false
	}
	rest := msg[len(prefix):]
	i := bytes.LastIndexByte(rest, ' ')
	n := whole64(rest[i+1:])
	if n < 1 || n > 65535 {
		return nil, 0, false
	}
	name, ok = bytes.CutSuffix(rest[:i+1], []byte(" on port "))
	return name, int(n), ok
}

// cutBetween returns what stands between a prefix and the last mark in b.
func cutBetween(b []byte, prefix, mark string) ([]byte, bool) {
	if !hasPrefix(b, prefix) {
		return nil, false
	}
	rest := b[len(prefix):]
	if !bytes.Contains(rest, []byte(mark)) { // which is found faster than the last one
		return nil, false
	}
	i := bytes.LastIndex(rest, []byte(mark))
	if i < 0 {
		return nil, false
	}
	return rest[:i], true
}
