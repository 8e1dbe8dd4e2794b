package llamacpp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestAnswerTakesOnlyMemoryThatThereIsRoomFor(t *testing.T) {
	sent := bytes.Repeat([]byte("x"), 100_000)
	for _, size := range []int64{-1, int64(len(sent)), 10} {
		var asked int64
		got, full, err := readReply(iotest.HalfReader(bytes.NewReader(sent)), size, func(n int64) error { asked = n; return nil })
		if !bytes.Equal(got, sent) || full != nil || err != nil || int64(cap(got)) != asked {
			t.Errorf("size %d: got %d bytes in %d, %v, %v, want %d in %d", size, len(got), cap(got), full, err, len(sent), asked)
		}
		none := errors.New("no room")
		got, full, err = readReply(bytes.NewReader(sent), size, func(n int64) error {
			if n > 50_000 {
				return none
			}
			return nil
		})
		if got != nil || full != none || err != nil {
			t.Errorf("size %d: got %d bytes, %v, %v, want %v", size, len(got), full, err, none)
		}
	}
	got, full, err := readReply(io.MultiReader(bytes.NewReader(sent), iotest.ErrReader(io.ErrUnexpectedEOF)), -1, nil)
	if len(got) != len(sent) || full != nil || err != io.ErrUnexpectedEOF {
		t.Errorf("got %d bytes, %v, %v, want %d and %v", len(got), full, err, len(sent), io.ErrUnexpectedEOF)
	}
}
