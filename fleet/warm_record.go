package fleet

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A record is what is written of one instance: a version, when it was written, the
// confidence in the instance, its room, its blocks from the newest to the oldest, and
// a checksum. All numbers are little-endian.
const (
	recordVersion = 1
	recordHead    = 1 + 8 + 8 + 8
	recordPair    = 8 + 1 // the hash and the logarithm of the span
	recordSum     = 8

	// recordPairs is how many blocks of an instance are written: the newest. The
	// lock is held while they are gathered.
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
	p := i.newest
	for n := 0; n < recordPairs && p != 0; n++ {
		x := w.pairs.at(p)
		buf = binary.LittleEndian.AppendUint64(buf, x.hash())
		buf = append(buf, byte(bits.TrailingZeros16(x.span)))
		p = x.older
	}
	return binary.LittleEndian.AppendUint64(buf, xxhash.Sum64(buf))
}

// restore takes a record in, if nothing is known of the instance yet. false: it is no
// record or too old, and nothing has changed.
func (w *warmIndex) restore(k warmKey, rec []byte, now time.Time) bool {
	if len(rec) < recordHead+recordSum || rec[0] != recordVersion || (len(rec)-recordHead-recordSum)%recordPair != 0 {
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
	id := w.id(k.node, k.model)
	if id == 0 || w.instances[id].held > 0 {
		return true
	}
	w.instances[id].confidence, w.instances[id].room = confidence, int(room)
	w.run++
	for pairs := body[recordHead:]; len(pairs) > 0; pairs = pairs[:len(pairs)-recordPair] {
		last := pairs[len(pairs)-recordPair:]
		w.put(id, binary.LittleEndian.Uint64(last), 1<<min(last[8], 15))
	}
	return true
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
