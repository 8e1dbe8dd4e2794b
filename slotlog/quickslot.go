package slotlog

import "bytes"

// quickSlot reads a line about a slot: `slot %12.*s: id %2d | task %d | `, see frameAt, and
// its message.
func (r *Reader) quickSlot(p *process, d *dial, f *frameWindow, at int, shape shape) (next int) {
	id := f.at(17) ^ frameID // a digit is its value
	ten, one := id>>40&0xff, id>>48
	if ten == ' '^'0' {
		ten = 0
	}
	letters := lettersOf(f.at(5)) & lettersOf(f.at(9))
	task, width := digits(f.at(32))
	if id<<24|(f.at(24)^frameTask)|(letters^allLetters)|((ten+0x76)|(one+0x76)|ten|one)&^0x7f != 0 {
		return 0
	}
	if width == 0 {
		if uint32(f.at(32)) != frameNoTask {
			return 0
		}
		task, width = noTask, 2
	}
	slot := int(ten*10 + one)
	if uint32(f.at(32+width))<<8 != frameEnd || slot >= p.reach() && shape == p.shape {
		return 0
	}
	at += 35 + width
	if shape != p.shape {
		return r.quickDoubt(p, at, shape)
	}
	e, m := r.slotEvent(p, slot, task), f.message(35+width)
	known, n := true, e.quick(m)
	if next = at + n; n <= 0 {
		if next = at + 1; r.text[at] != '\n' {
			if next = r.lineEnd(at, bytes.IndexByte(r.text[at:], '\n')); next == 0 {
				return 0
			}
		}
		if n == 0 || next-at <= 25 {
			known = e.read(r.upTo(at, next))
		}
	}
	if d == nil {
		r.accept(p)
	} else {
		r.acceptClock(p, d)
	}
	e.Seq = r.stats.Lines
	r.tellSlot(p, e)
	if !known {
		r.unknown()
	}
	return next
}

// quickDoubt passes a line about a slot whose message begins at r.text[at].
func (r *Reader) quickDoubt(p *process, at int, shape shape) (next int) {
	if next = at + 1; r.text[at] != '\n' {
		next = r.quickNext(at)
	}
	if next > 0 && r.doubt(p, shape) {
		return next
	}
	return 0
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
	k := messages.find(w)
	if e.Task == noTask && k != messagePick {
		return 0
	}
	switch k {
	case messageTotal:
		return -1
	case messageTiming:
		return e.quickTiming(m, w)
	case messageGen:
		return e.quickRunning(m, 8)
	case messageDecoded:
		if uint32(m.at(8)) == wordsDecodedIs {
			return e.quickRunning(m, 12)
		}
	case messageStop:
		return e.quickRelease(m)
	case messageProcessing:
		return e.quickLaunch(m)
	case messagePick:
		return e.quickPick(m)
	case messagePrompt:
		return e.quickPrompt(m)
	case messageContext:
		return e.quickContextSize(m)
	case messageCache:
		if m.at(5) == wordsCacheRm {
			return e.quickCached(m, 13)
		}
	case messageTokens:
		if m.at(3) == wordsTokensIs {
			return e.quickContext(m, 11)
		}
	case messagePast:
		if m.at(1) == wordsPastIs {
			return e.quickContext(m, 9)
		}
	}
	return 0
}

// message is a word for the messages that come most often.
type message uint8

const (
	messageOther message = iota
	messageTotal
	messageTiming
	messageGen
	messageDecoded
	messageStop
	messageProcessing
	messagePick
	messagePrompt
	messageContext
	messageCache
	messageTokens
	messagePast
)

// messages finds them by their first eight bytes.
var messages = newWordTable(map[string]message{
	"      total time": messageTotal, "   graphs reused": messageTotal,
	"       eval time": messageTiming, "prompt eval time": messageTiming,
	"n_gen = ": messageGen, "n_decoded": messageDecoded,
	"stop processing": messageStop, "processing task": messageProcessing,
	"selected slot": messagePick, "prompt done": messagePrompt, "prompt processing": messagePrompt,
	"new prompt": messageContext, "kv cache rm": messageCache,
	"n_tokens = ": messageTokens, "n_past = ": messagePast,
})

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
	if m.at(8)<<8 != wordsLaunch {
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
	case wordsLCS:
		return e.quickOldPick(m)
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

// quickOldPick reads `selected slot by lcs similarity, lcs_len = N, similarity = S (> T thold)`
// (until b6722).
func (e *Event) quickOldPick(m *messageWindow) int {
	_, width := digits(m.at(43))
	i := 43 + width
	share, ok := thousandths(m.at(i + 15))
	if width == 0 || !ok || m.at(24) != wordsIlarity || m.at(32) != wordsLCSLength ||
		m[40] != ' ' || m[41] != '=' || m[42] != ' ' || m.at(i) != wordsSimilarity || m.at(i+4) != wordsRity ||
		m[i+12] != ' ' || m[i+13] != '=' || m[i+14] != ' ' || m.at(i+15)>>40 != wordsMore ||
		lettersOf(m.at(i+23)) != allLetters || m.at(i+28)>>8 != wordsTholdEnd || m[i+36] != '\n' {
		return 0
	}
	e.Kind, e.Own, e.Share, e.HasShare, e.Kept = KindIdle, true, share, true, -1
	return i + 37
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

// The words of the messages that come most often.
var (
	wordsPromptEval   = eightOf("prompt e")
	wordsEval         = eightOf("       e")
	wordsEvalTime     = eightOf("val time")
	wordsTimeIs       = eightOf(" time = ")
	wordsTotalTime    = eightOf("total ti")
	wordsMain         = eightOf("main:   ") << 16
	wordsDecodedIs    = uint32(eightOf("d =     "))
	wordsLaunch       = eightOf("ng task ") << 8
	wordsIsChild      = eightOf(", is_chi")
	wordsChildIs      = eightOf("child = ")
	wordsCessing      = eightOf("cessing:")
	wordsTokens       = eightOf(" n_token")
	wordsTokensAre    = uint32(eightOf("s =     "))
	wordsPast         = eightOf(" n_past ")
	wordsTruncated    = eightOf(", trunca")
	wordsTruncatedNot = eightOf("ted = 0\n")
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
	wordsTholdEnd     = eightOf("  thold)") >> 8
	wordsLCS          = eightOf(" lcs sim")
	wordsLCSLength    = eightOf(" lcs_len")
	wordsSimilarity   = eightOf(", simila")
	wordsRity         = eightOf("milarity")
)
