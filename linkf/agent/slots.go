package agent

import (
	"context"
	"time"

	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/slotlog"
)

const (
	// settleFor is how long a look at the log stands: a busy server writes a line for each
	// slot and each few tokens. The link waits as long between two words to a head, so
	// that it has nothing to hold back.
	settleFor = 20 * time.Millisecond

	// retellAfter is how often they hear of a log that does not change.
	retellAfter = 5 * time.Second
)

// logSource is what showing slots needs of a [slotlog.Source].
type logSource interface {
	Snapshot(now time.Time) slotlog.Snapshot
	Subscribe() (changed <-chan struct{}, cancel func())
}

// showSlots calls show with what the log says: at once, and within 20 ms of a change,
// but no sooner than 20 ms after the last look at it, until ctx ends.
func showSlots(ctx context.Context, log logSource, show func(linkf.Log)) {
	changed, cancel := log.Subscribe()
	defer cancel()
	retell := time.NewTicker(retellAfter)
	defer retell.Stop()
	for {
		show(logOf(log.Snapshot(time.Now())))
		settled := time.NewTimer(settleFor)
		select {
		case <-ctx.Done():
			settled.Stop()
			return
		case <-settled.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retell.C:
		}
	}
}

// logOf is what heads are told of a log.
func logOf(s slotlog.Snapshot) linkf.Log {
	l := linkf.Log{At: s.LookedAt}
	if s.Degraded {
		l.Unsure = s.Reason
	}
	for _, p := range s.Ports {
		l.Servers = append(l.Servers, serverOf(p))
	}
	return l
}

func serverOf(p slotlog.PortState) linkf.Server {
	x := linkf.Server{
		Port: uint32(max(0, p.Port)), Model: p.Model, State: string(p.Server.State), Progress: p.Server.LoadProgress,
		Lanes: uint32(max(0, p.Lanes)), Context: p.LaneContext, Unified: p.KVUnified,
		Restarts: uint32(max(0, p.Server.Restarts)), Failure: string(p.Server.Backend),
	}
	for _, s := range p.Slots {
		w := linkf.Slot{
			Slot: uint32(max(0, s.Slot)), State: string(s.State), Task: as[int64](s.Task),
			Held: s.PromptTokens, Decoded: s.Decoded, Rate: s.RateTps,
		}
		for _, d := range p.Details {
			if d.Slot == s.Slot {
				addDetail(&w, d)
			}
		}
		x.Slots = append(x.Slots, w)
	}
	return x
}

func addDetail(w *linkf.Slot, d slotlog.Detail) {
	w.Phase, w.Failure, w.RateNow = string(d.Phase), string(d.Failure), d.RateNow
	w.Prompt, w.Processed, w.Cached, w.Progress = d.PromptTokens, d.PromptProcessed, d.CachedTokens, d.Progress
	w.Used, w.Size, w.Shifts = d.ContextUsed, d.ContextSize, uint32(max(0, d.ContextShifts))
	w.Truncated, w.Cancelled = d.Truncated, d.CancelPending
}

// Ports are the servers that a node's log shows, as if its log were read here. Words
// that slotlog has not are unknown ones: what a node says is shown to people.
func Ports(l linkf.Log) []slotlog.PortState {
	out := make([]slotlog.PortState, 0, len(l.Servers))
	for _, x := range l.Servers {
		p := slotlog.PortState{
			Port: int(x.Port), Model: x.Model, Lanes: int(x.Lanes), LaneContext: x.Context, KVUnified: x.Unified,
			Slots: make([]slotlog.Slot, 0, len(x.Slots)), Details: make([]slotlog.Detail, 0, len(x.Slots)),
		}
		p.Server = slotlog.ServerDetail{
			Port: p.Port, Model: p.Model, State: word(x.State, slotlog.ServerUnknown, serverStates), LoadProgress: x.Progress,
			Lanes: p.Lanes, LaneContext: p.LaneContext, KVUnified: p.KVUnified,
			Restarts: int(x.Restarts), Backend: failure(x.Failure),
		}
		for _, s := range x.Slots {
			p.Slots = append(p.Slots, slotlog.Slot{
				Slot: int(s.Slot), State: word(s.State, slotlog.Unknown, slotStates), Task: as[int](s.Task),
				PromptTokens: s.Held, Decoded: s.Decoded, RateTps: s.Rate,
			})
			p.Details = append(p.Details, slotlog.Detail{
				Slot: int(s.Slot), Phase: word(s.Phase, slotlog.PhaseLost, phases), Task: as[int](s.Task), Failure: failure(s.Failure),
				Generated: s.Decoded, Rate: s.Rate, RateNow: s.RateNow,
				PromptTokens: s.Prompt, PromptProcessed: s.Processed, CachedTokens: s.Cached, Progress: s.Progress,
				ContextUsed: s.Used, ContextSize: s.Size, ContextShifts: int(s.Shifts),
				Truncated: s.Truncated, CancelPending: s.Cancelled,
			})
		}
		out = append(out, p)
	}
	return out
}

var (
	serverStates = []slotlog.ServerState{slotlog.ServerLoading, slotlog.ServerReady, slotlog.ServerSleeping, slotlog.ServerExited}
	slotStates   = []slotlog.State{slotlog.Idle, slotlog.Processing}
	phases       = []slotlog.Phase{slotlog.PhaseIdle, slotlog.PhasePrefill, slotlog.PhaseDecode, slotlog.PhaseBusy}
	failures     = []slotlog.Failure{
		slotlog.FailureContext, slotlog.FailureCache, slotlog.FailureDecode, slotlog.FailureMedia,
		slotlog.FailureLoad, slotlog.FailureKilled,
	}
)

// word is one of those that are known, or what stands for all others.
func word[T ~string](said string, other T, known []T) T {
	for _, w := range known {
		if said == string(w) {
			return w
		}
	}
	return other
}

func failure(said string) slotlog.Failure {
	if said == "" {
		return ""
	}
	return word(said, slotlog.FailureOther, failures)
}

func as[To, From int | int64](n *From) *To {
	if n == nil {
		return nil
	}
	return new(To(*n))
}
