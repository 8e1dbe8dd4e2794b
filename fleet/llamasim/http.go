package llamasim

import (
	"errors"
	"net/http"
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
	case in.server.isLoading():
		writeError(w, errLoading)
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

func (s *Server) isLoading() bool {
	_, loading := s.fault.take(func(f Fault) bool { return f.Kind == FaultLoading })
	return loading
}

// allowed checks the key, which three headers may carry (section 1.0).
func (in *instance) allowed(r *http.Request) bool {
	if in.o.APIKey == "" || r.URL.Path == "/health" || r.URL.Path == "/v1/health" {
		return true
	}
	auth := r.Header.Get("Authorization")
	return strings.TrimPrefix(auth, "Bearer ") == in.o.APIKey || r.Header.Get("X-Api-Key") == in.o.APIKey
}

func (in *instance) route(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		in.routeGet(w, r)
	case http.MethodPost:
		in.routePost(w, r)
	default:
		writeError(w, errNotFound)
	}
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
	case "/metrics":
		w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(in.start.UnixMicro()%1e10, 10))
		writeBody(w, http.StatusOK, "text/plain; version=0.0.4", []byte(in.metrics()))
	case "/lora-adapters":
		writeJSON(w, http.StatusOK, []int{})
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
	if r.Header.Get("Content-Encoding") != "" {
		// The HTTP library's own errors have no body (section 1.0).
		writeBody(w, http.StatusUnsupportedMediaType, "", nil)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			writeBody(w, http.StatusRequestEntityTooLarge, "", nil)
		}
		return
	}
	if err := handle(w, r, body); err != nil {
		in.refused(w, err)
	}
}

type postHandler func(w http.ResponseWriter, r *http.Request, body []byte) error

func (in *instance) postHandler(path string) postHandler {
	switch path {
	case "/v1/chat/completions", "/chat/completions":
		return in.serveChat
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
	case "/v1/chat/completions/input_tokens":
		return in.serveInputTokens
	}
	if text := notSupported(path); text != "" {
		return func(http.ResponseWriter, *http.Request, []byte) error {
			return &apiError{status: http.StatusNotImplemented, message: text, kind: "not_supported_error"}
		}
	}
	return nil
}

// notSupported is what a server without the flag, or the kind of model, says.
func notSupported(path string) string {
	switch path {
	case "/v1/embeddings", "/embeddings", "/embedding":
		return "This server does not support embeddings. Start it with `--embeddings`"
	case "/v1/rerank", "/rerank", "/v1/reranking", "/reranking":
		return "This server does not support reranking. Start it with `--reranking`"
	case "/infill":
		return "Infill is not supported by this model: prefix token is missing. suffix token is missing. middle token is missing. "
	case "/v1/audio/transcriptions":
		return "The current model does not support audio input."
	case "/props":
		return "This server does not support changing global properties. Start it with `--props`"
	}
	if strings.HasPrefix(path, "/slots/") {
		return "This server does not support slots action. Start it with `--slot-save-path`"
	}
	return ""
}

// refused answers an error that a handler threw, and logs it as the real one does;
// an error of a task was logged where it arose.
func (in *instance) refused(w http.ResponseWriter, err error) {
	api := serverError(err.Error())
	errors.As(err, &api)
	if api.status != http.StatusNotImplemented && api.kind != "exceed_context_size_error" {
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
