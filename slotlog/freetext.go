package slotlog

import "bytes"

// readFreeText reads the lines about a slot of builds b1413 to b2258, which have no
// frame: `slot 0 is processing [task id: 12]`. Most name no task; Task is then -1, and
// stands for the one that the slot runs.
func (e *Event) readFreeText(b []byte) bool {
	if n, i, ok := freeSlot(b, "-> Slot "); ok {
		if i, ok = skipLit(b, i, " - max context: "); ok {
			if size, i, ok := scanUint(b, i); ok && i == len(b) {
				e.Kind, e.Slot, e.Count = KindSlot, n, size
				return true
			}
		}
		return false
	}
	n, i, ok := freeSlot(b, "slot ")
	if !ok {
		return false
	}
	e.Slot = n
	if j, ok := skipLit(b, i, " is processing [task id: "); ok {
		task, j, ok := scanUint(b, j)
		e.Kind, e.Task = KindLaunch, int(task)
		return ok && string(b[j:]) == "]"
	}
	if j, ok := skipLit(b, i, " released ("); ok {
		e.Kind = KindRelease
		e.Tokens, j, e.HasTokens = scanUint(b, j)
		return e.HasTokens && string(b[j:]) == " tokens in cache)"
	}
	i = skipBlanks(b, i)
	if i, ok = skipLit(b, i, ": "); !ok {
		return false
	}
	return e.readFreePrompt(b[i:])
}

// readFreePrompt reads `in cache: C tokens | to process: P tokens`, `kv cache rm - [N,
// end)` and `context shift - …`.
func (e *Event) readFreePrompt(b []byte) bool {
	if i, ok := skipLit(b, 0, "in cache: "); ok {
		cached, i, ok := scanUint(b, i)
		if !ok {
			return false
		}
		if i, ok = skipLit(b, i, " tokens | to process: "); !ok {
			return false
		}
		rest, i, ok := scanUint(b, i)
		if !ok || string(b[i:]) != " tokens" {
			return false
		}
		e.Kind, e.Own, e.Tokens, e.HasTokens = KindPromptSize, true, cached+rest, true
		return true
	}
	if i, ok := skipLit(b, 0, "kv cache rm - ["); ok {
		e.readCached(b, i, "")
		return e.Kind == KindCached
	}
	if hasPrefix(b, "context shift - ") {
		e.Kind = KindShift
		return true
	}
	return false
}

// freeSlot reads a word and a slot id.
func freeSlot(b []byte, word string) (slot, next int, ok bool) {
	i, ok := skipLit(b, 0, word)
	if !ok {
		return 0, 0, false
	}
	n, i, ok := scanUint(b, i)
	return int(n), i, ok
}

// readFreeTiming reads `print_timings: prompt eval time = …`, which names no slot.
func (e *Event) readFreeTiming(b []byte) bool {
	i, ok := skipLit(b, 0, "print_timings: ")
	if !ok {
		return false
	}
	b = b[i:]
	if i, ok = skipLit(b, 0, "prompt eval time = "); ok {
		if e.readSpeed(b, i) {
			e.Kind = KindPrefillTiming
		}
	} else {
		e.readTiming(b)
	}
	return true
}

// freeTask reads `task N - error: …` (b1860..b2660).
func freeTask(b []byte) (task int, words []byte, ok bool) {
	n, i, ok := freeSlot(b, "task ")
	if !ok {
		return 0, nil, false
	}
	i, ok = skipLit(b, i, " - error: ")
	return n, b[i:], ok
}

// freeFunction reads `NAME : WORDS`, with which these builds print what failed.
func freeFunction(b []byte) (words []byte, ok bool) {
	i := 0
	for i < len(b) && isWordByte(b[i]) {
		i++
	}
	if i == 0 {
		return nil, false
	}
	j, ok := skipLit(b, i, " : ")
	return b[j:], ok
}

// isFreeEnd knows the last words of these builds' servers.
func isFreeEnd(b []byte) bool {
	return string(b) == "llama server shutting down" ||
		hasPrefix(b, "unexpected error in llama server ") && bytes.HasSuffix(b, []byte("exiting main loop"))
}
