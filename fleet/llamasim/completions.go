package llamasim

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// textPrompt is one prompt of /completion or /v1/completions.
type textPrompt struct {
	text   string
	tokens []token
}

// parsePrompts reads "prompt" in all forms of section 1.8 but the multimodal one.
func parsePrompts(fields map[string]json.RawMessage) ([]textPrompt, error) {
	raw, ok := fields["prompt"]
	if !ok {
		return nil, badRequest("[json.exception.out_of_range.403] key 'prompt' not found")
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		p, err := parsePrompt([]json.RawMessage{raw})
		return []textPrompt{p}, err
	}
	if len(list) == 0 {
		return nil, badRequest("\"prompt\" must not be empty")
	}
	// An array with a number in it is one sequence; else each entry is a prompt.
	for _, e := range list {
		if kindOf(e) == "number" {
			p, err := parsePrompt(list)
			return []textPrompt{p}, err
		}
	}
	out := make([]textPrompt, 0, len(list))
	for _, e := range list {
		parts := []json.RawMessage{e}
		if kindOf(e) == "array" {
			_ = json.Unmarshal(e, &parts)
		}
		p, err := parsePrompt(parts)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// parsePrompt joins texts and ids; the start marker comes first only if a text does.
func parsePrompt(parts []json.RawMessage) (textPrompt, error) {
	p := textPrompt{}
	for i, raw := range parts {
		var text string
		var id int32
		var with struct {
			Prompt string `json:"prompt_string"`
		}
		switch {
		case json.Unmarshal(raw, &id) == nil:
			t, ok := tokenText(id)
			if !ok {
				return p, badRequest("Prompt contains invalid tokens")
			}
			p.text += t
			p.tokens = append(p.tokens, token{id, t})
			continue
		case json.Unmarshal(raw, &text) == nil:
		case json.Unmarshal(raw, &with) == nil:
			text = with.Prompt
		default:
			return p, badRequest("\"prompt\" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of mixed strings & tokens.")
		}
		if i == 0 {
			text = markBOS + text
		}
		p.text += text
		p.tokens = append(p.tokens, tokenize(text)...)
	}
	return p, nil
}

// textReply answers /v1/completions and /completion, which differ in the events.
type textReply struct {
	in     *instance
	rp     *reply
	q      *request
	id     string
	openai bool
}

func (in *instance) serveCompletions(w http.ResponseWriter, r *http.Request, body []byte) error {
	return in.serveText(w, r, body, true)
}

func (in *instance) serveNative(w http.ResponseWriter, r *http.Request, body []byte) error {
	return in.serveText(w, r, body, false)
}

func (in *instance) serveText(w http.ResponseWriter, r *http.Request, body []byte, openai bool) error {
	in.server.asked(body)
	fields, err := parseBody(body)
	if err != nil {
		return err
	}
	q, err := in.parseRequest(fields)
	if err != nil {
		return err
	}
	prompts, err := parsePrompts(fields)
	if err != nil {
		return err
	}
	t := &textReply{in: in, q: q, id: "chatcmpl-" + randomID(), openai: openai, rp: in.newReply(w, r, q)}
	defer t.rp.close()
	// Several prompts run one after another here; the real server runs them side by
	// side if it has the slots. The answers are the same.
	var results []result
	for i, one := range prompts {
		if i > 0 && q.stream && openai {
			// The real server's mistake (P63).
			if err := t.rp.event(nil); err != nil {
				t.rp.fail(err)
				return nil
			}
		}
		p, err := in.planOfText(q, one.tokens)
		if err != nil {
			t.rp.fail(err)
			return nil
		}
		j := in.newJob(q, one.text, one.tokens, p, settings(q, "deepseek", true))
		for k, g := range j.gens {
			g.index = i*q.n + k
		}
		got, err := t.run(j)
		if err != nil {
			t.rp.fail(err)
			return nil
		}
		results = append(results, got...)
	}
	t.finish(results)
	return nil
}

// result is one finished generation and its text.
type result struct {
	g    *gen
	j    *job
	text string
	ids  []int32
}

func (t *textReply) run(j *job) ([]result, error) {
	results := make([]result, len(j.gens))
	place := func(g *gen) *result { return &results[g.index-j.gens[0].index] }
	j.token = func(g *gen, s step) error {
		shown := joinUnits(s.units)
		place(g).text += shown
		place(g).ids = append(place(g).ids, s.token.id)
		// A token inside a character has no event; nor do its ids appear (P19). One whose
		// text may begin a stop string has an event without text.
		if !t.q.stream || g.text != "" {
			return nil
		}
		return t.sendToken(g, shown, s)
	}
	if t.q.stream {
		j.started = t.rp.begin
		j.progress = t.sendProgress
		j.finished = func(g *gen) error { return t.sendFinish(g, j) }
	}
	err := t.in.generate(t.rp, j)
	for i := range results {
		results[i].g, results[i].j = j.gens[i], j
	}
	return results, err
}

func joinUnits(units []unit) string {
	var b strings.Builder
	for _, u := range units {
		// Control tokens have no text of their own.
		if !u.mark || u.text != markBOS && u.text != markStart && u.text != markEnd {
			b.WriteString(u.text)
		}
	}
	return b.String()
}

func (t *textReply) choice(text string, index int, finish any, more ...field) fieldList {
	head := fieldList{
		{"choices", []fieldList{{{"text", text}, {"index", index}, {"logprobs", nil}, {"finish_reason", finish}}}},
		{"created", time.Now().Unix()},
		{"model", t.in.model(t.q)},
		{"system_fingerprint", buildInfo},
		{"object", "text_completion"},
	}
	return append(head, more...)
}

func partialNative(g *gen, text string, id int32, extra ...field) fieldList {
	return append(fieldList{
		{"index", g.index},
		{"content", text},
		{"tokens", []int32{id}},
		{"stop", false},
		{"id_slot", -1},
		{"tokens_predicted", len(g.ids)},
		{"tokens_evaluated", len(g.job.ids)},
	}, extra...)
}

func (t *textReply) sendToken(g *gen, shown string, s step) error {
	var extra []field
	if t.q.timingsPerToken || g.stopType == "word" {
		extra = append(extra, field{"timings", g.timings().object(g.can)})
	}
	if !t.openai {
		return t.rp.event(partialNative(g, shown, s.token.id, extra...))
	}
	more := []field{{"id", t.id}}
	if t.q.verbose && t.in.can.chunkTokens {
		more = append(more, field{"__verbose", partialNative(g, shown, s.token.id, extra...)})
	}
	return t.rp.event(t.choice(shown, g.index, nil, append(more, extra...)...))
}

func (t *textReply) sendProgress(p progress) error {
	if !t.openai {
		return t.rp.event(fieldList{
			{"index", 0},
			{"content", ""},
			{"tokens", []int32{}},
			{"stop", false},
			{"id_slot", -1},
			{"tokens_predicted", 0},
			{"tokens_evaluated", p.Total},
			{"prompt_progress", p},
		})
	}
	return t.rp.event(t.choice("", 0, nil, field{"id", t.id}, field{"prompt_progress", p}))
}

// sendFinish has usage always, whatever stream_options say (section 1.9).
func (t *textReply) sendFinish(g *gen, j *job) error {
	if !t.openai {
		return t.rp.event(g.native(t.in, j, "", []int32{}))
	}
	more := []field{{"usage", g.usage()}, {"id", t.id}}
	if t.q.verbose {
		more = append(more, field{"__verbose", g.native(t.in, j, "", []int32{})})
	}
	return t.rp.event(t.choice("", g.index, g.finishReason(false), append(more, field{"timings", g.timings().object(g.can)})...))
}

// finish ends the stream, without [DONE] on the native route, or sends the body.
func (t *textReply) finish(results []result) {
	switch {
	case t.q.stream && t.openai:
		if t.rp.done() == nil {
			t.rp.end()
		}
	case t.q.stream:
		t.rp.end()
	case t.openai:
		t.openaiBody(results)
	default:
		t.nativeBody(results)
	}
}

func (t *textReply) openaiBody(results []result) {
	choices := []fieldList{}
	for _, r := range results {
		choices = append(choices, fieldList{
			{"text", r.text},
			{"index", r.g.index},
			{"logprobs", nil},
			{"finish_reason", r.g.finishReason(false)},
		})
	}
	g := results[0].g
	more := []field{{"usage", g.usage()}, {"id", t.id}}
	if t.q.verbose {
		ids := []int32{}
		if t.q.returnTokens {
			ids = results[0].ids
		}
		more = append(more, field{"__verbose", g.native(t.in, results[0].j, results[0].text, ids)})
	}
	body := t.choice("", 0, nil, append(more, field{"timings", g.timings().object(g.can)})...)
	body[0].value = choices
	writeJSON(t.rp.w, http.StatusOK, body)
}

func (t *textReply) nativeBody(results []result) {
	bodies := []fieldList{}
	for _, r := range results {
		ids := []int32{}
		if t.q.returnTokens {
			ids = r.ids
		}
		bodies = append(bodies, r.g.native(t.in, r.j, r.text, ids))
	}
	if len(bodies) == 1 {
		writeJSON(t.rp.w, http.StatusOK, bodies[0])
		return
	}
	writeJSON(t.rp.w, http.StatusOK, bodies)
}

// chosen cuts an account down to response_fields (P21): a path is a chain of keys with
// slashes, and the key of what it leads to.
func (q *request) chosen(account fieldList) fieldList {
	var paths []string
	if json.Unmarshal(q.fields["response_fields"], &paths) != nil || len(paths) == 0 {
		return account
	}
	all := encode(account)
	out := fieldList{}
	for _, path := range paths {
		at, found := json.RawMessage(all), true
		for key := range strings.SplitSeq(path, "/") {
			var o object
			if found = found && json.Unmarshal(at, &o) == nil; found {
				at, found = o[key]
			}
		}
		if found {
			out = append(out, field{path, at})
		}
	}
	return out
}

// native is the final object of /completion (P18), also what verbose shows.
func (g *gen) native(in *instance, j *job, text string, ids []int32) fieldList {
	if ids == nil {
		ids = []int32{}
	}
	return j.q.chosen(fieldList{
		{"index", g.index},
		{"content", text},
		{"tokens", ids},
		{"id_slot", g.slot.id},
		{"stop", true},
		{"model", in.o.Model},
		{"tokens_predicted", len(g.ids)},
		{"tokens_evaluated", len(j.ids)},
		{"generation_settings", j.params},
		{"prompt", j.prompt},
		{"has_new_line", g.newline},
		{"truncated", g.truncated},
		{"stop_type", g.stopType},
		{"stopping_word", g.stopWord},
		{"tokens_cached", len(j.ids) + len(g.ids) - 1},
		{"timings", g.timings().object(g.can)},
	})
}
