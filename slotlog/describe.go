package slotlog

import (
	"math"
	"time"
)

// Details returns what is known of the port's slots at now beyond [Tracker.Resolve],
// by slot id.
func (t *Tracker) Details(port int, now time.Time) []Detail {
	p := t.ports.get(port)
	if p == nil {
		return []Detail{}
	}
	out := make([]Detail, 0, len(p.slots))
	for id, s := range p.slots {
		if s != nil {
			out = append(out, s.describe(p, id, now))
		}
	}
	return out
}

func (s *slotState) describe(p *portState, id int, now time.Time) Detail {
	d, run := &s.detail, &s.detail.run
	out := Detail{Slot: id, Phase: PhaseLost, ReleasedAt: when(d.last.released)}
	if s.hasPrompt && !d.murky {
		out.ContextUsed = new(s.prompt)
	} else if d.murky && run.known&hasCached != 0 {
		out.ContextUsed = new(run.cached + run.processed)
	}
	if size := max(d.size, p.server.laneContext); size > 0 {
		out.ContextSize = &size
	}
	if d.last.end != 0 {
		out.Last = new(d.last.record(p.port, id))
	}
	switch {
	case s.stale(now):
	case s.state == Idle:
		out.Phase = PhaseIdle
	case s.state == Processing:
		if out.Phase = PhaseBusy; s.hasTokens {
			out.Phase = PhaseDecode // so a seed says
			out.Generated = new(s.tokens)
		}
		if s.hasTask {
			out.Task = new(s.task)
			run.describe(&out)
		}
	}
	return out
}

// describe adds what is known of the running task.
func (r *taskRun) describe(out *Detail) {
	if r.stage == stageNone {
		return
	}
	out.Phase = phases[r.stage]
	out.PromptTokens = r.count(hasPrompt, r.prompt)
	out.PromptProcessed = r.count(hasProcessed, r.processed)
	out.CachedTokens = r.count(hasCached, r.cached)
	out.Generated = r.count(hasGenerated, r.generated)
	out.DraftAccepted = r.count(hasDraft, r.accepted)
	out.DraftGenerated = r.count(hasDraft, r.drafted)
	out.Progress = r.share(hasProgress, short(r.progress))
	out.Similarity = r.share(hasLikeness, short(r.likeness))
	out.KeptShare = r.share(hasKept, short(r.kept))
	out.Rate = r.share(hasMean, r.mean)
	out.RateNow = r.share(hasRate, r.rate)
	out.ContextShifts, out.Truncated = int(r.shifts), r.truncated
	out.CancelPending, out.Failure = r.cancelled, failureWords[r.fail]
	out.LaunchedAt, out.FirstTokenAt = when(r.launched), when(r.first)
}

// short is the number as it was printed, where the log has at most six places.
func short(v float32) float64 { return math.Round(float64(v)*1e6) / 1e6 }
