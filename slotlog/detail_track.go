package slotlog

import "time"

// Details returns what is known of the port's slots beyond [Tracker.Resolve], by
// slot id.
func (t *Tracker) Details(port int, now time.Time) []Detail {
	slots := t.Resolve(port, now)
	out := make([]Detail, 0, len(slots))
	for _, s := range slots {
		d := Detail{Slot: s.Slot, Task: s.Task, Generated: s.Decoded, RateNow: s.RateTps, ContextUsed: s.PromptTokens}
		switch s.State {
		case Idle:
			d.Phase = PhaseIdle
		case Processing:
			d.Phase = PhaseBusy
		default:
			d.Phase = PhaseLost
		}
		out = append(out, d)
	}
	return out
}

// Server returns what is known of the server on a port.
func (t *Tracker) Server(port int) ServerDetail {
	return ServerDetail{Port: port, State: ServerUnknown}
}

// TakeRecords returns the tasks that ended since the last call.
func (t *Tracker) TakeRecords() []RequestRecord { return nil }

// RecordsDropped is how many records were dropped since nobody took them.
func (t *Tracker) RecordsDropped() uint64 { return 0 }
