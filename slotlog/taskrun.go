package slotlog

import "time"

// figure is a bit for a figure that is known.
type figure uint16

const (
	hasPrompt figure = 1 << iota
	hasProcessed
	hasCached
	hasGenerated
	hasProgress
	hasLikeness
	hasKept
	hasMean
	hasRate
	hasPrefillRate
	hasDraft
)

// stage is a [Phase] of a running task, in one byte.
type stage uint8

const (
	stageNone stage = iota // no task
	stageBusy
	stagePrefill
	stageDecode
)

var phases = [...]Phase{PhaseLost, PhaseBusy, PhasePrefill, PhaseDecode}

// taskRun is what is known of one task in its slot. It holds no pointers, so that it
// is copied and kept for nothing.
type taskRun struct {
	task  int
	known figure
	stage stage
	end   ending
	fail  failing

	truncated bool // the prompt was cut
	begun     bool // its launch or its size was seen: what is in the cache now was there before it
	timed     bool // its final count was seen
	ghost     bool // of a task whose slot we never saw it hold: only its release makes it one
	cancelled bool
	full      bool // the context was, at its release

	shifts                               int32
	progress, likeness, kept             float32
	prompt, processed, cached, generated int64
	drafted, accepted                    int64
	mean, rate, prefillRate              float64

	picked, launched, first, released int64 // ns since 1970, 0: not known

	context int64 // at its release, -1: not said
}

// ending is an [Outcome] in one byte; 0: the task runs.
type ending uint8

const (
	endDone ending = iota + 1
	endCancelled
	endFailed
	endTruncated
	endLost
)

var outcomes = [...]Outcome{"", OutcomeDone, OutcomeCancelled, OutcomeFailed, OutcomeTruncated, OutcomeLost}

// failing is a [Failure] in one byte; 0: none.
type failing uint8

var failureWords = [...]Failure{
	"", FailureContext, FailureCache, FailureDecode, FailureMedia, FailureLoad, FailureKilled, FailureOther,
}

// slotDetail is what is known of a slot beyond occupancy.
type slotDetail struct {
	run  taskRun
	last taskRun // the task that ended last, when it has an outcome

	picked   int64 // when the slot was chosen, for the next launch
	likeness float32
	kept     float32
	pick     figure
	size     int64
	murky    bool // the last figure of its context leaves out the cached part

	held hold
}

// hold says how long the record of the last task waits: builds b3678 to b6722 print
// its timings after its release.
type hold uint8

const (
	heldNot hold = iota
	heldNew
	heldSeen // the owner took the other records since
)

// pickedBy notes that the slot was chosen for the next task.
func (d *slotDetail) pickedBy(e *Event) {
	d.picked, d.pick = e.Time.UnixNano(), 0
	if e.HasShare {
		d.likeness, d.pick = e.Share, hasLikeness
		if e.Kept >= 0 {
			d.kept, d.pick = e.Kept, hasLikeness|hasKept
		}
	}
}

// launch begins a task.
func (d *slotDetail) launch(p *portState, e *Event) {
	r := &d.run
	*r = taskRun{}
	r.task, r.stage, r.begun, r.launched = e.Task, stageBusy, true, e.Time.UnixNano()
	r.picked, r.likeness, r.kept, r.known = d.picked, d.likeness, d.kept, d.pick
	d.picked, d.pick = 0, 0
	p.server.applyEnds(r)
	p.server.backend = ""
}

// of is the run of the task that a line names, which begins with it when another one ran.
func (d *slotDetail) of(p *portState, task int) *taskRun {
	r := &d.run
	if r.task != task || r.stage == stageNone {
		r.begin(p, task)
	}
	r.ghost = false
	return r
}

func (r *taskRun) begin(p *portState, task int) {
	*r = taskRun{}
	r.task, r.stage = task, stageBusy
	p.server.applyEnds(r)
}

// late takes a count of a task that was released already.
func (d *slotDetail) late(s *slotState, e *Event) {
	if d.held != heldNot && d.last.task == e.Task {
		d.last.took(e)
		d.last.derive()
		return
	}
	if s.hasTask {
		return
	}
	if d.run.task != e.Task || !d.run.ghost {
		d.run = taskRun{task: e.Task, stage: stageBusy, ghost: true}
	}
	d.run.took(e)
}

// take folds a line about the running task in.
func (r *taskRun) take(e *Event) {
	switch e.Kind {
	case KindPromptSize:
		r.prompt, r.known = e.Tokens, r.known|hasPrompt
		if e.Own {
			r.stage, r.begun = stagePrefill, true
		}
	case KindCached:
		r.stage = stagePrefill
		if r.begun && r.known&(hasCached|hasProcessed) == 0 {
			r.cached, r.known = e.Tokens, r.known|hasCached
		}
	case KindPrefilled:
		r.stage = stageDecode
		r.decoding(e.Time)
		if r.known&hasPrompt == 0 {
			r.prompt, r.known = e.Tokens, r.known|hasPrompt
		}
		r.computed(e.Tokens)
	case KindDraftStep:
		r.stage = stageDecode
		r.decoding(e.Time)
		r.accepted, r.drafted, r.known = r.accepted+e.Tokens, r.drafted+e.Count, r.known|hasDraft
	case KindShift:
		r.stage = stageDecode
		r.shifts++
	case KindTruncated:
		r.truncated = true
		r.prompt, r.known = e.Tokens, r.known|hasPrompt
	case KindFailed:
		r.tell(failingOf(e.Failure))
	case KindEnding:
		r.stage = stageBusy
	}
}

// decoded takes a line that counts what was generated.
func (r *taskRun) decoded(e *Event) {
	if e.Kind == KindTiming {
		r.timing(e)
		return
	}
	r.stage = stageDecode
	r.decoding(e.Time)
	r.generated, r.known = e.Tokens, r.known|hasGenerated
	if e.Kind == KindRunning {
		r.mean, r.rate = e.Mean, e.Rate
		r.set(hasMean, e.HasMean)
		r.set(hasRate, e.HasRate)
	}
}

// prefill takes a progress line. At a share of 1 the prompt may be done or not: it is
// printed rounded, and after the batch was made.
func (r *taskRun) prefill(e *Event) {
	r.stage = stagePrefill
	if e.HasShare {
		r.progress, r.known = e.Share, r.known|hasProgress
		if e.Share >= 1 {
			r.stage = stageBusy
		}
	}
	if e.Own {
		r.processed, r.known = e.Tokens, r.known|hasProcessed
	} else {
		r.computed(e.Tokens)
	}
}

// computed derives what was computed from what the context holds.
func (r *taskRun) computed(context int64) {
	if r.known&hasCached != 0 && context >= r.cached {
		r.processed, r.known = context-r.cached, r.known|hasProcessed
	}
}

// timing takes the lines that a task ends with.
func (r *taskRun) timing(e *Event) {
	r.stage = stageBusy
	r.took(e)
}

// took takes their figures.
func (r *taskRun) took(e *Event) {
	switch e.Kind {
	case KindTiming, KindLate:
		r.generated, r.known, r.timed = e.Tokens, r.known|hasGenerated, true
		r.mean, r.rate = e.Rate, e.Rate
		r.set(hasMean, e.HasRate)
		r.set(hasRate, e.HasRate)
	case KindPrefillTiming:
		r.processed, r.known = e.Tokens, r.known|hasProcessed
		r.prefillRate = e.Rate
		r.set(hasPrefillRate, e.HasRate)
		if r.known&(hasPrompt|hasCached) == hasCached {
			r.prompt, r.known = r.cached+r.processed, r.known|hasPrompt
		}
	case KindDraft:
		r.accepted, r.drafted, r.known = e.Tokens, e.Count, r.known|hasDraft
	}
}

func (r *taskRun) decoding(at time.Time) {
	if r.first == 0 {
		r.first = at.UnixNano()
	}
}

func (r *taskRun) set(f figure, known bool) {
	if known {
		r.known |= f
	} else {
		r.known &^= f
	}
}

// derive finds the size of the prompt of a task that ended: the context then holds the
// prompt and all that was generated but the last token, which nothing followed.
func (r *taskRun) derive() {
	if !r.timed || r.full || r.truncated || r.shifts > 0 || r.context <= 0 || r.generated < 1 {
		return
	}
	prompt := r.context - r.generated + 1
	if r.known&hasPrompt == 0 && prompt > 0 {
		r.prompt, r.known = prompt, r.known|hasPrompt
	}
	if r.known&(hasCached|hasProcessed) == hasProcessed && r.known&hasPrompt != 0 && r.prompt >= r.processed {
		r.cached, r.known = r.prompt-r.processed, r.known|hasCached
	}
}
