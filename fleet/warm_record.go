package fleet

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A record is what is written of one instance: a version, when it was written, the
// confidence in the instance, its room, its sequences from the newest to the oldest,
// and a checksum. A sequence is the hashes of its marks from the last to the first, the
// room that it takes, its length, and how many marks there are. All numbers are
// little-endian.
const (
	recordVersion  = 2
	recordHead     = 1 + 8 + 8 + 8
	recordSequence = 4 + 4 + 4
	recordSum      = 8

	// recordPairs is how many hashes are written of an instance: of the newest
	// sequences. The lock is held while they are gathered.
	recordPairs = 1 << 16

	// recordAge is how old a record may become. Those of nodes that are no more are
	// not written any more.
	recordAge = 7 * 24 * time.Hour
)

// name is how the instance's record is called.
func (k warmKey) name() []byte { return []byte(k.node + "\x00" + k.model) }

// keyOf reads the name of a record; false: it is none.
func keyOf(name []byte) (warmKey, bool) {
	node, model, ok := strings.Cut(string(name), "\x00")
	return warmKey{node, model}, ok && node != "" && model != ""
}

// record appends the instance's record to buf.
func (w *warmIndex) record(id warmID, buf []byte, now time.Time) []byte {
	i := &w.instances[id]
	buf = append(buf, recordVersion)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(now.Unix()))
	buf = binary.LittleEndian.AppendUint64(buf, math.Float64bits(i.confidence))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(i.room))
	left := recordPairs
	for _, l := range []*sequenceList{&i.running, &i.idle} {
		for n := l.newest; n != 0; n = w.sequences.at(n).older {
			x := w.sequences.at(n)
			at, marks := len(buf), 0
			for p := x.leaf; p != 0; p = w.pairs.at(p).parent {
				buf = binary.LittleEndian.AppendUint64(buf, w.pairs.at(p).hash())
				marks++
			}
			if left -= marks; left < 0 {
				buf = buf[:at]
				break
			}
			buf = binary.LittleEndian.AppendUint32(buf, x.takes)
			buf = binary.LittleEndian.AppendUint32(buf, x.whole)
			buf = binary.LittleEndian.AppendUint32(buf, uint32(marks))
		}
	}
	return binary.LittleEndian.AppendUint64(buf, xxhash.Sum64(buf))
}

// restore takes a record in, if nothing is known of the instance yet. false: it is no
// record or too old, and nothing has changed.
func (w *warmIndex) restore(k warmKey, rec []byte, now time.Time) bool {
	if len(rec) < recordHead+recordSum || rec[0] != recordVersion {
		return false
	}
	body, sum := rec[:len(rec)-recordSum], rec[len(rec)-recordSum:]
	if xxhash.Sum64(body) != binary.LittleEndian.Uint64(sum) {
		return false
	}
	written := time.Unix(int64(binary.LittleEndian.Uint64(body[1:])), 0)
	confidence := math.Float64frombits(binary.LittleEndian.Uint64(body[9:]))
	room := binary.LittleEndian.Uint64(body[17:])
	if now.Sub(written) > recordAge {
		return false
	}
	if !(confidence >= 0 && confidence <= 1) || room > maxPairs {
		return false
	}
	sequences, ok := split(body[recordHead:])
	if !ok {
		return false
	}
	id := w.id(k.node, k.model)
	if id == 0 || w.instances[id].held > 0 {
		return true
	}
	w.instances[id].confidence, w.instances[id].room = confidence, int(room)
	for _, s := range sequences {
		w.adopt(id, s)
	}
	return true
}

// recorded is a sequence of a record.
type recorded struct {
	hashes       []byte
	takes, whole uint32
}

// split finds the sequences in the part of a record that has them, the oldest first, for
// it is read from its end. false: it is no such part.
func split(body []byte) (all []recorded, ok bool) {
	for len(body) > 0 {
		if len(body) < recordSequence {
			return nil, false
		}
		hashes, tail := body[:len(body)-recordSequence], body[len(body)-recordSequence:]
		marks := binary.LittleEndian.Uint32(tail[8:])
		if marks > recordPairs || int(8*marks) > len(hashes) {
			return nil, false
		}
		from := len(hashes) - int(8*marks)
		all = append(all, recorded{hashes[from:], binary.LittleEndian.Uint32(tail), binary.LittleEndian.Uint32(tail[4:])})
		body = body[:from]
	}
	return all, true
}

// adopt takes in a sequence that was recorded, as the newest of the idle ones.
func (w *warmIndex) adopt(id warmID, s recorded) {
	hash := func(j int) uint64 { return binary.LittleEndian.Uint64(s.hashes[len(s.hashes)-8*(j+1):]) }
	n, _ := w.plant(id, min(len(s.hashes)/8, marks(maxBlocks)), hash)
	if n == 0 {
		return
	}
	x, i := w.sequences.at(n), &w.instances[id]
	x.takes, x.whole = min(s.takes, maxBlocks), min(s.whole, maxBlocks)
	i.held += int(x.takes)
	w.settle(i, n)
}

// changedRecords returns the ids of the instances that have changed since it was last
// asked.
func (w *warmIndex) changedRecords(ids []warmID) []warmID {
	for _, id := range w.ids {
		if i := &w.instances[id]; i.changed {
			i.changed = false
			ids = append(ids, id)
		}
	}
	return ids
}
