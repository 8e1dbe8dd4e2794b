package fleet

import "time"

// work is what our own requests have an instance do. A request counts from the
// moment it is bound to the instance, be it that it has a lane there or waits for
// one, and in two phases: until its first token its prompt is to be read, from then
// on it writes.
type work struct {
	bound  int     // requests that wait for one of its lanes
	unread float64 // prompt tokens to be read, in no cache there
	kv     Tokens  // that prompts and answers take

	readers int // requests with a lane there that have no token yet

	read     float64   // prompt tokens that were read so far, ever
	reading  float64   // seconds in which prompts were read, ever
	occupied float64   // generations times seconds, ever
	at       time.Time // up to when these two count
}

// share is what one request adds to the work of its instance.
type share struct {
	unread float64 // still to be read
	kv     Tokens
}

func (i *instance) add(s share) {
	i.work.unread += s.unread
	i.work.kv += s.kv
}

// remove takes a share out. Sums of fractions do not come back to 0 by themselves.
func (i *instance) remove(s share) {
	i.work.unread = max(0, i.work.unread-s.unread)
	i.work.kv -= s.kv
	if i.held+i.work.bound == 0 {
		i.work.unread = 0
	}
}

// ours is how many requests of ours run there or wait for it.
func (i *instance) ours() int { return i.held + i.work.bound }

// tick brings the sums over time up to now. A clock that went back adds nothing.
func (i *instance) tick(now time.Time) {
	w := &i.work
	if span := now.Sub(w.at).Seconds(); !w.at.IsZero() && span > 0 {
		w.occupied += float64(i.held) * span
		if w.readers > 0 {
			w.reading += span
		}
	}
	w.at = now
}

// bind lets w, which is not bound, wait for a lane of the instance; nil: for any.
func (m *Manager) bind(w *waiter, i *instance) {
	if i == nil {
		return
	}
	w.bound = i
	i.work.bound++
	i.add(w.share)
}

// unbind takes w out of the work of the instance that it waits for.
func (m *Manager) unbind(w *waiter) {
	if i := w.bound; i != nil {
		w.bound = nil
		i.work.bound--
		i.remove(w.share)
	}
}

// phase is how far a lane's request is, and what the instance had done when it came
// there: what others had it do in between took its share of the time.
type phase struct {
	taken     time.Time
	takenRead float64

	writing       time.Time // since the first token; zero: it reads
	firstRead     float64
	firstReading  float64
	firstOccupied float64
}

// reads notes how much of its prompt a request still has to read.
func (m *Manager) reads(c *claim, p Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !c.given && c.phase.writing.IsZero() {
		c.left(bounded(float64(p.Total-p.Processed), 0, most))
	}
}

// writes notes that a request has its first token.
func (m *Manager) writes(c *claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.given || !c.phase.writing.IsZero() {
		return
	}
	c.left(0)
	w := &c.instance.work
	c.instance.tick(time.Now())
	w.readers--
	c.phase.writing = w.at
	c.phase.firstRead, c.phase.firstReading, c.phase.firstOccupied = w.read, w.reading, w.occupied
}

// left sets what is left to be read; what became less was read.
func (c *claim) left(unread float64) {
	w := &c.instance.work
	w.read += max(0, c.share.unread-unread)
	w.unread = max(0, w.unread+unread-c.share.unread)
	c.share.unread = unread
}

// calibrate takes the answer's timings as a measure of the instance.
func (c *claim) calibrate(t Timings) {
	i, p := c.instance, &c.phase
	if p.writing.IsZero() {
		return
	}
	if t.Prompt > 0 && t.PromptPerSecond > 0 {
		took := float64(t.Prompt) / t.PromptPerSecond
		// What others read meanwhile, of all the time since the lane was had.
		others := max(0, p.firstRead-p.takenRead-float64(t.Prompt))
		others *= bounded(took/p.writing.Sub(p.taken).Seconds(), 0, 1)
		if step := i.speed.step(i.held); step < took/2 {
			took -= step // the pass that read the last of it was one of writing, too
		}
		i.speed.read(float64(t.Prompt), float64(t.Prompt)+others, took)
	}
	if span := i.work.at.Sub(p.writing).Seconds(); t.Predicted >= enoughPredicted && t.PredictedPerSecond > 0 && span > 0 {
		// While a prompt is read, each pass of the server's loop is as long as a whole
		// batch takes, and the others hardly get on.
		took := float64(t.Predicted) / t.PredictedPerSecond
		if clear := took - (i.work.reading - p.firstReading); clear > took/2 {
			i.speed.wrote((i.work.occupied-p.firstOccupied)/span, clear/float64(t.Predicted))
		}
	}
}
