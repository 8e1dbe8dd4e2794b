package llamacpp

import (
	"context"
	"errors"
	"sync"
	"time"
)

var errStalled = errors.New("nothing came for too long")

// idle is how long a server may send nothing but signs of life, where silence is
// bounded by the limit: it answers, but its engine hangs.
func idle(limit time.Duration) time.Duration { return max(10*limit, 2*time.Minute) }

// waiting is the clock of one generation. It runs from start to stop, which stand
// around every wait for the server, so that a slow client costs nothing. When the
// limit is reached, ask is called once: a server that answers gets the same time
// again, then strike ends the generation.
//
// Every byte begins a new wait, a ping too. The waits since the server last worked
// (sent data or progress) have a limit of their own, in all, at which nobody is
// asked: the one who answers is not the one who works.
type waiting struct {
	ask    func(context.Context) error
	strike func()

	works bool // since the last wait; only of the goroutine that waits

	ctx    context.Context // of ask
	cancel context.CancelFunc
	asks   sync.WaitGroup

	mu    sync.Mutex
	epoch time.Time     // the times here are since then
	timer *time.Timer   // nil: no limit so far
	rings time.Duration // when the timer does; never: it does not
	turn  int           // counts waits
	on    bool          // a wait goes on
	asked bool          // in this wait
	limit time.Duration
	due   time.Duration
	begun time.Duration // the wait; never: it is in idle
	idle  time.Duration // in the waits before this one, since the server worked
}

// never is no time.
const never = -1

func newWaiting(ask func(context.Context) error, strike func()) *waiting {
	w := &waiting{ask: ask, strike: strike, epoch: time.Now(), rings: never, begun: never}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// start begins a wait; limit 0: as long as it takes.
func (w *waiting) start(limit time.Duration) {
	if limit <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn++
	now := w.now()
	if w.works {
		w.works, w.idle = false, 0
	} else if w.begun != never {
		w.idle += now - w.begun
	}
	w.on, w.asked, w.limit, w.begun = true, false, limit, now
	w.wind(now)
}

// stop ends a wait. How long it was is reckoned by rested, or when the next one begins.
func (w *waiting) stop() {
	w.mu.Lock()
	w.on = false
	w.mu.Unlock()
}

// rested says that what came is to be taken by the client, and was no work. Of a wait
// that ended with work nobody needs to know how long it was, and the clock is not read.
func (w *waiting) rested() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun != never {
		w.idle += w.now() - w.begun
		w.begun = never
	}
}

// worked says that the server did not only show that it is there.
func (w *waiting) worked() { w.works = true }

// wind has the wait end at the limit from now, or at what is left of the idle time. mu
// is held. There is a wait for each token, and setting a timer costs more than all else
// here: one that rings before is left to find that it came too early.
func (w *waiting) wind(now time.Duration) {
	d := min(w.limit, w.left(now))
	w.due = now + d
	switch {
	case w.timer == nil:
		w.timer = time.AfterFunc(d, w.ring)
	case w.rings == never || w.rings > w.due:
		w.timer.Reset(d)
	default:
		return
	}
	w.rings = w.due
}

// left is what is left of the idle time. mu is held.
func (w *waiting) left(now time.Duration) time.Duration {
	return idle(w.limit) - w.idle - (now - w.begun)
}

func (w *waiting) now() time.Duration { return time.Since(w.epoch) }

// ring is called by the timer, possibly after its wait ended, or in a later one.
func (w *waiting) ring() {
	w.mu.Lock()
	now := w.now()
	w.rings = never
	if w.on && now < w.due {
		w.timer.Reset(w.due - now)
		w.rings = w.due
	}
	if w.rings != never || !w.on {
		w.mu.Unlock()
		return
	}
	if w.asked || w.left(now) <= 0 {
		w.mu.Unlock()
		w.strike()
		return
	}
	w.asked = true
	turn := w.turn
	w.asks.Add(1)
	defer w.asks.Done()
	w.mu.Unlock()

	err := w.ask(w.ctx)

	w.mu.Lock()
	still := w.on && w.turn == turn
	if still && err == nil {
		w.wind(w.now())
	}
	w.mu.Unlock()
	if still && err != nil {
		w.strike()
	}
}

// close ends the clock and waits until nobody is asked any more.
func (w *waiting) close() {
	w.stop()
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.cancel()
	w.asks.Wait()
}
