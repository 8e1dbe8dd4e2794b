package linkf

import (
	"fmt"
	"slices"
	"time"
)

// outgoing is a body on its way to the peer.
type outgoing struct {
	id    uint64
	data  []byte
	sent  int // bytes given to the wire
	acked int // bytes that the peer has
	begun bool
	times []time.Duration // when the chunks went that the peer does not have, as far as it said

	// over is called once: all is sent, or the peer gave it up for a reason.
	over func(aborted string)
}

// mayGo reports whether another chunk may be on the way.
func (t *outgoing) mayGo() bool { return t.sent-t.acked < window*chunkLen }

// outbox is the second send queue: it gives the wire a chunk only when nothing else
// is to be sent, and each transfer its turn.
type outbox struct {
	next  uint64
	queue []*outgoing // in the order of their turns
	pace  pace
}

// mayGo reports whether there is a chunk that may be on the way.
func (o *outbox) mayGo() bool {
	return o.underWay() < o.pace.chunks() && slices.ContainsFunc(o.queue, (*outgoing).mayGo)
}

func (o *outbox) underWay() (chunks int) {
	for _, t := range o.queue {
		chunks += len(t.times)
	}
	return chunks
}

// acked notes what the peer has of a transfer.
func (o *outbox) acked(t *outgoing, upTo int, now time.Duration) {
	n := min((upTo-t.acked+chunkLen-1)/chunkLen, len(t.times))
	if n > 0 {
		o.pace.acked(now, t.times[n-1])
	}
	t.acked, t.times = upTo, t.times[n:]
}

const (
	paceFirst = 2 // chunks: so that one is on the way while another is acknowledged
	paceWait  = 10 * time.Millisecond
	paceKept  = 10 * time.Second
)

// pace is how many chunks are on the way at once: as many as do not wait for each other
// longer than paceWait on a line slower than both ends. A token would wait behind them,
// wherever they are: in this kernel, in a router, in the peer's.
type pace struct {
	room    int           // chunks; 0: paceFirst
	changed time.Duration // when room did
	least   time.Duration // that a chunk and its acknowledgement took of late; 0: unknown
	before  time.Duration // the same of the time before
	since   time.Duration // when of late began
}

func (p *pace) chunks() int { return max(p.room, paceFirst) }

// acked notes that the peer has a chunk that went at some time. Only one that went since
// room changed shows what that came to.
func (p *pace) acked(now, sent time.Duration) {
	if now-p.since >= paceKept { // the way may be another one
		p.before, p.least, p.since = p.least, 0, now
	}
	took := max(now-sent, 1)
	if p.least == 0 || took < p.least {
		p.least = took
	}
	least := p.least
	if p.before != 0 {
		least = min(least, p.before)
	}
	room := p.chunks()
	switch wait := took - least; {
	case sent < p.changed:
	case wait > paceWait:
		room = max(room-1, paceFirst)
	case wait < paceWait/2:
		room = min(room+1, window)
	}
	if room != p.chunks() {
		p.room, p.changed = room, now
	}
}

func (o *outbox) add(data []byte, over func(aborted string)) *outgoing {
	o.next++
	t := &outgoing{id: o.next, data: data, over: over}
	o.queue = append(o.queue, t)
	return t
}

// ready is the transfer whose turn it is; nil: all wait for the peer.
func (o *outbox) ready() *outgoing {
	if !o.mayGo() {
		return nil
	}
	for i, t := range o.queue {
		if t.mayGo() {
			o.queue = append(append(slices.Clone(o.queue[:i]), o.queue[i+1:]...), t)
			return t
		}
	}
	return nil
}

func (o *outbox) find(id uint64) *outgoing {
	for _, t := range o.queue {
		if t.id == id {
			return t
		}
	}
	return nil
}

func (o *outbox) drop(t *outgoing) {
	o.queue = slices.DeleteFunc(o.queue, func(x *outgoing) bool { return x == t })
}

// incoming is a body on its way here.
type incoming struct {
	size  int
	parts [][]byte
	got   int // bytes
	whole bool
}

// inbox is what the peer transfers. Memory is taken as bytes come, not as they are
// announced, and nothing that came is copied: who needs the body joins its parts when
// nobody waits for him.
type inbox struct {
	open map[uint64]*incoming
	held int
	last uint64
}

func (in *inbox) begin(m transfer) error {
	if in.open == nil {
		in.open = make(map[uint64]*incoming)
	}
	if m.ID <= in.last {
		return fmt.Errorf("transfer %d begins again", m.ID)
	}
	in.last = m.ID
	if m.Size > maxTransfer || len(in.open) >= maxTransfers {
		return errTransferRefused
	}
	in.open[m.ID] = &incoming{size: int(m.Size)}
	return nil
}

// chunk takes bytes; refused says that there is no room for them.
func (in *inbox) chunk(m transfer) (t *incoming, err error) {
	t = in.open[m.ID]
	switch {
	case t == nil:
		return nil, nil // given up already
	case t.whole, m.Offset != uint64(t.got), len(m.Data) != min(chunkLen, t.size-t.got):
		return nil, fmt.Errorf("transfer %d: a chunk of %d bytes at %d does not follow what came", m.ID, len(m.Data), m.Offset)
	case in.held+len(m.Data) > maxTransfer:
		in.drop(m.ID)
		return nil, errTransferRefused
	}
	t.parts = append(t.parts, m.Data)
	t.got += len(m.Data)
	in.held += len(m.Data)
	return t, nil
}

func (in *inbox) end(m transfer) error {
	t := in.open[m.ID]
	if t == nil {
		return nil
	}
	if t.whole || t.got != t.size {
		return fmt.Errorf("transfer %d ends after %d of %d bytes", m.ID, t.got, t.size)
	}
	t.whole = true
	return nil
}

func (in *inbox) drop(id uint64) {
	if t := in.open[id]; t != nil {
		in.held -= t.got
		delete(in.open, id)
	}
}

// take returns the parts of the body that a message says came as this transfer, and
// forgets it; 0: it is in the message itself.
func (in *inbox) take(id uint64) ([][]byte, error) {
	if id == 0 {
		return nil, nil
	}
	t := in.open[id]
	if t == nil || !t.whole {
		return nil, fmt.Errorf("its body is to be in transfer %d, which is not whole", id)
	}
	in.drop(id)
	return t.parts, nil
}

// joined is a body that came inside a message, or in parts. It gives way behind each:
// a goroutine cannot be stopped while it copies, and in a loop of copies next to never,
// so that a garbage collection which began meanwhile would stop all others until the
// end of a large body.
func joined(body []byte, parts [][]byte) []byte {
	if len(parts) == 0 {
		return body
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	all := make([]byte, 0, size)
	for _, p := range parts {
		all = append(all, p...)
		giveWay(len(p))
	}
	return all
}
