package slotlog

import "bytes"

// read finds the rule for the message of a slot frame, whatever its era, and sets
// Kind and figures. Seq, Time, Port, Slot and Task are set; the rest is zero. It
// reports whether the words are known.
//
// Messages are matched from the first byte; readouts and timings to the last, so
// that a spliced line gives no wrong count. A frame without a task speaks of a
// free slot, whatever its words.
func (e *Event) read(msg []byte) (known bool) {
	if len(msg) == 0 {
		e.Kind = KindEnding
		if e.Task < 0 {
			e.Kind = KindIdle
		}
		return true
	}
	if e.Task < 0 {
		e.Kind = KindIdle
		e.readFree(msg)
		return true
	}
	if len(msg) > 24 {
		switch eight(msg, 0) {
		case wordsTotal, wordsGraphs:
			return true
		case wordsEval:
			if string(msg[8:19]) == "val time = " && e.readSpeed(msg, 19) {
				e.Kind = KindTiming
				return true
			}
		case wordsPromptEval:
			if string(msg[8:19]) == "val time = " && e.readSpeed(msg, 19) {
				e.Kind = KindPrefillTiming
				return true
			}
		}
	}
	switch msg[0] {
	case 'p':
		e.readPrompt(msg)
	case 's':
		e.readSelected(msg)
	case 'n':
		e.readRunning(msg)
	case ' ', 'e', 'g':
		e.readTiming(msg)
	case 'k', 'c':
		e.readCache(msg)
	case 'd':
		e.readDraft(msg)
	case 'a':
		e.readDraftStep(msg)
	case 'i', 'f', 'w':
		e.readRare(msg)
	}
	return e.Kind != KindFrame || !endsInRate(msg)
}

// The first eight bytes of lines that no state depends on.
var (
	wordsTotal  = eightOf("      to")
	wordsGraphs = eightOf("   graph")
)

// readFree reads the words that count about a slot without a task.
func (e *Event) readFree(msg []byte) {
	switch msg[0] {
	case 's':
		e.readPick(msg)
	case 'n':
		// `new slot n_ctx_slot = N` until b6924, `new slot, n_ctx = N` until b9828.
		i, ok := skipLit(msg, 0, "new slot n_ctx_slot = ")
		if !ok {
			if i, ok = skipLit(msg, 0, "new slot, n_ctx = "); !ok {
				return
			}
		}
		if n, i, ok := scanUint(msg, i); ok && i == len(msg) {
			e.Kind, e.Count = KindSlot, n
		}
	case 'c':
		if isClearing(msg) {
			e.Kind = KindCleared
		}
	}
}

// isClearing knows `clearing slot with N tokens` (b7078..b7745) and `clearing prompt
// with N tokens` (b7746 on). A child of a request with several answers prints it
// with its task, right after its release.
func isClearing(msg []byte) bool {
	return hasPrefix(msg, "clearing slot with ") || hasPrefix(msg, "clearing prompt with ")
}

// readPrompt reads `processing task…`, the timing of prefill, and its progress. Until
// b6889 the context is n_past and n_tokens is the batch; from b6890 n_tokens is the
// context; from b9151 `prompt processing, n_tokens` is what was processed.
func (e *Event) readPrompt(msg []byte) {
	const launch = "processing task"
	i, ok := skipLit(msg, 0, "prompt ")
	if !ok {
		if hasPrefix(msg, launch) && (len(msg) == len(launch) || !isWordByte(msg[len(launch)])) {
			e.Kind = KindLaunch
		}
		return
	}
	if j, found := skipLit(msg, i, "eval time = "); found {
		if e.readSpeed(msg, j) {
			e.Kind = KindPrefillTiming
		}
		return
	}
	kind := KindPrompt
	if j, found := skipLit(msg, i, "processing, "); found { // b9151 on
		i, e.Own = j, true
	} else if j, found = skipLit(msg, i, "processing progress, "); found {
		i = j
	} else {
		if j, found = skipLit(msg, i, "processing done, "); !found { // b8152..b9150
			if j, found = skipLit(msg, i, "done, "); !found {
				return
			}
		}
		i, kind = j, KindPrefilled
	}
	n, i, ok := scanContext(msg, i)
	if !ok || i >= len(msg) || msg[i] != ',' {
		e.Own = false
		return
	}
	e.Kind, e.Tokens, e.HasTokens = kind, n, true
	if kind == KindPrefilled {
		return
	}
	if j := indexAfter(msg, i, " progress = "); j > 0 {
		if share, known, _, ok := scanRate(msg, j); ok && known {
			e.Share, e.HasShare = min(float32(share), 1), true
		}
	}
}

// readSelected reads `stop processing…`, whose figure is n_past until b6889, the pick
// of a slot and the shift of its context.
func (e *Event) readSelected(msg []byte) {
	i, ok := skipLit(msg, 0, "stop processing")
	if !ok {
		if hasPrefix(msg, "selected slot by ") {
			e.readPick(msg)
		} else if hasPrefix(msg, "slot context shift") {
			e.Kind = KindShift
		}
		return
	}
	if i < len(msg) && isWordByte(msg[i]) {
		return
	}
	e.Kind = KindRelease
	if i, ok = skipLit(msg, i, ": "); !ok {
		return
	}
	n, i, ok := scanContext(msg, i)
	if !ok {
		return
	}
	e.Tokens, e.HasTokens = n, true
	i, ok = skipLit(msg, i, ", truncated = 1")
	e.Truncated = ok && i == len(msg)
}

// readPick reads `selected slot by …`. Only a free slot is picked by age or likeness;
// until b6722 the frame still shows the task that it ran before. By id (b9718 on) a
// slot is picked before anybody looks whether it is free.
func (e *Event) readPick(msg []byte) {
	i, ok := skipLit(msg, 0, "selected slot by ")
	if !ok {
		return
	}
	if _, byID := skipLit(msg, i, "id ("); byID {
		if e.Task >= 0 {
			e.Kind = KindBusy
		}
		return
	}
	if i+1 >= len(msg) || msg[i]|0x20 != 'l' {
		return
	}
	e.Kind, e.Own = KindIdle, true
	if msg[i+1]|0x20 != 'c' { // by age
		return
	}
	// `, [f_]sim_best = S (> T thold), f_keep = K`; until b6722 `, similarity = S…`.
	j := indexAfter(msg, i, "sim_best = ")
	if j == 0 {
		if j = indexAfter(msg, i, "similarity = "); j == 0 {
			return
		}
	}
	share, known, i, ok := scanRate(msg, j)
	if !ok || !known {
		return
	}
	e.Share, e.HasShare, e.Kept = min(float32(share), 1), true, -1
	if j = indexAfter(msg, i, "f_keep = "); j > 0 {
		if kept, known, _, ok := scanRate(msg, j); ok && known {
			e.Kept = min(float32(kept), 1)
		}
	}
}

// scanContext reads `n_tokens = N` or its older name `n_past = N`.
func scanContext(b []byte, i int) (n int64, next int, ok bool) {
	if j, ok := skipLit(b, i, "n_tokens = "); ok {
		return scanUint(b, skipBlanks(b, j))
	}
	if j, ok := skipLit(b, i, "n_past = "); ok {
		return scanUint(b, skipBlanks(b, j))
	}
	return 0, i, false
}

// readContext reads `new prompt, n_ctx_slot = C, n_keep = K, task.n_tokens = N`, whose
// last name is n_prompt_tokens until b6889, and `n_tokens = N, memory_seq_rm [N, end)`.
func (e *Event) readContext(msg []byte) {
	if i, ok := skipLit(msg, 0, "new prompt, n_ctx_slot = "); ok {
		size, i, ok := scanUint(msg, i)
		if !ok {
			return
		}
		if n, ok := lastCount(msg[i:], "tokens = "); ok {
			e.Kind, e.Own, e.Tokens, e.HasTokens, e.Count = KindPromptSize, true, n, true, size
		}
		return
	}
	if _, i, ok := scanContext(msg, 0); ok {
		e.readCached(msg, i, ", memory_seq_rm [")
	}
}

// readCache reads what prefill begins or goes on behind: `kv cache rm [N, end)` until
// b6684, `cached n_tokens = N, memory_seq_rm [N, end)` from b9151.
func (e *Event) readCache(msg []byte) {
	if i, ok := skipLit(msg, 0, "cached "); ok {
		if _, i, ok = scanContext(msg, i); ok {
			e.readCached(msg, i, ", memory_seq_rm [")
		}
		return
	}
	if isClearing(msg) {
		e.Kind = KindCleared
		return
	}
	e.readCached(msg, 0, "kv cache rm [")
}

func (e *Event) readCached(msg []byte, i int, words string) {
	i, ok := skipLit(msg, i, words)
	if !ok {
		return
	}
	if n, i, ok := scanUint(msg, i); ok && string(msg[i:]) == ", end)" {
		e.Kind, e.Tokens, e.HasTokens = KindCached, n, true
	}
}

// readRare reads what few requests print.
func (e *Event) readRare(msg []byte) {
	switch {
	case hasPrefix(msg, "init sampler, took "):
		if n, ok := lastCount(msg, ", total = "); ok {
			e.Kind, e.Tokens, e.HasTokens = KindPromptSize, n, true
		}
	case hasPrefix(msg, "input truncated, "):
		if n, ok := lastCount(msg, "n_prompt_tokens = "); ok {
			e.Kind, e.Tokens, e.HasTokens = KindTruncated, n, true
		}
	case string(msg) == "waiting for parent slot to complete":
		e.Kind = KindBusy
	case hasPrefix(msg, "failed to process mtmd chunk"), hasPrefix(msg, "failed to process image"),
		hasPrefix(msg, "failed to decode mtmd chunk"), hasPrefix(msg, "failed to encode mtmd batch"):
		e.Kind, e.Failure = KindFailed, FailureMedia
	}
}

// indexAfter returns where b goes on behind the first of the words at or after i; 0:
// they are not there. The words end in "= ", of which a message has few.
func indexAfter(b []byte, i int, words string) int {
	for start := i; ; {
		j := bytes.IndexByte(b[i:], '=')
		if j < 0 {
			return 0
		}
		from := i + j + 2 - len(words)
		if i += j + 1; i >= len(b) {
			return 0
		}
		if from >= start && string(b[from:i+1]) == words {
			return i + 1
		}
	}
}

// lastCount reads the number that msg ends with, behind the words.
func lastCount(msg []byte, words string) (n int64, ok bool) {
	i := len(msg)
	for i > 0 && isDigit(msg[i-1]) {
		i--
	}
	if i < len(words) || string(msg[i-len(words):i]) != words {
		return 0, false
	}
	n, _, ok = scanUint(msg, i)
	return n, ok
}

// endsInRate reports whether an unknown message ends as readouts do.
func endsInRate(msg []byte) bool {
	switch msg[len(msg)-1] {
	case 's':
		return bytes.HasSuffix(msg, []byte(" t/s"))
	case ')':
		return bytes.HasSuffix(msg, []byte(" tokens per second)"))
	}
	return false
}

func isWordByte(c byte) bool {
	return c == '_' || isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z'
}
