package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func TestOpenAIClientForGo(t *testing.T) {
	f := startClientFleet(t)
	f.tryOut(t, openaiGo{f.URL}, openaiGenerations, []string{"embeddings"}, openaiFailures)
}

func TestAnthropicClientForGo(t *testing.T) {
	f := startClientFleet(t)
	f.tryOut(t, anthropicGo{f.URL}, anthropicGenerations, []string{"count"}, anthropicFailures)
}

// openaiGo is the library of OpenAI for Go.
type openaiGo struct{ url string }

func (o openaiGo) do(ctx context.Context, task string) string {
	c := openai.NewClient(option.WithBaseURL(o.url+"/v1/"), option.WithAPIKey(secretOf(task)))
	out, err := o.answer(ctx, c, task)
	if err != nil {
		if e, ok := errors.AsType[*openai.Error](err); ok {
			return fmt.Sprintf("error %d %s", e.StatusCode, e.Code)
		}
		if strings.Contains(err.Error(), `"code":"node_lost_unresumable"`) {
			return "error node_lost_unresumable"
		}
		return "error " + err.Error()
	}
	return out
}

func (o openaiGo) answer(ctx context.Context, c openai.Client, task string) (string, error) {
	chat := openai.ChatCompletionNewParams{
		Model:       modelOf(task),
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(askedOf(task))},
		MaxTokens:   openai.Int(clientTokens),
		Temperature: openai.Float(0),
	}
	long := option.WithJSONSet("ignore_eos", true)
	switch task {
	case "tools", "tools streamed":
		chat.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: "get_weather", Parameters: schemaOf,
		})}
		chat.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
		chat.MaxTokens = openai.Int(4 * clientTokens)
		long = option.WithHeader("X-Task", task)
	case "schema":
		chat.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "weather", Schema: schemaOf, Strict: openai.Bool(true)},
		}}
		chat.MaxTokens = openai.Int(4 * clientTokens)
		long = option.WithHeader("X-Task", task)
	case "responses", "responses streamed":
		ask := responses.ResponseNewParams{
			Model: modelOf(task), MaxOutputTokens: openai.Int(clientTokens), Temperature: openai.Float(0),
			Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(askedOf(task))},
		}
		if task == "responses" {
			r, err := c.Responses.New(ctx, ask, long)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s|%s|%d", r.OutputText(), r.Status, r.Usage.OutputTokens), nil
		}
		return streamedResponse(c.Responses.NewStreaming(ctx, ask, long))
	case "embeddings":
		r, err := c.Embeddings.New(ctx, openai.EmbeddingNewParams{
			Model: modelOf(task), Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
		})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%v|%v|%d", r.Data[0].Embedding, r.Data[1].Embedding, len(r.Data)), nil
	case "stream", "broken in stream", "abort":
		chat.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	if !strings.Contains(task, "stream") && task != "abort" {
		r, err := c.Chat.Completions.New(ctx, chat, long)
		if err != nil {
			return "", err
		}
		return shownChat(*r), nil
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	s := c.Chat.Completions.NewStreaming(ctx, chat, long)
	defer s.Close()
	var whole openai.ChatCompletionAccumulator
	for chunks := 1; s.Next(); chunks++ {
		if !whole.AddChunk(s.Current()) {
			return "", fmt.Errorf("chunk %d belongs to another answer: %s", chunks, s.Current().RawJSON())
		}
		if task == "abort" && chunks == 3 {
			return "aborted", nil
		}
	}
	return shownChat(whole.ChatCompletion), s.Err()
}

func streamedResponse(s *ssestream.Stream[responses.ResponseStreamEventUnion]) (string, error) {
	defer s.Close()
	text, last := "", int64(-1)
	for s.Next() {
		e := s.Current()
		if e.SequenceNumber != last+1 {
			return "", fmt.Errorf("event %d follows %d", e.SequenceNumber, last)
		}
		last = e.SequenceNumber
		switch e.Type {
		case "response.output_text.delta":
			text += e.Delta
		case "response.completed", "response.incomplete":
			if got := e.Response.OutputText(); got != text {
				return "", fmt.Errorf("the parts are %q, the whole is %q", text, got)
			}
			return fmt.Sprintf("%s|%s|%d", text, e.Response.Status, e.Response.Usage.OutputTokens), s.Err()
		}
	}
	return "", errors.Join(errors.New("no end came"), s.Err())
}

func shownChat(c openai.ChatCompletion) string {
	if len(c.Choices) != 1 {
		return fmt.Sprintf("%d choices", len(c.Choices))
	}
	m := c.Choices[0].Message
	var calls strings.Builder
	for _, call := range m.ToolCalls {
		fmt.Fprintf(&calls, "%s %s;", call.Function.Name, call.Function.Arguments)
	}
	return fmt.Sprintf("%s|%s|%s|%d", m.Content, calls.String(), c.Choices[0].FinishReason, c.Usage.CompletionTokens)
}

// anthropicGo is the library of Anthropic for Go.
type anthropicGo struct{ url string }

func (a anthropicGo) do(ctx context.Context, task string) string {
	c := anthropic.NewClient(anthropicoption.WithBaseURL(a.url), anthropicoption.WithAPIKey(secretOf(task)))
	out, err := a.answer(ctx, c, task)
	if err != nil {
		if e, ok := errors.AsType[*anthropic.Error](err); ok {
			return fmt.Sprintf("error %d %s", e.StatusCode, e.Type())
		}
		return "error " + err.Error()
	}
	return out
}

func (a anthropicGo) answer(ctx context.Context, c anthropic.Client, task string) (string, error) {
	messages := []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(askedOf(task)))}
	if task == "count" {
		n, err := c.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: modelOf(task), Messages: messages})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d|", n.InputTokens), nil
	}
	ask := anthropic.MessageNewParams{
		Model: modelOf(task), Messages: messages, MaxTokens: clientTokens,
	}
	long := anthropicoption.WithJSONSet("ignore_eos", true)
	if strings.HasPrefix(task, "tools") {
		ask.MaxTokens = 4 * clientTokens
		ask.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{
			Properties: schemaOf["properties"], Required: schemaOf["required"].([]string),
		}, "get_weather")}
		ask.ToolChoice = anthropic.ToolChoiceUnionParam{OfAny: &anthropic.ToolChoiceAnyParam{}}
		long = anthropicoption.WithHeader("X-Task", task)
	}
	cold := anthropicoption.WithJSONSet("temperature", 0)
	if !strings.Contains(task, "stream") && task != "abort" {
		m, err := c.Messages.New(ctx, ask, long, cold)
		if err != nil {
			return "", err
		}
		return shownMessage(*m), nil
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	s := c.Messages.NewStreaming(ctx, ask, long, cold)
	defer s.Close()
	var whole anthropic.Message
	for deltas := 0; s.Next(); {
		e := s.Current()
		if err := whole.Accumulate(e); err != nil {
			return "", err
		}
		if e.Type == "content_block_delta" {
			if deltas++; task == "abort" && deltas == 3 {
				return "aborted", nil
			}
		}
	}
	return shownMessage(whole), s.Err()
}

func shownMessage(m anthropic.Message) string {
	var content strings.Builder
	for _, b := range m.Content {
		switch b.Type {
		case "text":
			content.WriteString(b.Text)
		case "tool_use":
			fmt.Fprintf(&content, "%s %s;", b.Name, b.Input)
		default:
			content.WriteString("a block " + b.Type)
		}
	}
	return fmt.Sprintf("%s|%s|%d", content.String(), m.StopReason, m.Usage.OutputTokens)
}
