package llamasim

import (
	"encoding/json"
	"net/http"
	"strings"
)

// chat answers one conversation, whichever of the APIs asked for it.
type chat struct {
	in      *instance
	rp      *reply
	j       *job
	p       prompt
	id      string
	answers []*answer // by index
	say     dialect
}

// dialect words an answer as one of the APIs does. All but body are of a stream.
type dialect interface {
	progress(progress) error
	begin(*gen, *answer, step) error        // a choice has its first token
	delta(*gen, *answer, step, delta) error // new text, echo included
	finish(*gen, *answer) error             // a choice is complete
	end() error                             // all are
	failure(*apiError) []byte               // the event of an error
	body() fieldList                        // the answer that is no stream
}

// surface is an API for conversations: how its body becomes that of a chat
// completion, and how it words the answer.
type surface struct {
	convert func(object) (object, error)
	dialect func(*chat) dialect
}

var (
	chatSurface      = surface{asItIs, newOpenAI}
	responsesSurface = surface{chatFromResponses, newResponses}
	messagesSurface  = surface{chatFromMessages, newMessages}
)

func asItIs(fields object) (object, error) { return fields, nil }

// answer is the message of one choice as far as it got.
type answer struct {
	split              *splitter
	started            bool // the first token is there
	echoed             bool
	reasoning, content strings.Builder
	calls              []*callDelta // by index
	logprobs           []fieldList
}

func (a *answer) add(d delta) {
	a.reasoning.WriteString(d.reasoning)
	a.content.WriteString(d.content)
	switch {
	case d.call == nil:
	case d.call.id != "":
		call := *d.call
		a.calls = append(a.calls, &call)
	default:
		a.calls[len(a.calls)-1].arguments += d.call.arguments
	}
}

// chatPrompt renders the prompt of a conversation, which may be less than a completion.
func (in *instance) chatPrompt(body []byte, s surface) (*request, []message, prompt, error) {
	fields, err := parseBody(body)
	if err != nil {
		return nil, nil, prompt{}, err
	}
	if fields, err = s.convert(fields); err != nil {
		return nil, nil, prompt{}, err
	}
	q, err := in.parseRequest(fields)
	if err != nil {
		return nil, nil, prompt{}, err
	}
	messages, err := in.parseMessages(fields["messages"])
	if err != nil {
		return nil, nil, prompt{}, err
	}
	p, err := in.render(q, messages)
	return q, messages, p, err
}

// converse serves a completion of a conversation.
func (in *instance) converse(s surface) postHandler {
	return func(w http.ResponseWriter, r *http.Request, body []byte) error {
		in.server.asked(body)
		q, messages, p, err := in.chatPrompt(body, s)
		if err != nil {
			return err
		}
		plan, err := in.planOf(q, messages, p)
		if err != nil {
			return err
		}
		text := markBOS + p.text
		j := in.newJob(q, text, p.tokens(), plan, settings(q, "deepseek", true))
		c := &chat{in: in, j: j, p: p, id: "chatcmpl-" + randomID(), rp: in.newReply(w, r, q)}
		c.say = s.dialect(c)
		c.rp.failure = c.say.failure
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
}

// whole answers with one body.
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
	writeJSON(c.rp.w, http.StatusOK, c.say.body())
}

// stream answers with events.
func (c *chat) stream() {
	c.j.started = c.rp.begin
	c.j.progress = c.say.progress
	c.j.token = c.sendToken
	c.j.finished = c.sendFinish
	if err := c.in.generate(c.rp, c.j); err != nil {
		c.rp.fail(err)
		return
	}
	if c.say.end() == nil {
		c.rp.end()
	}
}

func (c *chat) sendToken(g *gen, s step) error {
	a := c.answers[g.index]
	if !a.started {
		a.started = true
		if err := c.say.begin(g, a, s); err != nil {
			return err
		}
	}
	for _, u := range s.units {
		for _, d := range a.split.write(u) {
			a.add(d)
			if err := c.say.delta(g, a, s, c.echo(a, d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendFinish ends a choice. The prefill that is wanted comes even if nothing new did.
func (c *chat) sendFinish(g *gen) error {
	a := c.answers[g.index]
	if pre := c.p.prefill; c.p.echo && !a.echoed && pre.content+pre.reasoning != "" {
		if err := c.say.delta(g, a, step{eos: true}, c.echo(a, delta{})); err != nil {
			return err
		}
	}
	return c.say.finish(g, a)
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

// What a message says in all: what was continued and the new text together, with or
// without echo (section 2.1), but on servers that keep the two apart.

func (c *chat) content(a *answer) string {
	if !c.in.can.wholePrefill {
		return a.content.String()
	}
	return c.p.prefill.content + a.content.String()
}

func (c *chat) reasoning(a *answer) string {
	if !c.in.can.wholePrefill {
		return a.reasoning.String()
	}
	return c.p.prefill.reasoning + a.reasoning.String()
}

// timingsIf is for the events that carry timings only when each shall.
func (c *chat) timingsIf(g *gen) []field {
	if !c.j.q.timingsPerToken {
		return nil
	}
	return []field{{"timings", g.timings().object(g.can)}}
}

// model is the name an answer gives: that of the server, or, on old ones, whatever
// was asked for.
func (in *instance) model(q *request) string {
	var asked string
	if in.can.echoesModel && json.Unmarshal(q.fields["model"], &asked) == nil && asked != "" {
		return asked
	}
	return in.o.Model
}
