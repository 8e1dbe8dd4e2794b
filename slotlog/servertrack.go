package slotlog

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
	told int // how many of them are
}

// taskEnd is a cancel or a failure that was told of a task.
type taskEnd struct {
	task int
	told bool
	fail failing // 0: cancelled
}

// applyEnds takes over what was told of the task before its slot was known.
func (s *serverState) applyEnds(r *taskRun) {
	if s.told == 0 {
		return
	}
	for i := range s.ends {
		if e := &s.ends[i]; e.told && e.task == r.task {
			r.tell(e.fail)
			e.told = false
			s.told--
		}
	}
}

// tellOf keeps what is told of a task until a slot runs it. The oldest of many goes.
func (s *serverState) tellOf(task int, f failing) {
	e := &s.ends[s.next]
	s.next = (s.next + 1) % len(s.ends)
	if !e.told {
		s.told++
	}
	*e = taskEnd{task: task, told: true, fail: f}
}

// forgetEnds forgets all of it.
func (s *serverState) forgetEnds() {
	if s.told > 0 {
		s.ends, s.told = [16]taskEnd{}, 0
	}
}

// tell tells a task that it failed, or was cancelled.
func (r *taskRun) tell(f failing) {
	if f == 0 {
		r.cancelled = true
	} else {
		r.fail = f
	}
}

// failingOf is the byte for one of our words; 0: none.
func failingOf(f Failure) failing {
	if f == "" {
		return 0
	}
	for i, w := range failureWords {
		if w == f {
			return failing(i)
		}
	}
	return failingOf(FailureOther)
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
		if e.Own {
			v.state = ServerExited
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
	f := failingOf(e.Failure)
	for _, s := range p.slots {
		if s == nil {
			continue
		}
		d := &s.detail
		if s.hasTask && s.task == e.Task && d.run.task == e.Task && d.run.stage != stageNone {
			d.run.tell(f)
			return
		}
		if d.held != heldNot && d.last.task == e.Task && !d.last.timed {
			d.last.tell(f)
			if d.last.end = endCancelled; f != 0 {
				d.last.end = endFailed
			}
			return
		}
	}
	p.server.tellOf(e.Task, f)
}

// Server returns what is known of the server on a port.
func (t *Tracker) Server(port int) ServerDetail {
	out := ServerDetail{Port: port, State: ServerUnknown}
	p := t.ports.get(port)
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
	for _, c := range t.ports {
		if c.server.parent == port {
			out.Children = append(out.Children, c.port)
		}
	}
	return out
}
