package llamasim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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

	// FaultGarble sends an event that is no JSON at the token and goes on.
	FaultGarble FaultKind = "garble"

	// FaultCrash ends the whole server at the token, as Kill does, and begins its next
	// life after Fault.Delay, if that is not 0. In a router it ends the model's server
	// alone, which the router notices.
	FaultCrash FaultKind = "crash"
)

// Fault is something that shall go wrong.
type Fault struct {
	Kind FaultKind

	// Path is the route it hits, such as /health or /v1/embeddings; with a slash at
	// its end, all below. Default: every completion; with FaultLoading, every route.
	// On routes that generate nothing Token counts for nothing, and FaultRefuse has
	// no path.
	Path string

	// Model is the one it hits, of a router's. Default any.
	Model string

	// Token is at which generated token of a request, counted from 0.
	Token int

	// Times is how many requests it hits. Default 0: every one until it is replaced.
	Times int

	// Delay is for FaultSlow and FaultCrash.
	Delay time.Duration
}

func (f Fault) check() error {
	switch f.Kind {
	case "", FaultNone, FaultReset, FaultFin, FaultCut, FaultHang, FaultLoading, FaultError, FaultKVFull,
		FaultSlow, FaultGarbage, FaultCleanEOF, FaultStatus, FaultGarble, FaultCrash:
		return nil
	case FaultRefuse:
		if f.Path != "" || f.Model != "" {
			return errors.New("a server refuses connections, not paths or models")
		}
		return nil
	}
	return fmt.Errorf("no fault kind %q", f.Kind)
}

// hits reports whether the fault is for a request to a model.
func (f Fault) hits(path, model string) bool {
	if f.Model != "" && f.Model != model {
		return false
	}
	return f.Path == "" || f.Path == path || strings.HasSuffix(f.Path, "/") && strings.HasPrefix(path, f.Path)
}

// SetFault replaces all faults by one; the zero Fault clears them. An unknown kind is none.
func (s *Server) SetFault(f Fault) { s.SetFaults(f) }

// SetFaults replaces all faults. Of several for the same request the first one
// hits, and when its Times are over, the next.
func (s *Server) SetFaults(list ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault.set(list)
	if slices.ContainsFunc(list, func(f Fault) bool { return f.Kind == FaultRefuse }) {
		s.in.refuse()
	} else {
		s.in.allow()
	}
}

// faultBox holds the faults in force.
type faultBox struct {
	mu   sync.Mutex
	list []Fault
}

func (b *faultBox) set(list []Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.Clone(list)
}

// take is the first fault that match wants, and counts it.
func (b *faultBox) take(match func(Fault) bool) (Fault, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, f := range b.list {
		if f.Kind == "" || f.Kind == FaultNone || !match(f) {
			continue
		}
		if f.Times > 0 {
			if b.list[i].Times--; b.list[i].Times == 0 {
				b.list = slices.Delete(b.list, i, i+1)
			}
		}
		return f, true
	}
	return Fault{}, false
}

// fault is the one that hits a request where match wants it.
func (in *instance) fault(r *http.Request, match func(Fault) bool) (Fault, bool) {
	f, ok := in.server.fault.take(func(f Fault) bool { return f.hits(r.URL.Path, in.o.Model) && match(f) })
	if ok {
		in.server.struck()
	}
	return f, ok
}

func (in *instance) faultLoading(r *http.Request) bool {
	_, loading := in.fault(r, func(f Fault) bool {
		return f.Kind == FaultLoading && (f.Model == "" || in.router == nil)
	})
	return loading
}

// faultyRoute breaks the answer of a route that generates nothing; false: it is whole.
func (in *instance) faultyRoute(w http.ResponseWriter, r *http.Request) bool {
	f, ok := in.fault(r, func(f Fault) bool {
		return f.Path != "" && f.Kind != FaultLoading && f.Kind != FaultRefuse && !generates(r.URL.Path)
	})
	if !ok {
		return false
	}
	rp := in.newReply(w, r, &request{})
	defer rp.close()
	switch f.Kind {
	case FaultSlow:
		return rp.pause(f.Delay) != nil
	case FaultCrash:
		in.crash(f)
		rp.hang()
	case FaultHang:
		rp.hang()
	default:
		rp.breakOff(f)
		return true
	}
	panic(http.ErrAbortHandler)
}

// generates reports whether a route's answers have tokens.
func generates(path string) bool {
	switch path {
	case "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions", "/completion", "/infill",
		"/v1/responses", "/responses", "/v1/messages", "/v1/audio/transcriptions":
		return true
	}
	return false
}

// crash ends this life, on a goroutine that its requests need not wait for.
func (in *instance) crash(f Fault) {
	s := in.server
	s.later(func(closing <-chan struct{}) {
		in.kill()
		if f.Delay <= 0 || s.instance() != in {
			return
		}
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
			// Whoever killed it meanwhile, or restarted it, had another mind.
			_ = s.Restart()
		case <-closing:
		}
	})
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
		case FaultReset, FaultFin, FaultCut, FaultHang, FaultError, FaultKVFull, FaultSlow, FaultGarbage, FaultCleanEOF,
			FaultGarble, FaultCrash:
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
		Path  string    `json:"path"`
		Model string    `json:"model"`
		Token int       `json:"token"`
		Times int       `json:"times"`
		Delay string    `json:"delay"` // such as "50ms"
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, keptBytes)).Decode(&body); err != nil {
		writeError(w, badRequest("fault: "+err.Error()))
		return
	}
	f := Fault{Kind: body.Kind, Path: body.Path, Model: body.Model, Token: body.Token, Times: body.Times}
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
	in.server.later(func(<-chan struct{}) { in.server.Kill() })
}
