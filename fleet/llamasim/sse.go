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

	conn    net.Conn // of the stream; nil: not started
	watcher sync.WaitGroup
	ping    time.Duration
	written time.Time // when the stream last got something
	last    []byte    // last event
}

func (in *instance) newReply(w http.ResponseWriter, r *http.Request, q *request) *reply {
	rp := &reply{in: in, w: w, r: r, ping: q.ping}
	rp.ctx, rp.cancel = context.WithCancel(r.Context())
	return rp
}

// close ends the connection of a stream: the real server does so after each, and
// does not announce it (section 1.0).
func (rp *reply) close() {
	if rp.conn != nil {
		_ = rp.conn.Close()
		rp.watcher.Wait()
	}
	rp.cancel()
}

// open sends the headers of a stream.
func (rp *reply) open() error {
	nc, _, err := http.NewResponseController(rp.w).Hijack()
	if err != nil {
		return errClientGone
	}
	_ = nc.SetDeadline(time.Time{})
	rp.conn = nc
	rp.written = time.Now()
	rp.watcher.Go(func() {
		// A client that sends no more, or goes, is gone (section 3.5).
		_, _ = io.Copy(io.Discard, nc)
		rp.cancel()
	})
	_, err = fmt.Fprintf(nc, "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: %s\r\nContent-Type: text/event-stream\r\n"+
		"Keep-Alive: timeout=5, max=100\r\nServer: llama.cpp\r\nTransfer-Encoding: chunked\r\nX-Accel-Buffering: no\r\n\r\n",
		rp.r.Header.Get("Origin"))
	if err != nil {
		return errClientGone
	}
	return nil
}

// chunk sends bytes as one chunk, in one write.
func (rp *reply) chunk(b []byte) error {
	if rp.ctx.Err() != nil {
		return errClientGone
	}
	var frame bytes.Buffer
	fmt.Fprintf(&frame, "%x\r\n", len(b))
	frame.Write(b)
	frame.WriteString("\r\n")
	rp.written = time.Now()
	if _, err := rp.conn.Write(frame.Bytes()); err != nil {
		return errClientGone
	}
	return nil
}

// event sends v as an event.
func (rp *reply) event(v any) error {
	rp.last = append([]byte("data: "), encode(v)...)
	rp.last = append(rp.last, '\n')
	return rp.chunk(rp.last)
}

// done sends the last event of OpenAI's streams.
func (rp *reply) done() error { return rp.chunk([]byte("data: [DONE]\n\n")) }

// end closes the chunked body.
func (rp *reply) end() {
	if rp.ctx.Err() == nil {
		_, _ = io.WriteString(rp.conn, "0\r\n\r\n")
	}
}

// pause waits d, with pings on a silent stream (P39).
func (rp *reply) pause(d time.Duration) error {
	if d <= 0 {
		if rp.ctx.Err() != nil {
			return errClientGone
		}
		return nil
	}
	end := time.Now().Add(d)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		wait := time.Until(end)
		if rp.conn != nil && rp.ping > 0 {
			wait = min(wait, time.Until(rp.written.Add(rp.ping)))
		}
		t.Reset(max(wait, 0))
		select {
		case <-rp.ctx.Done():
			return errClientGone
		case now := <-t.C:
			if !now.Before(end) || time.Until(end) <= 0 {
				return nil
			}
			if err := rp.chunk([]byte(":\n\n")); err != nil {
				return err
			}
		}
	}
}

// fail answers an error of any kind; it is the last thing done to a reply.
func (rp *reply) fail(err error) {
	var fault *faultError
	var api *apiError
	switch {
	case errors.Is(err, errClientGone):
		if rp.conn == nil {
			panic(http.ErrAbortHandler)
		}
	case errors.As(err, &fault):
		rp.breakOff(fault.Fault)
	case errors.As(err, &api):
		rp.failAPI(api)
	default:
		rp.failAPI(serverError(err.Error()))
	}
}

func (rp *reply) failAPI(err *apiError) {
	if rp.conn == nil {
		rp.in.refused(rp.w, err)
		return
	}
	// A clean end, no [DONE] (P42).
	if rp.event(err.object()) == nil {
		rp.end()
	}
}

// breakOff does to the connection what the fault says.
func (rp *reply) breakOff(f Fault) {
	if api := f.answer(); api != nil {
		if rp.conn == nil {
			writeError(rp.w, api)
		} else {
			rp.failAPI(api)
		}
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
