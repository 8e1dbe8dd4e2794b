package llamasim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The routes of a router: its own, and those that it passes on to a model's server.

func (r *router) route(w http.ResponseWriter, req *http.Request) {
	if r.in.faultyOwn(w, req) {
		return
	}
	query := req.URL.Query()
	switch path := req.URL.Path; req.Method {
	case http.MethodGet:
		switch path {
		case "/health", "/v1/health":
			writeJSON(w, http.StatusOK, fieldList{{"status", "ok"}})
		case "/models", "/v1/models":
			r.serveModels(w)
		case "/models/sse":
			r.serveEvents(w, req)
		case "/v1/stream":
			r.passTalk(w, req, query.Get("conv_id"))
		case "/props":
			if query.Get("model") == "" {
				writeJSON(w, http.StatusOK, r.props())
				return
			}
			r.passTo(w, req, query.Get("model"), nil)
		case "/slots", "/metrics", "/lora-adapters":
			r.passTo(w, req, query.Get("model"), nil)
		default:
			writeError(w, errNotFound)
		}
	case http.MethodPost:
		r.routePost(w, req)
	case http.MethodDelete:
		if path != "/v1/stream" {
			writeError(w, errNotFound)
			return
		}
		r.passTalk(w, req, query.Get("conv_id"))
	default:
		writeError(w, errNotFound)
	}
}

func (r *router) routePost(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	own := path == "/models/load" || path == "/models/unload" || path == "/v1/streams/lookup"
	if !own && r.in.postHandler(path) == nil {
		writeError(w, errNotFound)
		return
	}
	body, ok := readBody(w, req)
	if !ok {
		return
	}
	if path == "/v1/streams/lookup" {
		r.serveLookup(w, body)
		return
	}
	fields, err := parseBody(body)
	if err != nil && path != "/lora-adapters" { // a list, which names no model
		r.in.refused(w, err)
		return
	}
	name := textOf(fields["model"])
	switch path {
	case "/models/load":
		r.serveLoad(w, name)
	case "/models/unload":
		r.serveUnload(w, name)
	default:
		if id := req.Header.Get("X-Conversation-Id"); id != "" {
			r.mu.Lock()
			r.talks[id] = name
			r.mu.Unlock()
		}
		r.passTo(w, req, name, body)
	}
}

// serveLoad answers at once; that the model is there shows in its status.
func (r *router) serveLoad(w http.ResponseWriter, name string) {
	r.mu.Lock()
	m := r.find(name)
	var err *apiError
	switch {
	case m == nil:
		err = errNotFound
	case m.running() || r.queued(m):
		err = badRequest("model is already running")
	case r.over:
		err = serverError("model limit reached, try again later")
	default:
		r.load(m)
	}
	r.mu.Unlock()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, fieldList{{"success", true}})
}

func (r *router) serveUnload(w http.ResponseWriter, name string) {
	r.mu.Lock()
	m := r.find(name)
	var err *apiError
	switch {
	case m == nil:
		err = badRequest("model is not found")
	case !m.running():
		err = badRequest("model is not running")
	default:
		r.unload(m)
	}
	r.mu.Unlock()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, fieldList{{"success", true}})
}

// passTo sends a request on to a model's server, which is started if it must.
func (r *router) passTo(w http.ResponseWriter, req *http.Request, name string, body []byte) {
	r.mu.Lock()
	m := r.find(name)
	loaded := m != nil && m.running()
	r.mu.Unlock()
	autoload := !r.in.o.NoAutoload
	if text := req.URL.Query().Get("autoload"); text != "" {
		autoload = text == "true" || text == "1"
	}
	switch {
	case name == "":
		writeError(w, badRequest("model name is missing from the request"))
		return
	case m == nil:
		writeError(w, badRequest(fmt.Sprintf("model '%s' not found", name)))
		return
	case !autoload && !loaded:
		writeError(w, badRequest("model is not loaded"))
		return
	}
	if err := r.ensure(m, req.Context().Done()); errors.Is(err, errClientGone) {
		panic(http.ErrAbortHandler)
	} else if err != nil {
		r.in.refused(w, err)
		return
	}
	r.pass(w, req, m, body)
}

// passTalk sends a request on to the server that has a conversation's stream.
func (r *router) passTalk(w http.ResponseWriter, req *http.Request, id string) {
	r.mu.Lock()
	m := r.find(r.talks[id])
	status := ""
	if m != nil {
		status = m.status
	}
	known := status == "loaded" || status == "sleeping"
	if known {
		m.busy++
	}
	if req.Method == http.MethodDelete {
		delete(r.talks, id)
	}
	r.mu.Unlock()
	switch {
	case status == "loading":
		writeError(w, &apiError{
			status: http.StatusServiceUnavailable, message: "Stream owner model is loading, retry later", kind: "unavailable_error",
		})
	case known:
		r.pass(w, req, m, nil)
	case req.Method == http.MethodDelete:
		r.in.log.write('W', "srv    operator(): router stop for unknown conv_id=%s, no owning child in the conv map", id)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNoContent)
	default:
		writeError(w, errNotFound)
	}
}

// serveLookup joins what the servers know.
func (r *router) serveLookup(w http.ResponseWriter, body []byte) {
	r.mu.Lock()
	var children []*instance
	for _, m := range r.models {
		if m.child != nil {
			children = append(children, m.child)
		}
	}
	r.mu.Unlock()
	found := []fieldList{}
	for _, child := range children {
		list, err := child.lookup(body)
		if err != nil {
			writeError(w, err)
			return
		}
		found = append(found, list...)
	}
	writeJSON(w, http.StatusOK, found)
}

// childTail is what a router writes when a server it reads from is gone.
const childTail = "Failed to read connection"

// pass sends a request on, and its answer back as it comes. The model counts as busy
// until then, and no longer when the client sees the end.
func (r *router) pass(w http.ResponseWriter, req *http.Request, m *routed, body []byte) {
	done := sync.OnceFunc(func() { r.done(m) })
	defer done()
	r.mu.Lock()
	port := m.port
	if req.Method == http.MethodPost {
		m.used = time.Now()
	}
	r.mu.Unlock()
	r.in.log.write('I', "srv  proxy_reques: proxying request to model %s on port %d", m.Name, port)
	out, err := http.NewRequestWithContext(req.Context(), req.Method, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+req.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		r.in.refused(w, err)
		return
	}
	out.Header = req.Header.Clone()
	rp := r.in.newReply(w, withoutConversation(req), &request{stream: true})
	defer rp.close()
	ctx := out.WithContext(rp.ctx)
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := t.RoundTrip(ctx)
	switch {
	case err != nil && rp.unwanted():
		panic(http.ErrAbortHandler)
	case err != nil:
		r.in.log.write('E', "srv    operator(): http client error: %s", childTail)
		writeBody(w, http.StatusInternalServerError, "text/plain", []byte("proxy error: "+childTail))
		return
	}
	defer resp.Body.Close()
	r.passAnswer(rp, w, resp, done)
}

func (r *router) passAnswer(rp *reply, w http.ResponseWriter, resp *http.Response, done func()) {
	stream := resp.Header.Get("Content-Type") == "text/event-stream"
	h := w.Header()
	for name, values := range resp.Header {
		if name != "Content-Length" && name != "Connection" && name != "Keep-Alive" {
			h[name] = values
		}
	}
	h.Set("X-Accel-Buffering", "no")
	write := func(b []byte) error {
		_, err := w.Write(b)
		return err
	}
	switch {
	case stream:
		if rp.open() != nil {
			return
		}
		write = rp.chunk
	case resp.StatusCode >= 400:
		h.Del("Keep-Alive")
		h.Set("Connection", "close")
		fallthrough
	default:
		w.WriteHeader(resp.StatusCode)
		_ = http.NewResponseController(w).Flush() // chunked, however short
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 && write(buffer[:n]) != nil {
			return
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) && !rp.unwanted() {
			r.in.log.write('E', "srv    operator(): http client error: %s", childTail)
			_ = write([]byte("proxy error: " + childTail))
		}
		if done(); stream {
			rp.end()
		}
		return
	}
}

// faultyOwn breaks the routes that a router answers itself.
func (in *instance) faultyOwn(w http.ResponseWriter, r *http.Request) bool {
	p := strings.TrimPrefix(r.URL.Path, "/v1")
	return (p == "/health" || p == "/models" || strings.HasPrefix(p, "/models/")) && in.faultyRoute(w, r)
}
