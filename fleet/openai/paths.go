package openai

import (
	"net/http"
	"strings"
)

// Use says how a path is served.
type Use uint8

// The uses of a path.
const (
	// UseJob is a generation: [Parse] makes a [Job] of it, which takes a lane and
	// survives its node.
	UseJob Use = iota

	// UseCall is short work of the model, answered whole and taking a lane:
	// [ParseCall]. When its node is lost it is asked again as a whole.
	UseCall

	// UseLightCall is a call that a server answers beside its work: it takes no lane.
	UseLightCall
)

// Shape is the form of a path's errors.
type Shape uint8

// The shapes of errors.
const (
	ShapeOpenAI    Shape = iota // {"error":{"message",…}}
	ShapeAnthropic              // {"type":"error","error":{"type","message"}}
)

// Path is one path that is served.
type Path struct {
	Path   string
	Method string
	Use    Use
	Shape  Shape

	kind *kind // of a job
}

// api is a language in which generations are asked for.
type api uint8

const (
	apiChat       api = iota
	apiCompletion     // OpenAI's completions
	apiNative         // llama-server's own, infill too
	apiResponses
	apiMessages // Anthropic's
	apiAudio
)

// kind is a way of asking for a generation.
type kind struct {
	path   string // what the model server is asked
	api    api
	object string // of a whole answer
	turns  field  // the list of messages; noField: there is none

	// budget are the fields that bound the answer, in the server's order of
	// preference; unless one is given, usual tokens are generated, 0: no limit.
	budget []field
	usual  int64

	// once: what was delivered can never be asked for again in parts, so that going
	// on is to repeat all of it.
	once bool
}

var (
	aliases = []field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxTokens}

	chat = &kind{
		path: "/v1/chat/completions", api: apiChat, object: "chat.completion", turns: fieldMessages, budget: aliases,
	}
	completion = &kind{
		path: "/v1/completions", api: apiCompletion, object: "text_completion", turns: noField, budget: aliases,
	}
	native    = &kind{path: "/completion", api: apiNative, turns: noField, budget: aliases}
	infill    = &kind{path: "/infill", api: apiNative, turns: noField, budget: aliases, once: true}
	responses = &kind{
		path: "/v1/responses", api: apiResponses, object: "response", turns: fieldInput,
		budget: []field{fieldNPredict, fieldMaxCompletionTokens, fieldMaxOutputTokens, fieldMaxTokens},
	}
	messages = &kind{
		path: "/v1/messages", api: apiMessages, turns: fieldMessages, budget: []field{fieldMaxTokens}, usual: 4096,
	}
	audio = &kind{path: "/v1/audio/transcriptions", api: apiAudio}
)

// typed reports whether the events of the stream bear a name of their own.
func (k *kind) typed() bool { return k.api == apiResponses || k.api == apiMessages }

// chats reports whether the request is a conversation.
func (k *kind) chats() bool { return k.api == apiChat || k.typed() }

// Paths are all the paths for which there is a [Job] or a call, with and without /v1
// as llama-server has them.
var Paths = paths()

func paths() (list []Path) {
	post := func(u Use, k *kind, s Shape, names ...string) {
		for _, name := range names {
			list = append(list, Path{Path: name, Method: http.MethodPost, Use: u, Shape: s, kind: k})
		}
	}
	post(UseJob, chat, ShapeOpenAI, "/v1/chat/completions", "/chat/completions")
	post(UseJob, completion, ShapeOpenAI, "/v1/completions")
	post(UseJob, native, ShapeOpenAI, "/completion", "/completions")
	post(UseJob, infill, ShapeOpenAI, "/infill")
	post(UseJob, responses, ShapeOpenAI, "/v1/responses", "/responses")
	post(UseJob, messages, ShapeAnthropic, "/v1/messages")
	post(UseJob, audio, ShapeOpenAI, "/v1/audio/transcriptions", "/audio/transcriptions")
	post(UseCall, nil, ShapeOpenAI, "/v1/embeddings", "/embeddings", "/embedding",
		"/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
	post(UseLightCall, nil, ShapeOpenAI, "/tokenize", "/detokenize", "/apply-template",
		"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens",
		"/v1/responses/input_tokens", "/responses/input_tokens")
	post(UseLightCall, nil, ShapeAnthropic, "/v1/messages/count_tokens")
	return list
}

var byPath = func() map[string]*Path {
	m := make(map[string]*Path, len(Paths))
	for i := range Paths {
		m[Paths[i].Path] = &Paths[i]
	}
	return m
}()

// PathOf returns the entry of a path; false: it is not served here.
func PathOf(path string) (Path, bool) {
	p := byPath[path]
	if p == nil {
		return Path{}, false
	}
	return *p, true
}

// ShapeOf returns the shape of a path's errors, whether it is served or not.
func ShapeOf(path string) Shape {
	if path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/") {
		return ShapeAnthropic
	}
	return ShapeOpenAI
}
