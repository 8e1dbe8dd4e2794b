package slotlog

import "bytes"

// native reads what is left of a line when everything around it is gone, and reports
// whether it is known.
func (r *Reader) native(b []byte, w wrapping) bool {
	p := r.process(w.mark)
	if f, msg, ok := scanFrame(b); ok {
		return r.believe(p, w, true) && r.slotLine(p, f, msg)
	}
	if msg, ok := scanService(b); ok {
		if !r.believe(p, w, false) {
			return false
		}
		p.header.open = false
		if !w.inside {
			r.serviceLine(p, msg)
		}
		return true
	}
	if hasPrefix(b, "main: ") && !w.inside {
		if !r.believe(p, w, false) {
			return false
		}
		r.mainLine(p, b[len("main: "):])
		return true
	}
	if w.shape >= shapeClock {
		if !w.inside && !r.believe(p, w, false) {
			return false
		}
		r.libraryLine(p, b, w)
		return true
	}
	if w.inside {
		return true
	}
	return r.bareLine(p, b, w) || w.noise
}

// slotLine emits what a framed line says, and reports whether its words are known.
func (r *Reader) slotLine(p *process, f Frame, msg []byte) bool {
	if f.Slot >= p.reach() {
		return false // spliced or forged
	}
	e := r.slotEvent(p, f.Slot, f.Task)
	known := e.read(msg)
	r.tellSlot(p, e)
	return known
}

// tellSlot emits what the line of a frame was found to say.
func (r *Reader) tellSlot(p *process, e *Event) {
	r.stats.Framed++
	p.header.open = false
	if e.Slot >= 0 {
		if e.Slot >= len(p.slots) {
			r.grow(p, e.Slot)
		}
		if e.Kind == KindEnding {
			p.header = blockHeader{open: true, slot: e.Slot, task: e.Task}
		}
		// A line of the task that runs, but for its begin and its end, means what it says.
		if s := &p.slots[e.Slot]; s.task != e.Task || e.Task == noTask || e.Kind-KindIdle <= KindRelease-KindIdle {
			if e.Kind == KindPrompt {
				r.launchLost(p, e)
			}
			p.settle(e)
		}
	}
	r.tell(e)
}

// launchLost says that a slot runs another task than we thought, when it is its
// prefill that shows it.
func (r *Reader) launchLost(p *process, e *Event) {
	if s := &p.slots[e.Slot]; s.task != noTask && s.task != e.Task && s.released != e.Task {
		busy := r.about(p, KindBusy)
		busy.Slot, busy.Task = e.Slot, e.Task
		r.tell(busy)
	}
}

// slotEvent readies the scratch event.
func (r *Reader) slotEvent(p *process, slot, task int) *Event {
	e := &r.event
	e.Seq, e.Port, e.Slot, e.Task = r.stats.Lines, p.port, slot, task
	e.Kind, e.HasTokens, e.HasRate, e.HasMean, e.HasShare = KindFrame, false, false, false, false
	e.Own, e.Truncated = false, false
	e.Tokens, e.Count, e.Rate, e.Mean, e.Share, e.Kept = 0, 0, 0, 0, 0, 0
	if e.Failure != "" {
		e.Failure = ""
	}
	return e
}

// bareLine handles a line without frame and prefix: a record of 2024, words of 2023,
// a continuation, or text of others. It reports whether the shape is known.
func (r *Reader) bareLine(p *process, b []byte, w wrapping) bool {
	if p.header.open {
		if e := r.blockEvent(p, b); e != nil {
			r.tellBlock(p, e)
			return true
		}
	}
	if n := nameAt(b); n > 0 && !hasPrefix(b, "print_timings: ") {
		return p.shape == shapeBare
	}
	if known, cut := isWrapperLine(b); known {
		p.header.open = p.header.open && !cut
		return true
	}
	if isContinuation(b) {
		return true
	}
	if msg, ok := bytes.CutPrefix(b, []byte("cmd_child_to_router:")); ok {
		if w.mark != 0 {
			if !p.spoke {
				r.speak(p)
			}
			r.childSays(p, msg)
		}
		return true
	}
	if r.rec.scanText(b) {
		if !r.believe(p, w, true) {
			return false
		}
		r.recordLine(p)
		return true
	}
	if known, ok := r.freeLine(p, b, w); ok {
		return known
	}
	return false
}

// blockEvent reads a line of a timing block, which belongs to the frame before it; nil: it
// is none.
func (r *Reader) blockEvent(p *process, b []byte) *Event {
	e := r.slotEvent(p, p.header.slot, p.header.task)
	if e.read(b); e.Kind != KindTiming && e.Kind != KindPrefillTiming && e.Kind != KindDraft {
		return nil
	}
	return e
}

// tellBlock emits what a line of a timing block says, unless its like came before.
func (r *Reader) tellBlock(p *process, e *Event) {
	h := &p.header
	i := 0
	switch e.Kind {
	case KindTiming:
		i = 1
	case KindDraft:
		i = 2
	}
	if h.took[i] {
		return
	}
	h.took[i] = true
	if h.slot >= len(p.slots) || p.slots[h.slot].task != h.task { // released before, or before we came
		if e.Own = true; e.Kind == KindTiming {
			e.Kind, e.Own = KindLate, false
		}
	}
	e.Seq = r.stats.Lines
	r.tell(e)
}

// isContinuation reports whether b is a further line of a timing block.
func isContinuation(b []byte) bool {
	b = b[skipBlanks(b, 0):]
	if len(b) == 0 {
		return false
	}
	switch b[0] {
	case 'p':
		return hasPrefix(b, "prompt eval time = ")
	case 'e':
		return hasPrefix(b, "eval time = ")
	case 't':
		return hasPrefix(b, "total time = ")
	case 'd':
		return hasPrefix(b, "draft acceptance")
	}
	return false
}

// recordLine says what a record of 2024 says.
func (r *Reader) recordLine(p *process) {
	rec := &r.rec
	p.header.open = false
	if rec.slot >= 0 {
		if rec.slot >= p.reach() {
			return
		}
		e := r.slotEvent(p, rec.slot, rec.task)
		r.grow(p, rec.slot)
		rec.event(e)
		r.stats.Framed++
		p.settle(e)
		r.tell(e)
		return
	}
	msg := rec.msg
	switch {
	case hasPrefix(msg, "all slots are idle"):
		r.allIdle(p)
	case string(msg) == "slot data":
		if rec.processing == 0 && rec.idle > 0 {
			r.allIdle(p)
		}
	case string(msg) == "initializing slots":
		r.makeLanes(p, rec.slots, 0, PoolUnknown)
	case string(msg) == "loading model":
		r.loading(p)
	case string(msg) == "model loaded":
		r.tell(r.about(p, KindReady))
	case string(msg) == "HTTP server listening", string(msg) == "HTTP server is listening":
		r.moveTo(p, rec.port)
	case string(msg) == "cancel task":
		r.taskEnds(p, KindCancel, int64(rec.task), "")
	case string(msg) == "task error":
		r.taskEnds(p, KindFailed, int64(rec.task), failureOf(rec.err))
	default:
		r.backend(p, msg)
	}
}

// freeLine reads what builds of 2023 say. ok is false when it is none of it.
func (r *Reader) freeLine(p *process, b []byte, w wrapping) (known, ok bool) {
	e := r.slotEvent(p, -1, noTask)
	switch c := b[0]; {
	case (c == 's' || c == '-') && e.readFreeText(b):
		if !r.believe(p, w, true) || e.Slot >= p.reach() {
			return false, true
		}
		r.stats.Framed++
		r.grow(p, e.Slot)
		p.settle(e)
		r.tell(e)
	case c == 'p' && e.readFreeTiming(b):
		if slot, ok := p.only(); ok && e.Kind != KindFrame && r.believe(p, w, true) {
			e.Slot, e.Task = slot, p.slots[slot].task
			r.tell(e)
		}
	case string(b) == "Available slots:", string(b) == "system prompt updated", string(b) == "updating system prompt":
	case c == 'a' && hasPrefix(b, "all slots are idle"), (c == 'l' || c == 'u') && isFreeEnd(b),
		c == 'l' && hasPrefix(b, "llama server listening at "), c == 't' && hasPrefix(b, "task "):
		if !r.believe(p, w, true) {
			return false, true
		}
		return r.freeServerLine(p, b), true
	default:
		words, named := freeFunction(b)
		if !named {
			return false, false
		}
		if f, ok := backendFailure(words); ok && r.believe(p, w, true) {
			e := r.about(p, KindBackend)
			e.Failure = f
			r.tell(e)
		}
	}
	return true, true
}

func (r *Reader) freeServerLine(p *process, b []byte) bool {
	if addr, ok := bytes.CutPrefix(b, []byte("llama server listening at ")); ok {
		r.listening(p, addr)
	} else if b[0] == 'a' {
		r.allIdle(p)
	} else if isFreeEnd(b) {
		p.forgetSlots()
		r.tell(r.about(p, KindExit))
	} else if b[0] == 't' {
		task, words, ok := freeTask(b)
		if ok {
			r.taskEnds(p, KindFailed, int64(task), failureOf(words))
		}
		return ok || bytes.Contains(b, []byte(" - slots data: "))
	}
	return true
}
