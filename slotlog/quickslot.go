package slotlog

// quickSlot reads a line about a slot: `slot %12.*s: id %2d | task %d | `, see frameAt, and
// its message.
func (r *Reader) quickSlot(p *process, d *dial, f *frameWindow, at int, shape shape) bool {
	id := f.at(17) ^ frameID // a digit is its value
	ten, one := id>>40&0xff, id>>48
	if ten == ' '^'0' {
		ten = 0
	}
	if f.at(24) != frameTask || id<<24 != 0 || one > 9 || ten > 9 || lettersOf(f.at(5))&lettersOf(f.at(9)) != allLetters {
		return false
	}
	slot := int(ten*10 + one)
	task, width := digits(f.at(32))
	if width == 0 {
		if uint32(f.at(32)) != frameNoTask {
			return false
		}
		task, width = noTask, 2
	}
	if uint32(f.at(32+width))<<8 != frameEnd {
		return false
	}
	at += 35 + width
	if shape != p.shape {
		_, next := r.quickMessageEnd(at)
		return r.doubt(p, shape, next)
	} else if slot >= p.reach() {
		return false
	}
	e := r.slotEvent(p, slot, task)
	known := true
	next := at + e.quick(f.message(35+width))
	if next == at {
		var end int
		if end, next = r.quickMessageEnd(at); next == 0 {
			return false
		}
		known = e.read(r.text[at:end])
	}
	r.at = next
	r.accept(p, d)
	e.Seq = r.stats.Lines
	r.tellSlot(p, e)
	if !known {
		r.unknown()
	}
	return true
}

// quickMessageEnd is quickEnd for a message that may be empty.
func (r *Reader) quickMessageEnd(from int) (end, next int) {
	if r.text[from] == '\n' {
		return from, from + 1
	}
	return r.quickEnd(from)
}

var (
	frameEnd    = uint32(eightOf(" |      ")) << 8
	frameNoTask = uint32(eightOf("-1 |    "))
)

// quick reads the messages that come most often, each to its end, and returns how many
// bytes they take with the line feed; 0: it is none of them, or has an unusual width. e is
// then as it was.
func (e *Event) quick(m *messageWindow) int {
	if e.Task == noTask {
		return 0
	}
	switch m.at(0) {
	case wordsPromptEval, wordsEval:
		const end = 19 + speedWidth
		if m[end] != '\n' || m.at(8) != wordsEvalTime || m.at(11) != wordsTimeIs || !e.speedColumns(m[19:end]) {
			return 0
		}
		if e.Kind = KindTiming; m[0] == 'p' {
			e.Kind = KindPrefillTiming
		}
		return end + 1
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
	return 0
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

// The words of the messages that come most often.
var (
	wordsPromptEval   = eightOf("prompt e")
	wordsEval         = eightOf("       e")
	wordsEvalTime     = eightOf("val time")
	wordsTimeIs       = eightOf(" time = ")
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
)
