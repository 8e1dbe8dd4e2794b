package llamasim

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// batch is how many prompt tokens one decode takes at most (n_batch, section 3.2).
const batch = 2048

// job is what one request asks of the slots: one prompt, answered once or n times.
type job struct {
	q      *request
	prompt string
	ids    []int32
	gens   []*gen
	params fieldList // for /slots and the native answer
	doomed bool      // the shared pool is full; guarded by instance.mu

	// Called by generate, in order. Any may be nil.
	started  func() error           // the first slot begins with the prompt
	progress func(progress) error   // return_progress
	token    func(*gen, step) error // one token was generated
	finished func(*gen) error       // a generation has its finish reason, its slot is free
}

// gen is one generation in one slot.
type gen struct {
	index int
	task  int
	slot  *slot
	job   *job
	can   features

	model  *model
	queue  []token // rest of a character that takes two tokens
	ids    []int32 // generated
	cached int     // prompt tokens the slot held
	text   string  // begin of a character
	held   []unit  // could be the beginning of a stop string

	stopType  string // none, eos, limit, word
	stopWord  string
	truncated bool
	shifted   int // tokens forgotten to make room, behind the first of all
	forget    int // those of them the slot holds still
	newline   bool
	released  bool

	launched   time.Time
	promptTime time.Duration
	first      time.Time
	decodeTime time.Duration
	printed    time.Time // of the last n_gen line
	printedN   int
}

// step is what one token brought.
type step struct {
	token token
	units []unit // text that became ready; none inside a character
	eos   bool
}

// progress is llama-server's prompt_progress.
type progress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`
	Processed int   `json:"processed"`
	TimeMS    int64 `json:"time_ms"`
}

// newJob tokenizes a prompt and prepares its generations.
func (in *instance) newJob(q *request, text string, tokens []token, p *plan, params fieldList) *job {
	j := &job{q: q, prompt: text, params: params}
	m := newModel(in.o.Thinking && !q.noThinking, p)
	for _, t := range tokens {
		m.read(t.text, false)
		j.ids = append(j.ids, t.id)
	}
	for i := range q.n {
		clone := *m
		j.gens = append(j.gens, &gen{index: i, job: j, can: in.can, model: &clone})
	}
	return j
}

// generate runs a job: queue, prefill, decode. When it returns, the job holds no slot.
func (in *instance) generate(rp *reply, j *job) error {
	if err := in.acquire(rp, j); err != nil {
		return err
	}
	err := in.run(rp, j)
	if err != nil && rp.unwanted() {
		err = errClientGone
	}
	_, failed := errors.AsType[*taskError](err)
	for _, g := range j.gens {
		if !g.released && errors.Is(err, errClientGone) {
			in.log.write('W', "srv          stop: cancel task, id_task = %d", g.task)
			if in.ctx.Err() == nil {
				in.server.count(0, 1)
			}
		}
		in.release(g)
		if failed {
			// Who waited for the task tells the server that he does no more.
			in.log.write('W', "srv          stop: cancel task, id_task = %d", g.task)
		}
	}
	in.heard()
	return err
}

func (in *instance) run(rp *reply, j *job) error {
	if len(j.ids) >= in.o.Context {
		return in.taskFailed(j, in.tooLong(len(j.ids)))
	}
	if f, ok := in.fault(rp.r, atStart); ok {
		return in.failed(j, &faultError{f})
	}
	if j.started != nil {
		if err := j.started(); err != nil {
			return err
		}
	}
	if err := in.prefill(rp, j); err != nil {
		return err
	}
	return in.decode(rp, j)
}

// prefill takes the prompt in, batch by batch, but for what the slot holds of it.
// At least one token is always evaluated (section 3.1).
func (in *instance) prefill(rp *reply, j *job) error {
	g := j.gens[0]
	total := len(j.ids)
	g.launched = time.Now()
	g.cached = common32(g.slot.cached, j.ids)
	if g.cached == total {
		in.log.slot('W', "operator()", g.slot.id, g.task,
			"need to evaluate at least 1 token for each active slot (n_past = %d, task.n_tokens() = %d)", total, total)
		g.cached--
		in.log.slot('W', "operator()", g.slot.id, g.task, "n_past was set to %d", g.cached)
	}
	in.prefilled(j, g.cached)
	report := func(done int) error {
		if err := in.poolFull(j); err != nil {
			return err
		}
		if j.progress == nil || !j.q.returnProgress || !in.can.progress {
			return nil
		}
		return j.progress(progress{total, g.cached, done, time.Since(g.launched).Milliseconds()})
	}
	if err := report(g.cached); err != nil {
		return err
	}
	for done := g.cached; done < total; {
		n := min(batch, total-done)
		if in.o.Prefill > 0 {
			if err := rp.pause(time.Duration(float64(n) / in.o.Prefill * float64(time.Second))); err != nil {
				return err
			}
		}
		done += n
		in.prefilled(j, done)
		if spent := time.Since(g.launched); spent >= 3*time.Second {
			in.log.slot('I', "print_timing", g.slot.id, g.task,
				"prompt processing, n_tokens = %6d, progress = %.2f, t = %6.2f s / %.2f tokens per second",
				done-g.cached, float64(done)/float64(total), spent.Seconds(), float64(done-g.cached)/spent.Seconds())
		}
		if err := report(done); err != nil {
			return err
		}
	}
	return nil
}

// prefilled notes that the job's slots hold the first done tokens of the prompt.
func (in *instance) prefilled(j *job, done int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	parent := j.gens[0]
	for _, g := range j.gens {
		g.cached = parent.cached
		g.launched = parent.launched
		g.promptTime = time.Since(parent.launched)
		g.slot.cached = append(g.slot.cached[:0:0], j.ids[:done]...)
		g.slot.promptN = done
		g.slot.promptProcessed = done - parent.cached
		g.slot.promptFromCache = parent.cached
	}
	if done > parent.cached {
		in.decodes++
		in.counters.decoded(len(j.gens))
	}
	if done == len(j.ids) {
		in.counters.prompt(parent, done)
	}
	in.fit()
}

// decode generates a token of each generation in turn until all have ended.
func (in *instance) decode(rp *reply, j *job) error {
	due := time.Now()
	slow, struck := Fault{}, false
	for round := 0; ; round++ {
		if !struck {
			f, ok := in.fault(rp.r, atToken(round))
			struck = ok
			switch {
			case ok && f.Kind == FaultSlow:
				slow = f
			case ok && f.Kind == FaultHang:
				rp.hang()
				return errClientGone
			case ok && f.Kind == FaultCrash:
				in.crash(f)
				rp.hang()
				return errClientGone
			case ok && f.Kind == FaultGarble:
				if err := rp.garble(); err != nil {
					return err
				}
			case ok && rp.survives(f):
			case ok:
				return in.failed(j, &faultError{f})
			}
		}
		if round > 0 && in.o.Decode > 0 {
			due = due.Add(time.Duration(float64(time.Second) / in.o.Decode))
			if now := time.Now(); due.Before(now) {
				due = now
			}
		}
		wait := max(time.Until(due), 0)
		if slow.Kind != "" && round >= slow.Token {
			wait += slow.Delay
		}
		if err := rp.pause(wait); err != nil {
			return err
		}
		running, err := in.decodeRound(j)
		if err != nil || running == 0 {
			return err
		}
	}
}

// decodeRound is one decode for all generations; running: those that go on.
func (in *instance) decodeRound(j *job) (running int, err error) {
	if err := in.poolFull(j); err != nil {
		return 0, err
	}
	in.mu.Lock()
	in.decodes++
	in.counters.decoded(len(j.gens))
	in.mu.Unlock()
	// The real server answers the children first.
	for _, g := range slices.Backward(j.gens) {
		if g.stopType != "" {
			continue
		}
		s := g.step(in.o.Context, in.o.ContextShift)
		in.note(g)
		if g.stopType == "" {
			running++
		} else {
			in.finish(g)
		}
		if j.token != nil {
			if err := j.token(g, s); err != nil {
				return 0, err
			}
		}
		if g.stopType != "" && j.finished != nil {
			if err := j.finished(g); err != nil {
				return 0, err
			}
		}
	}
	return running, nil
}

// note writes down what a token changed for the pollers and the log.
func (in *instance) note(g *gen) {
	now := time.Now()
	in.server.count(1, 0)
	if len(g.ids) == 1 {
		g.first, g.printed, g.printedN = now, now, 1
	}
	g.decodeTime = now.Sub(g.first)
	in.mu.Lock()
	s := g.slot
	if n := len(g.ids); n > 1 {
		// The last token is not in the cache yet.
		s.cached = append(s.cached, g.ids[n-2])
	}
	if g.forget > 0 {
		in.log.slot('W', "operator()", s.id, g.task, "slot context shift, n_keep = 1, n_left = %d, n_discard = %d", len(s.cached)-1, g.forget)
		s.cached = slices.Delete(slices.Clone(s.cached), 1, min(1+g.forget, len(s.cached)))
		g.forget = 0
	}
	s.promptN = len(s.cached)
	s.decoded, s.newline = len(g.ids), g.newline
	s.remains = -1
	if g.job.q.limit >= 0 {
		s.remains = g.job.q.limit - s.decoded
	}
	in.fit()
	in.mu.Unlock()
	// Every 3 s, from 100 tokens on; the rates leave out the first token.
	if spent := now.Sub(g.printed); len(g.ids) >= 100 && spent >= 3*time.Second {
		in.log.slot('I', "print_timing", s.id, g.task, "n_gen = %6d, tg = %6.2f t/s, tg_3s = %6.2f t/s",
			len(g.ids), float64(len(g.ids)-1)/g.decodeTime.Seconds(), float64(len(g.ids)-g.printedN)/spent.Seconds())
		g.printed, g.printedN = now, len(g.ids)
	}
}

// finish logs a generation that came to its end and frees its slot, before the
// client can see the end: who has the answer finds the slot idle.
func (in *instance) finish(g *gen) {
	in.mu.Lock()
	graphs := in.decodes
	in.mu.Unlock()
	in.log.timing(g, graphs)
	in.release(g)
}

// step generates one token.
func (g *gen) step(context int, shift bool) step {
	q := g.job.q
	grows := false
	if len(g.queue) == 0 {
		var piece string
		piece, grows = g.model.next(q.ignoreEOS)
		if piece == "" {
			g.ids = append(g.ids, eosToken.id)
			g.stopType = "eos"
			return step{token: eosToken, units: g.flush(), eos: true}
		}
		g.queue = tokenize(piece)
	}
	t := g.queue[0]
	g.queue = g.queue[1:]
	g.model.read(t.text, grows)
	g.ids = append(g.ids, t.id)
	g.newline = g.newline || strings.Contains(t.text, "\n")
	s := step{token: t, units: g.show(t.text)}
	switch {
	case g.stopType != "":
	case q.limit >= 0 && len(g.ids) >= q.limit:
		g.stopType = "limit"
	case len(g.job.ids)+len(g.ids)-g.shifted < context:
	case shift:
		g.forget = (context - 1) / 2
		g.shifted += g.forget
		g.truncated = true
	default:
		g.stopType, g.truncated = "limit", true
	}
	if g.stopType == "limit" && !q.stream { // a stream never shows what still waits
		s.units = append(s.units, g.flush()...)
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
