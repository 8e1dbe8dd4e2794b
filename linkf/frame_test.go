package linkf

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

func mustFrame(t *testing.T, typ Type, seq uint64, payload []byte) []byte {
	t.Helper()
	b, err := appendFrame(nil, typ, seq, payload)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFramesComeOutWhereverTheBytesWereCut(t *testing.T) {
	stream := mustFrame(t, typeAck, 1, []byte("one"))
	stream = append(stream, mustFrame(t, typeKeepalive, 2, nil)...)
	stream = append(stream, mustFrame(t, typeEvents, 1<<63, bytes.Repeat([]byte{7}, maxPayload))...)
	for _, size := range []int{1, 3, 17, len(stream)} {
		var d decoder
		var got []frame
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			d.feed(rest[:n])
			rest = rest[n:]
			for {
				f, ok, err := d.next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				f.payload = bytes.Clone(f.payload)
				got = append(got, f)
			}
		}
		if len(got) != 3 || got[0].typ != typeAck || string(got[0].payload) != "one" || got[1].typ != typeKeepalive ||
			got[2].seq != 1<<63 || len(got[2].payload) != maxPayload {
			t.Errorf("cut every %d bytes: got %d frames, want the three that were sent", size, len(got))
		}
		if left := len(d.buf) - d.off; left != 0 {
			t.Errorf("cut every %d bytes: %d bytes are left, want none", size, left)
		}
	}
}

// A length that is not allowed is seen from its four bytes, before anything is kept.
func TestLengthThatIsNotAllowedEndsTheStream(t *testing.T) {
	for _, n := range []uint32{0, afterLen - 1, MaxFrame + 1, 1<<32 - 1} {
		var d decoder
		d.feed(binary.LittleEndian.AppendUint32(nil, n))
		if _, ok, err := d.next(); ok || err == nil {
			t.Errorf("length %d: got frame %v, error %v, want an error", n, ok, err)
		}
	}
}

func TestPayloadThatIsTooLargeIsNotSent(t *testing.T) {
	if _, err := appendFrame(nil, typeAck, 1, make([]byte, maxPayload+1)); err == nil || !strings.Contains(err.Error(), "ack") {
		t.Errorf("got %v, want an error that names the frame", err)
	}
}

// What is not whole is kept, and not more.
func TestDecoderKeepsOneFrame(t *testing.T) {
	var d decoder
	tiny := mustFrame(t, typeKeepalive, 1, nil)
	for range 200_000 {
		d.feed(tiny)
		if _, ok, err := d.next(); !ok || err != nil {
			t.Fatalf("got %v, %v, want a frame", ok, err)
		}
	}
	if cap(d.buf) > 4096 {
		t.Errorf("after many frames %d bytes are kept, want a few", cap(d.buf))
	}
}

func TestUnknownFramesAreSkippedOnlyIfTheyMayBe(t *testing.T) {
	w := &wire{}
	data := mustFrame(t, 0x8FFF, 1, []byte{0xFF})
	data = append(data, mustFrame(t, typeKeepalive, 2, []byte{0xA0})...)
	n := 0
	count := func(f frame) error {
		n++
		_, err := w.common(f)
		return err
	}
	if err := w.read(data, 0, count); err != nil || n != 2 {
		t.Errorf("a droppable unknown frame: got %d frames, %v; want 2 and no error", n, err)
	}
	if err := w.read(mustFrame(t, 0x0FFF, 3, nil), 0, count); err == nil {
		t.Error("a required unknown frame: got no error, want one")
	}
}

func TestRepeatedFrameHasNoEffectAndMissingOneIsSeen(t *testing.T) {
	w := &wire{}
	n := 0
	count := func(frame) error { n++; return nil }
	one, three := mustFrame(t, typeAck, 1, nil), mustFrame(t, typeAck, 3, nil)
	if err := w.read(append(bytes.Clone(one), one...), 0, count); err != nil || n != 1 {
		t.Errorf("a frame twice: got %d, %v; want it once", n, err)
	}
	if err := w.read(three, 0, count); err == nil || n != 1 {
		t.Errorf("frame 3 after 1: got %d frames, %v; want an error", n, err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x0a\x00\x00\x00\x01\x80\x01\x00\x00\x00\x00\x00\x00\x00"), 3)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		at = int(uint(at) % uint(len(data)+1))
		whole, cut := frames(data), frames(data[:at], data[at:])
		if len(whole) != len(cut) {
			t.Fatalf("in one piece %d frames, in two %d", len(whole), len(cut))
		}
		for i := range whole {
			if !bytes.Equal(whole[i], cut[i]) {
				t.Fatalf("frame %d differs by where the bytes were cut", i)
			}
		}
	})
}

// frames reads all frames and writes each again.
func frames(parts ...[]byte) (out [][]byte) {
	var d decoder
	for _, p := range parts {
		d.feed(p)
		for {
			f, ok, err := d.next()
			if err != nil || !ok {
				break
			}
			b, err := appendFrame(nil, f.typ, f.seq, f.payload)
			if err != nil {
				panic(err)
			}
			out = append(out, b)
		}
	}
	return out
}
