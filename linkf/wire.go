package linkf

import (
	"errors"
	"fmt"
	"time"
)

var errTransferRefused = errors.New("there is no room for this transfer")

// wire is what both machines do alike with one connection: frames, their numbers,
// transfers, keepalives and the close.
type wire struct {
	dec     decoder
	seqIn   uint64 // of the frame that came last
	seqOut  uint64
	lastIn  time.Duration
	lastOut time.Duration

	out     outbox
	in      inbox
	acks    []transfer // of chunks, coalesced by transfer
	aborts  []transfer
	beat    bool   // a keepalive is due
	follows bool   // the keepalive goes when the peer's comes: it is a node's
	bye     string // a close is due, for this reason
	leaving bool   // which is that this side is stopping
	refusal Refusal
	closed  bool // nothing more is sent or read
}

// fail ends the connection for a reason that the peer is told.
func (w *wire) fail(reason string) {
	if w.bye == "" && !w.closed {
		w.bye = reason
	}
}

// read hands each new frame of the bytes to f. A repeated one is left out; one that
// is missing is an error, as is every error of f: the connection is not to be trusted
// any more. What comes behind the end is not kept: the peer may go on while the close
// waits to be written.
func (w *wire) read(data []byte, now time.Duration, f func(frame) error) error {
	if w.closed || w.bye != "" {
		return nil
	}
	w.dec.feed(data)
	for !w.closed && w.bye == "" {
		fr, ok, err := w.dec.next()
		if err != nil || !ok {
			return err
		}
		if fr.seq <= w.seqIn {
			continue
		}
		if fr.seq != w.seqIn+1 {
			return fmt.Errorf("frame %d follows frame %d", fr.seq, w.seqIn)
		}
		w.seqIn, w.lastIn = fr.seq, now
		if err := f(fr); err != nil {
			return err
		}
	}
	return nil
}

// common handles the frames that both sides get; false: it is not one of them.
func (w *wire) common(f frame) (bool, error) {
	switch f.typ {
	case typeKeepalive:
		if w.follows && w.lastIn-w.lastOut >= answerAfter {
			w.beat = true
		}
		return true, nil
	case typeClose:
		m, err := decode[closing](f)
		if err == nil {
			err = &closedByPeer{m.Reason, m.Leaving, Refusal(m.Refusal)}
		}
		return true, err
	case typeTransferBegin, typeTransferChunk, typeTransferEnd, typeTransferAbort, typeTransferAck:
		m, err := decode[transfer](f)
		if err != nil {
			return true, err
		}
		return true, w.transfer(f.typ, m)
	}
	if f.typ&Droppable != 0 {
		return true, nil
	}
	if _, known := typeNames[f.typ]; !known {
		return true, fmt.Errorf("frame of %s: it must be understood", f.typ)
	}
	return false, nil
}

func (w *wire) transfer(t Type, m transfer) error {
	switch t {
	case typeTransferBegin:
		return w.refuse(m.ID, w.in.begin(m))
	case typeTransferChunk:
		in, err := w.in.chunk(m)
		if in != nil {
			w.acknowledge(m.ID, in)
		}
		return w.refuse(m.ID, err)
	case typeTransferEnd:
		return w.in.end(m)
	case typeTransferAck:
		if o := w.out.find(m.ID); o != nil {
			if m.Offset > uint64(o.sent) || m.Offset < uint64(o.acked) {
				return fmt.Errorf("transfer %d: %d bytes acknowledged of %d", m.ID, m.Offset, o.sent)
			}
			w.out.acked(o, int(m.Offset), w.lastIn)
		}
	case typeTransferAbort:
		w.in.drop(m.ID)
		if o := w.out.find(m.ID); o != nil {
			w.out.drop(o)
			o.over(m.Reason)
		}
	}
	return nil
}

// refuse gives up one transfer where there is no room; other errors are the link's.
func (w *wire) refuse(id uint64, err error) error {
	if !errors.Is(err, errTransferRefused) {
		return err
	}
	if len(w.aborts) >= maxTransfers {
		return errors.New("it goes on with transfers that are refused")
	}
	w.aborts = append(w.aborts, transfer{ID: id, Reason: err.Error()})
	return nil
}

func (w *wire) acknowledge(id uint64, in *incoming) {
	for i := range w.acks {
		if w.acks[i].ID == id {
			w.acks[i].Offset = uint64(in.got)
			return
		}
	}
	w.acks = append(w.acks, transfer{ID: id, Offset: uint64(in.got)})
}

// abandon gives up an outgoing transfer that nobody needs any more.
func (w *wire) abandon(o *outgoing) {
	if w.out.find(o.id) == nil {
		return
	}
	w.out.drop(o)
	if o.begun {
		w.aborts = append(w.aborts, transfer{ID: o.id, Reason: "not needed any more"})
	}
}

// put writes one message behind b.
func (w *wire) put(b []byte, t Type, m any, now time.Duration) []byte {
	payload, err := encMode.Marshal(m)
	if err == nil {
		w.seqOut++
		b, err = appendFrame(b, t, w.seqOut, payload)
	}
	if err != nil {
		// What is put in a message is bounded where it comes in.
		panic(fmt.Sprintf("linkf: write %s: %v", t, err))
	}
	w.lastOut = now
	return b
}

// control writes what of the wire's own goes before everything else.
func (w *wire) control(b []byte, now time.Duration) []byte {
	for _, m := range w.aborts {
		b = w.put(b, typeTransferAbort, m, now)
	}
	for _, m := range w.acks {
		b = w.put(b, typeTransferAck, m, now)
	}
	w.aborts, w.acks = w.aborts[:0], w.acks[:0]
	return b
}

// wants reports whether control or rest has something to send now, beside a keepalive.
func (w *wire) wants() bool {
	return w.bye != "" || len(w.acks)+len(w.aborts) > 0 || w.out.mayGo()
}

// rest writes what goes last: a chunk if nothing else was to be sent, a keepalive, the
// close.
func (w *wire) rest(b []byte, began int, now time.Duration) []byte {
	if len(b) == began && w.bye == "" {
		if o := w.out.ready(); o != nil {
			b = w.chunk(b, o, now)
		}
	}
	if w.beat && len(b) == began && w.bye == "" {
		b = w.put(b, typeKeepalive, empty{}, now)
	}
	w.beat = false
	if w.bye != "" {
		b = w.put(b, typeClose, closing{clip(w.bye, 1024), w.leaving, uint8(w.refusal)}, now)
		w.closed = true
	}
	return b
}

func (w *wire) chunk(b []byte, o *outgoing, now time.Duration) []byte {
	if !o.begun {
		o.begun = true
		b = w.put(b, typeTransferBegin, transfer{ID: o.id, Size: uint64(len(o.data))}, now)
	}
	n := min(chunkLen, len(o.data)-o.sent)
	b = w.put(b, typeTransferChunk, transfer{ID: o.id, Offset: uint64(o.sent), Data: o.data[o.sent : o.sent+n]}, now)
	o.sent += n
	o.times = append(o.times, now)
	if o.sent == len(o.data) {
		b = w.put(b, typeTransferEnd, transfer{ID: o.id}, now)
		w.out.drop(o)
		o.over("")
	}
	return b
}

// tick notes a keepalive that is due and returns why the connection is lost, if it is.
// quiet is since when the peer had reason to send at this rate.
func (w *wire) tick(now, heartbeat, quiet time.Duration) error {
	if now >= w.beatAt(heartbeat) {
		w.beat = true
	}
	if since := max(w.lastIn, quiet); now-since >= heartbeats*heartbeat {
		return fmt.Errorf("nothing came for %v", now-since)
	}
	return nil
}

// wake is when tick has something to do next.
func (w *wire) wake(heartbeat, quiet time.Duration) time.Duration {
	return min(w.beatAt(heartbeat), max(w.lastIn, quiet)+heartbeats*heartbeat)
}

// beatAt is when a keepalive is due if nothing is sent before. A head's is early rather
// than late, so that those of many links go together: what a thousand idle links cost is
// that something wakes up for each, and not what it sends then.
func (w *wire) beatAt(heartbeat time.Duration) time.Duration {
	at := w.lastOut + heartbeat
	if w.follows {
		return at
	}
	return at.Truncate(heartbeat / beatsTogether)
}

// closedByPeer says that the peer ended the connection, and why.
type closedByPeer struct {
	reason  string
	leaving bool // it is stopping
	refusal Refusal
}

func (e *closedByPeer) Error() string { return "the peer closed the link: " + e.reason }

// Is reports whether the peer refused the node for this reason.
func (e *closedByPeer) Is(target error) bool {
	r, ok := target.(Refusal)
	return ok && r == e.refusal
}

// clip bounds a text that goes to the peer, at a whole character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
