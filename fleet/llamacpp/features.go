package llamacpp

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/slotfleet/slotfleet/fleet"
)

// Texts that stand at the end of a rendered prompt if the server goes on from them.
const (
	contentProbe   = "PROBE"
	reasoningProbe = "RPROBE"
)

// features finds out what the server can go on with, by having it render prompts and
// count tokens: that takes no slot and generates nothing. Build numbers tell nothing,
// packagers set their own.
func (t target) features(ctx context.Context, props map[string]json.RawMessage) (f fleet.Features, err error) {
	settings := object(object(props["default_generation_settings"])["params"])
	_, grammars := settings["generation_prompt"]
	if grammars {
		f |= fleet.GenerationPrompt
	}
	s := &prober{target: t}
	// Only servers that know the field object to both being set.
	if s.objects(ctx) {
		// With --no-jinja the field is known, but the turn gets closed all the same.
		if s.leavesOpen(ctx, contentProbe, map[string]any{
			"messages": asked(content), "continue_final_message": "content", "add_generation_prompt": false,
		}) {
			f |= fleet.ContinueContent
			if grammars {
				f |= fleet.ContinueGrammar
			}
			if s.answers(ctx, "/v1/responses/input_tokens", map[string]any{"input": "x"}) {
				f |= fleet.ContinueResponses
			}
		}
		if s.leavesOpen(ctx, reasoningProbe, map[string]any{
			"messages": asked(reasoning), "continue_final_message": "reasoning_content", "add_generation_prompt": false,
		}) {
			f |= fleet.ContinueReasoning
		}
	}
	if s.answers(ctx, "/v1/messages/count_tokens", map[string]any{"messages": []any{user}, "max_tokens": 1}) &&
		s.leavesOpen(ctx, contentProbe, map[string]any{"messages": asked(content)}) {
		f |= fleet.ContinueMessages
	}
	if s.err != nil {
		return 0, s.err
	}
	return f, nil
}

var (
	user      = map[string]string{"role": "user", "content": "x"}
	content   = map[string]string{"role": "assistant", "content": contentProbe}
	reasoning = map[string]string{"role": "assistant", "content": "", "reasoning_content": reasoningProbe}
)

func asked(last map[string]string) []any { return []any{user, last} }

// prober asks questions until one finds the server gone.
type prober struct {
	target
	err error
}

func (s *prober) ask(ctx context.Context, path string, question map[string]any) fleet.Reply {
	if s.err != nil {
		return fleet.Reply{}
	}
	var a fleet.Reply
	a, s.err = s.post(ctx, path, question)
	return a
}

func (s *prober) objects(ctx context.Context) bool {
	a := s.ask(ctx, "/apply-template", map[string]any{
		"messages": asked(content), "continue_final_message": true, "add_generation_prompt": true,
	})
	return a.Status == http.StatusBadRequest && strings.HasPrefix(readComplaint(a.Body).Message, "Cannot set both")
}

// leavesOpen reports whether the prompt that is rendered ends with the probe.
func (s *prober) leavesOpen(ctx context.Context, probe string, question map[string]any) bool {
	a := s.ask(ctx, "/apply-template", question)
	return a.Status == http.StatusOK && strings.HasSuffix(text(object(a.Body)["prompt"]), probe)
}

func (s *prober) answers(ctx context.Context, path string, question map[string]any) bool {
	return s.ask(ctx, path, question).Status == http.StatusOK
}
