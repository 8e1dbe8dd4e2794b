package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

type anthropicLibrary struct{ url string }

func (l anthropicLibrary) answer(ctx context.Context, t task) (string, error) {
	client := anthropic.NewClient(option.WithBaseURL(l.url), option.WithAPIKey(t.Secret))
	model := anthropic.Model(t.Model)
	messages := []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(t.Prompt))}
	if t.Task == "count" {
		c, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: model, Messages: messages})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d|", c.InputTokens), nil
	}
	ask := anthropic.MessageNewParams{Model: model, Messages: messages, MaxTokens: t.Tokens, Temperature: anthropic.Float(0)}
	var more []option.RequestOption
	if t.Tools {
		schema := anthropic.ToolInputSchemaParam{Properties: t.Schema["properties"], ExtraFields: map[string]any{"required": t.Schema["required"]}}
		ask.Tools = []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "get_weather", InputSchema: schema}}}
		ask.ToolChoice.OfAny = &anthropic.ToolChoiceAnyParam{}
	}
	if t.Thinking {
		ask.Thinking.OfEnabled = &anthropic.ThinkingConfigEnabledParam{BudgetTokens: 1024}
	}
	if !t.Tools && !t.Thinking {
		more = append(more, option.WithJSONSet("ignore_eos", true))
	}
	if !t.Streams {
		m, err := client.Messages.New(ctx, ask, more...)
		if err != nil {
			return "", err
		}
		return showMessage(*m)
	}
	stream := client.Messages.NewStreaming(ctx, ask, more...)
	defer stream.Close()
	var whole anthropic.Message
	for deltas := 0; stream.Next(); {
		e := stream.Current()
		if e.Type == "content_block_delta" {
			deltas++
		}
		if t.Task == "abort" && deltas == 3 {
			return "aborted", stream.Close()
		}
		if err := whole.Accumulate(e); err != nil {
			return "", err
		}
	}
	if err := stream.Err(); err != nil {
		return "", err
	}
	return showMessage(whole)
}

func (anthropicLibrary) failure(err error) string {
	var refused *anthropic.Error
	if errors.As(err, &refused) {
		var said struct{ Error struct{ Type string } }
		if json.Unmarshal([]byte(refused.RawJSON()), &said) == nil {
			return fmt.Sprintf("%d %s", refused.StatusCode, said.Error.Type)
		}
	}
	return err.Error()
}

func showMessage(m anthropic.Message) (string, error) {
	var content strings.Builder
	for _, b := range m.Content {
		switch b := b.AsAny().(type) {
		case anthropic.TextBlock:
			content.WriteString(b.Text)
		case anthropic.ThinkingBlock:
			fmt.Fprintf(&content, "[%s]", b.Thinking)
		case anthropic.ToolUseBlock:
			fmt.Fprintf(&content, "%s %s;", b.Name, b.Input)
		default:
			return "", fmt.Errorf("a block of a kind that was not asked for: %s", m.RawJSON())
		}
	}
	return fmt.Sprintf("%s|%s|%d", &content, m.StopReason, m.Usage.OutputTokens), nil
}
