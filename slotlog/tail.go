package slotlog

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

const (
	// chunkBytes is how much is read at once, and fed under one hold of the lock.
	chunkBytes = 128 << 10

	// headBytes is how much of the beginning of an old file is read for what only
	// the start of a server prints: its port, its slots, its children.
	headBytes = 64 << 10

	// printBytes is how much of a file's beginning tells it from another one.
	printBytes = 256

	// orphanGrace is how long a file that lost its name stays open after its last
	// growth: the writer of a renamed log has it open, too.
	orphanGrace = 10 * time.Second
)

// errNotRegular: the path names a directory, a pipe or a device.
var errNotRegular = errors.New("not a regular file")

// tail follows a path through whatever rotates it. It has no goroutine of its own
// and keeps no lock; look does all the work.
type tail struct {
	s    *Source
	path string
	buf  []byte

	f     *os.File
	off   int64
	print []byte // the first bytes of f, as far as they were read
	hole  int64  // the offset when f was emptied, until something is read again

	grown   time.Time // when f last grew
	orphan  bool      // path names f no more
	missing bool      // path named nothing before the first open
	started bool      // a file was opened once: later ones are new
}

// look reads everything that is new, and notes how it went.
func (t *tail) look() {
	for t.step() {
	}
}

// step is one look at the path and what it names now. It reports whether another
// is due at once, because the file in hand changed.
func (t *tail) step() (again bool) {
	named, err := os.Stat(t.path)
	if t.f == nil {
		if err == nil {
			err = t.open(named)
		}
		if err != nil {
			state, err := fileError(t.path, err)
			t.missing = t.missing || state == FileMissing
			t.s.status(state, err, 0, time.Time{})
			return false
		}
	}
	held, ferr := t.f.Stat()
	if ferr == nil {
		ferr = t.drain(held)
	}
	if ferr != nil {
		t.close()
		state, err := fileError(t.path, ferr)
		t.s.status(state, err, 0, time.Time{})
		return false
	}
	t.orphan = err != nil || !os.SameFile(named, held)
	if !t.orphan {
		t.s.status(FileOpen, nil, 0, time.Now())
		return false
	}
	if err == nil && named.Size() > 0 || time.Since(t.grown) > orphanGrace {
		// The first drain may have been before the rename; nothing is missed now.
		if held, ferr = t.f.Stat(); ferr == nil {
			_ = t.drain(held)
		}
		t.close()
		return err == nil
	}
	state := FileOpen
	if err != nil {
		state, err = fileError(t.path, err)
	}
	t.s.status(state, err, 0, time.Now())
	return false
}

// open takes the file that the path names. The first one may have been there for
// long: its end is read as old. One that appeared later is news from its start.
func (t *tail) open(named os.FileInfo) error {
	if !named.Mode().IsRegular() {
		return errNotRegular // opening a pipe would block
	}
	f, err := os.Open(t.path)
	if err != nil {
		return err
	}
	t.f, t.off, t.print, t.hole, t.orphan, t.grown = f, 0, t.print[:0], 0, false, time.Now()
	t.s.status(FileOpen, nil, named.Size(), time.Time{}) // before its lines show
	if t.started || t.missing {
		t.started = true
		return nil
	}
	if err := t.readOld(); err != nil {
		t.close()
		return err
	}
	t.started = true
	return nil
}

// close gives the file up. Half a line of it has no other half in the next one.
func (t *tail) close() {
	_ = t.f.Close()
	t.f = nil
	t.s.cut(false, false)
}

// readOld reads the end of a file that was there before us, and its beginning,
// as what was known at the time of its last change: a slot that ran when a server
// died last week is stale at once.
func (t *tail) readOld() error {
	st, err := t.f.Stat()
	if err != nil {
		return err
	}
	end, at := st.Size(), time.Now()
	if st.ModTime().Before(at) {
		at = st.ModTime()
	}
	if end <= t.s.o.StartBytes {
		return t.read(end, at, true)
	}
	if err := t.read(min(headBytes, end-t.s.o.StartBytes), at, true); err != nil {
		return err
	}
	t.s.cut(true, true)
	t.off = end - t.s.o.StartBytes - 1 // a line feed there begins a whole line
	return t.read(end, at, true)
}

// drain reads the file in hand to its end, from the start when it was emptied.
func (t *tail) drain(st os.FileInfo) error {
	if st.Size() < t.off {
		t.rewind()
	}
	changed, err := t.replaced()
	if err != nil {
		return err
	}
	if changed {
		t.rewind()
	}
	before := t.off
	if err := t.read(1<<62, time.Time{}, false); err != nil {
		return err
	}
	if t.off != before {
		t.grown = time.Now()
	}
	return nil
}

// rewind begins the file in hand anew, after it was emptied in place.
func (t *tail) rewind() {
	t.hole = max(t.hole, t.off)
	t.off, t.print = 0, t.print[:0]
	t.s.cut(false, false)
}

// skipHole goes on at the old offset when what was read at the beginning of an
// emptied file is nothing but zeros. llama-server opens its log without O_APPEND:
// emptied under it, the file has a hole as long as the log ever was, which would
// take longer to read each day.
func (t *tail) skipHole(begin []byte) bool {
	hole := t.hole
	t.hole = 0
	if hole == 0 || t.off > 0 || len(bytes.Trim(begin[:min(len(begin), printBytes)], "\x00")) > 0 {
		return false
	}
	// Asked only now: the write that made the hole may have come after the last look.
	if st, err := t.f.Stat(); err != nil || st.Size() < hole {
		return false
	}
	t.off = hole
	return true
}

// replaced reports whether the bytes at the file's beginning are others than
// before, although it is not shorter: it was emptied and written again between
// two looks.
func (t *tail) replaced() (bool, error) {
	var buf [printBytes]byte
	want := min(t.off, printBytes)
	if want == 0 {
		return false, nil
	}
	n, err := t.f.ReadAt(buf[:want], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	now := buf[:n]
	if len(now) < len(t.print) {
		return true, nil // emptied since we asked for its size
	}
	same := bytes.Equal(now[:len(t.print)], t.print)
	t.print = append(t.print[:0], now...)
	return !same, nil
}

// read feeds the file from the offset up to end or to its end, whichever comes
// first. A zero time stands for the moment of each read.
func (t *tail) read(end int64, at time.Time, old bool) error {
	for t.off < end {
		select {
		case <-t.s.stop:
			return nil
		default:
		}
		n, err := t.f.ReadAt(t.buf[:min(int64(len(t.buf)), end-t.off)], t.off)
		if n > 0 && t.skipHole(t.buf[:n]) {
			continue
		}
		if n > 0 {
			when := at
			if when.IsZero() {
				when = time.Now()
			}
			t.notePrint(t.buf[:n])
			t.off += int64(n)
			t.s.feed(t.buf[:n], when, old)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == len(t.buf) {
			t.noteBehind()
		}
	}
	return nil
}

// notePrint remembers the beginning of the file from the bytes just read at the
// offset, before anybody can change it again.
func (t *tail) notePrint(b []byte) {
	if t.off == int64(len(t.print)) && t.off < printBytes {
		t.print = append(t.print, b[:min(len(b), printBytes-len(t.print))]...)
	}
}

// noteBehind says how much is left while a long read goes on.
func (t *tail) noteBehind() {
	if st, err := t.f.Stat(); err == nil {
		t.s.status(FileOpen, nil, max(0, st.Size()-t.off), time.Time{})
	}
}
