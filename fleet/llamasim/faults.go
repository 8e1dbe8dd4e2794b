package llamasim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// FaultKind names a way to break.
type FaultKind string

// The kinds. "At the token" means instead of it, when as many tokens as Fault.Token
// says were generated; a generation already past that breaks at its next token.
const (
	// FaultNone breaks nothing.
	FaultNone FaultKind = "none"

	// FaultRefuse closes the listener and idle connections; running requests go on.
	FaultRefuse FaultKind = "refuse"

	// FaultReset resets the connection at the token (P40).
	FaultReset FaultKind = "reset"

	// FaultFin closes it at the token, without the terminating chunk.
	FaultFin FaultKind = "fin"

	// FaultCut closes it in the middle of an event.
	FaultCut FaultKind = "cut"

	// FaultHang sends nothing more, pings neither, until the client goes. The slot
	// stays taken.
	FaultHang FaultKind = "hang"

	// FaultLoading answers every route with 503 Loading model (P02).
	FaultLoading FaultKind = "loading"

	// FaultError sends a "Compute error." event and ends cleanly (P42); at token 0,
	// or without a stream, it is an HTTP 500.
	FaultError FaultKind = "error"

	// FaultKVFull is the same, where "Context size has been exceeded." is what it says.
	FaultKVFull FaultKind = "kv_full"

	// FaultSlow waits Fault.Delay before the token and each after it.
	FaultSlow FaultKind = "slow"

	// FaultGarbage sends bytes that are no SSE and ends cleanly, as a router does
	// when its child dies (P56).
	FaultGarbage FaultKind = "garbage"

	// FaultCleanEOF ends cleanly without a finish reason.
	FaultCleanEOF FaultKind = "clean_eof"

	// FaultStatus is an HTTP 500 with a text no list of errors has.
	FaultStatus FaultKind = "status"
)

// Fault is something that shall go wrong.
type Fault struct {
	Kind FaultKind

	// Token is at which generated token of a request, counted from 0.
	Token int

	// Times is how many requests it hits. Default 0: every one until it is replaced.
	Times int

	// Delay is for FaultSlow.
	Delay time.Duration
}

func (f Fault) check() error {
	switch f.Kind {
	case "", FaultNone, FaultRefuse, FaultReset, FaultFin, FaultCut, FaultHang, FaultLoading, FaultError,
		FaultKVFull, FaultSlow, FaultGarbage, FaultCleanEOF, FaultStatus:
		return nil
	}
	return fmt.Errorf("no fault kind %q", f.Kind)
}

// SetFault replaces the fault; the zero Fault clears it. An unknown kind is none.
func (s *Server) SetFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault.set(f)
	if f.Kind == FaultRefuse {
		s.in.refuse()
	} else {
		s.in.allow()
	}
}

// faultBox holds the fault in force.
type faultBox struct {
	mu sync.Mutex
	f  Fault
}

func (b *faultBox) set(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.f = f
}

// take is the fault for a request that is where match wants it, and counts it.
func (b *faultBox) take(match func(Fault) bool) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.f
	if f.Kind == "" || f.Kind == FaultNone || !match(f) {
		return Fault{}, false
	}
	if b.f.Times > 0 {
		if b.f.Times--; b.f.Times == 0 {
			b.f = Fault{}
		}
	}
	return f, true
}

// faultError is how a generation reports that it was broken on command.
type faultError struct{ Fault }

func (e *faultError) Error() string { return "fault " + string(e.Kind) }

var errClientGone = errors.New("the client left")

// atStart breaks a request before its headers.
func atStart(f Fault) bool {
	return f.Kind == FaultStatus || f.Token <= 0 && (f.Kind == FaultError || f.Kind == FaultKVFull)
}

// atToken breaks a request at its nth token.
func atToken(n int) func(Fault) bool {
	return func(f Fault) bool {
		switch f.Kind {
		case FaultReset, FaultFin, FaultCut, FaultHang, FaultError, FaultKVFull, FaultSlow, FaultGarbage, FaultCleanEOF:
			return n >= f.Token
		}
		return false
	}
}

// answer is what the fault says, if it is one that says something.
func (f Fault) answer() *apiError {
	switch f.Kind {
	case FaultError:
		return serverError("Compute error.")
	case FaultKVFull:
		return serverError("Context size has been exceeded.")
	case FaultStatus:
		return serverError("the stars are not right")
	}
	return nil
}

// routerTail is what a router appends when its child is gone (section 1.3).
const routerTail = "proxy error: Failed to read connection"

// serveSim answers the commands of tests and demonstrations that have only HTTP.
// It listens on loopback, so its peers are.
func (in *instance) serveSim(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /sim/stats":
		writeJSON(w, http.StatusOK, in.server.Stats())
	case "POST /sim/fault":
		in.serveFault(w, r)
	case "POST /sim/kill":
		in.serveKill(w)
	default:
		writeError(w, errNotFound)
	}
}

func (in *instance) serveFault(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Kind  FaultKind `json:"kind"`
		Token int       `json:"token"`
		Times int       `json:"times"`
		Delay string    `json:"delay"` // such as "50ms"
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, keptBytes)).Decode(&body); err != nil {
		writeError(w, badRequest("fault: "+err.Error()))
		return
	}
	f := Fault{Kind: body.Kind, Token: body.Token, Times: body.Times}
	err := f.check()
	if err == nil && body.Delay != "" {
		f.Delay, err = time.ParseDuration(body.Delay)
	}
	if err != nil {
		writeError(w, badRequest("fault: "+err.Error()))
		return
	}
	in.server.SetFault(f)
	writeJSON(w, http.StatusOK, fieldList{{"success", true}})
}

// serveKill answers and closes its own connection in peace before the rest is reset.
func (in *instance) serveKill(w http.ResponseWriter) {
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = nc.Write([]byte("HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n" +
		"Content-Length: 16\r\nConnection: close\r\n\r\n{\"success\":true}"))
	_ = nc.Close()
	in.server.killers.Go(in.server.Kill)
}
