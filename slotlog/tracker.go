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
	ports     map[int]*portState
	watermark uint64 // highest line number seen
	ledger    int64  // generated tokens that nobody took yet
}

type portState struct {
	slots        map[int]*slotState
	heard        uint64 // the watermark when it was spoken of last
	seedAttempts int
	seeded       bool
	staleHandled bool
	lastAttempt  time.Time
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
}

// NewTracker returns a tracker that has seen nothing.
func NewTracker() *Tracker {
	return &Tracker{ports: make(map[int]*portState)}
}

// Observe applies one parsed line, read as the log of builds from b9230 on: no
// line depends on another. Logs of unknown age belong to a [Reader].
//
// What a line can make it remember is bounded as in a Reader: 256 ports, and since
// no line here says how many slots a server has, 256 of them.
func (t *Tracker) Observe(l Line) {
	e := Event{Seq: l.Seq, Time: l.Time, Slot: -1, Task: -1}
	if l.HasFrame && l.Frame.Slot < lanesUnsaid {
		e.Port, e.Slot, e.Task = l.Port, l.Frame.Slot, l.Frame.Task
		e.read([]byte(l.Message))
	}
	t.Apply(e)
}

// Apply folds one event in. An event without a port changes nothing but the
// watermark, and neither does one about a slot below 0 or above 4095.
func (t *Tracker) Apply(e Event) {
	t.watermark = max(t.watermark, e.Seq)
	if e.Port == 0 {
		return
	}
	switch e.Kind {
	case KindModel:
	case KindGone:
		delete(t.ports, e.Port)
	case KindReset:
		if p := t.ports[e.Port]; p != nil {
			p.clear()
		}
	case KindLanes:
		t.lanes(e)
	case KindAllIdle:
		if p := t.ports[e.Port]; p != nil {
			for _, s := range p.slots {
				s.free()
				s.touch(e)
			}
		}
	case KindStopping:
		if p := t.ports[e.Port]; p != nil {
			for _, s := range p.slots {
				if s.state == Processing {
					s.free()
					s.state = Unknown
					s.touch(e)
				}
			}
		}
	default:
		if e.Slot >= 0 && e.Slot < maxLanes {
			t.slotEvent(e)
		}
	}
}

func (t *Tracker) slotEvent(e Event) {
	p := t.port(e.Port)
	if e.Kind == KindFrame {
		return
	}
	s := p.slot(e.Slot)
	switch e.Kind {
	case KindIdle:
		s.free()
	case KindLaunch:
		s.free()
		s.run(e.Task)
	case KindRelease:
		// A timing may follow its own release (b3678..b6722): remember what the
		// ledger had of this request.
		spent := s.counted
		if s.hasTask && s.task != e.Task {
			spent = 0
		}
		s.free()
		s.spent = spent
		if e.HasTokens {
			s.prompt, s.hasPrompt = e.Tokens, true
		}
	case KindPrompt:
		s.run(e.Task)
		s.prompt, s.hasPrompt = e.Tokens, true
	case KindRunning, KindTiming:
		t.count(s, e)
		s.run(e.Task)
		s.tokens, s.hasTokens = e.Tokens, true
		s.rate, s.hasRate = e.Rate, e.HasRate
	case KindLate:
		t.ledger += max(0, e.Tokens-s.spent)
		s.spent = max(s.spent, e.Tokens)
	}
	s.touch(e)
}

// count gives the ledger what it does not have of a cumulative reading. A slot
// that holds no task keeps its count: a seed set it.
func (t *Tracker) count(s *slotState, e Event) {
	if s.hasTask && s.task != e.Task {
		s.counted = 0
	}
	if e.Tokens > s.counted {
		t.ledger += e.Tokens - s.counted
		s.counted = e.Tokens
	}
}

// lanes begins a port anew with slots that are idle and empty, as they are when
// the server has just made them.
func (t *Tracker) lanes(e Event) {
	p := t.port(e.Port)
	p.clear()
	for i := range min(e.Lanes, maxLanes) {
		s := p.slot(i)
		s.state, s.hasPrompt = Idle, true
		s.touch(e)
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
	for port := range t.ports {
		if !slices.Contains(ports, port) {
			delete(t.ports, port)
		}
	}
}

// Resync clears every slot after the stream of lines broke. The ports stay known
// and may be seeded at once. The ledger goes too, since what it had of each
// running request went with the slots.
func (t *Tracker) Resync() {
	for _, p := range t.ports {
		p.clear()
	}
	t.ledger = 0
}

// Resolve returns the port's slots at now, by slot id. Running slots that nobody
// spoke of for longer than [StaleAfter] resolve to [Unknown]; what is stored does
// not change. A port that was never seen has none.
func (t *Tracker) Resolve(port int, now time.Time) []Slot {
	p := t.ports[port]
	if p == nil {
		return []Slot{}
	}
	out := make([]Slot, 0, len(p.slots))
	for id, s := range p.slots {
		out = append(out, s.resolve(id, now))
	}
	slices.SortFunc(out, func(a, b Slot) int { return a.Slot - b.Slot })
	return out
}

// Ports returns the ports that are known, rising.
func (t *Tracker) Ports() []int {
	out := make([]int, 0, len(t.ports))
	for port := range t.ports {
		out = append(out, port)
	}
	slices.Sort(out)
	return out
}

// port finds or makes a port. One too many takes the place of the one heard longest
// ago; below a [Reader], which has the same bound and says KindGone, there is none.
func (t *Tracker) port(port int) *portState {
	p := t.ports[port]
	if p == nil {
		if len(t.ports) >= maxPorts {
			delete(t.ports, t.oldest())
		}
		p = &portState{slots: make(map[int]*slotState)}
		t.ports[port] = p
	}
	p.heard = t.watermark
	return p
}

func (t *Tracker) oldest() (port int) {
	var found *portState
	for n, p := range t.ports {
		if found == nil || p.heard < found.heard || p.heard == found.heard && n < port {
			port, found = n, p
		}
	}
	return port
}

func (p *portState) slot(id int) *slotState {
	s := p.slots[id]
	if s == nil {
		s = &slotState{state: Unknown}
		p.slots[id] = s
	}
	return s
}

// clear forgets the slots and lets the port be seeded at once.
func (p *portState) clear() {
	clear(p.slots)
	p.seedAttempts, p.seeded, p.staleHandled, p.lastAttempt = 0, false, false, time.Time{}
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

func (s *slotState) touch(e Event) {
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
