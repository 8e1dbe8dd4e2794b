package llamasim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// reply answers one completion: as one body, or as an event stream on a connection
// that it takes over. Only the goroutine of the request uses it.
type reply struct {
	in *instance
	w  http.ResponseWriter
	r  *http.Request

	ctx    context.Context // done when the client left or the server died
	cancel context.CancelFunc
	kept   *keptStream // holds the stream for a client that comes back; or nil

	stream  bool     // an event stream is wanted
	conn    net.Conn // of the stream; nil: not started
	watcher sync.WaitGroup
	ping    time.Duration
	written time.Time // when the stream last got something
	last    []byte    // last event

	failure func(*apiError) []byte // the event of an error
}

func (in *instance) newReply(w http.ResponseWriter, r *http.Request, q *request) *reply {
	rp := &reply{in: in, w: w, r: r, stream: q.stream, ping: q.ping, failure: in.errorEvent}
	if !in.can.pings {
		rp.ping = 0
	}
	rp.ctx, rp.cancel = context.WithCancel(r.Context())
	if id := r.Header.Get("X-Conversation-Id"); id != "" && q.stream && in.can.streams {
		rp.kept = in.streams.begin(id)
	}
	return rp
}

// close ends the connection of a stream: the real server does so after each, and
// does not announce it (section 1.0).
func (rp *reply) close() {
	if rp.kept != nil {
		if rp.conn == nil {
			// It failed before it began: there is nothing to come back to.
			rp.in.streams.forget(rp.kept)
		}
		rp.kept.finish()
	}
	if rp.conn != nil {
		_ = rp.conn.Close()
		rp.watcher.Wait()
	}
	rp.cancel()
}

// left is closed when nobody wants the answer any more: a stream that is kept goes
// on without its client until it is deleted (section 1.14).
func (rp *reply) left() <-chan struct{} {
	if rp.kept != nil {
		return rp.kept.deleted
	}
	return rp.ctx.Done()
}

func (rp *reply) unwanted() bool {
	select {
	case <-rp.left():
		return true
	default:
		return rp.in.ctx.Err() != nil
	}
}

// begin is the start of the prompt, with which the headers of a stream go out, on
// old servers with the first token.
func (rp *reply) begin() error {
	if !rp.in.can.earlyHeaders {
		return nil
	}
	return rp.open()
}

// open sends the headers of a stream, once.
func (rp *reply) open() error {
	if rp.conn != nil {
		return nil
	}
	if rp.unwanted() {
		return errClientGone
	}
	nc, _, err := http.NewResponseController(rp.w).Hijack()
	if err != nil {
		return errClientGone
	}
	_ = nc.SetDeadline(time.Time{})
	rp.conn = nc
	rp.written = time.Now()
	rp.in.heard()
	rp.watcher.Go(func() {
		// A client that sends no more, or goes, is gone (section 3.5).
		_, _ = io.Copy(io.Discard, nc)
		rp.cancel()
	})
	if !writeStreamHead(nc, rp.r) && rp.kept == nil {
		return errClientGone
	}
	return nil
}

func writeStreamHead(nc net.Conn, r *http.Request) bool {
	_, err := fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: %s\r\nContent-Type: text/event-stream\r\n"+
		"Keep-Alive: timeout=5, max=100\r\nServer: llama.cpp\r\nTransfer-Encoding: chunked\r\nX-Accel-Buffering: no\r\n\r\n",
		r.Header.Get("Origin"))
	return err == nil
}

// chunk sends a result, or a part of one, behind the headers.
func (rp *reply) chunk(b []byte) error {
	rp.in.heard()
	return rp.send(b)
}

// send sends bytes as one chunk, in one write.
func (rp *reply) send(b []byte) error {
	if err := rp.open(); err != nil {
		return err
	}
	if rp.unwanted() {
		return errClientGone
	}
	if rp.in.terminated() {
		return rp.linger()
	}
	rp.written = time.Now()
	if rp.kept != nil {
		rp.kept.write(b)
	}
	if rp.ctx.Err() != nil {
		return nil // kept for later
	}
	if writeChunk(rp.conn, b) != nil && rp.kept == nil {
		return errClientGone
	}
	return nil
}

func writeChunk(w io.Writer, b []byte) error {
	var frame bytes.Buffer
	fmt.Fprintf(&frame, "%x\r\n", len(b))
	frame.Write(b)
	frame.WriteString("\r\n")
	_, err := w.Write(frame.Bytes())
	return err
}

// event sends v as an event.
func (rp *reply) event(v any) error { return rp.named("", v) }

// named sends an event that has a name.
func (rp *reply) named(name string, v any) error {
	rp.last = eventOf(name, v)
	return rp.chunk(rp.last)
}

// eventOf is v as an event.
func eventOf(name string, v any) []byte {
	var b []byte
	if name != "" {
		b = append(b, "event: "+name+"\n"...)
	}
	b = append(b, "data: "...)
	b = append(b, encode(v)...)
	return append(b, '\n')
}

// errorLine is an error in a stream of the oldest servers (P43).
func errorLine(err *apiError) []byte {
	b := append([]byte("error: "), encode(err.object().get("error"))...)
	return append(b, '\n')
}

func (in *instance) errorEvent(err *apiError) []byte {
	if in.can.errorLines {
		return errorLine(err)
	}
	return eventOf("", err.object())
}

// done sends the last event of OpenAI's streams.
func (rp *reply) done() error { return rp.chunk([]byte("data: [DONE]\n\n")) }

// end closes the chunked body.
func (rp *reply) end() {
	if rp.ctx.Err() == nil {
		_, _ = io.WriteString(rp.conn, "0\r\n\r\n")
	}
}

// unheard is how long a server must have had no result for anybody before it looks
// whether the client of one that waits is still there (section 3.5).
const unheard = time.Second

// pause waits d, with pings on a silent stream (P39). That the client left shows at
// its next result, or when there was no result for anybody in a while; a busy server
// may go on for nobody for long.
func (rp *reply) pause(d time.Duration) error {
	end := time.Now().Add(d)
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	for {
		wait := time.Until(end)
		switch {
		case rp.in.ctx.Err() != nil:
			return errClientGone
		case rp.in.terminated():
			return rp.linger()
		case wait <= 0:
			return nil
		}
		if rp.conn != nil && rp.ping > 0 {
			if due := time.Until(rp.written.Add(rp.ping)); due > 0 {
				wait = min(wait, due)
			} else if err := rp.send([]byte(":\n\n")); err != nil {
				return err
			} else {
				continue
			}
		}
		left := rp.left()
		if rp.unwanted() {
			look := unheard - rp.in.silence()
			if look <= 0 {
				return errClientGone
			}
			wait, left = min(wait, look), nil
		}
		t.Reset(max(wait, 0))
		select {
		case <-rp.in.ctx.Done():
		case <-rp.in.term:
		case <-left:
		case <-t.C:
		}
	}
}

func (in *instance) terminated() bool {
	select {
	case <-in.term:
		return true
	default:
		return false
	}
}

// linger is the silence of a stream whose server was told to end, which only the
// next ping would find out.
func (rp *reply) linger() error {
	if rp.conn == nil {
		return errClientGone
	}
	var due <-chan time.Time
	if rp.ping > 0 {
		t := time.NewTimer(time.Until(rp.written.Add(rp.ping)))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-rp.ctx.Done():
	}
	return errClientGone
}

// hang is silence until the client goes or the server dies.
func (rp *reply) hang() {
	select {
	case <-rp.left():
	case <-rp.in.ctx.Done():
	}
}

// garble sends an event that is none.
func (rp *reply) garble() error {
	if !rp.stream {
		return nil
	}
	return rp.chunk([]byte("data: {\"choices\":[{\x00\xff\n\n"))
}

// survives breaks the connection of a stream that is kept, which goes on without it.
func (rp *reply) survives(f Fault) bool {
	if rp.kept == nil || rp.conn == nil || f.Kind != FaultReset && f.Kind != FaultFin && f.Kind != FaultCut {
		return false
	}
	rp.breakOff(f)
	_ = rp.conn.Close()
	rp.cancel()
	return true
}

// fail answers an error of any kind; it is the last thing done to a reply.
func (rp *reply) fail(err error) {
	var fault *faultError
	var task *taskError
	var api *apiError
	switch {
	case errors.Is(err, errClientGone):
		if rp.conn == nil {
			panic(http.ErrAbortHandler)
		}
	case errors.As(err, &fault):
		rp.breakOff(fault.Fault)
	case errors.As(err, &task):
		rp.failAPI(task.apiError, writeError)
	case errors.As(err, &api):
		rp.failAPI(api, rp.in.refusedAPI)
	default:
		rp.failAPI(serverError(err.Error()), rp.in.refusedAPI)
	}
}

// failAPI sends an error as an event, or, where the stream has not begun, whole.
func (rp *reply) failAPI(err *apiError, whole func(http.ResponseWriter, *apiError)) {
	if rp.conn == nil && (!rp.stream || rp.in.can.earlyStatus || rp.open() != nil) {
		whole(rp.w, err)
		return
	}
	// A clean end, no [DONE] (P42).
	if rp.chunk(rp.failure(err)) == nil {
		rp.end()
	}
}

// breakOff does to the connection what the fault says.
func (rp *reply) breakOff(f Fault) {
	if api := f.answer(); api != nil {
		rp.failAPI(api, writeError)
		return
	}
	if rp.conn == nil {
		rp.breakBody(f)
		return
	}
	switch f.Kind {
	case FaultReset:
		reset(rp.conn)
	case FaultCut:
		event := rp.last
		if event == nil {
			event = []byte("data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":\"")
		}
		_ = rp.chunk(event[:len(event)/2])
	case FaultGarbage:
		if rp.chunk([]byte(routerTail)) == nil {
			rp.end()
		}
	case FaultCleanEOF:
		rp.end()
	}
}

// breakBody breaks an answer that is one body.
func (rp *reply) breakBody(f Fault) {
	switch f.Kind {
	case FaultGarbage:
		w := rp.w
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, routerTail)
		return
	case FaultCleanEOF:
		writeBody(rp.w, http.StatusOK, jsonType, nil)
		return
	}
	nc, _, err := http.NewResponseController(rp.w).Hijack()
	if err != nil {
		return
	}
	switch f.Kind {
	case FaultReset:
		reset(nc)
	case FaultCut:
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: "+jsonType+
			"\r\nContent-Length: 600\r\n\r\n{\"choices\":[{\"finish_reason\":\"st")
	}
	_ = nc.Close()
}

func reset(nc net.Conn) {
	if c, ok := nc.(*conn); ok {
		c.reset()
	}
}
