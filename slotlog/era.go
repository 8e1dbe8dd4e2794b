package slotlog

import (
	"cmp"
	"slices"
)

const (
	// bareLimit is how many lines in a row of a lesser shape end the belief that this
	// log has prefixes: somebody now starts an older server, or one with
	// --no-log-prefix.
	bareLimit = 32

	// clockSlack is how far a clock may go back within one process: threads take
	// the stamp before they queue the line, and the clock is the system's, which
	// NTP moves.
	clockSlack = 1_000_000 // microseconds

	// clockLeap is a step forward after which the clock before it is remembered: one
	// forged line shall not make the next true one look like another process.
	clockLeap = 60_000_000 // microseconds
)

// era is what a log has shown of the builds that write it. Nothing is decided
// once: a file may hold the lines of several builds, one after the other or, below
// a router, side by side. The lines of each container in one log have an era of their own.
type era struct {
	name  string // of the container; empty: none is known
	spoke bool   // a line of a server was believed

	fixedPort int // configured; 0: from the log
	ownPort   int // of lines without a mark

	best shape // the best that lines have shown of late

	procs  processes
	cur    *process    // of the last line
	steady *process    // the same, when it was believed and no line has changed that
	memo   [8]*process // by the low bits of the mark
}

// process is one llama-server that writes to the log, as far as its lines depend
// on each other.
type process struct {
	era   *era
	own   int    // its port, as it is known where it runs
	port  int    // the same, unless a server of another container has it, too
	spoke bool   // a line of its was believed
	heard uint64 // the first of the lines in a row that it spoke last
	mark  int    // the printed port, 0 for lines without a mark

	printed uint64 // its mark as it stood before its last line in a row

	shape shape // what its lines have shown
	bare  int   // lines of another one since

	clock int64
	dial  dial
	low   int64 // the clock before it last leapt forward
	odd   int64 // a clock that has gone back, seen on one slot line; 0: none

	lanes int // slots, when it said so

	laneContext int64 // context of each, when it said so
	pool        Pool

	router bool   // it has spoken of children
	asleep bool   // it gave its model back
	model  string // what its router calls it

	header blockHeader
	slots  []slotRun
	busy   int // slots that run a task
}

// slotRun is which tasks a slot had, as far as the meaning of its next line depends
// on it.
type slotRun struct {
	task     int // noTask: none
	released int // the task released last, noTask while another runs
}

const noTask = -1

// blockHeader is a frame without words, which begins the timing block of builds
// before b9230: the lines that follow have no frame of their own.
type blockHeader struct {
	open       bool
	took       [3]bool // prefill, decode, draft: each comes once
	slot, task int
}

func newEra(name string, port int) *era {
	e := &era{name: name, fixedPort: port, ownPort: port}
	if port == 0 {
		e.ownPort = 1 // "the only server"
	}
	return e
}

// process finds the process that printed a mark, 0 for none.
func (r *Reader) process(mark int) *process {
	p := r.memo[mark&7]
	if p == nil || p.mark != mark {
		port := mark
		if mark == 0 {
			port = r.ownPort
		}
		if p = r.procs.get(port); p == nil {
			p = r.newProcess(port)
			r.procs.add(p)
			r.makeRoom(0)
		}
		r.unmemo(p)
		p.mark, p.printed = mark, 0
		r.memo[mark&7] = p
	}
	if p != r.cur {
		p.heard, r.cur, r.steady = r.stats.Lines, p, nil
	}
	return p
}

func (r *Reader) newProcess(port int) *process {
	var p *process
	if n := len(r.spare); n > 0 {
		p, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		p = new(process)
	}
	*p = process{era: r.era, own: port, port: port, heard: r.stats.Lines, shape: r.best, slots: p.slots[:0]}
	return p
}

func (e *era) unmemo(p *process) {
	if e.memo[p.mark&7] == p {
		e.memo[p.mark&7] = nil
	}
}

// cut forgets what depends on the line before.
func (e *era) cut() {
	for _, p := range e.procs {
		p.header, p.odd = blockHeader{}, 0
		p.slots, p.busy = p.slots[:0], 0
	}
}

// believe decides whether a line in a server's own words is one. Where others have a
// prefix, or are records, one that has not is text from somewhere else: chat templates
// and request fields can hold whole lines, and they come without. A server that begins
// to write records is believed when it says that it has just begun.
func (r *Reader) believe(p *process, w wrapping, framed bool) bool {
	if w.inside && framed {
		return false
	}
	p.readDial()
	p.dial.width, r.steady = 0, nil
	strange := w.shape < p.shape || w.shape == shapeRecord && p.shape == shapeClock && w.clock >= p.clock/2
	if strange {
		if p.bare++; p.bare < bareLimit {
			return false
		}
		r.best = w.shape
	}
	if p.shape, p.bare = w.shape, 0; !p.spoke {
		r.speak(p)
	}
	r.best = max(r.best, w.shape)
	return w.clock == 0 || r.tick(p, w.clock, framed)
}

// tick takes the clock of a line and reports whether the line may be believed. A
// clock that falls far back, and near zero, is another process, which begins with
// lines that are about no slot; of slot lines it takes two.
func (r *Reader) tick(p *process, clock int64, framed bool) bool {
	switch {
	case clock >= p.clock-clockSlack:
		if clock > p.clock+clockLeap {
			p.low = p.clock
		}
	case p.low > 0 && clock >= p.low-clockSlack:
	case clock < p.clock/2:
		if framed && (p.odd == 0 || clock < p.odd) {
			p.odd = max(clock, 1)
			return false
		}
		r.restart(p)
	}
	p.clock, p.odd = clock, 0
	return true
}

// settle turns what a line about a slot says into what it means, given the lines
// before it.
func (p *process) settle(e *Event) {
	s := &p.slots[e.Slot]
	switch e.Kind {
	case KindFrame:
	case KindLaunch:
		s.released = noTask
		p.run(s, e.Task)
	case KindRelease:
		if e.Task == noTask {
			e.Task = s.task
		}
		s.released = e.Task
		p.run(s, noTask)
	case KindIdle, KindCleared, KindSlot:
		if e.Task == noTask || e.Kind == KindIdle {
			p.run(s, noTask)
		}
	case KindPrefillTiming, KindDraft:
		if s.released == e.Task && e.Task != noTask {
			e.Own = true
		} else {
			p.run(s, e.Task)
		}
	case KindRunning, KindTiming:
		// b3678..b6722 release first and print the timings after; builds with two
		// output streams can do so at any time. The tokens count, the slot is free.
		if s.released == e.Task && e.Task != noTask {
			e.Kind = KindLate
		} else {
			p.run(s, e.Task)
		}
	case KindEnding:
		if s.task != e.Task {
			e.Kind = KindFrame // released before we came, perhaps
		}
	default:
		switch {
		case s.released == e.Task && e.Task != noTask:
			e.Kind = KindFrame
		case e.Task == noTask:
			if e.Task = s.task; e.Task == noTask {
				e.Kind = KindFrame
			}
		default:
			p.run(s, e.Task)
		}
	}
}

// grow makes room for a slot that was not spoken of before.
func (r *Reader) grow(p *process, id int) {
	if id < len(p.slots) {
		return
	}
	known := len(p.slots)
	for len(p.slots) <= id {
		p.slots = append(p.slots, slotRun{task: noTask, released: noTask})
	}
	if p.lanes == 0 {
		r.makeRoom(len(p.slots) - known)
	}
}

func (p *process) run(s *slotRun, task int) {
	if (s.task == noTask) != (task == noTask) {
		if task == noTask {
			p.busy--
		} else {
			p.busy++
		}
	}
	s.task = task
}

// only returns the one slot that runs a task.
func (p *process) only() (slot int, ok bool) {
	if p.busy != 1 {
		return 0, false
	}
	return slices.IndexFunc(p.slots, func(s slotRun) bool { return s.task != noTask }), true
}

// restart begins a process anew: its slots are gone, and those of its children.
func (r *Reader) restart(p *process) {
	p.clock, p.low, p.odd, p.dial = 0, 0, 0, dial{}
	p.forgetSlots()
	r.tell(r.about(p, KindReset))
	if p.router {
		r.drop(func(c *process) bool { return c != p })
	}
}

// forgetSlots forgets what a server's end takes with it.
func (p *process) forgetSlots() {
	p.lanes, p.laneContext, p.pool = 0, 0, PoolUnknown
	p.header, p.slots, p.busy = blockHeader{}, p.slots[:0], 0
}

// drop forgets processes and says so, by port.
func (r *Reader) drop(which func(*process) bool) {
	for i := 0; i < len(r.procs); {
		if p := r.procs[i]; which(p) {
			r.forget(p)
		} else {
			i++
		}
	}
}

// processes are those of one log, by the port that they have there, rising. They are few.
type processes []*process

// find returns where the process of a port stands, or would.
func (s processes) find(port int) (at int, ok bool) {
	return slices.BinarySearchFunc(s, port, func(p *process, port int) int { return cmp.Compare(p.own, port) })
}

func (s processes) get(port int) *process {
	if i, ok := s.find(port); ok {
		return s[i]
	}
	return nil
}

func (s *processes) add(p *process) {
	i, _ := s.find(p.own)
	*s = slices.Insert(*s, i, p)
}

func (s *processes) remove(port int) {
	if i, ok := s.find(port); ok {
		*s = slices.Delete(*s, i, i+1)
	}
}
