package caddymodule

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"mime/multipart"
	"strings"
)

// asking is one way to ask for work of a model. Its answer is a function of the request
// alone, whichever stand-ins give it.
type asking struct {
	name     string
	path     string
	thinking bool
	stream   bool
	body     func(tokens int) map[string]any

	form bool // the body is sent as a form, with a file
}

// content returns the body of a request, and its type.
func (a asking) content(tokens int) (body io.Reader, contentType string) {
	if !a.form {
		return strings.NewReader(a.json(tokens)), "application/json"
	}
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, value := range a.body(tokens) {
		_ = w.WriteField(name, value.(string)) // a buffer takes all
	}
	file, _ := w.CreateFormFile("file", "speech.wav")
	_, _ = file.Write(bytes.Repeat([]byte("RIFF\r\n--not the end\r\n"), 200))
	_ = w.Close()
	return &b, w.FormDataContentType()
}

func (a asking) json(tokens int) string {
	b, _ := json.Marshal(a.body(tokens))
	return string(b)
}

// with is the asking with more in its body.
func (a asking) with(name string, more map[string]any) asking {
	plain := a.body
	a.name = name
	a.body = func(tokens int) map[string]any {
		b := maps.Clone(plain(tokens)) // it may be one for all
		for k, v := range more {
			if v == nil {
				delete(b, k)
			} else {
				b[k] = v
			}
		}
		return b
	}
	return a
}

func chatAsking(name string, thinking, stream bool) asking {
	return asking{name: name, path: "/v1/chat/completions", thinking: thinking, stream: stream, body: func(tokens int) map[string]any {
		b := map[string]any{
			"model":       "sim",
			"messages":    []any{map[string]string{"role": "user", "content": "Tell me a long story: " + name}},
			"max_tokens":  tokens,
			"ignore_eos":  true,
			"temperature": 0,
			"stream":      stream,
		}
		if stream {
			b["stream_options"] = map[string]bool{"include_usage": true}
		}
		return b
	}}
}

func completionAsking(name string, stream bool) asking {
	return asking{name: name, path: "/v1/completions", stream: stream, body: func(tokens int) map[string]any {
		return map[string]any{
			"model": "sim", "prompt": "Once upon a time " + name, "max_tokens": tokens,
			"ignore_eos": true, "temperature": 0, "stream": stream,
		}
	}}
}

// typedAsking asks in the words of Responses or Messages.
func typedAsking(name, path string, thinking, stream bool) asking {
	return asking{name: name, path: path, thinking: thinking, stream: stream, body: func(tokens int) map[string]any {
		b := map[string]any{"model": "sim", "temperature": 0, "stream": stream}
		if path == "/v1/messages" {
			b["messages"] = []any{map[string]string{"role": "user", "content": "A long story: " + name}}
			b["max_tokens"] = tokens
		} else {
			b["input"] = "A long story: " + name
			b["max_output_tokens"] = tokens
			b["ignore_eos"] = true
		}
		return b
	}}
}

var askings = []asking{
	chatAsking("chat, streamed", false, true),
	chatAsking("reasoning, streamed", true, true),
	completionAsking("completion, streamed", true),
	chatAsking("chat, whole", false, false),
	chatAsking("reasoning, whole", true, false),
	completionAsking("completion, whole", false),
}

// weather is a tool in the words of chat.
var weather = map[string]any{"type": "function", "function": map[string]any{
	"name": "get_weather",
	"parameters": map[string]any{
		"type":       "object",
		"properties": map[string]any{"city": map[string]string{"type": "string"}, "day": map[string]string{"type": "string"}},
	},
}}

// toolAsking wants a tool call, which the client gets when it is complete.
func toolAsking(name string, stream bool) asking {
	return chatAsking(name, false, stream).with(name, map[string]any{
		"ignore_eos": nil, "tool_choice": "required", "tools": []any{weather},
	})
}

// allAskings are one for each kind of answer, streamed and whole, of stand-ins that
// think or do not.
func allAskings(thinking bool) (list []asking) {
	schema := map[string]any{"ignore_eos": nil, "response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{
		"name": "s", "schema": map[string]any{"type": "object", "properties": map[string]any{
			"name": map[string]string{"type": "string"}, "age": map[string]string{"type": "integer"},
		}, "required": []string{"name", "age"}},
	}}}
	for _, stream := range []bool{true, false} {
		how := map[bool]string{true: ", streamed", false: ", whole"}[stream]
		list = append(list, chatAsking("chat"+how, thinking, stream))
		list = append(list, typedAsking("responses"+how, "/v1/responses", thinking, stream), typedAsking("messages"+how, "/v1/messages", thinking, stream))
		if thinking {
			continue
		}
		native := completionAsking("", stream).with("native completion"+how, map[string]any{"max_tokens": nil, "n_predict": 40})
		native.path = "/completion"
		fill := native.with("infill"+how, map[string]any{
			"prompt": "x = ", "input_prefix": "def f():\n", "input_suffix": "\nreturn x",
		})
		fill.path = "/infill"
		hear := asking{name: "transcription" + how, path: "/v1/audio/transcriptions", stream: stream, form: true, body: func(int) map[string]any {
			b := map[string]any{"model": "sim"}
			if stream {
				b["stream"] = "true"
			}
			return b
		}}
		list = append(
			list, completionAsking("completion"+how, stream), native, fill, hear, toolAsking("tools"+how, stream),
			chatAsking("", false, stream).with("schema"+how, schema),
			chatAsking("", false, stream).with("two choices"+how, map[string]any{"n": 2}),
			completionAsking("", stream).with("tokens"+how, map[string]any{"prompt": []int{300, 301, 302, 303}}),
		)
	}
	if thinking {
		return list
	}
	ask := func(name, path string, body map[string]any) asking {
		return asking{name: name, path: path, body: func(int) map[string]any { return body }}
	}
	passed := toolAsking("tools, passed on", true)
	passed.path = "/stream" + passed.path
	return append(
		list, passed,
		ask("embeddings", "/v1/embeddings", map[string]any{"model": "sim", "input": []string{"a", "b"}}),
		ask("rerank", "/v1/rerank", map[string]any{"model": "sim", "query": "q", "documents": []string{"a", "b"}}),
		ask("tokenize", "/tokenize", map[string]any{"model": "sim", "content": "hello"}),
		ask("count_tokens", "/v1/messages/count_tokens", map[string]any{"model": "sim", "messages": []any{map[string]string{"role": "user", "content": "hi"}}}),
	)
}
