package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

const (
	// seedEvery is how often a log is asked whether a seed is due.
	seedEvery = time.Second

	// identifyPause is how long after a failure the server is asked again what it is,
	// doubling up to slotlog.StaleAfter.
	identifyPause = time.Second

	// offPause is how long a server that does not let /slots be read is left alone.
	offPause = 10 * time.Minute
)

// seedLog is what a [Seeder] needs of a [slotlog.Source].
type seedLog interface {
	Snapshot(now time.Time) slotlog.Snapshot
	NeedsSeed(port int, now time.Time, expectedLanes int) bool
	BeginSeed(port int, now time.Time) uint64
	ApplySeed(port int, watermark uint64, slots []slotlog.SeedSlot, now time.Time)
	Confirm(models map[int]string)
	NoteSeed(n slotlog.SeedNote)
}

// Seeder tells a log what it does not say itself: it reads the server's /slots once
// when [slotlog.Tracker.NeedsSeed] says that this is worth it, and never else. A
// sleeping server is left asleep, one that does not let /slots be read is left alone
// for 10 minutes, and of one that does not answer 3 reads are tried in 2 minutes.
//
// The children of a router are read straight where the router is on this machine, for
// they listen on loopback, and the router writes a line for each question it passes
// on. Their ports are the router's own word, never the log's.
type Seeder struct {
	link *Link
	to   seedLog

	router bool
	known  bool // what the server is
	lanes  int  // of a single server, as it said

	rest  time.Time     // nothing is asked before
	pause time.Duration // after the next failure to identify it
	said  slotlog.SeedNote
}

// NewSeeder returns a seeder of o.Source, which must be set. It checks the URL and
// does no I/O.
func NewSeeder(o Options) (*Seeder, error) {
	if o.Source == nil {
		return nil, fmt.Errorf("%s: nothing to seed: no log", o.Name)
	}
	l, err := New(o)
	if err != nil {
		return nil, err
	}
	return newSeeder(l, o.Source), nil
}

func newSeeder(l *Link, to seedLog) *Seeder {
	return &Seeder{link: l, to: to, pause: identifyPause}
}

// Run seeds the log until ctx ends. It is called once.
func (s *Seeder) Run(ctx context.Context) {
	s.run(ctx)
	_ = s.link.Close("seeding ended")
}

func (s *Seeder) run(ctx context.Context) {
	tick := time.NewTicker(seedEvery)
	defer tick.Stop()
	for {
		if now := time.Now(); !now.Before(s.rest) {
			s.round(ctx, now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round asks the server, if that is due.
func (s *Seeder) round(ctx context.Context, now time.Time) {
	snap := s.to.Snapshot(now)
	if snap.LookedAt.IsZero() || snap.Err != nil {
		return // what the log holds comes first; without it a seed would only grow old
	}
	if !s.known {
		s.identify(ctx, now)
		snap = s.to.Snapshot(now) // with what a router said
	}
	switch {
	case !s.known:
	case s.router:
		s.seedChildren(ctx, snap, now)
	default:
		s.seedSingle(ctx, snap, now)
	}
}

// identify asks whether the server is a router.
func (s *Seeder) identify(ctx context.Context, now time.Time) {
	props, err := s.link.get(ctx, "/props")
	if err != nil {
		s.rest = now.Add(s.pause)
		s.fail(ctx, err)
		s.pause = min(2*s.pause, slotlog.StaleAfter)
		return
	}
	s.known, s.router, s.pause = true, text(props["role"]) == "router", identifyPause
	if s.router {
		s.confirm(ctx)
	}
}

// seedSingle reads the slots of a server that serves one model.
func (s *Seeder) seedSingle(ctx context.Context, snap slotlog.Snapshot, now time.Time) {
	p, lanes := snap.OwnPort, s.lanes
	if found, ok := portOf(snap.Ports, s.link.client.port, false); ok && found.Port != 0 {
		p = found.Port
		if found.Lanes > 0 {
			lanes = found.Lanes
		}
	}
	if !s.to.NeedsSeed(p, now, lanes) {
		return
	}
	mark := s.to.BeginSeed(p, now)
	props, err := s.link.get(ctx, "/props")
	switch {
	case err != nil:
		s.fail(ctx, err)
		return
	case text(props["role"]) == "router":
		s.known = false // another server took its place
		return
	case flag(props["is_sleeping"]):
		s.note(ctx, slotlog.SeedAsleep, "")
		return
	}
	s.lanes = int(min(figure(props["total_slots"]), 1<<20))
	s.read(ctx, s.link.client, "/slots", p, mark)
}

// read reads the slots of one port.
func (s *Seeder) read(ctx context.Context, from *client, path string, port int, mark uint64) {
	a, err := s.link.askAt(ctx, from, from.keep, probeLimit, http.MethodGet, path, nil)
	if err != nil {
		s.fail(ctx, err)
		return
	}
	switch a.Status {
	case http.StatusOK:
		slots, ok := readSlots(a.Body)
		if !ok {
			s.note(ctx, slotlog.SeedFailed, "the answer to /slots is no list of slots: is it a llama-server?")
			return
		}
		s.to.ApplySeed(port, mark, slots, time.Now())
		s.note(ctx, slotlog.SeedDone, "")
	case http.StatusUnauthorized, http.StatusForbidden:
		s.off(ctx, fmt.Sprintf("the server answers %d: the key is not one of its --api-key", a.Status))
	case http.StatusNotImplemented, http.StatusNotFound:
		s.off(ctx, fmt.Sprintf("the server answers %d: /slots is off there, start it with --slots", a.Status))
	default:
		s.note(ctx, slotlog.SeedFailed, fmt.Sprintf("the server answers %d to /slots", a.Status))
	}
}

// fail notes why nothing was read. A wrong key will be as wrong in a second.
func (s *Seeder) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if refused, ok := errors.AsType[*fleet.RequestError](err); ok && refused.Err != nil {
		s.off(ctx, refused.Err.Error())
		return
	}
	s.note(ctx, slotlog.SeedFailed, err.Error())
}

func (s *Seeder) off(ctx context.Context, why string) {
	s.rest = time.Now().Add(offPause)
	s.note(ctx, slotlog.SeedOff, why)
}

// note tells the source how it went, and the log of this process when that is new.
func (s *Seeder) note(ctx context.Context, state slotlog.SeedState, why string) {
	n := slotlog.SeedNote{State: state, At: time.Now(), Reason: why}
	s.to.NoteSeed(n)
	if state == slotlog.SeedOff && (s.said.State != state || s.said.Reason != why) {
		s.link.log.WarnContext(ctx, "slots are known from the log alone", "name", s.link.name, "reason", why)
	}
	s.said = n
}

// readSlots reads an answer of /slots. Its fields changed over the versions; what it
// says of prompts and answers is not looked at.
func readSlots(body []byte) (slots []slotlog.SeedSlot, ok bool) {
	var list []struct {
		ID         *int            `json:"id"`
		Processing *bool           `json:"is_processing"`
		State      *int            `json:"state"` // before is_processing
		Prompt     json.RawMessage `json:"n_prompt_tokens"`
		Next       json.RawMessage `json:"next_token"`
	}
	if json.Unmarshal(body, &list) != nil {
		return nil, false
	}
	for _, in := range list {
		if in.ID == nil {
			return nil, false
		}
		out := slotlog.SeedSlot{Slot: *in.ID, State: slotlog.Unknown, PromptTokens: number(in.Prompt)}
		switch {
		case in.Processing != nil && *in.Processing, in.Processing == nil && in.State != nil && *in.State != 0:
			out.State = slotlog.Processing
			out.Decoded = number(nextToken(in.Next)["n_decoded"])
			if out.PromptTokens != nil && out.Decoded != nil {
				// It counts all that the slot holds, what was generated included.
				out.PromptTokens = new(max(0, *out.PromptTokens-*out.Decoded))
			}
		case in.Processing != nil, in.State != nil:
			out.State = slotlog.Idle // what it says was decoded is of the last request
		}
		slots = append(slots, out)
	}
	return slots, true
}

// nextToken is the first entry of a list, or the object itself in older versions.
func nextToken(raw json.RawMessage) map[string]json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		raw = list[0]
	}
	return object(raw)
}

// number is one of tokens; nil: it is not said.
func number(raw json.RawMessage) *int64 {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 || f >= 1<<53 {
		return nil
	}
	return new(int64(f))
}
