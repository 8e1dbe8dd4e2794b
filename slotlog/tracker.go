package slotlog

import (
	"slices"
	"time"
)

// State is what a slot does.
type State string

// The states of a slot. Unknown means that we lost track, not that it is free.
const (
	Unknown    State = "unknown"
	Idle       State = "idle"
	Processing State = "processing"
)

// StaleAfter is how long a running slot may stay unmentioned before it resolves
// to [Unknown]. Builds before b9151 print nothing while they generate, and later
// ones nothing below 100 tokens, so silence is no proof of an end.
const StaleAfter = 120 * time.Second

// Slot is a slot's state at one moment. Nil figures are not known. Its JSON is
// camelCase, with null for what is not known.
type Slot struct {
	// Slot is the id, from 0.
	Slot int `json:"slot"`

	// State is what the slot does.
	State State `json:"state"`

	// Task is the id of the running task, unique within one server process.
	Task *int `json:"task"`

	// PromptTokens is the context that the slot holds, in tokens. From b9151 on,
	// while prefill runs, it is what this request has processed so far, which
	// leaves out the cached part: the log prints nothing better.
	PromptTokens *int64 `json:"promptTokens"`

	// Decoded is how many tokens the running task has generated.
	Decoded *int64 `json:"decoded"`

	// RateTps is the running task's measured speed, in tokens per second.
	RateTps *float64 `json:"rateTps"`
}

// Tracker folds events into the states of the slots of one source: a single
// server, or a router with its children. The port is the identity, since task and
// slot ids begin anew in every process. It is given the time, does no I/O, and is
// not safe for concurrent use.
type Tracker struct {
	ports     portStates
	last      *portState // of the port that was spoken of last
	watermark uint64     // highest line number seen
	ledger    int64      // generated tokens that nobody took yet
	slots     int        // of all ports
	spare     []*portState
	records   recordRing
}

type portState struct {
	port         int
	slots        []*slotState // by id; nil: never seen
	spare        []*slotState // forgotten, to be used again
	heard        uint64       // the watermark when it was spoken of last
	seedAttempts int
	seeded       bool
	staleHandled bool
	lastAttempt  time.Time

	server serverState
}

type slotState struct {
	state  State
	task   int // valid when hasTask
	prompt int64
	tokens int64
	rate   float64

	hasTask, hasPrompt, hasTokens, hasRate bool

	counted   int64 // tokens of this request that the ledger has
	spent     int64 // counted, of the request that was released last
	lastSeq   uint64
	updatedAt time.Time

	detail slotDetail
}

// NewTracker returns a tracker that has seen nothing.
func NewTracker() *Tracker {
	return new(Tracker)
}

// Observe applies one parsed line, read as the log of builds from b9230 on: no
// line depends on another, and only the words that those print by themselves
// count. Logs of unknown age belong to a [Reader].
//
// What a line can make it remember is bounded as in a Reader: 256 ports, and since
// no line here says how many slots a server has, 256 of them.
func (t *Tracker) Observe(l Line) {
	e := Event{Seq: l.Seq, Time: l.Time, Slot: -1, Task: -1}
	if l.HasFrame && l.Frame.Slot < lanesUnsaid {
		e.Port, e.Slot, e.Task = l.Port, l.Frame.Slot, l.Frame.Task
		e.read([]byte(l.Message))
		switch e.Kind {
		case KindIdle, KindLaunch, KindRelease, KindRunning, KindTiming, KindPrompt:
			if e.Task >= 0 && e.Kind == KindIdle {
				e.Kind = KindFrame // a pick that shows an old task is of an older build
			}
		case KindPrefilled:
			e.Kind = KindPrompt
		case KindCleared, KindSlot:
			if e.Kind = KindFrame; e.Task < 0 {
				e.Kind = KindIdle
			}
		default:
			e.Kind = KindFrame
		}
	}
	t.apply(&e)
}

// Apply folds one event in. An event without a port changes nothing but the
// watermark, and neither does one about a slot below 0 or above 4095.
func (t *Tracker) Apply(e Event) { t.apply(&e) }

func (t *Tracker) apply(e *Event) {
	t.watermark = max(t.watermark, e.Seq)
	if uint(e.Slot) >= maxLanes || e.Port == 0 {
		if e.Slot < 0 && e.Port != 0 {
			t.aboutServer(e)
		}
		return
	}
	p := t.last
	if p == nil || p.port != e.Port {
		p = t.otherPort(e.Port)
	}
	if p.heard, p.server.known = t.watermark, true; e.Kind == KindFrame {
		return
	}
	var s *slotState
	if e.Slot < len(p.slots) {
		s = p.slots[e.Slot]
	}
	if s == nil {
		s = t.newSlot(p, e.Slot)
	}
	t.fold(p, s, e)
	s.touch(e)
}

func (t *Tracker) aboutServer(e *Event) {
	if e.Kind == KindGone {
		if p := t.ports.get(e.Port); p != nil {
			t.forget(p)
		}
		return
	}
	if e.Kind < KindCancel {
		return // about a slot, of which the number is no slot's
	}
	t.serverEvent(t.port(e.Port), e)
}

// fold folds a line about a slot in.
func (t *Tracker) fold(p *portState, s *slotState, e *Event) {
	d := &s.detail
	switch e.Kind {
	case KindIdle:
		t.lost(p, s, e)
		s.free()
		if e.Own {
			d.pickedBy(e)
		}
	case KindLaunch:
		t.lost(p, s, e)
		s.free()
		s.run(e.Task)
		d.launch(p, e)
	case KindRelease:
		t.release(p, s, e)
		d.murky = false
	case KindRunning, KindTiming, KindStep:
		t.count(s, e)
		s.run(e.Task)
		s.tokens, s.hasTokens = e.Tokens, true
		if e.Kind != KindStep {
			s.rate, s.hasRate = e.Rate, e.HasRate
		}
		d.of(p, e.Task).decoded(e)
	case KindPrompt:
		s.run(e.Task)
		s.prompt, s.hasPrompt = e.Tokens, true
		d.murky = e.Own
		d.of(p, e.Task).prefill(e)
	case KindCached, KindPrefilled:
		s.holds(e.Task)
		s.prompt, s.hasPrompt = e.Tokens, true
		d.murky = false
		d.of(p, e.Task).take(e)
	case KindPrefillTiming, KindDraft:
		if e.Own {
			d.late(s, e)
			return
		}
		s.holds(e.Task)
		d.of(p, e.Task).timing(e)
	default:
		t.foldRare(p, s, e)
	}
}

// foldRare is fold for what few requests print.
func (t *Tracker) foldRare(p *portState, s *slotState, e *Event) {
	d := &s.detail
	switch e.Kind {
	case KindSlot:
		t.lost(p, s, e)
		s.free()
		d.size = e.Count
		return
	case KindCleared:
		if d.murky = false; s.state != Processing {
			s.free()
			s.prompt, s.hasPrompt = 0, true
		}
		return
	case KindLate:
		t.ledger += max(0, e.Tokens-s.spent)
		s.spent = max(s.spent, e.Tokens)
		d.late(s, e)
		return
	case KindPromptSize, KindShift:
		if s.holds(e.Task); e.Count > 0 {
			d.size = e.Count
		}
	case KindEnding, KindDraftStep, KindTruncated, KindBusy, KindFailed:
		s.holds(e.Task)
	}
	d.of(p, e.Task).take(e)
}

// release frees the slot. A timing may follow its own release (b3678..b6722): what the
// ledger had of this request is remembered.
func (t *Tracker) release(p *portState, s *slotState, e *Event) {
	spent := s.counted
	if s.hasTask && s.task != e.Task {
		spent = 0
	}
	t.released(p, s, e)
	s.free()
	s.spent = spent
	if e.HasTokens {
		s.prompt, s.hasPrompt = e.Tokens, true
	}
}

// count gives the ledger what it does not have of a cumulative reading. A slot
// that holds no task keeps its count: a seed set it.
func (t *Tracker) count(s *slotState, e *Event) {
	if s.hasTask && s.task != e.Task {
		s.counted = 0
	}
	if e.Tokens > s.counted {
		t.ledger += e.Tokens - s.counted
		s.counted = e.Tokens
	}
}

// TakeGeneratedTokens returns the tokens generated since the last call and clears
// them: each token goes to one caller once.
func (t *Tracker) TakeGeneratedTokens() int64 {
	n := t.ledger
	t.ledger = 0
	return n
}

// Retain forgets every port that is not listed. The ledger stays: those tokens
// were generated.
func (t *Tracker) Retain(ports []int) {
	for _, p := range slices.Clone(t.ports) {
		if !slices.Contains(ports, p.port) {
			t.forget(p)
		}
	}
}

// Resync clears every slot after the stream of lines broke. The ports stay known
// and may be seeded at once. The ledger goes too, since what it had of each
// running request went with the slots.
func (t *Tracker) Resync() {
	for _, p := range t.ports {
		for id, s := range p.slots {
			if s != nil {
				t.settleRecord(p, id, s)
			}
		}
		t.clear(p)
	}
	t.ledger = 0
}

// Resolve returns the port's slots at now, by slot id. Running slots that nobody
// spoke of for longer than [StaleAfter] resolve to [Unknown]; what is stored does
// not change. A port that was never seen has none.
func (t *Tracker) Resolve(port int, now time.Time) []Slot {
	p := t.ports.get(port)
	if p == nil {
		return []Slot{}
	}
	out := make([]Slot, 0, len(p.slots))
	for id, s := range p.slots {
		if s != nil {
			out = append(out, s.resolve(id, now))
		}
	}
	return out
}

// free ends whatever ran. The context stays in the slot.
func (s *slotState) free() {
	s.state = Idle
	s.hasTask, s.hasTokens, s.hasRate = false, false, false
	s.counted, s.spent = 0, 0
}

func (s *slotState) run(task int) {
	s.state, s.task, s.hasTask = Processing, task, true
}

// holds is run for lines that are no readout: when they name another task than the one
// that ran, nothing of that survives.
func (s *slotState) holds(task int) {
	if s.hasTask && s.task != task {
		s.free()
	}
	s.run(task)
}

func (s *slotState) touch(e *Event) {
	s.lastSeq, s.updatedAt = e.Seq, e.Time
}

func (s *slotState) stale(now time.Time) bool {
	return s.state == Processing && now.Sub(s.updatedAt) > StaleAfter
}

func (s *slotState) resolve(id int, now time.Time) Slot {
	out := Slot{Slot: id, State: s.state}
	if s.hasPrompt {
		n := s.prompt
		out.PromptTokens = &n
	}
	if s.stale(now) {
		out.State = Unknown
		return out
	}
	if s.hasTask {
		n := s.task
		out.Task = &n
	}
	if s.hasTokens {
		n := s.tokens
		out.Decoded = &n
	}
	if s.hasRate {
		r := s.rate
		out.RateTps = &r
	}
	return out
}
