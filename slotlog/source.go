package slotlog

import (
	"sync"
	"time"
)

// SourceOptions says where a log is and how to read it. The zero value of every
// field but Path (or Target, or Args) is fit for use.
type SourceOptions struct {
	// Name is what the source is called in answers. Default: what String returns.
	Name string `json:"name,omitempty"`

	// Kind says where the log comes from. Default: SourceFile.
	Kind SourceKind `json:"kind,omitempty"`

	// Path is the whole path of a file or FIFO. It need not exist yet.
	Path string `json:"path,omitempty"`

	// Target is the name of a systemd unit, a container or a pod.
	Target string `json:"target,omitempty"`

	// Args are the words of a command, the program first.
	Args []string `json:"args,omitempty"`

	// Port is the server's port, for lines that print none. Default: that of the
	// last `listening on` line, else 1.
	Port int `json:"port,omitempty"`

	// StartBytes is how much of the end of a file that is already there is read,
	// besides as much as 64 KiB of its beginning. Default: 1 MiB.
	StartBytes int64 `json:"start_bytes,omitempty"`

	// NewsFrom is the offset, in a file that is already there, from which its lines are
	// news: for who has read what stands before. Default: its size when it is opened.
	NewsFrom int64 `json:"news_from,omitempty"`

	// MaxLine is how many bytes of a line are looked at. Default: 64 KiB.
	MaxLine int `json:"max_line,omitempty"`
}

func (o SourceOptions) withDefaults() SourceOptions {
	if o.Kind == "" {
		o.Kind = SourceFile
	}
	if o.Name == "" {
		o.Name = o.String()
	}
	if o.StartBytes <= 0 {
		o.StartBytes = 1 << 20
	}
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	return o
}

// Source follows one log. All methods may be called from any goroutine.
type Source struct {
	o    SourceOptions
	stop chan struct{}
	done chan struct{}
	once sync.Once

	// mu guards everything below. Nothing is called under it but the reader and
	// the tracker.
	mu       sync.Mutex
	reader   *Reader
	tracker  *Tracker
	subs     map[chan struct{}]int // by channel: how many want it told
	owed     int64                 // generated tokens that the tracker no longer has
	behind   int64
	lastLine time.Time
	lookedAt time.Time
	file     FileState
	err      error

	resyncs, overflows, restarts uint64
	noEvents                     string
	seed                         SeedNote
}

// Open begins to follow a log. It never fails: a log that is missing or cannot be
// read, and options that [SourceOptions.Check] refuses, show in snapshots; what can
// come later is looked for until Close. What a file holds at the start sets slot
// states, but its tokens are not counted. Other sources begin with the lines that are
// written from then on.
func Open(o SourceOptions) *Source {
	return openWith(o, shared, diskFiles{})
}

// openWith is Open with another watcher and file system.
func openWith(o SourceOptions, w *watcher, files fileSystem) *Source {
	o = o.withDefaults()
	s := &Source{
		o:       o,
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
		reader:  NewReader(o),
		tracker: NewTracker(),
		subs:    make(map[chan struct{}]int),
		file:    FilePending,
	}
	go func() {
		defer close(s.done)
		s.run(w, files)
	}()
	return s
}

// run follows the log until the source is closed.
func (s *Source) run(w *watcher, files fileSystem) {
	if err := s.o.Check(); err != nil {
		s.status(FileUnreadable, err, 0, time.Time{})
		return
	}
	if s.o.Kind == SourceFile {
		s.follow(w, files)
		return
	}
	newStream(s.o, s, s.stop).run()
}

// follow keeps looking at a file whenever a look is due.
func (s *Source) follow(w *watcher, files fileSystem) {
	k := w.join()
	defer k.leave()
	k.watch(s.o.Path)
	t := &tail{
		files: files, to: s, path: s.o.Path, start: s.o.StartBytes, news: s.o.NewsFrom, now: time.Now, stop: s.stop,
		opened: func(real string) { k.watch(s.o.Path, real) },
	}
	defer t.end()
	for {
		select {
		case <-s.stop:
			return
		case <-k.due:
		}
		select {
		case <-s.stop: // after a look that hung, the next one would hang too
			return
		default:
		}
		t.look()
		k.widen(t.orphan)
		s.watched(k.state())
	}
}

// closeLimit is how long Close waits for a call of the file system to return.
const closeLimit = 2 * time.Second

// Close stops following the log and waits until that is done, but no longer than 2 s:
// a call of a file system whose server is gone may not return. The goroutine that
// follows the log then ends by itself once the call does. It always returns nil.
func (s *Source) Close() error {
	s.once.Do(func() { close(s.stop) })
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
	}
	return nil
}

// Subscribe returns a channel that gets a value when there is a newer Snapshot
// than the last value stood for; several changes may make one value. The first
// value is there at once. cancel ends it; the channel is not closed.
func (s *Source) Subscribe() (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	return c, s.Notify(c)
}

// Notify is Subscribe with a channel of the caller's, which should hold one value and
// may be that of several sources. Nobody waits for it to be read.
func (s *Source) Notify(c chan struct{}) (cancel func()) {
	notify(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs[c]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.subs[c]--; s.subs[c] == 0 {
			delete(s.subs, c)
		}
	}
}

// TakeGeneratedTokens returns the tokens generated since the last call; see
// [Tracker.TakeGeneratedTokens]. One caller alone should take them.
func (s *Source) TakeGeneratedTokens() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.owed + s.tracker.TakeGeneratedTokens()
	s.owed = 0
	return n
}

// TakeRecords returns the tasks that ended since the last call; see
// [Tracker.TakeRecords]. One caller alone should take them.
func (s *Source) TakeRecords() []RequestRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tracker.TakeRecords()
}

// feed takes the next bytes of the log. Old bytes are from before the start.
func (s *Source) feed(b []byte, at time.Time, old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.reader.Stats().Lines
	s.reader.FeedTo(s.tracker, b, at)
	if s.reader.Stats().Lines != lines {
		s.lastLine = at
	}
	if old {
		s.tracker.TakeGeneratedTokens()
		s.tracker.TakeRecords()
		s.tracker.TakeRecords() // those that waited for their timings
	}
	s.signal()
}

// cut tells the reader that the stream broke. With resync what the slots do is not
// known any more, either.
func (s *Source) cut(inLine, resync bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs++
	s.reader.Cut(inLine)
	if resync {
		s.owed += s.tracker.TakeGeneratedTokens() // which Resync drops
		s.tracker.Resync()
		s.signal()
	}
}

// restarted notes that a stream is opened once more.
func (s *Source) restarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts++
}

// watched notes why file events do not come, and how often some were lost.
func (s *Source) watched(why string, lost uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noEvents != why || s.overflows != lost {
		s.noEvents, s.overflows = why, lost
		s.signal()
	}
}

// status notes how the last look at the log went.
func (s *Source) status(f FileState, err error, behind int64, whole time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.file != f || (s.err == nil) != (err == nil) || s.behind != behind
	s.file, s.err, s.behind = f, err, behind
	if !whole.IsZero() {
		changed = changed || s.lookedAt.IsZero()
		s.lookedAt = whole
	}
	if changed {
		s.signal()
	}
}

// signal is called under mu.
func (s *Source) signal() {
	for c := range s.subs {
		notify(c)
	}
}
