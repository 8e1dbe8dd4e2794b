package linkf

import (
	"encoding/binary"
	"fmt"
)

// Type says what a frame carries. The top bit marks a frame that a peer which does
// not know the type may skip; any other unknown type ends the link.
type Type uint16

// Droppable is the bit of a type that may be skipped.
const Droppable Type = 0x8000

const (
	headerLen = 14 // length, type, sequence
	afterLen  = 10 // what of the header the length counts

	// MaxFrame is the most that a frame's length may say, in bytes: type, sequence
	// and payload. What is larger travels as a transfer.
	MaxFrame = 256 << 10

	// maxPayload is what that leaves for the payload.
	maxPayload = MaxFrame - afterLen
)

// frame is one message on the wire.
type frame struct {
	typ     Type
	seq     uint64
	payload []byte // valid until the decoder is fed again
}

// appendFrame writes a frame behind b.
func appendFrame(b []byte, t Type, seq uint64, payload []byte) ([]byte, error) {
	if len(payload) > maxPayload {
		return b, fmt.Errorf("a %s frame of %d bytes: at most %d fit", t, len(payload), maxPayload)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(afterLen+len(payload)))
	b = binary.LittleEndian.AppendUint16(b, uint16(t))
	b = binary.LittleEndian.AppendUint64(b, seq)
	return append(b, payload...), nil
}

// decoder cuts a stream of bytes into frames, wherever the stream was split. It holds
// at most one frame that is not whole and what was fed last.
type decoder struct {
	buf []byte
	off int
}

// feed adds bytes. The payloads of frames that next gave before are not valid any more.
func (d *decoder) feed(p []byte) {
	if d.off > 0 {
		n := copy(d.buf, d.buf[d.off:])
		d.buf, d.off = d.buf[:n], 0
	}
	if len(d.buf) == 0 {
		d.buf = fitted(d.buf, len(p))
	}
	d.buf = append(d.buf, p...)
}

// next returns the next whole frame. An error is final: what follows cannot be read.
func (d *decoder) next() (f frame, ok bool, err error) {
	b := d.buf[d.off:]
	if len(b) < 4 {
		return frame{}, false, nil
	}
	n := binary.LittleEndian.Uint32(b)
	if n < afterLen || n > MaxFrame {
		return frame{}, false, fmt.Errorf("a frame says it is %d bytes long: %d to %d are allowed", n, afterLen, MaxFrame)
	}
	whole := 4 + int(n)
	if len(b) < whole {
		return frame{}, false, nil
	}
	d.off += whole
	return frame{
		typ:     Type(binary.LittleEndian.Uint16(b[4:])),
		seq:     binary.LittleEndian.Uint64(b[6:]),
		payload: b[headerLen:whole:whole],
	}, true, nil
}
