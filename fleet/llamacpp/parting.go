package llamacpp

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// llama-server looks whether a client is still there only between results of that
// client's request, or after a second in which no request of anybody had one: a stream
// is free within 50 ms and a prefill with return_progress after the batch, but a request
// that waits for a slot, on a busy server, only at its turn. Its DELETE /v1/stream is no
// way out: it sets a flag that is looked at in the same places, while the header which
// makes it possible (X-Conversation-Id) lets the server go on without a client. So no
// such header is sent. A connection is closed in our direction first, which the server
// sees like any other close, and its own close tells that the slot is free.
const (
	// leaveLimit is how long the end of a generation is waited for by whoever ran it.
	leaveLimit = time.Second

	// leaveMost bounds how long one counts that the server does not end: something
	// between may keep the connection up.
	leaveMost = 10 * time.Minute
)

var errLeft = errors.New("the client left")

// parting lets go of an exchange when the caller's context ends.
type parting struct {
	x      *exchange
	cancel context.CancelCauseFunc // closes the connection

	stop      func() bool
	done      chan struct{} // closed when it has let go
	streaming atomic.Bool
	late      *time.Timer // set before done is closed
}

func newParting(ctx context.Context, x *exchange, cancel context.CancelCauseFunc) *parting {
	p := &parting{x: x, cancel: cancel, done: make(chan struct{})}
	p.stop = context.AfterFunc(ctx, func() {
		defer close(p.done)
		if !p.x.letGo(leaveLimit / 2) {
			p.cancel(errLeft)
			return
		}
		p.late = time.AfterFunc(leaveLimit, func() {
			if p.streaming.Load() {
				p.cancel(errLeft)
			}
		})
	})
	return p
}

// streams says that results come: the server notices at the next one, or is made to.
func (p *parting) streams() { p.streaming.Store(true) }

// half reports whether our half of the connection is closed, once the caller's context
// has ended. The other half then ends within leaveLimit.
func (p *parting) half() bool {
	<-p.done
	return p.late != nil
}

func (p *parting) close() {
	if p.stop() {
		return
	}
	<-p.done
	if p.late != nil {
		p.late.Stop()
	}
}

// leave has the link wait for the end of a generation that its caller gave up, and
// counts it until then. It returns false once the link is closed.
func (l *Link) leave(g *generation, arrived <-chan head) bool {
	l.mu.Lock()
	l.leaving[g.model]++
	l.tellAll()
	l.mu.Unlock()
	if l.start(func() {
		late := time.AfterFunc(leaveMost, func() { g.cancel(errLeft) })
		a := <-arrived
		late.Stop()
		g.cancel(errLeft)
		if a.resp != nil {
			_ = a.resp.Body.Close()
		}
		// An answer without a body leaves the connection with the transport, which
		// does not know that our half is closed.
		if conn := g.x.conn.Load(); conn != nil {
			_ = (*conn).Close()
		}
		g.x.bodies.Wait()
		l.isGone(g.model)
	}) {
		return true
	}
	l.isGone(g.model)
	return false
}

// isGone says that the server ended what was left there.
func (l *Link) isGone(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving[model]--; l.leaving[model] == 0 {
		delete(l.leaving, model)
	}
	l.tellAll()
}

// tellAll has every Watch tell all it knows. mu is held.
func (l *Link) tellAll() {
	for w := range l.watchers {
		signal(w.learned)
	}
}
