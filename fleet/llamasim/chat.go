package llamasim

import (
	"net/http"
	"strings"
	"time"
)

// chatPrompt renders the prompt of a chat body, which may be less than a completion.
func (in *instance) chatPrompt(body []byte) (*request, []message, prompt, error) {
	fields, err := parseBody(body)
	if err != nil {
		return nil, nil, prompt{}, err
	}
	q, err := in.parseRequest(fields)
	if err != nil {
		return nil, nil, prompt{}, err
	}
	messages, err := parseMessages(fields["messages"])
	if err != nil {
		return nil, nil, prompt{}, err
	}
	p, err := render(q, messages, in.o.Thinking)
	return q, messages, p, err
}

func (in *instance) serveChat(w http.ResponseWriter, r *http.Request, body []byte) error {
	in.server.asked(body)
	q, messages, p, err := in.chatPrompt(body)
	if err != nil {
		return err
	}
	plan, err := planOf(q, messages)
	if err != nil {
		return err
	}
	j := in.newJob(q, markBOS+p.text, tokenize(markBOS+p.text), plan, settings(q, "deepseek", true))
	c := &chat{in: in, j: j, p: p, id: "chatcmpl-" + randomID(), rp: in.newReply(w, r, q)}
	defer c.rp.close()
	for range j.gens {
		s := &splitter{raw: q.rawReasoning}
		s.prefilled(p)
		c.answers = append(c.answers, &answer{split: s})
	}
	if q.stream {
		c.stream()
	} else {
		c.whole()
	}
	return nil
}

// chat answers one request of /v1/chat/completions.
type chat struct {
	in      *instance
	rp      *reply
	j       *job
	p       prompt
	id      string
	answers []*answer // by index
}

// answer is the message of one choice as far as it got.
type answer struct {
	split              *splitter
	started            bool // the first token is there
	echoed             bool
	reasoning, content strings.Builder
	call               *callDelta
	logprobs           []fieldList
}

func (a *answer) add(d delta) {
	a.reasoning.WriteString(d.reasoning)
	a.content.WriteString(d.content)
	switch {
	case d.call == nil:
	case a.call == nil:
		a.call = d.call
	default:
		a.call.arguments += d.call.arguments
	}
}

func (g *gen) finishReason(called bool) string {
	switch {
	case g.stopType == "limit":
		return "length"
	case called:
		return "tool_calls"
	}
	return "stop"
}

// whole answers with one body: what was continued and the new text together, with
// or without echo (section 2.1).
func (c *chat) whole() {
	c.j.token = func(g *gen, s step) error {
		a := c.answers[g.index]
		for _, u := range s.units {
			for _, d := range a.split.write(u) {
				a.add(d)
			}
		}
		if c.j.q.logprobs && !s.eos {
			a.logprobs = append(a.logprobs, logprob(g, s.token, c.j.q.topLogprobs))
		}
		return nil
	}
	if err := c.in.generate(c.rp, c.j); err != nil {
		c.rp.fail(err)
		return
	}
	choices := []fieldList{}
	for _, g := range c.j.gens {
		a := c.answers[g.index]
		choice := fieldList{{"finish_reason", g.finishReason(a.call != nil)}, {"index", g.index}, {"message", c.message(a)}}
		if c.j.q.logprobs {
			choice = append(choice, field{"logprobs", fieldList{{"content", a.logprobs}}})
		}
		choices = append(choices, choice)
	}
	g := c.j.gens[0]
	body := fieldList{
		{"choices", choices},
		{"created", time.Now().Unix()},
		{"model", c.in.o.Model},
		{"system_fingerprint", buildInfo},
		{"object", "chat.completion"},
		{"usage", g.usage()},
		{"id", c.id},
	}
	if c.j.q.verbose {
		body = append(body, field{"__verbose", g.native(c.in, c.j, c.answers[0].content.String(), nil)})
	}
	writeJSON(c.rp.w, http.StatusOK, append(body, field{"timings", g.timings()}))
}

func (c *chat) message(a *answer) fieldList {
	m := fieldList{{"role", "assistant"}}
	content := c.p.prefill.content + a.content.String()
	if a.call != nil && content == "" {
		m = append(m, field{"content", nil})
	} else {
		m = append(m, field{"content", content})
	}
	if reasoning := c.p.prefill.reasoning + a.reasoning.String(); reasoning != "" {
		m = append(m, field{"reasoning_content", reasoning})
	}
	if a.call != nil {
		m = append(m, field{"tool_calls", []fieldList{{
			{"type", "function"},
			{"function", fieldList{{"name", a.call.name}, {"arguments", a.call.arguments}}},
			{"id", a.call.id},
		}}})
	}
	return m
}

// stream answers with events (section 1.10, P24 to P34).
func (c *chat) stream() {
	c.j.started = c.rp.open
	c.j.progress = c.sendProgress
	c.j.token = c.sendToken
	c.j.finished = c.sendFinish
	if err := c.in.generate(c.rp, c.j); err != nil {
		c.rp.fail(err)
		return
	}
	if c.rp.done() == nil {
		c.rp.end()
	}
}

// chunk is one event; more are the keys behind the fixed ones.
func (c *chat) chunk(choices []fieldList, more ...field) error {
	head := fieldList{
		{"choices", choices},
		{"created", time.Now().Unix()},
		{"id", c.id},
		{"model", c.in.o.Model},
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

// sendProgress repeats the role delta in each progress chunk.
func (c *chat) sendProgress(p progress) error {
	var more []field
	if c.j.q.timingsPerToken {
		t := timings{CacheN: p.Cache, PromptN: p.Processed - p.Cache}
		more = append(more, field{"timings", t})
	}
	return c.chunk(choiceOf(0, nil, roleDelta), append(more, field{"prompt_progress", p})...)
}

func (c *chat) sendToken(g *gen, s step) error {
	a := c.answers[g.index]
	if !a.started {
		a.started = true
		// No role chunk when the first token is half a character (P29).
		if !partial(s.token.text) {
			if err := c.chunk(choiceOf(g.index, nil, roleDelta)); err != nil {
				return err
			}
		}
	}
	for _, u := range s.units {
		for _, d := range a.split.write(u) {
			if err := c.sendDelta(g, a, s, c.echo(a, d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// echo glues the prefill to the first new text, when it is wanted (P31, P32).
func (c *chat) echo(a *answer, d delta) delta {
	if !c.p.echo || a.echoed {
		return d
	}
	a.echoed = true
	d.content = c.p.prefill.content + d.content
	d.reasoning = c.p.prefill.reasoning + d.reasoning
	return d
}

func (c *chat) sendDelta(g *gen, a *answer, s step, d delta) error {
	a.add(d)
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
	var inChoice, more []field
	if c.j.q.logprobs && !s.eos {
		list := []fieldList{logprob(g, s.token, c.j.q.topLogprobs)}
		inChoice = append(inChoice, field{"logprobs", fieldList{{"content", list}}})
	}
	if c.j.q.timingsPerToken {
		more = append(more, field{"timings", g.timings()})
	}
	return c.chunk(choiceOf(g.index, nil, out, inChoice...), more...)
}

// object is the delta in OpenAI's form (P27).
func (d *callDelta) object() fieldList {
	if d.id == "" {
		return fieldList{{"index", 0}, {"function", fieldList{{"arguments", d.arguments}}}}
	}
	return fieldList{
		{"index", 0},
		{"id", d.id},
		{"type", "function"},
		{"function", fieldList{{"name", d.name}, {"arguments", d.arguments}}},
	}
}

// sendFinish ends a choice; timings sit on the last chunk, which is the usage chunk
// if one was asked for.
func (c *chat) sendFinish(g *gen) error {
	choice := choiceOf(g.index, g.finishReason(c.answers[g.index].call != nil), nil)
	tail := []field{{"timings", g.timings()}}
	if c.j.q.verbose {
		tail = append([]field{{"__verbose", g.native(c.in, c.j, "", nil)}}, tail...)
	}
	if !c.j.q.includeUsage {
		return c.chunk(choice, tail...)
	}
	if err := c.chunk(choice); err != nil {
		return err
	}
	return c.chunk([]fieldList{}, append([]field{{"usage", g.usage()}}, tail...)...)
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
