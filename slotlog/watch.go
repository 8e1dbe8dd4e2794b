package slotlog

import (
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// run follows the file until stopped. File events wake it at once; a look every
// second stands in for those that never come (network file systems, a full queue,
// no watch left to have, a folder that does not exist yet).
func (s *Source) run() {
	defer close(s.done)
	t := &tail{s: s, path: s.o.Path, buf: make([]byte, chunkBytes)}
	defer func() {
		if t.f != nil {
			_ = t.f.Close()
		}
	}()
	w := newWatch(s.o)
	defer w.close()
	tick := time.NewTicker(s.o.LookEvery)
	defer tick.Stop()
	for {
		// The watch comes before the look: what is written after it makes an event.
		w.renew()
		t.look()
		if !w.wait(s.stop, tick.C, t) {
			return
		}
	}
}

// watch wakes a source when something happens to its file. It watches the folder,
// since a file that is created or renamed has no watch of its own.
type watch struct {
	dir    string
	base   string
	w      *fsnotify.Watcher // nil: no events to be had
	events <-chan fsnotify.Event
	errors <-chan error
}

func newWatch(o SourceOptions) *watch {
	w := &watch{dir: filepath.Dir(o.Path), base: filepath.Base(o.Path)}
	if o.NoFileEvents {
		return w
	}
	// Without a watcher (the system's limit is 128 by default) the look each second
	// is enough to be right, if not to be quick.
	if fw, err := fsnotify.NewWatcher(); err == nil {
		w.w, w.events, w.errors = fw, fw.Events, fw.Errors
	}
	return w
}

func (w *watch) close() {
	if w.w != nil {
		_ = w.w.Close()
	}
}

// renew watches the folder, again if need be: a folder that was removed and made
// anew has lost its watch. Adding a watch that exists costs one system call.
func (w *watch) renew() {
	if w.w != nil {
		_ = w.w.Add(w.dir) // fails while the folder is missing; the next look tries again
	}
}

// wait returns true when a look is due, false when the source is to stop, even if
// both are so: after a look that hung, the next one would hang too.
func (w *watch) wait(stop <-chan struct{}, tick <-chan time.Time, t *tail) bool {
	select {
	case <-stop:
		return false
	default:
	}
	for {
		select {
		case <-stop:
			return false
		case <-tick:
			return true
		case e, ok := <-w.events:
			if !ok {
				w.events = nil
				continue
			}
			// A renamed file that is still read has another name now.
			if filepath.Base(e.Name) == w.base || t.orphan {
				w.collect()
				return true
			}
		case _, ok := <-w.errors:
			if !ok {
				w.errors = nil
				continue
			}
			return true // events were lost; the look finds what they stood for
		}
	}
}

// collect takes the events that wait already: one look answers them all.
func (w *watch) collect() {
	for {
		select {
		case _, ok := <-w.events:
			if !ok {
				w.events = nil
				return
			}
		default:
			return
		}
	}
}
