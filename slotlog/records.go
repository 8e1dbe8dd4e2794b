package slotlog

import "time"

// maxRecords bounds the records that wait for their taker.
const maxRecords = 1024

// recordRing holds the tasks that ended, the oldest first.
type recordRing struct {
	runs    []endedRun
	first   int
	dropped uint64
	waiting int // slots whose last record waits for its timings
}

type endedRun struct {
	port, slot int
	taskRun
}

func (r *recordRing) add(port, slot int, run *taskRun) {
	if len(r.runs) < maxRecords {
		r.runs = append(r.runs, endedRun{port: port, slot: slot, taskRun: *run})
		return
	}
	e := &r.runs[r.first]
	e.port, e.slot, e.taskRun = port, slot, *run
	r.first = (r.first + 1) % maxRecords
	r.dropped++
}

// TakeRecords returns the tasks that ended since the last call, in the order in which
// they did. It keeps at most 1024, the last ones. A task whose timings may still come
// is returned once they did, or the slot is used again, or at the second call.
func (t *Tracker) TakeRecords() []RequestRecord {
	if t.records.waiting > 0 {
		for _, p := range t.ports {
			for id, s := range p.slots {
				if s == nil || s.detail.held == heldNot {
					continue
				}
				if s.detail.held == heldSeen {
					t.settleRecord(p, id, s)
				} else {
					s.detail.held = heldSeen
				}
			}
		}
	}
	ring := &t.records
	out := make([]RequestRecord, 0, len(ring.runs))
	for i := range ring.runs {
		e := &ring.runs[(ring.first+i)%len(ring.runs)]
		out = append(out, e.taskRun.record(e.port, e.slot))
	}
	ring.runs, ring.first = ring.runs[:0], 0
	return out
}

// RecordsDropped is how many records nobody took in time, since the beginning.
func (t *Tracker) RecordsDropped() uint64 { return t.records.dropped }

// released ends the task of a slot. It is called before the slot is freed.
func (t *Tracker) released(p *portState, s *slotState, e *Event) {
	t.settleRecord(p, e.Slot, s)
	d := &s.detail
	if s.hasTask && s.task != e.Task {
		t.lost(p, s, e)
	}
	if d.run.stage == stageNone || d.run.task != e.Task {
		d.run.begin(p, e.Task)
	}
	run := &d.run
	run.released, run.full = e.Time.UnixNano(), e.Truncated
	run.context = -1
	if e.HasTokens {
		run.context = e.Tokens
	}
	run.derive()
	switch {
	case run.fail != 0:
		run.end = endFailed
	case run.cancelled && !run.timed:
		run.end = endCancelled
	case e.Truncated:
		run.end = endTruncated
	default:
		run.end = endDone
	}
	d.last = *run
	*run = taskRun{}
	if d.last.timed || d.last.end == endFailed || d.last.end == endCancelled {
		t.records.add(p.port, e.Slot, &d.last)
		return
	}
	d.held = heldNew
	t.records.waiting++
}

// lost ends the task of a slot whose release was not seen. It is called before the
// slot is freed.
func (t *Tracker) lost(p *portState, s *slotState, e *Event) {
	if s.detail.held != heldNot || s.detail.run.stage != stageNone {
		t.endLost(p, e.Slot, s, e.Time)
	}
}

func (t *Tracker) endLost(p *portState, slot int, s *slotState, at time.Time) {
	t.settleRecord(p, slot, s)
	d := &s.detail
	if d.run.stage == stageNone {
		return
	}
	if !d.run.ghost {
		d.run.end, d.run.released = endLost, at.UnixNano()
		d.last = d.run
		t.records.add(p.port, slot, &d.last)
	}
	d.run = taskRun{}
}

// settleRecord gives out the record that waited for timings.
func (t *Tracker) settleRecord(p *portState, slot int, s *slotState) {
	if s.detail.held == heldNot {
		return
	}
	s.detail.held = heldNot
	t.records.waiting--
	t.records.add(p.port, slot, &s.detail.last)
}

// record is the run as others see it.
func (r *taskRun) record(port, slot int) RequestRecord {
	out := RequestRecord{
		Port: port, Slot: slot, Task: r.task, Outcome: outcomes[r.end], Failure: failureWords[r.fail],
		PickedAt: when(r.picked), LaunchedAt: when(r.launched), FirstTokenAt: when(r.first), ReleasedAt: when(r.released),
		PromptTokens:    r.count(hasPrompt, r.prompt),
		PromptProcessed: r.count(hasProcessed, r.processed),
		CachedTokens:    r.count(hasCached, r.cached),
		Generated:       r.count(hasGenerated, r.generated),
		DraftAccepted:   r.count(hasDraft, r.accepted),
		DraftGenerated:  r.count(hasDraft, r.drafted),
		PrefillRate:     r.share(hasPrefillRate, r.prefillRate),
		ContextShifts:   int(r.shifts),
	}
	if r.timed {
		out.Rate = r.share(hasRate, r.rate)
	} else {
		out.Rate = r.share(hasMean, r.mean)
	}
	return out
}

func when(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func (r *taskRun) count(f figure, n int64) *int64 {
	if r.known&f == 0 {
		return nil
	}
	return &n
}

func (r *taskRun) share(f figure, v float64) *float64 {
	if r.known&f == 0 {
		return nil
	}
	return &v
}
