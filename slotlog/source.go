package slotlog

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"
)

// SourceOptions says where a log is and how to read it. The zero value of every
// field but Path is fit for use.
type SourceOptions struct {
	// Name is what the source is called in answers. Default: Path.
	Name string `json:"name,omitempty"`

	// Path is the log file. It need not exist yet.
	Path string `json:"path,omitempty"`

	// Port is the server's port, for lines that print none. Default: that of the
	// last `listening on` line, else 1.
	Port int `json:"port,omitempty"`

	// StartBytes is how much of the end of a file that is already there is read,
	// besides as much as 64 KiB of its beginning. Default: 1 MiB.
	StartBytes int64 `json:"start_bytes,omitempty"`

	// MaxLine is how many bytes of a line are looked at. Default: 64 KiB.
	MaxLine int `json:"max_line,omitempty"`

	// LookEvery is how often the file is looked at when no file event comes, as
	// on network file systems. Default: 1 s.
	LookEvery time.Duration `json:"look_every,omitempty"`

	// NoFileEvents leaves file events unused. Default: false.
	NoFileEvents bool `json:"no_file_events,omitempty"`
}

func (o SourceOptions) withDefaults() SourceOptions {
	if o.Name == "" {
		o.Name = o.Path
	}
	if o.StartBytes <= 0 {
		o.StartBytes = 1 << 20
	}
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	if o.LookEvery <= 0 {
		o.LookEvery = time.Second
	}
	return o
}

// FileState says whether the log can be read.
type FileState string

// The states of a log file. FilePending is that of a source which has not looked yet.
const (
	FilePending    FileState = "pending"
	FileOpen       FileState = "open"
	FileMissing    FileState = "missing"
	FileUnreadable FileState = "unreadable"
)

// PortState is one llama-server of a source.
type PortState struct {
	// Port is the server's port; 1 when the log never said it.
	Port int `json:"port"`

	// Model is the router's name for what it serves, when the log said so.
	Model string `json:"model,omitempty"`

	// Lanes is how many slots the server has, when the log said so.
	Lanes int `json:"lanes,omitempty"`

	// LaneContext is the context of each slot in tokens, when the log said so.
	LaneContext int64 `json:"lane_context,omitempty"`

	// KVUnified says whether the slots share one context of LaneContext tokens; nil:
	// the log did not say.
	KVUnified *bool `json:"kv_unified,omitempty"`

	// Slots are the slots that are known, by id.
	Slots []Slot `json:"slots"`
}

// Snapshot is what a source knows at one moment. It is a copy: nothing changes it.
type Snapshot struct {
	// Name is the source's name.
	Name string `json:"name"`

	// Ports are the servers that write to the log, by port.
	Ports []PortState `json:"ports"`

	// Lines, Unknown and Bytes count what was read since the source was opened.
	Lines   uint64 `json:"lines"`
	Unknown uint64 `json:"unknown"`
	Bytes   uint64 `json:"bytes"`

	// Behind is how many bytes of the file were not read yet at the last look.
	Behind int64 `json:"behind"`

	// LastLine is when the last line was written, as far as that is known: when it
	// was read, or for lines from before the start the file's own time. Zero: no line.
	LastLine time.Time `json:"last_line,omitzero"`

	// LookedAt is when the file was last read to its end. Zero: never.
	LookedAt time.Time `json:"looked_at,omitzero"`

	// File says whether the log can be read, and Err why not; Error is its text.
	File  FileState `json:"file"`
	Err   error     `json:"-"`
	Error string    `json:"error,omitempty"`

	// Degraded says that the slots above may be missing or old; Reason says why.
	Degraded bool   `json:"degraded"`
	Reason   string `json:"reason,omitempty"`
}

// Source follows one log file. All methods may be called from any goroutine.
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
	apply    func(Event) // made once: a method value allocates
	children map[int]child
	subs     map[chan struct{}]struct{}
	behind   int64
	lastLine time.Time
	lookedAt time.Time
	file     FileState
	err      error
}

// child is what the log says of a server besides its slots.
type child struct {
	model   string
	lanes   int
	context int64
	pool    Pool
}

// Open begins to follow a log. It never fails: a file that is missing or cannot
// be read is looked for until Close, and snapshots say so. What the file holds at
// the start sets slot states, but its tokens are not counted. Path may be a
// symbolic link; then changes are seen every LookEvery only, since file events
// come from the folder of the path.
func Open(o SourceOptions) *Source {
	o = o.withDefaults()
	s := &Source{
		o:        o,
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
		reader:   NewReader(o),
		tracker:  NewTracker(),
		children: make(map[int]child),
		subs:     make(map[chan struct{}]struct{}),
		file:     FilePending,
	}
	s.apply = s.applyEvent
	go s.run()
	return s
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

// Snapshot returns what is known at now.
func (s *Source) Snapshot(now time.Time) Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.reader.Stats()
	out := Snapshot{
		Name: s.o.Name, Ports: []PortState{},
		Lines: st.Lines, Unknown: st.Unknown, Bytes: st.Bytes,
		Behind: s.behind, LastLine: s.lastLine, LookedAt: s.lookedAt,
		File: s.file, Err: s.err,
	}
	ports := s.tracker.Ports()
	for port := range s.children {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		c := s.children[port]
		out.Ports = append(out.Ports, PortState{
			Port: port, Model: c.model, Lanes: c.lanes, LaneContext: c.context,
			KVUnified: c.pool.unified(), Slots: s.tracker.Resolve(port, now),
		})
	}
	switch {
	case s.err != nil:
		out.Error = s.err.Error()
		out.Degraded, out.Reason = true, out.Error
	case s.reader.Degraded():
		out.Degraded = true
		out.Reason = fmt.Sprintf("most lines of %s are not understood: is it the log of a llama-server?", s.o.Path)
	}
	return out
}

// Subscribe returns a channel that gets a value when there is a newer Snapshot
// than the last value stood for; several changes may make one value. The first
// value is there at once. cancel ends it; the channel is not closed.
func (s *Source) Subscribe() (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	c <- struct{}{}
	s.mu.Lock()
	s.subs[c] = struct{}{}
	s.mu.Unlock()
	return c, func() {
		s.mu.Lock()
		delete(s.subs, c)
		s.mu.Unlock()
	}
}

// TakeGeneratedTokens returns the tokens generated since the last call; see
// [Tracker.TakeGeneratedTokens]. One caller alone should take them.
func (s *Source) TakeGeneratedTokens() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tracker.TakeGeneratedTokens()
}

// feed takes the next bytes of the file. Old bytes are from before the start.
func (s *Source) feed(b []byte, at time.Time, old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.reader.Stats().Lines
	s.reader.Feed(b, at, s.apply)
	if s.reader.Stats().Lines != lines {
		s.lastLine = at
	}
	if old {
		s.tracker.TakeGeneratedTokens()
	}
	s.signal()
}

// cut tells the reader that the stream broke.
func (s *Source) cut(inLine, resync bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reader.Cut(inLine)
	if resync {
		s.tracker.Resync()
	}
}

// status notes how the last look at the file went.
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
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// applyEvent is what the reader emits to, under mu.
func (s *Source) applyEvent(e Event) {
	switch e.Kind {
	case KindModel:
		c := s.children[e.Port]
		c.model = e.Model
		s.children[e.Port] = c
	case KindLanes:
		c := s.children[e.Port]
		c.lanes, c.context, c.pool = e.Lanes, e.Tokens, e.Pool
		s.children[e.Port] = c
	case KindGone:
		delete(s.children, e.Port)
	}
	s.tracker.Apply(e)
}

func (p Pool) unified() *bool {
	if p == PoolUnknown {
		return nil
	}
	return new(p == PoolShared)
}

// fileError names the state that an error of the file system means.
func fileError(path string, err error) (FileState, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return FileMissing, fmt.Errorf("log %s does not exist: %w", path, err)
	}
	return FileUnreadable, fmt.Errorf("reading log %s: %w", path, err)
}
