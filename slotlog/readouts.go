package slotlog

// readRunning reads `n_gen = N, tg = X t/s[, tg_3s = Y t/s]`, called n_decoded before
// b10408; tg_3s came with b9706 and is the better word for now. The debug line of
// each token begins with n_gen too, but has no tg.
func (e *Event) readRunning(msg []byte) {
	i, ok := skipLit(msg, 0, "n_gen = ")
	if !ok {
		if i, ok = skipLit(msg, 0, "n_decoded = "); !ok {
			e.readContext(msg)
			return
		}
	}
	if len(msg) == i+runningWidth && e.runningColumns(msg[i:]) {
		return
	}
	n, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, ", tg = "); !ok {
		if hasPrefix(msg[i:], ", n_remaining = ") {
			e.Kind, e.Tokens, e.HasTokens = KindStep, n, true
		}
		return
	}
	rate, known, i, ok := scanRate(msg, i)
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, " t/s"); !ok {
		return
	}
	mean, hasMean := rate, known
	if j, ok := skipLit(msg, i, ", tg_3s = "); ok {
		if rate, known, i, ok = scanRate(msg, j); !ok {
			return
		}
		if i, ok = skipLit(msg, i, " t/s"); !ok {
			return
		}
	}
	if skipBlanks(msg, i) != len(msg) {
		return
	}
	e.Kind, e.Tokens, e.HasTokens = KindRunning, n, true
	e.Rate, e.HasRate = rate, known
	e.Mean, e.HasMean = mean, hasMean
}

// readTiming reads `eval time = …`, which leaves out the prompt; b2259..b3760 and
// forks from it have `generation eval time`.
func (e *Event) readTiming(msg []byte) {
	i := skipBlanks(msg, 0)
	if j, ok := skipLit(msg, i, "generation "); ok {
		i = j
	}
	i, ok := skipLit(msg, i, "eval time = ")
	if ok && e.readSpeed(msg, i) {
		e.Kind = KindTiming
	}
}

// readSpeed reads `%10.2f ms / %5d tokens (%8.2f ms per token, %8.2f tokens per
// second)` to its end; the count of b3760 and before is in runs.
func (e *Event) readSpeed(msg []byte, i int) bool {
	if len(msg)-i == speedWidth && e.speedColumns(msg[i:]) {
		return true
	}
	i, ok := skipRate(msg, i)
	if !ok {
		return false
	}
	if i, ok = skipLit(msg, i, " ms / "); !ok {
		return false
	}
	n, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return false
	}
	j, ok := skipLit(msg, i, " tokens (")
	if !ok {
		if i, ok = skipLit(msg, i, " runs"); !ok {
			return false
		}
		if j, ok = skipLit(msg, skipBlanks(msg, i), "("); !ok {
			return false
		}
	}
	if i, ok = skipRate(msg, j); !ok {
		return false
	}
	if i, ok = skipLit(msg, i, " ms per token, "); !ok {
		return false
	}
	rate, known, i, ok := scanRate(msg, i)
	if !ok {
		return false
	}
	if i, ok = skipLit(msg, i, " tokens per second)"); !ok || skipBlanks(msg, i) != len(msg) {
		return false
	}
	e.Tokens, e.HasTokens = n, true
	e.Rate, e.HasRate = rate, known
	return true
}

// readDraft reads `draft acceptance[ rate] = X (A accepted / G generated)…`.
func (e *Event) readDraft(msg []byte) {
	i, ok := skipLit(msg, 0, "draft acceptance")
	if !ok {
		return
	}
	if j, found := skipLit(msg, i, " rate"); found {
		i = j
	}
	if i, ok = skipLit(msg, i, " = "); !ok {
		return
	}
	if i, ok = skipRate(msg, i); !ok {
		return
	}
	if i, ok = skipLit(msg, i, " ("); !ok {
		return
	}
	accepted, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, " accepted / "); !ok {
		return
	}
	generated, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok || accepted > generated {
		return
	}
	if _, ok = skipLit(msg, i, " generated)"); ok {
		e.Kind, e.Tokens, e.HasTokens, e.Count = KindDraft, accepted, true, generated
	}
}

// readDraftStep reads `accepted A/G draft tokens…`, some ten a second.
func (e *Event) readDraftStep(msg []byte) {
	i, ok := skipLit(msg, 0, "accepted ")
	if !ok {
		return
	}
	accepted, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok {
		return
	}
	if i, ok = skipLit(msg, i, "/"); !ok {
		return
	}
	generated, i, ok := scanUint(msg, skipBlanks(msg, i))
	if !ok || accepted > generated {
		return
	}
	if _, ok = skipLit(msg, i, " draft tokens"); ok {
		e.Kind, e.Tokens, e.HasTokens, e.Count = KindDraftStep, accepted, true, generated
	}
}
