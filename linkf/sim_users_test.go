package linkf

import (
	"encoding/binary"
	"errors"

	"github.com/slotfleet/slotfleet/fleet"
)

// What those do who use the world's link: clients of the head, and the node's model
// server.

func (w *world) open() {
	if len(w.clients) >= 5 {
		return
	}
	w.asks++
	body := make([]byte, 8)
	if w.pick.IntN(150) == 0 {
		body = make([]byte, maxInline+window*chunkLen+1)
	}
	binary.LittleEndian.PutUint64(body, w.asks)
	id, err := w.head.open(w.headTime(), fleet.Assignment{Model: "m", Path: "/x", Body: body})
	if err != nil {
		w.fail("open: %v", err)
		return
	}
	w.clients[id] = &client{ask: w.asks}
}

// beginAgain puts a session on the node anew, which fences what it had there.
func (w *world) beginAgain() {
	id, ok := some(w, w.clients)
	if !ok || !w.head.ready {
		return // it would not be sent at once, and what is not sent need not be taken back
	}
	w.asks++
	w.clients[id] = &client{ask: w.asks}
	a := fleet.Assignment{Model: "m", Path: "/x", Body: binary.LittleEndian.AppendUint64(nil, w.asks)}
	if err := w.head.assign(id, a.Model, ""); err != nil {
		w.fail("assign: %v", err)
	}
	if err := errors.Join(w.head.append(id, a), w.head.generate(id, fleet.Patience{})); err != nil {
		w.fail("begin again: %v", err)
	}
}

// some returns a key of a map, or false if there is none.
func some[V any](w *world, m map[uint64]V) (uint64, bool) {
	if len(m) == 0 {
		return 0, false
	}
	least, n := uint64(0), w.pick.IntN(len(m))
	for ; n >= 0; n-- {
		next := uint64(1<<64 - 1)
		for k := range m {
			if k > least && k < next {
				next = k
			}
		}
		least = next
	}
	return least, true
}

func (w *world) emit() {
	id, ok := some(w, w.runs)
	if !ok || w.runs[id].waits {
		return
	}
	size := 12
	if w.pick.IntN(30) == 0 {
		size = w.pick.IntN(3) * maxPiece * 3
	}
	w.say(id, size)
}

func (w *world) say(id uint64, size int) {
	r := w.runs[id]
	data := make([]byte, max(12, size))
	binary.LittleEndian.PutUint64(data, r.id)
	binary.LittleEndian.PutUint32(data[8:], r.count)
	got := w.agent.emit(w.nodeTime(), id, fleet.Event{Kind: fleet.EventData, Data: data})
	if (got == roomGone) != (r.stopped || w.agent.runs[id].session == nil) {
		w.fail("run %d: emit says %d; stopped %v", id, got, r.stopped)
	}
	if got != roomGone {
		r.count++
	}
	r.waits = got == roomNone
}

func (w *world) finish() {
	if id, ok := some(w, w.runs); ok {
		w.end(id)
	}
}

func (w *world) end(id uint64) {
	delete(w.runs, id)
	w.agent.finish(w.nodeTime(), id, nil)
}

// read has a client take what it was given.
func (w *world) read() {
	if id, ok := some(w, w.clients); ok {
		if c := w.clients[id]; c.unread > 0 {
			w.take(id, c, 1+w.pick.IntN(c.unread))
		}
	}
}

// take has a client take its next n events.
func (w *world) take(id uint64, c *client, n int) {
	c.unread -= n
	w.head.took(w.headTime(), id, c.gen, c.seen-uint64(c.unread))
}

// park has a generation end; its session goes on with another one. Our head never parks;
// others may.
func (w *world) park() {
	id, ok := some(w, w.clients)
	if !ok || w.clients[id].parked {
		return
	}
	w.clients[id].parked = true
	w.head.command(w.head.sessions[id], headCommand{typ: typePark})
}

func (w *world) leave() {
	id, ok := some(w, w.clients)
	if !ok {
		return
	}
	delete(w.clients, id)
	if w.pick.IntN(2) == 0 {
		w.head.cancel(w.headTime(), id)
	} else {
		_ = w.head.revoke(w.headTime(), id)
	}
}

func (w *world) call() {
	body := []byte("x")
	if w.pick.IntN(50) == 0 {
		body = make([]byte, maxInline+1)
	}
	id, err := w.head.call(w.headTime(), fleet.Call{Op: fleet.OpAsk, Path: "/tokenize", Body: body})
	if err != nil {
		w.fail("call: %v", err)
	}
	w.calls[id] = true
	if w.pick.IntN(4) == 0 {
		delete(w.calls, id)
		w.head.hangUp(w.headTime(), id)
	}
}

// work answers a call.
func (w *world) work() {
	if id, ok := some(w, w.asked); ok {
		delete(w.asked, id)
		w.agent.answer(w.nodeTime(), id, fleet.Reply{Status: 200, Body: []byte("y")}, nil)
	}
}
