package llamasim

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const jsonType = "application/json; charset=utf-8"

var (
	errNotFound = &apiError{status: http.StatusNotFound}
	errKey      = &apiError{status: http.StatusUnauthorized}
	errLoading  = &apiError{status: http.StatusServiceUnavailable}
)

// middlewareErrors come from before the routes and have their keys in another order
// (section 5).
var middlewareErrors = map[*apiError]string{
	errNotFound: `{"error":{"message":"File Not Found","type":"not_found_error","code":404}}`,
	errKey:      `{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}`,
	errLoading:  `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`,
}

// ServeHTTP implements http.Handler.
func (in *instance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !in.enter() {
		// Just returning would answer with a 200.
		panic(http.ErrAbortHandler)
	}
	defer in.handlers.Done()
	h := w.Header()
	h["Date"] = nil
	h.Set("Server", "llama.cpp")
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	h.Set("Keep-Alive", "timeout=5, max=100")
	if c, ok := r.Context().Value(connKey{}).(*conn); ok && c.requests.Add(1) >= 100 {
		h.Del("Keep-Alive")
		h.Set("Connection", "close")
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/sim/"):
		in.serveSim(w, r)
	case r.Method == http.MethodOptions:
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "*")
		writeBody(w, http.StatusOK, "text/html", nil)
	case !in.allowed(r):
		in.log.write('W', "srv    operator(): unauthorized: Invalid API Key")
		writeError(w, errKey)
	case in.isLoading() || in.faultLoading(r):
		writeError(w, errLoading)
	case in.router != nil:
		in.router.route(w, r)
	default:
		in.route(w, r)
	}
}

// enter joins the requests that Kill and Close wait for.
func (in *instance) enter() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.dead {
		in.handlers.Add(1)
	}
	return !in.dead
}

// allowed checks the key, which three headers may carry (section 1.0).
func (in *instance) allowed(r *http.Request) bool {
	if in.o.APIKey == "" || r.URL.Path == "/health" || r.URL.Path == "/v1/health" {
		return true
	}
	keys := strings.Split(in.o.APIKey, ",")
	auth := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	return slices.Contains(keys, auth) || slices.Contains(keys, r.Header.Get("X-Api-Key"))
}

func (in *instance) route(w http.ResponseWriter, r *http.Request) {
	if in.faultyRoute(w, r) {
		return
	}
	switch r.Method {
	case http.MethodGet:
		in.routeGet(w, r)
	case http.MethodPost:
		in.routePost(w, r)
	case http.MethodDelete:
		in.routeDelete(w, r)
	default:
		writeError(w, errNotFound)
	}
}

func (in *instance) routeDelete(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/stream" || !in.can.streams {
		writeError(w, errNotFound)
		return
	}
	in.serveStreamStop(w, r)
}

func (in *instance) routeGet(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/v1/health":
		writeJSON(w, http.StatusOK, fieldList{{"status", "ok"}})
	case "/models", "/v1/models":
		writeJSON(w, http.StatusOK, in.models())
	case "/props":
		writeJSON(w, http.StatusOK, in.props())
	case "/slots":
		in.serveSlots(w, r)
	case "/v1/stream":
		if !in.can.streams {
			writeError(w, errNotFound)
			return
		}
		in.serveStream(w, r)
	case "/metrics":
		if in.o.NoMetrics {
			writeError(w, notSupported("This server does not support metrics endpoint. Start it with `--metrics`"))
			return
		}
		w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(in.start.UnixMicro()%1e10, 10))
		writeBody(w, http.StatusOK, "text/plain; version=0.0.4", []byte(in.metrics()))
	case "/lora-adapters":
		writeJSON(w, http.StatusOK, in.adapters())
	default:
		writeError(w, errNotFound)
	}
}

func (in *instance) routePost(w http.ResponseWriter, r *http.Request) {
	handle := in.postHandler(r.URL.Path)
	if handle == nil {
		writeError(w, errNotFound)
		return
	}
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	if r.URL.Path != "/v1/streams/lookup" {
		if !in.use(r.Context()) {
			panic(http.ErrAbortHandler)
		}
		defer in.unuse()
	}
	if err := handle(w, r, body); err != nil {
		in.refused(w, err)
	}
}

type postHandler func(w http.ResponseWriter, r *http.Request, body []byte) error

func (in *instance) postHandler(path string) postHandler {
	switch path {
	case "/v1/chat/completions", "/chat/completions":
		return in.converse(chatSurface)
	case "/v1/completions":
		return in.serveCompletions
	case "/completion", "/completions":
		return in.serveNative
	case "/tokenize":
		return in.serveTokenize
	case "/detokenize":
		return in.serveDetokenize
	case "/apply-template":
		return in.serveTemplate
	case "/lora-adapters":
		return in.setAdapters
	case "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens":
		return in.countTokens(chatSurface, true)
	case "/v1/responses/input_tokens", "/responses/input_tokens":
		return in.ifCan(in.can.newAPIs, in.countTokens(responsesSurface, true))
	case "/v1/messages/count_tokens":
		return in.ifCan(in.can.newAPIs, in.countTokens(messagesSurface, false))
	case "/v1/responses", "/responses":
		return in.ifCan(in.can.newAPIs, in.converse(responsesSurface))
	case "/v1/messages":
		return in.ifCan(in.can.newAPIs, in.converse(messagesSurface))
	case "/v1/streams/lookup":
		return in.ifCan(in.can.streams, in.serveLookup)
	}
	return in.otherHandler(path)
}

// ifCan is no handler on a server that is too old for it.
func (in *instance) ifCan(can bool, h postHandler) postHandler {
	if !can {
		return nil
	}
	return h
}

// otherHandler serves what only servers of some kind have; the others say what they
// would have to be started with.
func (in *instance) otherHandler(path string) postHandler {
	var here bool
	var h postHandler
	var why string
	switch path {
	case "/v1/embeddings":
		here, h, why = in.o.Embeddings, in.serveEmbeddings, "This server does not support embeddings. Start it with `--embeddings`"
	case "/embeddings", "/embedding":
		here, h, why = in.o.Embeddings, in.serveNativeEmbeddings, "This server does not support embeddings. Start it with `--embeddings`"
	case "/v1/rerank", "/rerank", "/v1/reranking", "/reranking":
		here, h, why = in.o.Reranking, in.serveRerank, "This server does not support reranking. Start it with `--reranking`"
	case "/infill":
		here, h = in.o.Infill, in.serveInfill
		why = "Infill is not supported by this model: prefix token is missing. suffix token is missing. middle token is missing. "
	case "/v1/audio/transcriptions":
		here, h, why = in.o.Audio, in.serveTranscription, "The current model does not support audio input."
	case "/props":
		why = "This server does not support changing global properties. Start it with `--props`"
	default:
		if !strings.HasPrefix(path, "/slots/") {
			return nil
		}
		why = "This server does not support slots action. Start it with `--slot-save-path`"
	}
	if here {
		return h
	}
	return func(http.ResponseWriter, *http.Request, []byte) error { return notSupported(why) }
}

func notSupported(why string) *apiError {
	return &apiError{status: http.StatusNotImplemented, message: why, kind: "not_supported_error"}
}

// refused answers an error that a handler threw.
func (in *instance) refused(w http.ResponseWriter, err error) {
	if task, ok := errors.AsType[*taskError](err); ok {
		writeError(w, task.apiError)
		return
	}
	api := serverError(err.Error())
	errors.As(err, &api)
	in.refusedAPI(w, api)
}

// refusedAPI logs it, too, as the real server does; the error of a task was logged
// where it arose.
func (in *instance) refusedAPI(w http.ResponseWriter, api *apiError) {
	if api.status != http.StatusNotImplemented {
		in.log.write('W', "srv    operator(): got exception: %s", strings.TrimSpace(string(encode(api.object()))))
	}
	writeError(w, api)
}

func writeError(w http.ResponseWriter, err *apiError) {
	if text, ok := middlewareErrors[err]; ok {
		writeBody(w, err.status, jsonType, []byte(text))
		return
	}
	writeJSON(w, err.status, err.object())
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b := encode(v)
	writeBody(w, status, jsonType, b[:len(b)-1])
}

// writeBody sends a whole answer. Errors end the connection and say so (section 1.0).
func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	if status >= 400 {
		h.Del("Keep-Alive")
		h.Set("Connection", "close")
	}
	if contentType == "" {
		h["Content-Type"] = nil
	} else {
		h.Set("Content-Type", contentType)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
