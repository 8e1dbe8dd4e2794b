package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

type openaiLibrary struct{ url string }

func (l openaiLibrary) answer(ctx context.Context, t task) (string, error) {
	client := openai.NewClient(option.WithBaseURL(l.url+"/v1"), option.WithAPIKey(t.Secret))
	var more []option.RequestOption
	if !t.Tools && t.Task != "schema" {
		more = append(more, option.WithJSONSet("ignore_eos", true))
	}
	switch {
	case t.Task == "embeddings":
		return embeddings(ctx, client, t)
	case strings.HasPrefix(t.Task, "responses"):
		return response(ctx, client, t, more)
	}
	return chat(ctx, client, t, more)
}

func (openaiLibrary) failure(err error) string {
	var refused *openai.Error
	if errors.As(err, &refused) {
		return fmt.Sprintf("%d %s", refused.StatusCode, refused.Code)
	}
	// The error in a stream is text to this library.
	if _, object, ok := strings.Cut(err.Error(), "received error while streaming: "); ok {
		var said struct{ Code string }
		if json.Unmarshal([]byte(object), &said) == nil {
			return said.Code
		}
	}
	return err.Error()
}

func embeddings(ctx context.Context, client openai.Client, t task) (string, error) {
	r, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: t.Model,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
	})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, d := range r.Data {
		fmt.Fprintf(&out, "%v|", d.Embedding)
	}
	return fmt.Sprintf("%s%d", &out, len(r.Data)), nil
}

func response(ctx context.Context, client openai.Client, t task, more []option.RequestOption) (string, error) {
	ask := responses.ResponseNewParams{
		Model:           t.Model,
		Input:           responses.ResponseNewParamsInputUnion{OfString: openai.String(t.Prompt)},
		MaxOutputTokens: openai.Int(t.Tokens),
		Temperature:     openai.Float(0),
	}
	if !t.Streams {
		r, err := client.Responses.New(ctx, ask, more...)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s|%s|%d", r.OutputText(), r.Status, r.Usage.OutputTokens), nil
	}
	stream := client.Responses.NewStreaming(ctx, ask, more...)
	defer stream.Close()
	var text strings.Builder
	for stream.Next() {
		switch e := stream.Current(); e.Type {
		case "response.output_text.delta":
			text.WriteString(e.Delta)
		case "response.completed", "response.incomplete":
			return fmt.Sprintf("%s|%s|%d", &text, e.Response.Status, e.Response.Usage.OutputTokens), nil
		}
	}
	return "", errors.Join(stream.Err(), errors.New("no end came"))
}

func chat(ctx context.Context, client openai.Client, t task, more []option.RequestOption) (string, error) {
	ask := openai.ChatCompletionNewParams{
		Model:       t.Model,
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(t.Prompt)},
		MaxTokens:   openai.Int(t.Tokens),
		Temperature: openai.Float(0),
	}
	if t.Tools {
		ask.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: t.Schema})}
		ask.ToolChoice.OfAuto = openai.String("required")
	}
	if t.Task == "schema" {
		ask.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "weather", Schema: t.Schema, Strict: openai.Bool(true)},
		}
	}
	if !t.Streams {
		c, err := client.Chat.Completions.New(ctx, ask, more...)
		if err != nil {
			return "", err
		}
		return showChat(*c)
	}
	ask.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(ctx, ask, more...)
	defer stream.Close()
	var whole openai.ChatCompletionAccumulator
	for chunks := 1; stream.Next(); chunks++ {
		if t.Task == "abort" && chunks == 3 {
			return "aborted", stream.Close()
		}
		if !whole.AddChunk(stream.Current()) {
			return "", fmt.Errorf("a chunk does not belong to the others: %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		return "", err
	}
	return showChat(whole.ChatCompletion)
}

func showChat(c openai.ChatCompletion) (string, error) {
	if len(c.Choices) != 1 {
		return "", fmt.Errorf("got %d choices", len(c.Choices))
	}
	choice := c.Choices[0]
	var calls strings.Builder
	for _, call := range choice.Message.ToolCalls {
		fmt.Fprintf(&calls, "%s %s;", call.Function.Name, call.Function.Arguments)
	}
	return fmt.Sprintf("%s|%s|%s|%d", choice.Message.Content, &calls, choice.FinishReason, c.Usage.CompletionTokens), nil
}
