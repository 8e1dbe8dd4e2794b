package caddymodule

import (
	"crypto/rand"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet/openai"
)

// reply is the answer to one client.
type reply struct {
	w   http.ResponseWriter
	rc  *http.ResponseController // the writer's own Flusher is hidden below wrappers
	id  string
	who *key // whose request it is; nil: no key was needed

	unread bool // the request's body was not read to its end

	shape       openai.Shape // of its errors
	contentType string       // of an answer that is not an error
	body        []byte       // of a whole answer, until it is complete

	// mu guards the writer and what follows while pings are written.
	mu     sync.Mutex
	began  bool          // the client got a status
	born   time.Time     // the times here are since then
	last   time.Duration // when the last write to a stream began
	ending bool          // what is written next is the end
	before func(http.Header)
	armed  time.Duration // when the deadline for writing was set; 0: it was not
}

func newReply(w http.ResponseWriter, r *http.Request) *reply {
	p := &reply{
		w: w, rc: http.NewResponseController(w), id: requestID(r),
		shape: openai.ShapeOf(r.URL.Path), unread: r.ContentLength != 0, born: time.Now(),
	}
	w.Header().Set("X-Request-Id", p.id)
	if extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Set(zap.String("request_id", p.id))
	}
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.fleet.request_id", p.id)
	}
	return p
}

// requestID is the client's own id, if it can stand in a header and a log, else a
// new one.
func requestID(r *http.Request) string {
	const longest = 128
	id := r.Header.Get("X-Request-Id")
	ok := id != "" && len(id) <= longest
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] > ' ' && id[i] < 0x7f
	}
	if !ok {
		return rand.Text()
	}
	return id
}

// stream hands the next bytes of a stream to the client, at once.
func (p *reply) stream(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.push(b)
}

func (p *reply) push(b []byte) error {
	if !p.began {
		h := p.w.Header()
		h.Set("Content-Type", p.contentType)
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx in front holds back otherwise
		if p.before != nil {
			p.before(h)
		}
		p.begin(http.StatusOK)
	}
	p.last = p.arm()
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	return p.rc.Flush()
}

// stuckLimit is how long one write may take: while a client does not read, its lane on
// the node is held, and nothing is read from there.
const stuckLimit = 2 * time.Minute

// arm bounds the next write. A deadline that is set for each costs more than it is
// worth: it stands between half the limit and all of it ahead. arm returns the time.
func (p *reply) arm() (now time.Duration) {
	now = time.Since(p.born)
	if p.armed == 0 || now-p.armed >= stuckLimit/2 {
		p.armed = max(1, now)
		_ = p.rc.SetWriteDeadline(time.Now().Add(stuckLimit)) // not every writer has deadlines; those of the server remain
	}
	return now
}

// disarm leaves the connection as it was found.
func (p *reply) disarm() {
	if p.armed > 0 {
		_ = p.rc.SetWriteDeadline(time.Time{})
	}
}

// setBefore has f set headers of a stream, should that not have begun.
func (p *reply) setBefore(f func(http.Header)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = f
}

func (p *reply) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began
}

// whole keeps the bytes of a whole answer until finish.
func (p *reply) whole(b []byte) error {
	p.body = append(p.body, b...)
	return nil
}

// finish ends an answer that is complete. An error means that the client left.
func (p *reply) finish() error {
	if !p.began {
		return p.send(http.StatusOK, p.contentType, p.body)
	}
	defer p.disarm()
	return p.rc.Flush()
}

// fail answers with an error. Nothing may have been answered before.
func (p *reply) fail(e *openai.Error) {
	for name, value := range e.Headers() {
		p.w.Header().Set(name, value)
	}
	_ = p.send(e.Status, "application/json", e.BodyIn(p.shape)) // nobody is there to hear of an error
}

// unreadLimit is how long an answer waits for the rest of a request that it did not need:
// there are clients that listen only when they have sent all, but one may take as long
// as it likes.
const unreadLimit = time.Second

// send answers with a body that is complete. Over HTTP/1 the server reads up to 256 KiB
// of what is unread of the request before it sends anything. The flush is the last thing
// done to an answer: the closing chunk of a handler that paused before it returned meets a
// write deadline that has passed; a flush moves it.
func (p *reply) send(status int, contentType string, body []byte) error {
	h := p.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if p.unread {
		_ = p.rc.SetReadDeadline(time.Now().Add(unreadLimit)) // not every writer has deadlines; those of the server remain
	}
	p.begin(status)
	p.arm()
	defer p.disarm()
	if _, err := p.w.Write(body); err != nil {
		return err
	}
	return p.rc.Flush()
}

// breakOff ends a stream that cannot be completed. A handler that returns gives the
// client a clean end, as if the answer were whole; the panic breaks the connection.
func (p *reply) breakOff(end []byte) {
	_, _ = p.w.Write(end)
	_ = p.rc.Flush()
	panic(http.ErrAbortHandler)
}

// abandon ends an answer that nobody reads.
func (p *reply) abandon() {
	if p.began {
		// Should somebody read it after all, it must not look whole.
		panic(http.ErrAbortHandler)
	}
	p.begin(statusClientGone)
}

// statusClientGone is what the access log says of a client that left.
const statusClientGone = 499

func (p *reply) begin(status int) {
	p.began = true
	p.w.WriteHeader(status)
}
