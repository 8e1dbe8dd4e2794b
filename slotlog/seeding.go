package slotlog

import (
	"maps"
	"slices"
	"time"
)

// SeedState is how the last read of a server's /slots for a log went.
type SeedState string

// The states of seeding. Off means that the server does not let /slots be read;
// Asleep that it was left alone, for the question would have woken it.
const (
	SeedNone   SeedState = ""
	SeedDone   SeedState = "done"
	SeedFailed SeedState = "failed"
	SeedOff    SeedState = "off"
	SeedAsleep SeedState = "asleep"
)

// SeedNote is how seeding goes. Who reads /slots for a source leaves it there with
// [Source.NoteSeed].
type SeedNote struct {
	State  SeedState `json:"state"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// NeedsSeed is [Tracker.NeedsSeed] of what the log says so far.
func (s *Source) NeedsSeed(port int, now time.Time, expectedLanes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tracker.NeedsSeed(port, now, expectedLanes)
}

// BeginSeed is [Tracker.BeginSeed].
func (s *Source) BeginSeed(port int, now time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tracker.BeginSeed(port, now)
}

// ApplySeed is [Tracker.ApplySeed]. Subscribers are told.
func (s *Source) ApplySeed(port int, watermark uint64, slots []SeedSlot, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.ApplySeed(port, watermark, slots, now)
	s.signal()
}

// Confirm takes the word of a router on which ports its children serve which models:
// other ports are forgotten, and names that the log did not tell are known. The tokens
// of those that are forgotten were generated and stay counted. Where the log is that of
// several containers, none is forgotten: the others' servers are not the router's.
func (s *Source) Confirm(models map[int]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reader.eras) == 1 {
		s.tracker.Retain(slices.Collect(maps.Keys(models)))
	}
	for port, model := range models {
		s.tracker.port(port).server.model = string(clipName([]byte(model)))
	}
	s.signal()
}

// NoteSeed says how seeding goes, for snapshots to show.
func (s *Source) NoteSeed(n SeedNote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seed = n
	s.signal()
}
