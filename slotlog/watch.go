package slotlog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookEvery is how often each file is looked at when no event comes: on network
// file systems, after events were lost, without a watch left to have.
const lookEvery = time.Second

// watcher wakes tails when something happens to their files, and all of them each
// second. All sources of a process share one, since a system has few to give (128 on
// most Linux systems).
//
// It has two goroutines while anybody uses it: one hands on events and seconds, the
// other adds watches, because adding one asks the file system, which may hang. A
// tail waits for neither.
type watcher struct {
	every time.Duration
	make  func() (*fsnotify.Watcher, error)

	mu  sync.Mutex
	run *watching // nil: nobody uses it
}

// shared is the watcher of this process.
var shared = &watcher{every: lookEvery, make: fsnotify.NewWatcher}

// watching is one life of a watcher, from the first user to the last.
type watching struct {
	events *fsnotify.Watcher // nil: none to be had
	why    error             // why not
	renew  chan struct{}     // holds one value: watches are to be added
	stop   chan struct{}
	ended  sync.WaitGroup

	mu    sync.Mutex
	users map[*wake]struct{}
	added map[string]error // by folder: how adding its watch went
}

// wake is one tail's part in a watcher.
type wake struct {
	of  *watcher
	run *watching

	// due holds a value when a look is due.
	due chan struct{}

	// The rest is guarded by run.mu.

	files   map[string]bool // whose events wake
	folders map[string]bool // that hold them
	any     bool            // whatever happens in the folders wakes
	lost    uint64          // how often events were lost
}

// join makes a wake, which leave gives back. It is due at once.
func (w *watcher) join() *wake {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run == nil {
		w.run = w.begin()
	}
	k := &wake{of: w, run: w.run, due: make(chan struct{}, 1)}
	k.signal()
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.run.users[k] = struct{}{}
	return k
}

func (w *watcher) begin() *watching {
	r := &watching{
		renew: make(chan struct{}, 1),
		stop:  make(chan struct{}),
		users: make(map[*wake]struct{}),
		added: make(map[string]error),
	}
	if r.events, r.why = w.make(); r.why != nil {
		r.events = nil
	}
	r.ended.Go(func() { r.handOn(w.every) })
	r.ended.Go(r.addAll)
	return r
}

// leave gives the wake back. The last one ends the watcher and waits for that.
func (k *wake) leave() {
	k.of.mu.Lock()
	k.run.mu.Lock()
	delete(k.run.users, k)
	last := len(k.run.users) == 0
	k.run.mu.Unlock()
	if last {
		k.of.run = nil
	}
	k.of.mu.Unlock()
	if !last {
		return
	}
	close(k.run.stop)
	k.run.ended.Wait()
	if k.run.events != nil {
		_ = k.run.events.Close()
	}
}

// watch says which files wake, all of them anew. Their folders are watched, since a
// file that is created or renamed has no watch of its own; each by its one real name,
// since the system tells events of a folder under one name only.
func (k *wake) watch(paths ...string) {
	files, folders := make(map[string]bool), make(map[string]bool)
	for _, p := range paths {
		dir := diskFiles{}.resolve(filepath.Dir(p))
		folders[dir] = true
		files[filepath.Join(dir, filepath.Base(p))] = true
	}
	k.run.mu.Lock()
	k.files, k.folders = files, folders
	k.run.mu.Unlock()
	notify(k.run.renew)
}

// widen says whether every event of the folders wakes, not only those of the names:
// a renamed file that is still read has another name now.
func (k *wake) widen(any bool) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.any = any
}

func (k *wake) signal() { notify(k.due) }

// notify puts a value into a channel that holds one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// state tells why file events do not wake, empty: they do, and how often some were
// lost.
func (k *wake) state() (why string, lost uint64) {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	if k.run.why != nil {
		return fmt.Sprintf("no file events: %v", k.run.why), k.lost
	}
	for dir := range k.folders {
		if err := k.run.added[dir]; err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf("no file events from %s: %v", dir, err), k.lost
		}
	}
	return "", k.lost
}

// handOn hands on what happens until stopped.
func (r *watching) handOn(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var events <-chan fsnotify.Event
	var errs <-chan error
	if r.events != nil {
		events, errs = r.events.Events, r.events.Errors
	}
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
			notify(r.renew) // a folder that was removed and made anew has lost its watch
			r.wakeAll(false)
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			r.wakeFor(e.Name)
		case _, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			r.wakeAll(true) // events were lost: looks find what they stood for
		}
	}
}

func (r *watching) wakeFor(name string) {
	dir := filepath.Dir(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.users {
		if k.files[name] || k.any && k.folders[dir] {
			k.signal()
		}
	}
}

func (r *watching) wakeAll(lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.users {
		if lost {
			k.lost++
		}
		k.signal()
	}
}

// addAll adds watches for all folders when asked to, until stopped.
func (r *watching) addAll() {
	for {
		select {
		case <-r.stop:
			return
		case <-r.renew:
		}
		if r.events == nil {
			continue
		}
		wanted, unwanted := r.folders()
		for _, dir := range unwanted {
			_ = r.events.Remove(dir) // gone by itself with its folder, if that is gone
		}
		for dir := range wanted {
			if r.noteAdded(dir, r.events.Add(dir)) {
				r.wakeFolder(dir) // what happened before the watch made no event
			}
		}
	}
}

// folders are those to be watched, and those that need not be any more.
func (r *watching) folders() (wanted map[string]bool, unwanted []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted = make(map[string]bool)
	for k := range r.users {
		maps.Copy(wanted, k.folders)
	}
	for dir := range r.added {
		if !wanted[dir] {
			delete(r.added, dir)
			unwanted = append(unwanted, dir)
		}
	}
	return wanted, unwanted
}

// noteAdded notes how adding a watch went, and reports whether it is new.
func (r *watching) noteAdded(dir string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.added[dir]
	r.added[dir] = err
	return err == nil && (!known || before != nil)
}

func (r *watching) wakeFolder(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.users {
		if k.folders[dir] {
			k.signal()
		}
	}
}
