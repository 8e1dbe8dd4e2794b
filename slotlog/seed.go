package slotlog

import "time"

// MaxSeedAttempts is how many reads of /slots a port is granted before the next
// pause of [StaleAfter].
const MaxSeedAttempts = 3

// SeedSlot is what one read of /slots says of a slot. Nil figures are not known.
type SeedSlot struct {
	// Slot is the id; below 0 and above 4095 it is ignored.
	Slot int `json:"slot"`

	// State is what the slot did when the server answered.
	State State `json:"state"`

	// PromptTokens is the context that the slot held, in tokens.
	PromptTokens *int64 `json:"promptTokens"`

	// Decoded is how many tokens its task had generated.
	Decoded *int64 `json:"decoded"`
}

// NeedsSeed reports whether the log alone no longer says what the port's slots
// do, so that one read of /slots is due. expectedLanes is how many slots the
// server should have; 0: not stated. It remembers that a run of staleness was
// reported, so that each gets its reads once; call it about once a second.
func (t *Tracker) NeedsSeed(port int, now time.Time, expectedLanes int) bool {
	p := t.ports.get(port)
	if p == nil || !p.server.known {
		return true
	}
	stale, unknown := false, false
	for _, s := range p.slots {
		if s == nil {
			continue
		}
		stale = stale || s.stale(now)
		unknown = unknown || s.state == Unknown
	}
	if !stale {
		p.staleHandled = false
	} else if !p.staleHandled {
		p.staleHandled, p.seeded, p.seedAttempts = true, false, 0
	}
	if !p.seeded && p.seedAttempts < MaxSeedAttempts {
		return true
	}
	if !unknown && !p.missesLane(expectedLanes) {
		return false
	}
	if !p.lastAttempt.IsZero() && now.Sub(p.lastAttempt) < StaleAfter {
		return false
	}
	p.seeded, p.seedAttempts = false, 0
	return true
}

// BeginSeed counts an attempt and returns the watermark to hand to ApplySeed.
// Call it before the request to the server leaves.
func (t *Tracker) BeginSeed(port int, now time.Time) uint64 {
	p := t.port(port)
	p.server.known = true
	p.seedAttempts++
	p.lastAttempt = now
	return t.watermark
}

// ApplySeed takes the server's answer for every slot that no line spoke of since
// the watermark: a newer line always wins over an older answer. A rate is never
// seeded, and neither is a task.
func (t *Tracker) ApplySeed(port int, watermark uint64, slots []SeedSlot, now time.Time) {
	p := t.port(port)
	p.server.known = true
	p.seeded, p.seedAttempts = true, 0
	for _, in := range slots {
		if in.Slot < 0 || in.Slot >= maxLanes {
			continue
		}
		s := t.slot(p, in.Slot)
		if s.lastSeq > watermark {
			continue
		}
		s.free()
		s.state, s.updatedAt = in.State, now
		if in.State != Idle && in.State != Processing {
			s.state = Unknown
		}
		s.prompt, s.hasPrompt = deref(in.PromptTokens)
		s.tokens, s.hasTokens = deref(in.Decoded)
		s.counted = s.tokens
	}
}

func (p *portState) missesLane(expected int) bool {
	for i := range expected {
		if i >= len(p.slots) || p.slots[i] == nil {
			return true
		}
	}
	return false
}

func deref(n *int64) (int64, bool) {
	if n == nil {
		return 0, false
	}
	return *n, true
}
