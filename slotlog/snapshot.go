package slotlog

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// FileState says whether the log can be read.
type FileState string

// The states of a log. FilePending is that of a source which has not looked yet;
// FileEnded that of a program or a standard input that gives no more.
const (
	FilePending    FileState = "pending"
	FileOpen       FileState = "open"
	FileMissing    FileState = "missing"
	FileUnreadable FileState = "unreadable"
	FileEnded      FileState = "ended"
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

	// Server and Details are what else the log says of the server and of each slot.
	Server  ServerDetail `json:"server"`
	Details []Detail     `json:"details"`
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

	// Long is how many lines were longer than what is looked at of one.
	Long uint64 `json:"long"`

	// Behind is how many bytes of the file were not read yet at the last look.
	Behind int64 `json:"behind"`

	// Resyncs is how often the lines stopped following each other: the file was
	// emptied or gave way to another one, or a program was started again.
	Resyncs uint64 `json:"resyncs"`

	// Overflows is how often the system dropped file events; a look at the file made
	// up for each.
	Overflows uint64 `json:"overflows"`

	// Restarts is how often a program was started again, or a FIFO opened again.
	Restarts uint64 `json:"restarts"`

	// NoEvents says why file events do not wake the source, which then looks at its
	// file once a second. Empty: they do, or it is no file.
	NoEvents string `json:"no_events,omitempty"`

	// LastLine is when the last line was written, as far as that is known: when it
	// was read, or for lines from before the start the file's own time. Zero: no line.
	LastLine time.Time `json:"last_line,omitzero"`

	// LookedAt is when the log was last read to its end. Zero: never.
	LookedAt time.Time `json:"looked_at,omitzero"`

	// File says whether the log can be read, and Err why not; Error is its text.
	File  FileState `json:"file"`
	Err   error     `json:"-"`
	Error string    `json:"error,omitempty"`

	// OwnPort is the port of the server whose lines print none.
	OwnPort int `json:"own_port"`

	// Seed says how the last read of the server's /slots went, if there was one.
	Seed SeedNote `json:"seed,omitzero"`

	// Degraded says that the slots above may be missing or old; Reason says why.
	Degraded bool   `json:"degraded"`
	Reason   string `json:"reason,omitempty"`
}

// Report returns all that is known at now, by port. A router has no slots of its own
// and is left out once it has children.
func (t *Tracker) Report(now time.Time) []PortState {
	out := []PortState{}
	for _, port := range t.Servers() {
		d := t.Server(port)
		if len(d.Children) > 0 {
			continue
		}
		out = append(out, PortState{
			Port: port, Model: d.Model, Lanes: d.Lanes, LaneContext: d.LaneContext, KVUnified: d.KVUnified,
			Slots: t.Resolve(port, now), Server: d, Details: t.Details(port, now),
		})
	}
	return out
}

// Snapshot returns what is known at now.
func (s *Source) Snapshot(now time.Time) Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.reader.Stats()
	out := Snapshot{
		Name: s.o.Name, Ports: s.tracker.Report(now),
		Lines: st.Lines, Unknown: st.Unknown, Bytes: st.Bytes, Long: st.Long,
		Behind: s.behind, LastLine: s.lastLine, LookedAt: s.lookedAt,
		Resyncs: s.resyncs, Overflows: s.overflows, Restarts: s.restarts, NoEvents: s.noEvents,
		File: s.file, Err: s.err, OwnPort: s.reader.ownPort, Seed: s.seed,
	}
	switch {
	case s.err != nil:
		out.Error = s.err.Error()
		out.Degraded, out.Reason = true, out.Error
	case s.reader.Degraded():
		out.Degraded = true
		out.Reason = fmt.Sprintf("most lines of %s are not understood: is it the log of a llama-server?", s.o)
	}
	return out
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
