package llamasim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// request is the body of a completion, its aliases resolved.
type request struct {
	fields map[string]json.RawMessage

	stream          bool
	includeUsage    bool
	timingsPerToken bool
	returnProgress  bool
	returnTokens    bool
	verbose         bool
	cachePrompt     bool
	ignoreEOS       bool
	logprobs        bool
	topLogprobs     int
	n               int
	limit           int // tokens to generate; -1: until the end or the context is full
	slot            int // -1: any
	stop            []string
	ping            time.Duration // 0: none

	continueMode        string // "auto", "content", "reasoning_content", or none
	addGenerationPrompt bool
	echo                bool
	noThinking          bool
	rawReasoning        bool
	tools               []tool
	rawTools            []json.RawMessage
	toolChoice          string
	toolName            string
}

// parseBody decodes the top level; a null field is an absent one (section 1.0).
func parseBody(body []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, badRequest("[json.exception.type_error.305] cannot use operator[] with a string argument with " + wrongType.Value)
		}
		return nil, parseError(body, err)
	}
	for k, v := range fields {
		if string(v) == "null" {
			delete(fields, k)
		}
	}
	return fields, nil
}

// get reads an optional field of a fixed type into dst.
func get[T any](fields map[string]json.RawMessage, name string, dst *T) error {
	raw, ok := fields[name]
	if !ok || json.Unmarshal(raw, dst) == nil {
		return nil
	}
	want := "number"
	switch any(dst).(type) {
	case *bool:
		want = "boolean"
	case *string:
		want = "string"
	}
	return badRequest(fmt.Sprintf("Field '%s': [json.exception.type_error.302] type must be %s, but is %s", name, want, kindOf(raw)))
}

func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	}
	return "number"
}

func (in *instance) parseRequest(fields map[string]json.RawMessage) (*request, error) {
	q := &request{
		fields: fields, n: 1, limit: -1, slot: -1, cachePrompt: true,
		addGenerationPrompt: true, ping: in.o.Ping,
	}
	seconds := -2.0
	limit := -1.0
	var options struct {
		IncludeUsage bool `json:"include_usage"`
	}
	var kwargs struct {
		EnableThinking *bool `json:"enable_thinking"`
	}
	var reasoning string
	err := errors.Join(
		get(fields, "stream", &q.stream),
		get(fields, "stream_options", &options),
		get(fields, "timings_per_token", &q.timingsPerToken),
		get(fields, "return_progress", &q.returnProgress),
		get(fields, "return_tokens", &q.returnTokens),
		get(fields, "verbose", &q.verbose),
		get(fields, "cache_prompt", &q.cachePrompt),
		get(fields, "ignore_eos", &q.ignoreEOS),
		get(fields, "top_logprobs", &q.topLogprobs),
		get(fields, "n", &q.n),
		get(fields, "id_slot", &q.slot),
		get(fields, "sse_ping_interval", &seconds),
		get(fields, "add_generation_prompt", &q.addGenerationPrompt),
		get(fields, "echo", &q.echo),
		get(fields, "chat_template_kwargs", &kwargs),
		get(fields, "reasoning_format", &reasoning),
		// Later ones win (pitfall 30).
		get(fields, "max_tokens", &limit),
		get(fields, "max_completion_tokens", &limit),
		get(fields, "n_predict", &limit),
	)
	if err != nil {
		return nil, firstError(err)
	}
	// logprobs is a number on /v1/completions, where nothing comes of it.
	q.logprobs = string(fields["logprobs"]) == "true"
	q.includeUsage = options.IncludeUsage
	q.limit = int(max(limit, -1))
	if q.limit == 0 {
		q.limit = 1 // as the real one: 0 and 1 both generate one (section 1.8)
	}
	switch {
	case seconds > 0:
		q.ping = time.Duration(seconds * float64(time.Second))
	case seconds > -2:
		q.ping = 0
	}
	q.noThinking = kwargs.EnableThinking != nil && !*kwargs.EnableThinking
	q.rawReasoning = reasoning == "none"
	if q.n > in.o.Slots && !in.can.explicitContinue {
		return nil, badRequest("n_cmpl cannot be greater than the number of slots, please increase -np")
	}
	if q.n < 1 || q.n > in.o.Slots {
		return nil, badRequest(fmt.Sprintf("Field 'n': Value must be between 1 <= value <= %d, but got %d", in.o.Slots, q.n))
	}
	q.parseStop()
	q.parseContinue()
	q.parseTools()
	if q.topLogprobs > 0 && !q.logprobs {
		return nil, badRequest("top_logprobs requires logprobs to be set to true")
	}
	if q.logprobs && q.stream && len(q.tools) > 0 {
		return nil, badRequest("logprobs is not supported with tools + stream")
	}
	return q, nil
}

// firstError picks one of joined errors: the client gets one answer.
func firstError(err error) error {
	if api, ok := errors.AsType[*apiError](err); ok {
		return api
	}
	return err
}

func (q *request) parseStop() {
	var one string
	if json.Unmarshal(q.fields["stop"], &one) == nil && one != "" {
		q.stop = []string{one}
		return
	}
	var many []string
	_ = json.Unmarshal(q.fields["stop"], &many)
	for _, s := range many {
		if s != "" {
			q.stop = append(q.stop, s)
		}
	}
}

func (q *request) parseContinue() {
	var text string
	switch raw := q.fields["continue_final_message"]; {
	case string(raw) == "true":
		q.continueMode = "auto"
	case json.Unmarshal(raw, &text) == nil && (text == "content" || text == "reasoning_content"):
		q.continueMode = text
	}
}

func (q *request) parseTools() {
	_ = json.Unmarshal(q.fields["tools"], &q.rawTools)
	for _, raw := range q.rawTools {
		var t struct {
			Function struct {
				Name       string `json:"name"`
				Parameters object `json:"parameters"`
			} `json:"function"`
		}
		if json.Unmarshal(raw, &t) == nil && t.Function.Name != "" {
			q.tools = append(q.tools, tool{t.Function.Name, t.Function.Parameters})
		}
	}
	if json.Unmarshal(q.fields["tool_choice"], &q.toolChoice) != nil {
		var named struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		_ = json.Unmarshal(q.fields["tool_choice"], &named)
		q.toolName = named.Function.Name
	}
}

// schema is the JSON schema of response_format or json_schema, nil if none.
func (q *request) schema() object {
	var format struct {
		Type       string `json:"type"`
		Schema     object `json:"schema"`
		JSONSchema struct {
			Schema object `json:"schema"`
		} `json:"json_schema"`
	}
	_ = json.Unmarshal(q.fields["response_format"], &format)
	var direct object
	_ = json.Unmarshal(q.fields["json_schema"], &direct)
	for _, s := range []object{format.JSONSchema.Schema, format.Schema, direct} {
		if s != nil {
			return s
		}
	}
	if format.Type == "json_object" {
		return object{"type": json.RawMessage(`"object"`)}
	}
	return nil
}

// readBody takes the whole body, at most 100 MiB. The HTTP library's own errors have
// no body (section 1.0); false: it answered one, or the client left.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	if r.Header.Get("Content-Encoding") != "" {
		writeBody(w, http.StatusUnsupportedMediaType, "", nil)
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100<<20))
	if err == nil {
		return body, true
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		writeBody(w, http.StatusRequestEntityTooLarge, "", nil)
	}
	return nil, false
}
