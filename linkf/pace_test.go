package linkf

import (
	"testing"
	"time"
)

// path is a way with a slowest place, where what is sent waits for what was sent before.
type path struct {
	rate float64 // bytes a second
	trip time.Duration
}

// carry has a body cross the line, and returns how long that took and the longest that a
// token would have waited once the first second was over.
func (l path) carry(t *testing.T, size int) (took, waited time.Duration) {
	t.Helper()
	type ack struct {
		at     time.Duration
		offset int
	}
	var now, free time.Duration
	var acks []ack
	w := new(wire)
	o := w.out.add(make([]byte, size), func(string) {})
	for {
		for o.sent < size {
			before := o.sent
			w.rest(nil, 0, now)
			if o.sent == before {
				break
			}
			free = max(free, now) + time.Duration(float64(o.sent-before)/l.rate*float64(time.Second))
			if acks = append(acks, ack{free + l.trip, o.sent}); now > time.Second {
				waited = max(waited, free-now)
			}
		}
		if o.sent == size {
			return free, waited
		}
		if len(acks) == 0 {
			t.Fatalf("after %v and %d bytes nothing is sent, and nothing on the way", now, o.sent)
		}
		now, w.lastIn = acks[0].at, acks[0].at
		if err := w.transfer(typeTransferAck, transfer{ID: o.id, Offset: uint64(acks[0].offset)}); err != nil {
			t.Fatal(err)
		}
		acks = acks[1:]
	}
}

// A body fills the line, as far as eight chunks on the way can, and a token waits behind
// few of them; on a slow line behind three.
func TestBodyFillsTheLineAndTokensWaitForLittleOfIt(t *testing.T) {
	const mbit = 1e6 / 8
	for name, l := range map[string]path{
		"fast and near": {10_000 * mbit, time.Millisecond / 2},
		"near":          {100 * mbit, time.Millisecond},
		"far":           {100 * mbit, 40 * time.Millisecond},
		"very far":      {100 * mbit, 200 * time.Millisecond},
		"slow":          {20 * mbit, 30 * time.Millisecond},
	} {
		const size = 64 << 20
		took, waited := l.carry(t, size)
		chunk := time.Duration(chunkLen / l.rate * float64(time.Second))
		best := max(time.Duration(size/l.rate*float64(time.Second)), size/(window*chunkLen)*(l.trip+chunk))
		if took > best*11/10 {
			t.Errorf("%s: it took %v, want about %v", name, took, best)
		}
		if most := max(paceWait, 2*chunk) + chunk + time.Millisecond; waited > most {
			t.Errorf("%s: a token would wait %v, want at most %v", name, waited, most)
		}
	}
}

// A way that became longer is not taken for a full one for ever.
func TestPaceFollowsTheWay(t *testing.T) {
	p, now := new(pace), time.Duration(0)
	for _, trip := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
		for range 1000 {
			now += trip
			p.acked(now, now-trip)
		}
		if got := p.chunks(); got != window {
			t.Errorf("where nothing waits and a way takes %v: got %d chunks, want %d", trip, got, window)
		}
	}
}
