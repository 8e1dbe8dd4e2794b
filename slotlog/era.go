package slotlog

import (
	"bytes"
	"maps"
	"slices"
	"time"
)

const (
	// bareLimit is how many bare frames in a row end the belief that this log has
	// prefixes: somebody now starts an older server, or one with --no-log-prefix.
	bareLimit = 32

	// clockSlack is how far a clock may go back within one process: threads take
	// the stamp before they queue the line, and the clock is the system's, which
	// NTP moves.
	clockSlack = 1_000_000 // microseconds
)

// era is what a log has shown of the builds that write it. Nothing is decided
// once: a file may hold the lines of several builds, one after the other or, below
// a router, side by side.
type era struct {
	fixedPort int // configured; 0: from the log
	ownPort   int // of lines without a mark

	prefixed bool // lines have shown a clock
	bare     int  // frames without one since

	procs map[int]*process // by port
	cur   *process         // of the last line
}

// process is one llama-server that writes to the log, as far as its lines depend
// on each other.
type process struct {
	port  int
	heard uint64 // the first of the lines in a row that it spoke last
	mark  int    // the printed port, 0 for lines without a mark
	clock int64
	lanes int // slots, when it said so

	laneContext int64 // context of each, when it said so
	pool        Pool

	router bool   // it has spoken of children
	model  string // what its router calls it

	header   blockHeader
	released []int // by slot: the task released last, noTask while another runs
}

const noTask = -1

// blockHeader is a frame without words, which begins the timing block of builds
// before b9230: the lines that follow have no frame of their own.
type blockHeader struct {
	open       bool
	slot, task int
}

func (r *era) init(port int) {
	r.fixedPort, r.ownPort = port, port
	if port == 0 {
		r.ownPort = 1 // "the only server"
	}
	r.procs = make(map[int]*process)
}

// process finds the process that printed a mark, 0 for none.
func (r *era) process(mark int, seq uint64, at time.Time, emit func(Event)) *process {
	port := mark
	if mark == 0 {
		port = r.ownPort
	}
	p := r.procs[port]
	if p == nil {
		p = &process{port: port, heard: seq}
		r.procs[port] = p
		r.makeRoom(seq, at, emit)
	}
	p.mark, p.heard = mark, seq
	r.cur = p
	return p
}

// cut forgets what depends on the line before.
func (r *era) cut() {
	for _, p := range r.procs {
		p.header = blockHeader{}
		p.released = p.released[:0]
	}
}

// tick takes the clock of a prefixed line. A clock that falls far back, and near
// zero, is another process.
func (r *era) tick(p *process, clock int64, seq uint64, at time.Time, emit func(Event)) {
	if clock < p.clock-clockSlack && clock < p.clock/2 {
		r.restart(p, seq, at, emit)
	}
	p.clock = clock
	r.prefixed, r.bare = true, 0
}

// bareFrame decides on a slot frame without a prefix. Where others have one it is
// text from somewhere else: chat templates and request fields can hold whole
// lines, and they come without.
func (r *era) bareFrame() bool {
	if !r.prefixed {
		return true
	}
	if r.bare++; r.bare < bareLimit {
		return false
	}
	r.prefixed, r.bare = false, 0
	return true
}

// settle turns what a line says into what it means, given the lines before it.
func (p *process) settle(e *Event, msg []byte) {
	switch e.Kind {
	case KindLaunch:
		p.release(e.Slot, noTask)
	case KindRelease:
		p.release(e.Slot, e.Task)
	case KindRunning, KindTiming:
		// b3678..b6722 release first and print the timings after; builds with two
		// output streams can do so at any time. The tokens count, the slot is free.
		if p.releasedTask(e.Slot) == e.Task {
			e.Kind = KindLate
		}
	case KindPrompt:
		if p.releasedTask(e.Slot) == e.Task {
			e.Kind = KindFrame
		}
	case KindFrame:
		switch {
		case skipBlanks(msg, 0) == len(msg):
			p.header = blockHeader{open: true, slot: e.Slot, task: e.Task}
		case hasPrefix(msg, "selected slot by l") || hasPrefix(msg, "selected slot by L"):
			// Only a free slot is picked by age or likeness. Until b6722 the frame
			// still shows the task that it ran before. (By id, a busy one can be.)
			e.Kind = KindIdle
		}
	}
}

func (p *process) release(slot, task int) {
	for len(p.released) <= slot {
		p.released = append(p.released, noTask)
	}
	p.released[slot] = task
}

func (p *process) releasedTask(slot int) int {
	if slot < len(p.released) {
		return p.released[slot]
	}
	return noTask
}

// restart begins a process anew: its slots are gone, and those of its children.
func (r *era) restart(p *process, seq uint64, at time.Time, emit func(Event)) {
	p.clock, p.lanes, p.laneContext, p.pool = 0, 0, 0, PoolUnknown
	p.header, p.released = blockHeader{}, p.released[:0]
	emit(Event{Kind: KindReset, Seq: seq, Time: at, Port: p.port, Slot: -1, Task: noTask})
	if p.router {
		r.drop(seq, at, emit, func(c *process) bool { return c != p })
	}
}

// drop forgets processes and says so.
func (r *era) drop(seq uint64, at time.Time, emit func(Event), which func(*process) bool) {
	for _, port := range slices.Sorted(maps.Keys(r.procs)) {
		if p := r.procs[port]; which(p) {
			r.forget(p, seq, at, emit)
		}
	}
}

// serviceLine reads the lines of the server itself that change what is known of
// its slots. The messages kept their words through the builds that print them.
func (r *Reader) serviceLine(p *process, msg []byte, at time.Time, emit func(Event)) {
	if len(msg) == 0 {
		return
	}
	seq := r.stats.Lines
	e := Event{Seq: seq, Time: at, Port: p.port, Slot: -1, Task: noTask}
	switch msg[0] {
	case 'a':
		if string(msg) == "all slots are idle" {
			e.Kind = KindAllIdle
			emit(e)
		}
	case 'l':
		if hasPrefix(msg, "loading model '") {
			r.restart(p, seq, at, emit)
		} else if rest, ok := bytes.CutPrefix(msg, []byte("listening on ")); ok {
			r.listening(p, rest, at, emit)
		}
	case 'c', 'o':
		if hasPrefix(bytes.TrimPrefix(msg, []byte("operator(): ")), "cleaning up before exit") {
			e.Kind = KindStopping
			emit(e)
		}
	case 'i':
		if rest, ok := bytes.CutPrefix(msg, []byte("initializing")); ok {
			r.initializing(p, rest, e, emit)
			return
		}
		if name, ok := cutBetween(msg, "instance name=", " exited with status "); ok && p.mark == 0 {
			name = clipName(name)
			r.drop(seq, at, emit, func(c *process) bool { return c.mark != 0 && c.model == string(name) })
		}
	case 's':
		if hasPrefix(msg, "starting server in router mode") && p.mark == 0 {
			p.router = true
			r.restart(p, seq, at, emit)
		} else if name, port, ok := childOf(msg, "spawning server instance with name="); ok && p.mark == 0 {
			r.child(p, name, port, true, e, emit)
		}
	case 'p':
		if name, port, ok := childOf(msg, "proxying request to model "); ok && p.mark == 0 {
			r.child(p, name, port, false, e, emit)
		}
	}
}

// mainLine reads the start lines that builds before b9829 print under `main: `.
func (r *Reader) mainLine(p *process, msg []byte, at time.Time, emit func(Event)) {
	if rest, ok := bytes.CutPrefix(msg, []byte("server is listening on ")); ok {
		r.listening(p, rest, at, emit)
	} else if _, rest, ok := bytes.Cut(msg, []byte("is listening, hostname: ")); ok {
		if _, rest, ok = bytes.Cut(rest, []byte(", port: ")); ok {
			rest, _, _ = bytes.Cut(rest, []byte(","))
			r.moveTo(p, rest, at, emit)
		}
	}
}

// listening reads `http://HOST:PORT…`.
func (r *Reader) listening(p *process, addr []byte, at time.Time, emit func(Event)) {
	addr, _, _ = bytes.Cut(addr, []byte(" "))
	if i := bytes.LastIndexByte(addr, ':'); i >= 0 && hasPrefix(addr, "http") {
		r.moveTo(p, addr[i+1:], at, emit)
	}
}

// moveTo gives the process that prints no mark the port it listens on. Lines of
// its start came before, under the port it had until then.
func (r *Reader) moveTo(p *process, digits []byte, at time.Time, emit func(Event)) {
	port, n, ok := scanUint(digits, 0)
	if !ok || n != len(digits) || port < 1 || port > 65535 || p.mark != 0 || r.fixedPort != 0 || int(port) == p.port {
		return
	}
	seq := r.stats.Lines
	r.drop(seq, at, emit, func(c *process) bool { return c == p || c.port == int(port) })
	p.port, p.heard, r.ownPort = int(port), seq, int(port)
	r.procs[p.port] = p
	if p.lanes > 0 {
		emit(Event{
			Kind: KindLanes, Seq: seq, Time: at, Port: p.port, Slot: -1, Task: noTask,
			Lanes: p.lanes, Pool: p.pool, Tokens: p.laneContext, HasTokens: p.laneContext > 0,
		})
	}
}

// initializing reads `, n_slots = N, n_ctx_slot = C, kv_unified = 'false'` (b9829 on) or
// ` slots, n_slots = N`, printed once the model is loaded.
func (r *Reader) initializing(p *process, rest []byte, e Event, emit func(Event)) {
	_, rest, ok := bytes.Cut(rest, []byte(", n_slots = "))
	if !ok {
		return
	}
	n, i, ok := scanUint(rest, 0)
	if !ok || n < 1 || n > maxLanes {
		return
	}
	p.lanes, p.laneContext, p.pool, p.released = int(n), 0, PoolUnknown, p.released[:0]
	e.Kind, e.Lanes = KindLanes, int(n)
	if i, ok = skipLit(rest, i, ", n_ctx_slot = "); ok {
		e.Tokens, i, e.HasTokens = scanUint(rest, i)
		p.laneContext = e.Tokens
	}
	switch string(rest[i:]) {
	case ", kv_unified = 'false'":
		p.pool = PoolOwn
	case ", kv_unified = 'true'":
		p.pool = PoolShared
	}
	e.Pool = p.pool
	r.makeRoom(e.Seq, e.Time, emit)
	emit(e)
}

// child takes a router's word on which model a port serves.
func (r *Reader) child(router *process, name []byte, port int, spawned bool, e Event, emit func(Event)) {
	router.router = true
	name = clipName(name)
	c := r.process(port, e.Seq, e.Time, emit)
	if spawned {
		r.restart(c, e.Seq, e.Time, emit)
	}
	if c.model == string(name) && !spawned {
		return
	}
	c.model = string(name)
	e.Kind, e.Port, e.Model = KindModel, port, c.model
	emit(e)
}

// childOf reads `PREFIX NAME on port N`. Names are free text, so the port is taken
// from the end.
func childOf(msg []byte, prefix string) (name []byte, port int, ok bool) {
	rest, ok := bytes.CutPrefix(msg, []byte(prefix))
	if !ok {
		return nil, 0, false
	}
	i := bytes.LastIndex(rest, []byte(" on port "))
	if i < 0 {
		return nil, 0, false
	}
	digits := rest[i+len(" on port "):]
	v, n, ok := scanUint(digits, 0)
	if !ok || n != len(digits) || v < 1 || v > 65535 {
		return nil, 0, false
	}
	return rest[:i], int(v), true
}

// cutBetween returns what stands between a prefix and the last mark in b.
func cutBetween(b []byte, prefix, mark string) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(b, []byte(prefix))
	if !ok {
		return nil, false
	}
	i := bytes.LastIndex(rest, []byte(mark))
	if i < 0 {
		return nil, false
	}
	return rest[:i], true
}
