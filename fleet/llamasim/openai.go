package llamasim

import (
	"strings"
	"time"
)

// openAI words answers as /v1/chat/completions does (section 1.10, P24 to P36).
type openAI struct{ *chat }

func newOpenAI(c *chat) dialect { return openAI{c} }

func (g *gen) finishReason(called bool) string {
	switch {
	case g.stopType == "limit":
		return "length"
	case called:
		return "tool_calls"
	}
	return "stop"
}

func (c openAI) body() fieldList {
	choices := []fieldList{}
	for _, g := range c.j.gens {
		a := c.answers[g.index]
		choice := fieldList{{"finish_reason", g.finishReason(len(a.calls) > 0)}, {"index", g.index}, {"message", c.message(a)}}
		if c.j.q.logprobs {
			choice = append(choice, field{"logprobs", fieldList{{"content", a.logprobs}}})
		}
		choices = append(choices, choice)
	}
	g := c.j.gens[0]
	body := fieldList{
		{"choices", choices},
		{"created", time.Now().Unix()},
		{"model", c.in.model(c.j.q)},
		{"system_fingerprint", buildInfo},
		{"object", "chat.completion"},
		{"usage", g.usage()},
		{"id", c.id},
	}
	if c.j.q.verbose {
		body = append(body, field{"__verbose", g.native(c.in, c.j, c.answers[0].content.String(), nil)})
	}
	return append(body, field{"timings", g.timings().object(g.can)})
}

func (c openAI) message(a *answer) fieldList {
	m := fieldList{{"role", "assistant"}, {"content", c.content(a)}}
	if reasoning := c.reasoning(a); reasoning != "" {
		m = append(m, field{"reasoning_content", reasoning})
	}
	calls := []fieldList{}
	for _, call := range a.calls {
		calls = append(calls, fieldList{
			{"type", "function"},
			{"function", fieldList{{"name", call.name}, {"arguments", call.arguments}}},
			{"id", call.id},
		})
	}
	if len(calls) > 0 {
		m = append(m, field{"tool_calls", calls})
	}
	return m
}

// chunk is one event; more are the keys behind the fixed ones.
func (c openAI) chunk(choices []fieldList, more ...field) error {
	head := fieldList{
		{"choices", choices},
		{"created", time.Now().Unix()},
		{"id", c.id},
		{"model", c.in.model(c.j.q)},
		{"system_fingerprint", buildInfo},
		{"object", "chat.completion.chunk"},
	}
	return c.rp.event(append(head, more...))
}

func choiceOf(index int, finish any, d fieldList, more ...field) []fieldList {
	if d == nil {
		d = fieldList{}
	}
	return []fieldList{append(fieldList{{"finish_reason", finish}, {"index", index}, {"delta", d}}, more...)}
}

var roleDelta = fieldList{{"role", "assistant"}, {"content", nil}}

// progress repeats the role delta in each progress chunk.
func (c openAI) progress(p progress) error {
	var more []field
	if c.j.q.timingsPerToken {
		more = append(more, field{"timings", c.progressTimings(p)})
	}
	return c.chunk(choiceOf(0, nil, roleDelta), append(more, field{"prompt_progress", p})...)
}

// progressTimings says next to nothing, and on servers that show what the slot did
// before, wrong things and nulls (P25).
func (c openAI) progressTimings(p progress) any {
	t := timings{CacheN: p.Cache, PromptN: p.Processed - p.Cache}
	if !c.in.can.staleProgress {
		return t
	}
	return fieldList{
		{"cache_n", 8},
		{"prompt_n", 0},
		{"prompt_ms", 406.4},
		{"prompt_per_token_ms", nil},
		{"prompt_per_second", 0.0},
		{"predicted_n", 8},
		{"predicted_ms", 96.5},
		{"predicted_per_token_ms", 13.8},
		{"predicted_per_second", 72.5},
	}
}

// begin has no role chunk when the first token is half a character (P29).
func (c openAI) begin(g *gen, _ *answer, s step) error {
	if partial(s.token.text) {
		return nil
	}
	return c.chunk(choiceOf(g.index, nil, roleDelta))
}

func (c openAI) delta(g *gen, _ *answer, s step, d delta) error {
	var out fieldList
	if d.reasoning != "" {
		out = append(out, field{"reasoning_content", d.reasoning})
	}
	if d.content != "" {
		out = append(out, field{"content", d.content})
	}
	if d.call != nil {
		out = append(out, field{"tool_calls", []fieldList{d.call.object()}})
	}
	var inChoice []field
	if c.j.q.logprobs && !s.eos {
		list := []fieldList{logprob(g, s.token, c.j.q.topLogprobs)}
		inChoice = append(inChoice, field{"logprobs", fieldList{{"content", list}}})
	}
	return c.chunk(choiceOf(g.index, nil, out, inChoice...), c.timingsIf(g)...)
}

// object is the delta in OpenAI's form (P27).
func (d *callDelta) object() fieldList {
	if d.id == "" {
		return fieldList{{"index", d.index}, {"function", fieldList{{"arguments", d.arguments}}}}
	}
	return fieldList{
		{"index", d.index},
		{"id", d.id},
		{"type", "function"},
		{"function", fieldList{{"name", d.name}, {"arguments", d.arguments}}},
	}
}

// finish ends a choice; what verbose tells sits on its first chunk, timings on the last,
// which is the usage chunk if one was asked for. The oldest servers put usage here, asked
// for or not.
func (c openAI) finish(g *gen, a *answer) error {
	choice := choiceOf(g.index, g.finishReason(len(a.calls) > 0), nil)
	var verbose []field
	if c.j.q.verbose {
		verbose = []field{{"__verbose", g.native(c.in, c.j, "", nil)}}
	}
	timings := field{"timings", g.timings().object(g.can)}
	switch {
	case c.in.can.usageInFinish:
		return c.chunk(choice, append(verbose, field{"usage", g.usage()}, timings)...)
	case !c.j.q.includeUsage:
		return c.chunk(choice, append(verbose, timings)...)
	}
	if err := c.chunk(choice, verbose...); err != nil {
		return err
	}
	return c.chunk([]fieldList{}, field{"usage", g.usage()}, timings)
}

func (c openAI) end() error { return c.rp.done() }

// failure is an event like any other (P42), on the oldest servers a line of its own
// kind, and the mark of the end behind it (P43).
func (c openAI) failure(err *apiError) []byte {
	if c.in.can.errorLines {
		return append(errorLine(err), "data: [DONE]\n\n"...)
	}
	return eventOf("", err.object())
}

// logprob invents probabilities; the ids and bytes are true.
func logprob(g *gen, t token, top int) fieldList {
	one := func(t token, p float64) fieldList {
		raw := make([]int, len(t.text))
		for i := range len(t.text) {
			raw[i] = int(t.text[i])
		}
		return fieldList{{"id", t.id}, {"token", strings.ToValidUTF8(t.text, "\uFFFD")}, {"bytes", raw}, {"logprob", p}}
	}
	h := mix(uint64(len(g.ids)) ^ g.model.now.h)
	list := []fieldList{}
	for i := range top {
		if i == 0 {
			list = append(list, one(t, -0.25))
			continue
		}
		w := words[(h+uint64(i))%uint64(len(words))]
		list = append(list, one(token{tokenID(" " + w), " " + w}, -1.5*float64(i+1)))
	}
	return append(one(t, -0.25), field{"top_logprobs", list})
}
