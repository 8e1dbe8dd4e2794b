package slotlog

import "slices"

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
