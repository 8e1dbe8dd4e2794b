package slotlog

// quickPrompt reads `prompt done, n_past = N, …`, called n_tokens from b6890, and what is said
// while a prompt is read.
func (e *Event) quickPrompt(m *messageWindow) int {
	i := 22
	switch w := m.at(8); {
	case w == wordsRocessing:
		if m.at(16) == wordsGTokens {
			return e.quickProgress(m)
		}
		return e.quickOldProgress(m)
	case w == wordsDonePast && m.at(14) == wordsPastIs:
	case w == wordsDoneTokens && m.at(16) == wordsTokensIs:
		i = 24
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

// quickProgress reads `prompt processing, n_tokens = %6d, progress = %.2f, …` (b9151 on).
func (e *Event) quickProgress(m *messageWindow) int {
	n, ok := padded(m.at(28)&^0xffff | 0x2020)
	d := m.at(49) ^ wordsHundredths
	if !ok || m.at(22) != wordsTokensIs || m.at(36) != wordsProgress || m.at(41) != wordsGressIs ||
		(d+0x7f76767f76|d)&(eightTops>>24) != 0 {
		return 0
	}
	e.Kind, e.Own, e.Tokens, e.HasTokens = KindPrompt, true, n, true
	e.Share, e.HasShare = min(float32(float64(d&15*100+d>>16&15*10+d>>24&15)/100), 1), true
	return -1
}

// quickOldProgress reads `prompt processing progress, n_past = N, n_tokens = M, progress = %f`;
// from b6890 to b8151 `n_tokens = N, batch.n_tokens = M`.
func (e *Event) quickOldProgress(m *messageWindow) int {
	if m.at(16) != wordsGProgress || m.at(20) != wordsOgressComma {
		return 0
	}
	i := 37
	if m.at(28) != wordsPastOf || m[36] != ' ' {
		if i = 39; m.at(28) != wordsTokensOf || m.at(31) != wordsTokensIs {
			return 0
		}
	}
	n, width := digits(m.at(i))
	j := i + width
	switch {
	case i == 37 && m.at(j) == wordsNTokens:
		j += len(", n_tokens = ")
	case i == 39 && m.at(j) == wordsBatch && m.at(j+8) == wordsTokensOf:
		j += len(", batch.n_tokens = ")
	default:
		return 0
	}
	_, batchWidth := digits(m.at(j))
	if width == 0 || batchWidth == 0 || m.at(j-8) != wordsTokensIs {
		return 0
	}
	j += batchWidth
	share, ok := millionths(m.at(j + 13))
	if !ok || m.at(j) != wordsProgress || m.at(j+5) != wordsGressIs || m[j+21] != '\n' {
		return 0
	}
	e.Kind, e.Tokens, e.HasTokens = KindPrompt, int64(n), true
	e.Share, e.HasShare = share, true
	return j + 22
}

// millionths reads `%f` of a share.
func millionths(w uint64) (share float32, ok bool) {
	d := w ^ wordsMillionths
	if (d+0x7676767676767f76|d)&eightTops != 0 {
		return 0, false
	}
	n := d&15*1_000_000 + eightDigits(d&^0xffff)
	return min(float32(float64(n)/1e6), 1), true
}

// quickContextSize reads `new prompt, n_ctx_slot = C, n_keep = K, task.n_tokens = N`, whose
// last name is n_prompt_tokens until b6889.
func (e *Event) quickContextSize(m *messageWindow) int {
	size, sizeWidth := digits(m.at(25))
	i := 25 + sizeWidth
	_, keepWidth := digits(m.at(i + 11))
	if sizeWidth == 0 || keepWidth == 0 || m.at(8) != wordsPtCtx || m.at(16) != wordsXSlot ||
		m[24] != ' ' || m.at(i) != wordsKeepOf || m.at(i+3) != wordsKeep {
		return 0
	}
	i += 11 + keepWidth
	switch {
	case m.at(i) == wordsTask && m.at(i+8) == wordsTaskTokens:
		i += len(", task.n_tokens = ")
	case m.at(i) == wordsPromptOf && m.at(i+8) == wordsPromptTokens:
		i += len(", n_prompt_tokens = ")
	default:
		return 0
	}
	n, width := digits(m.at(i))
	if width == 0 || m.at(i-8) != wordsTokensIs || m[i+width] != '\n' {
		return 0
	}
	e.Kind, e.Own, e.Tokens, e.HasTokens, e.Count = KindPromptSize, true, int64(n), true, int64(size)
	return i + width + 1
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

// The words of these messages.
var (
	wordsDonePast   = eightOf("one, n_p")
	wordsDoneTokens = eightOf("one, n_t")
	wordsPastIs     = eightOf("_past = ")
	wordsTokensIs   = eightOf("okens = ")
	wordsCacheRm    = eightOf("che rm [")
	wordsTokensOf   = eightOf("n_tokens")
	wordsPastOf     = eightOf("n_past =")
	wordsMemory     = eightOf(", memory")
	wordsSeqRm      = eightOf("_seq_rm ")
	wordsEnd        = eightOf(", end)\n ") << 8

	// Of `prompt processing`, old and new.
	wordsRocessing   = eightOf("rocessin")
	wordsGTokens     = eightOf("g, n_tok")
	wordsGProgress   = eightOf("g progre")
	wordsOgressComma = eightOf("ogress, ")
	wordsProgress    = eightOf(", progre")
	wordsGressIs     = eightOf("gress = ")
	wordsNTokens     = eightOf(", n_toke")
	wordsBatch       = eightOf(", batch.")
	wordsHundredths  = eightOf("0.00,   ") & (1<<40 - 1)
	wordsMillionths  = eightOf("0.000000")

	// Of `new prompt`.
	wordsPtCtx        = eightOf("pt, n_ct")
	wordsXSlot        = eightOf("x_slot =")
	wordsKeepOf       = eightOf(", n_keep")
	wordsTask         = eightOf(", task.n")
	wordsTaskTokens   = eightOf("_tokens ")
	wordsPromptOf     = eightOf(", n_prom")
	wordsPromptTokens = eightOf("pt_token")
)
