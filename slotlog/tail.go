package slotlog

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"time"
)

const (
	// chunkBytes is how much is read at once, and fed under one hold of the lock.
	chunkBytes = 128 << 10

	// headBytes is how much of the beginning of an old file is read for what only
	// the start of a server prints: its port, its slots, its children.
	headBytes = 64 << 10

	// seamBytes is how much of what was read last is read again with what follows
	// it, to be sure that it does follow.
	seamBytes = 256

	// orphanGrace is how long a file that lost its name stays open after that, and
	// after its last growth: the writer of a renamed log has it open, too.
	orphanGrace = 10 * time.Second
)

var (
	// errNotRegular: the path names a directory, a pipe or a device.
	errNotRegular = errors.New("not a regular file")

	// errReplaced: the file was emptied, and maybe written again, since it was read.
	errReplaced = errors.New("the file was emptied")
)

// sink takes what a tail reads, and how the reading goes.
type sink interface {
	feed(b []byte, at time.Time, old bool)
	cut(inLine, resync bool)
	status(state FileState, err error, behind int64, whole time.Time)
}

// tail follows a path through whatever rotates it. It has no goroutine of its own
// and keeps no lock; look does all the work.
type tail struct {
	files  fileSystem
	to     sink
	path   string
	start  int64             // how much of the end of an old file is read
	news   int64             // where the end of an old file is; 0: where it ends when it is opened
	opened func(real string) // told where the file is that was opened, links followed
	now    func() time.Time  // the clock
	stop   <-chan struct{}   // closed: reading is to end
	buf    [chunkBytes]byte  // scratch

	seam   []byte     // the last bytes read of f; they end at off
	f      openedFile // nil: none
	off    int64      // where to read on in f
	hole   int64      // the offset when f was emptied, until something is read again
	lively time.Time  // when f grew or lost its name last
	orphan bool       // path names f no more
	absent bool       // path named nothing before the first open
	begun  bool       // a file was opened once: later ones are new
}

// look reads everything that is new, and notes how it went.
func (t *tail) look() {
	for t.step() {
	}
}

// step is one look at the path and what it names now. It reports whether another
// is due at once, because the file in hand changed.
func (t *tail) step() (again bool) {
	named, err := t.files.stat(t.path)
	if t.f == nil {
		if err == nil {
			err = t.open(named)
		}
		if err != nil {
			state, err := fileError(t.path, err)
			t.absent = t.absent || state == FileMissing
			t.to.status(state, err, 0, time.Time{})
			return false
		}
	}
	held, ferr := t.f.Stat()
	if ferr == nil {
		ferr = t.drain()
	}
	if ferr != nil {
		t.close()
		state, err := fileError(t.path, ferr)
		t.to.status(state, err, 0, time.Time{})
		return false
	}
	orphan := err != nil || !t.files.same(named, held)
	if orphan && !t.orphan {
		t.lively = t.now() // it may have been silent for long before it lost its name
	}
	t.orphan = orphan
	if !orphan {
		t.to.status(FileOpen, nil, 0, t.now())
		return false
	}
	if err == nil && named.Size() > 0 || t.now().Sub(t.lively) > orphanGrace {
		// The first drain may have been before the rename; nothing is missed now.
		_ = t.drain()
		t.close()
		return err == nil
	}
	state := FileOpen
	if err != nil {
		state, err = fileError(t.path, err)
	}
	t.to.status(state, err, 0, t.now())
	return false
}

// open takes the file that the path names. The first one may have been there for
// long: its end is read as old. One that appeared later is news from its start.
func (t *tail) open(named fs.FileInfo) error {
	if !named.Mode().IsRegular() {
		return errNotRegular // opening a pipe would block
	}
	f, err := t.files.open(t.path)
	if err != nil {
		return err
	}
	t.f, t.off, t.seam, t.hole, t.orphan, t.lively = f, 0, t.seam[:0], 0, false, t.now()
	t.opened(t.files.resolve(t.path))
	t.to.status(FileOpen, nil, named.Size(), time.Time{}) // before its lines show
	if t.begun || t.absent {
		t.begun = true
		return nil
	}
	if err := t.readOld(); err != nil {
		t.close()
		return err
	}
	t.begun = true
	return nil
}

// close gives the file up. Half a line of it has no other half in the next one.
func (t *tail) close() {
	_ = t.f.Close()
	t.f = nil
	t.to.cut(false, false)
}

// end gives up the file in hand, if there is one.
func (t *tail) end() {
	if t.f != nil {
		_ = t.f.Close()
	}
}

// readOld reads the end of a file that was there before us, and its beginning,
// as what was known at the time of its last change: a slot that ran when a server
// died last week is stale at once.
func (t *tail) readOld() error {
	st, err := t.f.Stat()
	if err != nil {
		return err
	}
	end, at := st.Size(), t.now()
	if t.news > 0 {
		end = min(end, t.news)
	}
	if st.ModTime().Before(at) {
		at = st.ModTime()
	}
	if end > t.start {
		if err := t.read(min(headBytes, end-t.start), at, true); err != nil {
			return t.emptied(err)
		}
		t.to.cut(true, true)
		t.off, t.seam = end-t.start-1, t.seam[:0] // a line feed there begins a whole line
	}
	return t.emptied(t.read(end, at, true))
}

// emptied begins the file in hand anew if that is what err is about.
func (t *tail) emptied(err error) error {
	if !errors.Is(err, errReplaced) {
		return err
	}
	t.rewind()
	return nil
}

// drain reads the file in hand to its end, from the start when it was emptied.
func (t *tail) drain() error {
	before := t.off
	err := t.read(1<<62, time.Time{}, false)
	for errors.Is(err, errReplaced) {
		t.rewind()
		before = 0
		err = t.read(1<<62, time.Time{}, false)
	}
	if t.off != before {
		t.lively = t.now()
	}
	return err
}

// rewind begins the file in hand anew, after it was emptied in place.
func (t *tail) rewind() {
	t.hole = max(t.hole, t.off)
	t.off, t.seam = 0, t.seam[:0]
	t.to.cut(false, false)
}

// skipHole goes on at the old offset when an emptied file holds nothing but zeros up
// to there. llama-server opens its log without O_APPEND: emptied under it, the file has
// a hole as long as the log ever was, which would take longer to read each day.
func (t *tail) skipHole(begin []byte) bool {
	hole := t.hole
	t.hole = 0
	if hole == 0 || t.off > 0 || !zeros(begin[:min(len(begin), seamBytes)]) {
		return false
	}
	// What follows a hole is written without a gap, so the end of it tells for all.
	var end [seamBytes]byte
	b := end[:min(hole, seamBytes)]
	if n, err := t.f.ReadAt(b, hole-int64(len(b))); n < len(b) && err != nil || !zeros(b) {
		return false
	}
	t.off = hole
	return true
}

func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// read feeds the file from the offset up to end or to its end, whichever comes
// first. A zero time stands for the moment of each read. What was read last is read
// again with each piece: where it differs, the piece does not follow it, and the
// error is errReplaced.
func (t *tail) read(end int64, at time.Time, old bool) error {
	for t.off < end {
		select {
		case <-t.stop:
			return nil
		default:
		}
		k := len(t.seam)
		n, err := t.f.ReadAt(t.buf[:min(chunkBytes, int64(k)+end-t.off)], t.off-int64(k))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n < k || !bytes.Equal(t.buf[:k], t.seam) {
			return errReplaced
		}
		b := t.buf[k:n]
		if len(b) == 0 {
			if st, err := t.f.Stat(); err != nil || st.Size() < t.off {
				return cmp.Or(err, errReplaced)
			}
			return nil
		}
		if t.skipHole(b) {
			continue
		}
		if !t.follows(b) {
			return errReplaced
		}
		when := at
		if when.IsZero() {
			when = t.now()
		}
		t.off += int64(len(b))
		t.seam = append(t.seam[:0], t.buf[max(0, n-seamBytes):n]...)
		t.to.feed(b, when, old)
		if n == chunkBytes {
			t.noteBehind()
		}
	}
	return nil
}

// follows reports whether b, read behind the seam, belongs to it. A file may be emptied
// and written anew while one call reads it: what comes back then is the old seam with
// new bytes behind it. Those still stand where they were read; what was there before the
// file was emptied does not.
func (t *tail) follows(b []byte) bool {
	k := len(t.seam)
	if k == 0 {
		return true
	}
	var again [seamBytes]byte
	if n, err := t.f.ReadAt(again[:k], t.off-int64(k)); n < k && err != nil || bytes.Equal(again[:n], t.seam) {
		return true
	}
	now := make([]byte, len(b))
	n, _ := t.f.ReadAt(now, t.off)
	return !bytes.Equal(now[:n], b)
}

// noteBehind says how much is left while a long read goes on.
func (t *tail) noteBehind() {
	if st, err := t.f.Stat(); err == nil {
		t.to.status(FileOpen, nil, max(0, st.Size()-t.off), time.Time{})
	}
}
