package slotlog

// quickSlot reads a line about a slot: `slot %12.*s: id %2d | task %d | `, see frameAt, and
// its message.
func (r *Reader) quickSlot(p *process, d *dial, f *frameWindow, at int, shape shape) (next int) {
	id := f.at(17) ^ frameID // a digit is its value
	ten, one := id>>40&0xff, id>>48
	if ten == ' '^'0' {
		ten = 0
	}
	if f.at(24) != frameTask || id<<24 != 0 || one > 9 || ten > 9 || lettersOf(f.at(5))&lettersOf(f.at(9)) != allLetters {
		return 0
	}
	slot := int(ten*10 + one)
	task, width := digits(f.at(32))
	if width == 0 {
		if uint32(f.at(32)) != frameNoTask {
			return 0
		}
		task, width = noTask, 2
	}
	if uint32(f.at(32+width))<<8 != frameEnd {
		return 0
	}
	at += 35 + width
	if shape != p.shape {
		if next = r.quickMessage(at); next > 0 && r.doubt(p, shape) {
			return next
		}
		return 0
	} else if slot >= p.reach() {
		return 0
	}
	e := r.slotEvent(p, slot, task)
	known, n := true, e.quick(f.message(35+width))
	if next = at + n; n <= 0 {
		if next = r.quickMessage(at); next == 0 {
			return 0
		}
		if n == 0 || next-at <= 25 {
			known = e.read(r.upTo(at, next))
		}
	}
	r.accept(p, d)
	e.Seq = r.stats.Lines
	r.tellSlot(p, e)
	if !known {
		r.unknown()
	}
	return next
}

// quickMessage is quickNext for a message, which may be empty.
func (r *Reader) quickMessage(at int) (next int) {
	if r.text[at] == '\n' {
		return at + 1
	}
	return r.quickNext(at)
}

var (
	frameEnd    = uint32(eightOf(" |      ")) << 8
	frameNoTask = uint32(eightOf("-1 |    "))
)

// quick reads the messages that come most often, and returns how many bytes they take with
// the line feed; -1: all is said, but not where they end; 0: e is as it was, and the message
// is another one, or has an unusual width. What is said by less than 25 bytes is not believed.
func (e *Event) quick(m *messageWindow) int {
	w := m.at(0)
	if w == wordsSelected {
		return e.quickPick(m)
	}
	if e.Task == noTask {
		return 0
	}
	switch w {
	case wordsTotal, wordsGraphs:
		return -1
	case wordsPromptEval, wordsEval:
		return e.quickTiming(m, w)
	case wordsGen:
		return e.quickRunning(m, 8)
	case wordsDecoded:
		if uint32(m.at(8)) == wordsDecodedIs {
			return e.quickRunning(m, 12)
		}
	case wordsStop:
		return e.quickRelease(m)
	case wordsProcessing:
		return e.quickLaunch(m)
	}
	return e.quickPrompt(m, w)
}

// quickTiming reads `prompt eval time = …` and `       eval time = …`, which begin with w.
func (e *Event) quickTiming(m *messageWindow, w uint64) int {
	const end = 19 + speedWidth
	if m[end] != '\n' || m.at(8) != wordsEvalTime || m.at(11) != wordsTimeIs {
		return 0
	}
	switch w {
	case wordsEval:
		e.Kind = KindTiming
	case wordsPromptEval:
		e.Kind = KindPrefillTiming
	default:
		return 0
	}
	if !e.speedColumns(m[19:end]) {
		e.Kind = KindFrame
		return 0
	}
	return end + 1
}

// quickRunning reads `n_gen = N, tg = X t/s, tg_3s = Y t/s`, whose figures begin at m[i].
func (e *Event) quickRunning(m *messageWindow, i int) int {
	end := i + runningWidth
	if m[end] != '\n' || !e.runningColumns(m[i:end]) {
		return 0
	}
	return end + 1
}

// quickLaunch reads `processing task[, is_child = N]`.
func (e *Event) quickLaunch(m *messageWindow) int {
	if m.at(8)<<8 != wordsTask {
		return 0
	}
	n := 16
	if m[15] != '\n' {
		if n = 30; m[29] != '\n' || m.at(15) != wordsIsChild || m.at(20) != wordsChildIs || !isDigit(m[28]) {
			return 0
		}
	}
	e.Kind = KindLaunch
	return n
}

// quickRelease reads `stop processing: n_tokens = N, truncated = 0`, with n_past until
// b6889.
func (e *Event) quickRelease(m *messageWindow) int {
	if m.at(8) != wordsCessing {
		return 0
	}
	i := 28
	if m.at(16) != wordsTokens || uint32(m.at(24)) != wordsTokensAre {
		if i = 26; m.at(16) != wordsPast || m[24] != '=' || m[25] != ' ' {
			return 0
		}
	}
	n, width := digits(m.at(i))
	i += width
	if width == 0 || m.at(i) != wordsTruncated || m.at(i+8) != wordsTruncatedNot {
		return 0
	}
	e.Kind, e.Tokens, e.HasTokens = KindRelease, int64(n), true
	return i + 16
}

// quickPick reads `selected slot by LRU…` and `selected slot by LCP similarity, [f_]sim_best
// = S (> T thold), f_keep = K`.
func (e *Event) quickPick(m *messageWindow) int {
	if m.at(8) != wordsSlotBy {
		return 0
	}
	switch m.at(16) {
	case wordsLRU:
		e.Kind, e.Own = KindIdle, true
		return -1
	case wordsLCP:
	default:
		return 0
	}
	i := 46
	if m.at(32) != wordsFSim {
		if i = 44; m.at(32) != wordsSim {
			return 0
		}
	}
	share, ok := thousandths(m.at(i))
	kept, okKept := thousandths(m.at(i + 32))
	if !ok || !okKept || m.at(24) != wordsIlarity || m.at(i-8) != wordsBest || m.at(i)>>40 != wordsMore ||
		lettersOf(m.at(i+8)) != allLetters || m.at(i+16) != wordsThold || m.at(i+24) != wordsKeep || m.at(i+32)>>40&0xff != '\n' {
		return 0
	}
	e.Kind, e.Own, e.Share, e.HasShare, e.Kept = KindIdle, true, share, true, kept
	return i + 38
}

// thousandths reads `%.3f` of a share.
func thousandths(w uint64) (share float32, ok bool) {
	d := w ^ wordsShare
	if (d+0x7676767f76|d)&(eightTops>>24) != 0 {
		return 0, false
	}
	n := d&15*1000 + d>>16&15*100 + d>>24&15*10 + d>>32&15
	return min(float32(float64(n)/1000), 1), true
}

// quickPrompt reads what is said of a prompt: `prompt done, n_past = N, …`, `kv cache rm [N,
// end)`, `[n_past = N, ]memory_seq_rm [N, end)`; n_past is called n_tokens from b6890.
func (e *Event) quickPrompt(m *messageWindow, w uint64) int {
	var i int
	switch {
	case w == wordsPromptIs && m.at(8) == wordsDonePast && m.at(14) == wordsPastIs:
		i = 22
	case w == wordsPromptIs && m.at(8) == wordsDoneTokens && m.at(16) == wordsTokensIs:
		i = 24
	case w == wordsCache && m.at(5) == wordsCacheRm:
		return e.quickCached(m, 13)
	case w == wordsTokensOf && m.at(3) == wordsTokensIs:
		return e.quickContext(m, 11)
	case w == wordsPastOf && m.at(1) == wordsPastIs:
		return e.quickContext(m, 9)
	default:
		return 0
	}
	n, width := digits(m.at(i))
	if width == 0 || m[i+width] != ',' {
		return 0
	}
	e.Kind, e.Tokens, e.HasTokens = KindPrefilled, int64(n), true
	return -1
}

// quickContext reads `N, memory_seq_rm [N, end)` at m[i].
func (e *Event) quickContext(m *messageWindow, i int) int {
	_, width := digits(m.at(i))
	if i += width; width == 0 || m.at(i) != wordsMemory || m.at(i+8) != wordsSeqRm || m[i+16] != '[' {
		return 0
	}
	return e.quickCached(m, i+17)
}

// quickCached reads `N, end)` at m[i].
func (e *Event) quickCached(m *messageWindow, i int) int {
	n, width := digits(m.at(i))
	if i += width; width == 0 || m.at(i)<<8 != wordsEnd {
		return 0
	}
	e.Kind, e.Tokens, e.HasTokens = KindCached, int64(n), true
	return i + 7
}

// The words of the messages that come most often.
var (
	wordsPromptEval   = eightOf("prompt e")
	wordsEval         = eightOf("       e")
	wordsEvalTime     = eightOf("val time")
	wordsTimeIs       = eightOf(" time = ")
	wordsTotalTime    = eightOf("total ti")
	wordsMain         = eightOf("main:   ") << 16
	wordsGen          = eightOf("n_gen = ")
	wordsDecoded      = eightOf("n_decode")
	wordsDecodedIs    = uint32(eightOf("d =     "))
	wordsProcessing   = eightOf("processi")
	wordsTask         = eightOf("ng task ") << 8
	wordsIsChild      = eightOf(", is_chi")
	wordsChildIs      = eightOf("child = ")
	wordsStop         = eightOf("stop pro")
	wordsCessing      = eightOf("cessing:")
	wordsTokens       = eightOf(" n_token")
	wordsTokensAre    = uint32(eightOf("s =     "))
	wordsPast         = eightOf(" n_past ")
	wordsTruncated    = eightOf(", trunca")
	wordsTruncatedNot = eightOf("ted = 0\n")
	wordsSelected     = eightOf("selected")
	wordsSlotBy       = eightOf(" slot by")
	wordsLRU          = eightOf(" LRU, t_")
	wordsLCP          = eightOf(" LCP sim")
	wordsIlarity      = eightOf("ilarity,")
	wordsFSim         = eightOf(" f_sim_b")
	wordsSim          = eightOf(" sim_bes")
	wordsBest         = eightOf("_best = ")
	wordsShare        = eightOf("0.000   ") & (1<<40 - 1)
	wordsMore         = eightOf("      (>") >> 40
	wordsThold        = eightOf("hold), f")
	wordsKeep         = eightOf("_keep = ")
	wordsPromptIs     = eightOf("prompt d")
	wordsDonePast     = eightOf("one, n_p")
	wordsDoneTokens   = eightOf("one, n_t")
	wordsPastIs       = eightOf("_past = ")
	wordsTokensIs     = eightOf("okens = ")
	wordsCache        = eightOf("kv cache")
	wordsCacheRm      = eightOf("che rm [")
	wordsTokensOf     = eightOf("n_tokens")
	wordsPastOf       = eightOf("n_past =")
	wordsMemory       = eightOf(", memory")
	wordsSeqRm        = eightOf("_seq_rm ")
	wordsEnd          = eightOf(", end)\n ") << 8
)
