package openai

import (
	"strconv"

	"github.com/slotfleet/slotfleet/fleet"
)

// figures are what one attempt's server said of its work.
type figures struct {
	prompt    fleet.Tokens // length of the prompt; 0: unknown
	cached    fleet.Tokens
	hasCached bool

	promptN  int64 // prompt tokens it computed
	promptMs decimal

	predicted   int64
	predictedMs decimal
}

// decimal is a number as a server wrote it. Times come with every token, and few are ever
// reckoned with.
type decimal struct {
	written [24]byte // enough for what a float64 holds
	n       uint8    // 0: unknown
}

func decimalOf(v []byte) (d decimal) {
	if len(v) > len(d.written) {
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return d
		}
		v = strconv.AppendFloat(nil, f, 'g', -1, 64)
	}
	d.n = uint8(copy(d.written[:], v))
	return d
}

// value reads the number; null and the like are 0, and unknown.
func (d *decimal) value() (float64, bool) {
	f, err := strconv.ParseFloat(string(d.written[:d.n]), 64)
	return f, err == nil
}

// noteTimings reads llama-server's timings, any figure of which may be null, and
// reports whether they say how many tokens were generated.
func (f *figures) noteTimings(c *chunk) (ok bool) {
	if len(c.numbers) == 0 {
		c.findNumbers()
	}
	number := func(is timing) []byte {
		if k := c.told[is]; k > 0 {
			return c.numbers[k-1].of(c.data)
		}
		return nil
	}
	// What follows has the figures of the prompt in common with the chunk before.
	if n := number(timingPromptN); !c.alike.follows && n != nil && figure(n) >= 0 {
		f.promptN = figure(n)
		f.promptMs = decimalOf(number(timingPromptMs))
		if cache := number(timingCache); cache != nil && figure(cache) >= 0 {
			f.cached, f.hasCached = fleet.Tokens(figure(cache)), true
			f.prompt = f.cached + fleet.Tokens(f.promptN)
		}
	}
	f.predictedMs = decimalOf(number(timingPredictedMs))
	predicted := number(timingPredicted)
	if predicted == nil {
		return false
	}
	f.predicted = figure(predicted)
	return true
}

// timing is a member of timings.
type timing uint8

const (
	timingOther timing = iota
	timingCache
	timingPromptN
	timingPromptMs
	timingPredicted
	timingPredictedMs
	timingKinds
)

func timingOf(key []byte) timing {
	switch string(key) {
	case "cache_n":
		return timingCache
	case "prompt_n":
		return timingPromptN
	case "prompt_ms":
		return timingPromptMs
	case "predicted_n":
		return timingPredicted
	case "predicted_ms":
		return timingPredictedMs
	}
	return timingOther
}

// noteProgress reads how long the prompt is and how much of it was in the cache.
func (f *figures) noteProgress(v []byte) {
	for key, at := range members(v, allOf(v)) {
		switch n := fleet.Tokens(figure(at.of(v))); string(key) {
		case "total":
			f.prompt = n
		case "cache":
			f.cached, f.hasCached = n, true
		}
	}
}

// noteUsage reads a usage object, in the words of the older APIs or the newer ones, and
// returns the tokens of the answer that it tells.
func (f *figures) noteUsage(v []byte) (output int64, ok bool) {
	for key, at := range members(v, allOf(v)) {
		n := figure(at.of(v))
		switch string(key) {
		case "completion_tokens", "output_tokens":
			output, ok = n, v[at.from] != 'n'
		case "prompt_tokens", "input_tokens":
			if n > 0 {
				f.prompt = fleet.Tokens(n)
			}
		case "prompt_tokens_details", "input_tokens_details":
			f.noteDetails(v, at)
		}
	}
	return output, ok
}

func (f *figures) noteDetails(v []byte, at span) {
	for key, at := range members(v, at) {
		if string(key) == "cached_tokens" && v[at.from] != 'n' {
			f.cached, f.hasCached = fleet.Tokens(figure(at.of(v))), true
		}
	}
}

// past is what the nodes before the present one delivered.
type past struct {
	nodes  int // that delivered something
	tokens int64
	ms     float64
	noMs   bool    // of one of them ms is unknown
	first  figures // of the first
}

// fold adds an attempt that ended after it delivered so many tokens.
func (p *past) fold(f figures, tokens int64) {
	if p.nodes == 0 {
		p.first = f
	}
	p.nodes++
	p.tokens += tokens
	ms, ok := f.predictedMs.value()
	p.ms += ms
	p.noMs = p.noMs || !ok
}

// appendUsage appends the usage of an answer; details only where cached is known.
func appendUsage(dst []byte, f figures, completion int64) []byte {
	dst = strconv.AppendInt(append(dst, `{"completion_tokens":`...), completion, 10)
	dst = strconv.AppendInt(append(dst, `,"prompt_tokens":`...), int64(f.prompt), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), completion+int64(f.prompt), 10)
	if f.hasCached {
		dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), int64(f.cached), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// appendTimings appends the timings of an answer that several nodes gave: the
// prompt was read by the first, the tokens come from all. As the server does, the
// rate leaves out the first token of each node, whose time is the prompt's. It
// appends nothing where a figure is unknown.
func (p *past) appendTimings(dst []byte, now figures) []byte {
	f := p.first
	work, ok := f.promptMs.value()
	last, told := now.predictedMs.value()
	if !ok || !f.hasCached || !told || p.noMs {
		return dst
	}
	n, ms := p.tokens+now.predicted, p.ms+last
	dst = strconv.AppendInt(append(dst, `{"cache_n":`...), int64(f.cached), 10)
	dst = strconv.AppendInt(append(dst, `,"prompt_n":`...), f.promptN, 10)
	dst = appendWork(dst, "prompt", f.promptN, work)
	dst = strconv.AppendInt(append(dst, `,"predicted_n":`...), n, 10)
	dst = appendWork(dst, "predicted", n-int64(p.nodes)-1, ms)
	return append(dst, '}')
}

func appendWork(dst []byte, what string, n int64, ms float64) []byte {
	per, rate := 0.0, 0.0
	if n > 0 && ms > 0 {
		per, rate = ms/float64(n), 1000*float64(n)/ms
	}
	for _, v := range []struct {
		name string
		f    float64
	}{{"_ms", ms}, {"_per_token_ms", per}, {"_per_second", rate}} {
		dst = append(append(append(append(dst, `,"`...), what...), v.name...), `":`...)
		dst = strconv.AppendFloat(dst, v.f, 'f', -1, 64)
	}
	return dst
}
