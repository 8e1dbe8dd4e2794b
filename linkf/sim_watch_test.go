package linkf

import "time"

// watcher reads what crosses the wire and holds the promises of the protocol against
// it, from docs/linkf.md alone: it knows nothing of what the machines keep.
type watcher struct {
	w     *world
	in    map[uint64]*wire // of what the node gets, by connection
	out   map[uint64]*wire // of what it sends
	heads map[uint64]string
	held  map[[2]any]*promise // by identity and instance of the head, and session

	last, seen time.Duration // the node's clock as told, and the time that was seen to pass
}

// promise is what a node may do for a session.
type promise struct {
	epoch uint64
	until time.Duration // in time that was seen to pass
	lease time.Duration
}

func newWatcher(w *world) *watcher {
	return &watcher{
		w: w, in: make(map[uint64]*wire), out: make(map[uint64]*wire),
		heads: make(map[uint64]string), held: make(map[[2]any]*promise),
	}
}

// tell passes the node's time on.
func (x *watcher) tell(now time.Duration) time.Duration {
	x.seen += max(0, now-x.last)
	x.last = now
	return now
}

func reading(m map[uint64]*wire, conn uint64) *wire {
	if m[conn] == nil {
		m[conn] = new(wire)
	}
	return m[conn]
}

// gets sees what arrives at the node.
func (x *watcher) gets(conn uint64, data []byte) {
	err := reading(x.in, conn).read(data, 0, func(f frame) error {
		switch f.typ {
		case typeHello:
			return handle(f, func(m hello) error {
				x.heads[conn] = m.Identity + string(m.Instance)
				return nil
			})
		case typeAssign:
			return handle(f, func(m assign) error {
				k := [2]any{x.heads[conn], m.Session}
				if p := x.held[k]; p == nil || p.epoch < m.Epoch {
					x.held[k] = &promise{m.Epoch, x.seen + duration(m.Lease), duration(m.Lease)}
				}
				return nil
			})
		case typeGrant:
			return handle(f, func(m grant) error {
				if p := x.held[[2]any{x.heads[conn], m.Session}]; p != nil && p.epoch == m.Epoch && x.seen < p.until {
					p.until = x.seen + duration(m.Lease)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		x.w.fail("what the head sends cannot be read: %v", err)
	}
}

// sends sees what the node sends, as it leaves.
func (x *watcher) sends(conn uint64, data []byte) {
	err := reading(x.out, conn).read(data, 0, func(f frame) error {
		if f.typ != typeEvents {
			return nil
		}
		return handle(f, func(m events) error {
			p := x.held[[2]any{x.heads[conn], m.Session}]
			switch {
			case p == nil:
				x.w.fail("events of session %d, which nobody assigned", m.Session)
			case m.Epoch < p.epoch:
				x.w.fail("events of session %d at epoch %d, which %d fenced", m.Session, m.Epoch, p.epoch)
			case x.seen >= p.until:
				x.w.fail("events of session %d, %v after the end of its lease", m.Session, x.seen-p.until)
			}
			return nil
		})
	})
	if err != nil {
		x.w.fail("what the node sends cannot be read: %v", err)
	}
}

// restarted forgets a node's promises: another one knows nothing of them.
func (x *watcher) restarted(now time.Duration) {
	clear(x.held)
	x.last = now
}
