package slotlog

import (
	"math"
	"slices"
	"time"
)

// Details returns what is known of the port's slots at now beyond [Tracker.Resolve],
// by slot id.
func (t *Tracker) Details(port int, now time.Time) []Detail {
	p := t.ports[port]
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
	out.ContextShifts, out.Truncated = r.shifts, r.truncated
	out.CancelPending, out.Failure = r.cancelled, failureWords[r.fail]
	out.LaunchedAt, out.FirstTokenAt = when(r.launched), when(r.first)
}

// short is the number as it was printed, where the log has at most six places.
func short(v float32) float64 { return math.Round(float64(v)*1e6) / 1e6 }

// serverState is what is known of a server beyond its slots.
type serverState struct {
	known       bool // a slot, or how many there are, was spoken of
	state       ServerState
	model       string
	progress    float32
	hasProgress bool
	lanes       int
	laneContext int64
	pool        Pool
	restarts    int
	backend     Failure
	parent      int // its router's port, 0: none

	ends [16]taskEnd // what became of tasks that hold no slot we know
	next int
}

// taskEnd is a cancel or a failure that was told of a task.
type taskEnd struct {
	told    bool
	task    int
	failure Failure // empty: cancelled
}

// applyEnds takes over what was told of the task before its slot was known.
func (s *serverState) applyEnds(r *taskRun) {
	for i := range s.ends {
		if e := &s.ends[i]; e.told && e.task == r.task {
			r.told(e.failure)
			e.told = false
		}
	}
}

func (r *taskRun) told(f Failure) {
	if f == "" {
		r.cancelled = true
	} else {
		r.fail = failing(slices.Index(failureWords[:], f))
	}
}

// serverEvent folds in an event that is about no slot.
func (t *Tracker) serverEvent(p *portState, e *Event) {
	v := &p.server
	switch e.Kind {
	case KindCancel, KindFailed:
		t.taskEnds(p, e)
	case KindBackend:
		v.backend = e.Failure
		if e.Failure == FailureLoad {
			v.state = ServerExited
		}
	case KindAllIdle:
		for id, s := range p.slots {
			if s != nil {
				t.endLost(p, id, s, e.Time)
				s.free()
				s.touch(e)
			}
		}
		v.state = ServerReady
	case KindStopping:
		for id, s := range p.slots {
			if s != nil && s.state == Processing {
				t.endLost(p, id, s, e.Time)
				s.free()
				s.state = Unknown
				s.touch(e)
			}
		}
	case KindExit:
		t.clearSlots(p, e.Time)
		v.state = ServerExited
	case KindReset:
		if v.known || v.state != "" {
			v.restarts++
		}
		t.clearSlots(p, e.Time)
		v.state, v.lanes, v.laneContext, v.pool, v.backend = "", 0, 0, PoolUnknown, ""
	case KindLoading:
		v.state = ServerLoading
		v.progress, v.hasProgress = e.Share, e.HasShare
	case KindReady:
		v.state, v.hasProgress = ServerReady, false
	case KindSleeping:
		t.clearSlots(p, e.Time)
		v.state, v.lanes, v.laneContext, v.pool = ServerSleeping, 0, 0, PoolUnknown
	case KindLanes:
		t.lanes(p, e)
	case KindModel:
		v.model, v.parent = e.Model, int(e.Count)
	}
}

// lanes begins a port anew with slots that are idle and empty, as they are when
// the server has just made them.
func (t *Tracker) lanes(p *portState, e *Event) {
	t.clearSlots(p, e.Time)
	p.server.known = true
	p.server.lanes, p.server.laneContext, p.server.pool = e.Lanes, e.Tokens, e.Pool
	for i := range min(e.Lanes, maxLanes) {
		s := t.slot(p, i)
		s.state, s.hasPrompt = Idle, true
		s.touch(e)
	}
}

// taskEnds marks the task where it runs, or has just ended, or will.
func (t *Tracker) taskEnds(p *portState, e *Event) {
	for _, s := range p.slots {
		if s == nil {
			continue
		}
		d := &s.detail
		if s.hasTask && s.task == e.Task && d.run.task == e.Task && d.run.stage != stageNone {
			d.run.told(e.Failure)
			return
		}
		if d.held != heldNot && d.last.task == e.Task && !d.last.timed {
			d.last.told(e.Failure)
			if d.last.end = endCancelled; e.Failure != "" {
				d.last.end = endFailed
			}
			return
		}
	}
	v := &p.server
	v.ends[v.next] = taskEnd{told: true, task: e.Task, failure: e.Failure}
	v.next = (v.next + 1) % len(v.ends)
}

// clearSlots ends what runs and forgets the slots.
func (t *Tracker) clearSlots(p *portState, at time.Time) {
	for id, s := range p.slots {
		if s != nil {
			t.endLost(p, id, s, at)
		}
	}
	p.server.ends = [16]taskEnd{}
	t.clear(p)
}

// forget drops a port. What ran there is lost.
func (t *Tracker) forget(p *portState) {
	for id, s := range p.slots {
		if s != nil {
			t.endLost(p, id, s, s.updatedAt)
		}
	}
	t.clear(p)
	delete(t.ports, p.port)
	if t.last == p {
		t.last = nil
	}
	if len(t.spare) < 8 {
		t.spare = append(t.spare, p)
	}
}

// Server returns what is known of the server on a port.
func (t *Tracker) Server(port int) ServerDetail {
	out := ServerDetail{Port: port, State: ServerUnknown}
	p := t.ports[port]
	if p == nil {
		return out
	}
	v := &p.server
	if v.state != "" {
		out.State = v.state
	}
	out.Model, out.Lanes, out.LaneContext, out.KVUnified = v.model, v.lanes, v.laneContext, v.pool.unified()
	out.Restarts, out.Backend = v.restarts, v.backend
	if v.hasProgress {
		out.LoadProgress = new(short(v.progress))
	}
	for _, n := range t.Servers() {
		if t.ports[n].server.parent == port {
			out.Children = append(out.Children, n)
		}
	}
	return out
}

// Servers returns the ports of which anything is known, rising: those of
// [Tracker.Ports], and servers of which no slot was spoken yet.
func (t *Tracker) Servers() []int {
	out := make([]int, 0, len(t.ports))
	for port := range t.ports {
		out = append(out, port)
	}
	slices.Sort(out)
	return out
}
