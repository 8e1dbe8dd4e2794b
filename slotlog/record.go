package slotlog

import "bytes"

// record is a line of builds b2259 to b3760 and of forks from them: words, and
// figures by name, as text or as a JSON object. The JSON lines of b694 to b2258
// are records too. Figures that were not there are -1.
type record struct {
	msg        []byte
	err        []byte // words of a failed task; only looked at
	slot, task int

	past, from, size, slots, idle, processing, port, prompt int64

	progress    float64
	hasProgress bool
	truncated   bool
}

func (r *record) clear() {
	*r = record{slot: -1, task: noTask, past: -1, from: -1, size: -1, slots: -1, idle: -1, processing: -1, port: -1, prompt: -1}
}

// set takes one figure. Until b2356 slots and tasks have the other word order.
func (r *record) set(key, text []byte) {
	switch string(key) {
	case "msg", "message":
		r.msg = text
	case "error":
		r.err = text
	case "id_slot", "slot_id":
		r.slot = int(whole64(text))
	case "id_task", "task_id":
		r.task = int(whole64(text))
	case "n_past":
		r.past = whole64(text)
	case "p0":
		r.from = whole64(text)
	case "n_ctx", "n_ctx_slot":
		r.size = whole64(text)
	case "n_slots":
		r.slots = whole64(text)
	case "n_idle_slots":
		r.idle = whole64(text)
	case "n_processing_slots":
		r.processing = whole64(text)
	case "n_prompt_tokens":
		r.prompt = whole64(text)
	case "port":
		r.port = whole64(text)
	case "truncated":
		r.truncated = string(text) == "true"
	case "progress":
		share, known, i, ok := scanRate(text, 0)
		r.progress, r.hasProgress = share, ok && known && i == len(text)
	}
}

// whole64 is the number that is all of b, else -1.
func whole64(b []byte) int64 {
	n, i, ok := scanUint(b, 0)
	if !ok || i != len(b) {
		return -1
	}
	return n
}

// scanRecord reads `%4s [%24s] WORDS | name=value …`.
func (r *record) scanText(b []byte) bool {
	i := skipBlanks(b, 0)
	switch {
	case hasPrefix(b[i:], "INFO ["), hasPrefix(b[i:], "WARN ["), hasPrefix(b[i:], "VERB ["):
		i += len("INFO [")
	case hasPrefix(b[i:], "ERR ["):
		i += len("ERR [")
	default:
		return false
	}
	n := bytes.IndexByte(b[i:min(len(b), i+64)], ']')
	if n < 0 || i+n+2 > len(b) || b[i+n+1] != ' ' {
		return false
	}
	i += n + 2
	r.clear()
	words := b[i:]
	n = bytes.Index(words, []byte(" | "))
	if n < 0 {
		r.msg = bytes.TrimSuffix(words, []byte(" |"))
		return true
	}
	r.msg = words[:n]
	for f := (jsonFields{b: words, i: n + 3}); f.i < len(f.b); {
		f.i = skipBlanks(f.b, f.i)
		n = bytes.IndexByte(f.b[f.i:], '=')
		if n <= 0 {
			break
		}
		key := f.b[f.i : f.i+n]
		f.i += n + 1
		v, ok := f.value()
		if !ok {
			break
		}
		r.set(key, v.text)
	}
	return true
}

// event reads the words of a record that is about a slot.
func (r *record) event(e *Event) {
	msg := r.msg
	switch {
	case hasPrefix(msg, "prompt eval time"):
		i := skipBlanks(msg, len("prompt eval time"))
		if i, ok := skipLit(msg, i, "= "); ok && e.readSpeed(msg, i) {
			e.Kind = KindPrefillTiming
		}
	case hasPrefix(msg, "generation eval time"):
		e.readTiming(msg)
	case hasPrefix(msg, "selected slot by l"):
		e.Kind = KindIdle
	default:
		r.eventByName(e)
	}
}

func (r *record) eventByName(e *Event) {
	tokens := int64(-1)
	switch string(r.msg) {
	case "slot is processing task":
		e.Kind = KindLaunch
	case "slot released":
		e.Kind, e.Truncated, tokens = KindRelease, r.truncated, r.past
	case "kv cache rm [p0, end)":
		if r.from >= 0 {
			e.Kind, tokens = KindCached, r.from
		}
	case "slot progression", "prompt processing progress":
		if r.past >= 0 {
			e.Kind, tokens = KindPrompt, r.past
			e.Share, e.HasShare = min(float32(r.progress), 1), r.hasProgress
		}
	case "prompt done":
		if r.past >= 0 {
			e.Kind, tokens = KindPrefilled, r.past
		}
	case "prompt tokenized":
		if r.prompt >= 0 {
			e.Kind, e.Own, tokens, e.Count = KindPromptSize, true, r.prompt, max(r.size, 0)
		}
	case "input truncated":
		if r.prompt >= 0 {
			e.Kind, tokens = KindTruncated, r.prompt
		}
	case "slot context shift":
		e.Kind, e.Count = KindShift, max(r.size, 0)
	case "new slot":
		if r.size >= 0 {
			e.Kind, e.Count = KindSlot, r.size
		}
	}
	if tokens >= 0 {
		e.Tokens, e.HasTokens = tokens, true
	}
}
