package openai

import (
	"fmt"
	"strings"
	"testing"
)

const (
	messageStart  = `{"type":"message_start","message":{"id":"msg_a","content":[],"model":"m","usage":{"cache_read_input_tokens":4,"input_tokens":6,"output_tokens":0}}}`
	thinkingStart = `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`
	thought       = `{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}`
	thinkingStop  = `{"type":"content_block_stop","index":0}`
	messageStop   = `{"type":"message_stop"}`
)

func textStart(n string) string {
	return `{"type":"content_block_start","index":` + n + `,"content_block":{"type":"text","text":""}}`
}

func textPart(n, text string) string {
	return `{"type":"content_block_delta","index":` + n + `,"delta":{"type":"text_delta","text":` + quoted(text) + `}}`
}

func blockStop(n string) string { return `{"type":"content_block_stop","index":` + n + `}` }

func messageDelta(output string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":` + output + `}}`
}

// A server may close the thinking before the text begins. It is closed once, whoever
// gives the rest.
func TestThinkingIsClosedOnce(t *testing.T) {
	path, body := question(apiMessages, true, 90, 1)
	j := mustParse(t, path, body, Options{})
	request(t, j, modernNode)
	out := feed(t, j, []string{messageStart, thinkingStart, thought, thinkingStop, textStart("1"), textPart("1", "It")})
	_, m := request(t, j, modernNode)
	want := `[map[signature: thinking:Hm. type:thinking] map[text:It type:text]]`
	if got := fmt.Sprint(lastMessage(t, m)["content"]); got != want {
		t.Errorf("went on from %s, want %s", got, want)
	}
	out += feed(t, j, []string{
		messageStart, thinkingStart, thought, thinkingStop, textStart("1"), textPart("1", "It is"), blockStop("1"), messageDelta("2"), messageStop,
	})
	out += string(j.End(nil))
	v := hear(apiMessages, out)
	if v.wrong != "" || v.Content[0] != "It is" || v.Reasoning[0] != "Hm." || strings.Count(out, `"content_block_stop","index":0`) != 1 {
		t.Errorf("%s: %s", v.wrong, out)
	}
	// One piece of thought and one of text from the first, two tokens from the second.
	if v.Output != 4 {
		t.Errorf("%d tokens are told, want 4", v.Output)
	}
}

// Where the next node does not think, its only block is the second that the client has.
func TestBlocksKeepTheirNumbers(t *testing.T) {
	path, body := question(apiMessages, true, 90, 1)
	j := mustParse(t, path, body, Options{})
	request(t, j, modernNode)
	out := feed(t, j, []string{
		messageStart, thinkingStart, strings.Replace(thought, "Hm.", `\n`, 1), textStart("1"), textPart("1", "It"),
	})
	request(t, j, modernNode)
	use := `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"x","name":"f"}}`
	out += feed(t, j, []string{
		messageStart, textStart("0"), textPart("0", "It is"), use,
		`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
		blockStop("0"), blockStop("1"), messageDelta("5"), messageStop,
	})
	out += string(j.End(nil))
	if v := hear(apiMessages, out); v.wrong != "" || v.Content[0] != "It is" || v.Tools != "f{}" {
		t.Errorf("%s: %s", v.wrong, out)
	}
}

// What is opened behind a tool call waits with it, and is lost with it.
func TestTextBehindALostToolCallIsOpenedAgain(t *testing.T) {
	path, body := question(apiMessages, true, 90, 1)
	j := mustParse(t, path, body, Options{})
	request(t, j, modernNode)
	use := `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"x","name":"f"}}`
	out := feed(t, j, []string{messageStart, use, textStart("1"), textPart("1", "late")})
	if n, err := j.Needs(); err != nil || n.Fingerprint != "" {
		t.Errorf("Needs = %+v, %v, want that nothing was delivered", n, err)
	}
	request(t, j, modernNode)
	out += feed(t, j, []string{messageStart, textStart("0"), textPart("0", "It"), blockStop("0"), messageDelta("2"), messageStop})
	out += string(j.End(nil))
	if v := hear(apiMessages, out); v.wrong != "" || v.Content[0] != "It" {
		t.Errorf("%s: %s", v.wrong, out)
	}
}

func TestMessageOfTheClientAndWhatCameAreOne(t *testing.T) {
	body := `{"stream":true,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"The"}]}`
	j := mustParse(t, "/v1/messages", body, Options{})
	request(t, j, modernNode)
	feed(t, j, []string{messageStart, textStart("0"), textPart("0", "The fox")})
	_, m := request(t, j, modernNode)
	if len(m["messages"].([]any)) != 2 || lastMessage(t, m)["content"] != "The fox" || m["max_tokens"] != 4095.0 {
		t.Errorf("went on from %v", m)
	}
}
