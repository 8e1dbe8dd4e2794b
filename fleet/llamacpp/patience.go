package llamacpp

import (
	"context"
	"errors"
	"sync"
	"time"
)

var errStalled = errors.New("nothing came for too long")

// waiting is the clock of one generation. It runs from start to stop, which stand
// around every wait for the server, so that a slow client costs nothing. When the
// limit is reached, ask is called once: a server that answers gets the same time
// again, then strike ends the generation.
type waiting struct {
	ask    func(context.Context) error
	strike func()

	ctx    context.Context // of ask
	cancel context.CancelFunc
	asks   sync.WaitGroup

	mu    sync.Mutex
	timer *time.Timer // nil: no limit so far
	turn  int         // counts waits
	on    bool        // a wait goes on
	asked bool        // in this wait
	limit time.Duration
	due   time.Time
}

func newWaiting(ask func(context.Context) error, strike func()) *waiting {
	w := &waiting{ask: ask, strike: strike}
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
	w.on, w.asked, w.limit = true, false, limit
	w.wind()
}

// stop ends a wait.
func (w *waiting) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on {
		w.on = false
		w.timer.Stop()
	}
}

// wind sets the timer to the limit from now. mu is held.
func (w *waiting) wind() {
	w.due = time.Now().Add(w.limit)
	if w.timer == nil {
		w.timer = time.AfterFunc(w.limit, w.ring)
		return
	}
	w.timer.Reset(w.limit)
}

// ring is called by the timer, possibly a moment after its wait ended.
func (w *waiting) ring() {
	w.mu.Lock()
	if !w.on || time.Now().Before(w.due) {
		w.mu.Unlock()
		return
	}
	if w.asked {
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
		w.wind()
	}
	w.mu.Unlock()
	if still && err != nil {
		w.strike()
	}
}

// close ends the clock and waits until nobody is asked any more.
func (w *waiting) close() {
	w.stop()
	w.cancel()
	w.asks.Wait()
}
