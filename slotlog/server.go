package slotlog

import "bytes"

// serviceWords are how the messages begin that serviceLine knows.
var serviceWords = newWordSet(8,
	"all slots are idle", "loading model", "listening on ", "cancel task, ", "cleaning up before exit",
	"operator():", "operator ():", "task id = ", "entering sleeping state", "exiting sleeping state",
	"initializing", "instance name=", "router server is listening on ", "model loaded", "model name=",
	"n_processing_slots = 0", "n_idle_slots = ", "server is listening on ", "starting server in router mode",
	"spawning server instance", "purging slot ", "proxying request to model ",
	"failed to ", "force-killing ", "decode() failed: ",
)

// serviceLine reads the lines of the server itself. The messages kept their words
// through the builds that print them.
func (r *Reader) serviceLine(p *process, msg []byte) {
	if len(msg) == 0 {
		return
	}
	switch msg[0] {
	case 'a':
		if string(msg) == "all slots are idle" {
			r.allIdle(p)
		}
	case 'l':
		if hasPrefix(msg, "loading model") {
			r.loading(p)
		} else if addr, ok := bytes.CutPrefix(msg, []byte("listening on ")); ok {
			r.listening(p, addr)
		}
	case 'c', 'o':
		if n, ok := lastNumber(msg, "cancel task, id_task = "); ok {
			r.taskEnds(p, KindCancel, n, "")
		} else if isCleaningUp(msg) {
			e := r.about(p, KindStopping)
			e.Own = true
			r.tell(e)
		}
	case 't':
		r.taskError(p, msg)
	case 'e':
		switch {
		case string(msg) == "entering sleeping state":
			r.sleep(p)
		case string(msg) == "exiting sleeping state":
			r.wake(p)
		default:
			r.backend(p, msg)
		}
	case 'i', 'r':
		if rest, ok := bytes.CutPrefix(msg, []byte("initializing")); ok {
			r.initializing(p, rest)
		} else {
			r.routerLine(p, msg)
		}
	case 'm':
		if string(msg) == "model loaded" {
			r.tell(r.about(p, KindReady))
		} else {
			r.routerLine(p, msg)
		}
	case 'n':
		if string(msg) == "n_processing_slots = 0" || hasPrefix(msg, "n_idle_slots = ") && bytes.HasSuffix(msg, []byte(", n_processing_slots = 0")) {
			r.allIdle(p)
		}
	case 's':
		r.serverState(p, msg)
	case 'p':
		if hasPrefix(msg, "purging slot ") {
			r.purge(p, msg)
		} else {
			r.routerLine(p, msg)
		}
	case 'f', 'd':
		r.failing(p, msg)
	}
}

// mainLine reads what builds before b9829 print under `main: `.
func (r *Reader) mainLine(p *process, msg []byte) {
	switch {
	case hasPrefix(msg, "loading model"):
		r.loading(p)
	case string(msg) == "model loaded":
		r.tell(r.about(p, KindReady))
	case hasPrefix(msg, "exiting due to model loading error"):
		r.backend(p, msg)
	case hasPrefix(msg, "server is listening on "):
		r.listening(p, msg[len("server is listening on "):])
	default:
		// `HTTP server is listening, hostname: H, port: P, http threads: N`
		_, rest, ok := bytes.Cut(msg, []byte("is listening, hostname: "))
		if !ok {
			return
		}
		if _, rest, ok = bytes.Cut(rest, []byte(", port: ")); ok {
			rest, _, _ = bytes.Cut(rest, []byte(","))
			r.moveTo(p, whole64(rest))
		}
	}
}

// libraryLine reads the prefixed lines of no frame.
func (r *Reader) libraryLine(p *process, b []byte, w wrapping) {
	p.header.open = false
	if w.mark != 0 && !w.inside {
		if msg, ok := bytes.CutPrefix(b, []byte("cmd_child_to_router:")); ok {
			r.childSays(p, msg)
		}
	}
}

func (r *Reader) serverState(p *process, msg []byte) {
	switch {
	case string(msg) == "server is entering sleeping state":
		r.sleep(p)
	case string(msg) == "server is exiting sleeping state":
		r.wake(p)
	case hasPrefix(msg, "server is listening on "):
		r.listening(p, msg[len("server is listening on "):])
	default:
		r.routerLine(p, msg)
	}
}

// isCleaningUp reads `FUNCTION: cleaning up before exit...`.
func isCleaningUp(msg []byte) bool {
	i := 0
	if msg[0] == 'o' {
		var ok bool
		if i, ok = skipLit(msg, 0, "operator(): "); !ok {
			if i, ok = skipLit(msg, 0, "operator (): "); !ok {
				return false
			}
		}
	}
	return hasPrefix(msg[i:], "cleaning up before exit")
}

// allIdle frees the slots of a process.
func (r *Reader) allIdle(p *process) {
	for i := range p.slots {
		p.slots[i].task = noTask
	}
	p.busy = 0
	r.tell(r.about(p, KindAllIdle))
}

// loading begins a model anew. A server that wakes is no new process, and neither is
// one that said so before it named the model.
func (r *Reader) loading(p *process) {
	if p.asleep || p.lanes == 0 && len(p.slots) == 0 && !p.router {
		p.asleep = false
	} else {
		r.restart(p)
	}
	r.tell(r.about(p, KindLoading))
}

func (r *Reader) sleep(p *process) {
	p.forgetSlots()
	if !p.asleep {
		p.asleep = true
		r.tell(r.about(p, KindSleeping))
	}
}

func (r *Reader) wake(p *process) {
	if p.asleep {
		r.tell(r.about(p, KindLoading))
	}
}

// initializing reads `, n_slots = N, n_ctx_slot = C, kv_unified = 'false'` (b9829 on) or
// ` slots, n_slots = N`, printed once the model is loaded.
func (r *Reader) initializing(p *process, rest []byte) {
	_, rest, ok := bytes.Cut(rest, []byte(", n_slots = "))
	if !ok {
		return
	}
	n, i, ok := scanUint(rest, 0)
	if !ok {
		return
	}
	size := int64(0)
	if i, ok = skipLit(rest, i, ", n_ctx_slot = "); ok {
		size, i, _ = scanUint(rest, i)
	}
	pool := PoolUnknown
	switch string(rest[i:]) {
	case ", kv_unified = 'false'":
		pool = PoolOwn
	case ", kv_unified = 'true'":
		pool = PoolShared
	}
	r.makeLanes(p, n, size, pool)
}

func (r *Reader) makeLanes(p *process, n, size int64, pool Pool) {
	if n < 1 || n > maxLanes {
		return
	}
	p.forgetSlots()
	p.asleep = false
	p.lanes, p.laneContext, p.pool = int(n), size, pool
	r.makeRoom(p.lanes)
	r.sayLanes(p)
}

func (r *Reader) sayLanes(p *process) {
	e := r.about(p, KindLanes)
	e.Lanes, e.Pool, e.Tokens, e.HasTokens = p.lanes, p.pool, p.laneContext, p.laneContext > 0
	r.tell(e)
}

// listening reads `http://HOST:PORT…`.
func (r *Reader) listening(p *process, addr []byte) {
	addr, _, _ = bytes.Cut(addr, []byte(" "))
	if i := bytes.LastIndexByte(addr, ':'); i >= 0 && hasPrefix(addr, "http") {
		r.moveTo(p, whole64(addr[i+1:]))
	}
	r.tell(r.about(p, KindReady))
}

// moveTo gives the process that prints no mark the port it listens on. Lines of
// its start came before, under the port it had until then.
func (r *Reader) moveTo(p *process, port int64) {
	if port < 1 || port > 65535 || p.mark != 0 || r.fixedPort != 0 || int(port) == p.own {
		return
	}
	if c := r.procs.get(int(port)); c != nil {
		r.forget(c)
	}
	r.procs.remove(p.own)
	r.tell(r.about(p, KindGone))
	p.own, r.ownPort = int(port), int(port)
	r.procs.add(p)
	p.port = r.apart(p.own)
	if p.lanes > 0 {
		r.sayLanes(p)
	}
}

// taskEnds says that something became of a task of which the line names no slot.
func (r *Reader) taskEnds(p *process, k Kind, task int64, f Failure) {
	if task < 0 {
		return
	}
	e := r.about(p, k)
	e.Task, e.Failure = int(task), f
	r.tell(e)
}

// taskError reads `task id = N, error: WORDS`.
func (r *Reader) taskError(p *process, msg []byte) {
	i, ok := skipLit(msg, 0, "task id = ")
	if !ok {
		return
	}
	n, i, ok := scanUint(msg, i)
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, ", error: "); ok {
		r.taskEnds(p, KindFailed, n, failureOf(msg[i:]))
	}
}

// failing reads what begins with `failed to` and its like, `force-killing` too.
func (r *Reader) failing(p *process, msg []byte) {
	if hasPrefix(msg, "failed to launch slot with ") {
		if i := bytes.LastIndex(msg, []byte("id_task = ")); i >= 0 {
			r.taskEnds(p, KindFailed, whole64(msg[i+len("id_task = "):]), FailureOther)
		}
	} else if msg[0] == 'f' && hasPrefix(msg, "force-killing ") {
		r.routerLine(p, msg)
	} else {
		r.backend(p, msg)
	}
}

func (r *Reader) backend(p *process, msg []byte) {
	if f, ok := backendFailure(msg); ok {
		e := r.about(p, KindBackend)
		e.Failure = f
		r.tell(e)
	}
}

// purge reads `purging slot N with M tokens`: a free slot lost its context.
func (r *Reader) purge(p *process, msg []byte) {
	n, i, ok := scanUint(msg, len("purging slot "))
	if !ok || n >= int64(p.reach()) || !hasPrefix(msg[i:], " with ") {
		return
	}
	e := r.slotEvent(p, int(n), noTask)
	e.Kind = KindCleared
	r.grow(p, int(n))
	p.settle(e)
	r.tell(e)
}

// lastNumber reads words and a number that ends the line.
func lastNumber(msg []byte, words string) (n int64, ok bool) {
	i, ok := skipLit(msg, 0, words)
	if !ok {
		return 0, false
	}
	n = whole64(msg[i:])
	return n, n >= 0
}
