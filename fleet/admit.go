package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// claim is one lane of an instance, held, or the place of a light request beside the
// lanes. It has one owner, who gives it back once.
type claim struct {
	instance *instance
	state    Instance // as it was when the lane was had
	others   int      // lanes we held there besides
	life     int      // of the node
	light    bool     // it is no lane
	share    share    // of the instance's work
	phase    phase
	choices  choices
	given    bool
	warm     warmRun
	unload   *instance // that goes so that this one can be loaded; nil: none
}

// waiter is a request, or the rest of one, that looks for a lane.
type waiter struct {
	Request
	needs  Needs
	policy *Applied
	failed []failure
	first  bool // somebody reads its answer already
	kept   bool // it began and gave way: no limit of the queue holds for it but its Deadline
	cursor int  // of round_robin, drawn once
	blocks []uint64

	bound *instance // whose lane it waits for; nil: any
	share share     // of the work there
	held  time.Time // since when it waits for any lane; zero: it does not

	again  time.Time // when choose is to be asked again, though nothing happened; zero: not
	asked  bool      // it was asked once
	room   room      // it needs, as search saw last
	stands position  // in the queue

	settled chan struct{}  // closed when claim or err is set; nil: it never had to wait
	asks    chan time.Time // that again was set
	claim   *claim
	lane    claim // what claim points to
	err     error
	why     error // why it has to wait, as the answer when it waited too long
}

// room is the smallest context that is there and large enough for a request, by its
// length as estimated and by what is learned of such estimates; 0: none is.
type room struct{ estimated, learned Tokens }

// failure is a node that failed a request and does not get it again, unless it was
// away since: then it is another process.
type failure struct {
	node *node
	life int    // of the node
	max  Tokens // the context that it said is too small; 0: it failed otherwise
}

// failedOn returns how the request failed on the node that is there now; nil: it did
// not.
func (w *waiter) failedOn(n *node) *failure {
	for i := range w.failed {
		if f := &w.failed[i]; f.node == n && f.life == n.lives {
			return f
		}
	}
	return nil
}

func (w *waiter) everFailedOn(n *node) bool {
	return slices.ContainsFunc(w.failed, func(f failure) bool { return f.node == n })
}

func (w *waiter) settle(c *claim, err error) {
	w.claim, w.err = c, err
	if w.settled != nil {
		close(w.settled)
	}
}

func (w *waiter) isSettled() bool { return w.claim != nil || w.err != nil }

// Admit takes a request in: it waits for a lane of an instance that serves the
// model, and holds it for the session that it returns. Errors are *[RequestError].
func (m *Manager) Admit(ctx context.Context, a *Applied, r Request) (*Session, error) {
	s := newSession(m, a, r)
	if err := m.enter(s); err != nil {
		return nil, err
	}
	if err := m.checkQuarantine(r.Digest); err != nil {
		s.end(err)
		return nil, err
	}
	ctx, done := s.bind(ctx)
	defer done()
	c, err := m.place(ctx, &waiter{Request: r, policy: a})
	if err != nil {
		s.end(err)
		return nil, err
	}
	s.begin(c)
	return s, nil
}

// place finds a lane for w, now or when one is free.
func (m *Manager) place(ctx context.Context, w *waiter) (*claim, error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx)
	}
	limit := w.policy.Wait
	switch {
	case w.kept:
		limit = time.Until(w.Deadline)
	case !w.Deadline.IsZero():
		limit = min(limit, time.Until(w.Deadline))
	}
	w.blocks = w.remembered()
	if full, err := m.enqueue(w); err != nil {
		if full != "" {
			w.policy.Observer.Refused(full)
		}
		return nil, err
	}
	if w.settled == nil {
		return w.claim, w.err
	}
	expired, again := time.NewTimer(limit), time.NewTimer(limit)
	defer expired.Stop()
	defer again.Stop()
	for {
		select {
		case <-w.settled:
			return w.claim, w.err
		case at := <-w.asks:
			again.Reset(time.Until(at))
		case <-again.C:
			m.askAgain(w)
		case <-ctx.Done():
			if m.withdraw(w) && w.claim != nil {
				m.giveBack(w.claim)
			}
			return nil, cancelled(ctx)
		case <-expired.C:
			if m.withdraw(w) {
				return w.claim, w.err
			}
			w.policy.Observer.Refused(refusedExpired)
			return nil, w.why
		}
	}
}

// enqueue places w at once, or lets it wait. An error is its answer; full says which
// limit of the queue it met, if it was one.
func (m *Manager) enqueue(w *waiter) (full string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return "", stopping()
	}
	w.cursor = m.cursor
	m.cursor++
	now := time.Now()
	if (w.Light || m.queue.len == 0) && m.settled(w) {
		return "", nil
	}
	m.queue.push(w, m.toRead(w, m.search(w, now).able), now)
	if !w.asked {
		m.pump()
	}
	if !w.isSettled() && !w.asked {
		m.ask(w) // others found no lane, but whether to wait for a certain one is its own matter
	}
	m.preempt(w)
	if w.first || w.kept || w.isSettled() {
		return "", nil
	}
	if full, err = m.tooMany(w); err != nil {
		m.dequeue(w)
	}
	return full, err
}

// withdraw takes w out of the queue; true: it was settled before.
func (m *Manager) withdraw(w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.isSettled() {
		return true
	}
	w.why = m.inVain(w, w.why)
	m.dequeue(w)
	return false
}

// alike is what requests have in common that can run on the same instances: where
// one of them found no lane, the others find none.
type alike struct {
	policy      *Applied
	model       string
	fingerprint string
	features    Features
	anew, mixed bool
	light       bool
	repeat      bool
	failed      failure
	bound       *instance
	room        room
	alone       *waiter // that failed on several nodes: few do
}

func (w *waiter) alike() alike {
	a := alike{
		policy: w.policy, model: w.Model, bound: w.bound,
		fingerprint: w.needs.Fingerprint, features: w.needs.Features,
		anew: w.needs.Anew, repeat: w.needs.Repeat, mixed: w.Mixed,
		light: w.Light, room: w.room,
	}
	switch len(w.failed) {
	case 0:
	case 1:
		a.failed = w.failed[0]
	default:
		a.alone = w
	}
	return a
}

// busyRetry is after how long a caller is told to come back when all is busy and
// nothing is known of how long that takes.
const busyRetry = 2 * time.Second

// take holds a lane of the instance.
func (m *Manager) take(i *instance, w *waiter) *claim {
	m.unbind(w)
	c := &w.lane
	*c = claim{instance: i, others: i.held, life: i.node.lives, share: w.share, choices: c.choices}
	i.tick(time.Now())
	i.work.readers++
	c.phase = phase{taken: i.work.at, takenRead: i.work.read}
	i.add(c.share)
	i.held++
	i.sessions++
	c.state = i.Instance
	m.noteRun(c, w)
	return c
}

// giveBack gives the lane back; a second time does nothing.
func (m *Manager) giveBack(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.given {
		return
	}
	c.given = true
	c.instance.node.changes()
	c.instance.used = time.Now()
	if c.light {
		c.instance.light--
	} else {
		c.instance.release(c)
	}
	if c.instance.node.wanted == 0 {
		m.dropUnwanted()
	}
	m.pump()
}

// release takes what the claim stood for off the instance.
func (i *instance) release(c *claim) {
	i.tick(time.Now())
	if c.phase.writing.IsZero() {
		i.work.readers--
	}
	c.forgetRun()
	i.held--
	i.remove(c.share)
	i.sessions--
	i.served(time.Since(c.phase.taken))
}

// found is what a search through the fleet came to.
type found struct {
	able    []candidate // up, ready and fit to serve
	resting []candidate // as able, on nodes that fail more than others
	other   []candidate // up and ready, but second choice: to repeat the answer, begin it anew, or go on with another build
	cold    []*instance // not loaded, and a request loads them

	length struct{ estimated, learned Tokens } // of the prompt

	known  int       // instances that serve the model, usable or not
	widest Tokens    // of their contexts
	narrow int       // of them, those that are too small for the request
	unlike int       // of them, those that cannot go on with the answer
	unseen int       // nodes that never said what they serve
	hope   bool      // something may come back that could serve
	next   time.Time // when that is probed next
}

// search looks at all instances of the policy's nodes. What it found is good until
// the next search.
func (m *Manager) search(w *waiter, now time.Time) found {
	f := found{able: m.scratch.able[:0]}
	w.room = room{}
	model := w.Model
	if model == "" {
		model = onlyModel(w.policy.nodes)
	}
	for _, n := range w.policy.nodes {
		if !n.learned {
			f.unseen++
			f.hopes(n, n.down == nil || now.Sub(n.added) < w.policy.Wait)
			continue
		}
		for _, i := range n.instances {
			if !i.gone && model != "" && i.Serves(model) {
				if f.known == 0 {
					f.length.estimated = w.size()
					f.length.learned = Tokens(math.Ceil(m.models[i.Model].promptOf(w)))
				}
				f.see(n, i, w, now)
			}
		}
	}
	m.scratch.able = f.able
	return f
}

// onlyModel is the model of a fleet that serves one; empty: it serves none or many.
func onlyModel(nodes []*node) string {
	var only string
	for _, n := range nodes {
		for _, i := range n.instances {
			if i.gone || i.Model == only {
				continue
			}
			if only != "" {
				return ""
			}
			only = i.Model
		}
	}
	return only
}

// see sorts one instance that serves the model in.
func (f *found) see(n *node, i *instance, w *waiter, now time.Time) {
	failed := w.failedOn(n)
	f.known++
	f.widest = max(f.widest, i.Context)
	narrowest(&w.room.estimated, i.Context, f.length.estimated)
	narrowest(&w.room.learned, i.Context, f.length.learned)
	narrow := w.needs.Prompt > 0 && i.Context > 0 && i.Context < w.needs.Prompt
	if failed != nil && failed.max > 0 {
		f.widest, narrow = max(f.widest, failed.max), true
	}
	like, second := w.suits(&i.Instance)
	switch {
	case narrow:
		f.narrow++
	case failed != nil, n.down != nil && w.everFailedOn(n): // nobody waits for its return
	case !like && !second:
		f.unlike++
	case n.drain != nil: // nobody knows whether it comes back
	case len(i.owed) > 0 || !n.away.IsZero():
		f.hopes(n, true)
	case n.down != nil:
		f.hopes(n, now.Sub(n.down.since) < w.policy.Wait)
	case i.evicted: // it goes, and may come back
		f.hopes(n, true)
	case n.cold(i) && !w.Loaded:
		f.hopes(n, true)
		f.cold = append(f.cold, i)
	case !i.loaded():
		f.hopes(n, i.State == StateLoading)
	case !like:
		f.other = append(f.other, i.candidate())
	case n.rests(now):
		f.resting = append(f.resting, i.candidate())
	default:
		f.able = append(f.able, i.candidate())
	}
}

// narrowest makes room the context if that is large enough and smaller.
func narrowest(room *Tokens, context, length Tokens) {
	if context >= length && context > 0 && (*room == 0 || context < *room) {
		*room = context
	}
}

func (i *instance) candidate() candidate {
	return candidate{
		Instance: &i.Instance, owner: i, index: i.node.index,
		held: i.occupied(), sessions: i.sessions, known: i.speed.speed,
	}
}

// suits reports whether the instance can go on with the answer exactly, and whether it
// would do where none can: to repeat it, begin it anew, or go on with another build.
func (w *waiter) suits(i *Instance) (like, second bool) {
	able := i.Features.Has(w.needs.Features)
	same := w.needs.Fingerprint == i.Fingerprint
	return w.needs.Fingerprint == "" || same && able, w.needs.Anew || w.needs.Repeat && same || w.Mixed && able
}

func (f *found) hopes(n *node, hope bool) {
	f.hope = f.hope || hope
	if n.down != nil && (f.next.IsZero() || n.down.nextProbe.Before(f.next)) {
		f.next = n.down.nextProbe
	}
}

// nobody says why nothing can serve w now: as its answer, or, while something may
// come back, as w.why.
func (m *Manager) nobody(w *waiter, f found, now time.Time) error {
	away := &RequestError{
		Reason:     ReasonNoNode,
		Message:    "no server that serves this model is up",
		RetryAfter: max(time.Second, f.next.Sub(now)),
	}
	switch {
	case len(w.policy.nodes) == 0:
		away.Message, away.RetryAfter = "no server is configured", 0
		return away
	case f.hope:
		w.why = away
		return nil
	case f.known > 0 && f.narrow == f.known:
		return &RequestError{
			Reason:  ReasonTooLong,
			Message: fmt.Sprintf("the request is %d tokens long; the largest context is %d tokens", w.needs.Prompt, f.widest),
			Len:     w.needs.Prompt, Max: f.widest,
		}
	case f.known == 0 && f.unseen == 0:
		return &RequestError{Reason: ReasonUnknownModel, Message: unknownModel(w.Model)}
	case f.known == 0:
		away.Message = "no server that is up serves this model, and not every server was reached yet"
	}
	return away
}

func unknownModel(model string) string {
	if model == "" {
		return "the request names no model, and more than one is served; GET /v1/models lists them"
	}
	const shown = 128
	if len(model) > shown {
		model = strings.ToValidUTF8(model[:shown], "") + "…"
	}
	return fmt.Sprintf("the model %q does not exist; GET /v1/models lists those that do", model)
}

func cancelled(ctx context.Context) error {
	if why, ok := errors.AsType[*RequestError](context.Cause(ctx)); ok {
		return why // it was ended from here
	}
	return &RequestError{Reason: ReasonCancelled, Message: "the client left", Err: context.Cause(ctx)}
}
