package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// told is what a client was told, in whatever language it asked.
type told struct {
	Status             int
	Reasoning, Content string         // of the first choice
	More               map[int]string // text of further ones
	Calls              string         // names and arguments of tool calls
	CallIDs            int
	Finish             string
	Roles, Finishes    int
	IDs                map[string]bool
	Usage              json.RawMessage
	Usages, Done       int
	Events             int
	Plain              string // an answer that is no generation
	Fault              string // an error event, or what cut the answer off
	Cut                bool   // the connection was broken off
}

// text is what must be equal, however many servers took part.
func (a told) text() string {
	return fmt.Sprintf("reasoning %q, content %q, more %v, %d calls %s, finish %s, plain %s",
		a.Reasoning, a.Content, a.More, a.CallIDs, a.Calls, a.Finish, a.Plain)
}

// ask sends a request and reads the answer; each is called after each chunk.
func (e *edge) ask(ctx context.Context, a asking, tokens int, each func(chunk int)) told {
	body, contentType := a.content(tokens)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+a.path, body)
	if err != nil {
		return told{Fault: err.Error()}
	}
	r.Header.Set("Content-Type", contentType)
	resp, err := e.Client.Do(r)
	if err != nil {
		return told{Fault: err.Error()}
	}
	defer resp.Body.Close()
	t := told{Status: resp.StatusCode, IDs: make(map[string]bool), More: make(map[int]string)}
	if !a.stream || resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fault = err.Error()
			return t
		}
		t.take(body)
		return t
	}
	t.read(resp.Body, each)
	return t
}

// read reads a stream.
func (a *told) read(body io.Reader, each func(chunk int)) {
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadBytes('\n')
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			if string(data) == "[DONE]" {
				a.Done++
			} else {
				a.take(data)
				if a.Events++; each != nil {
					each(a.Events)
				}
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			if a.Fault == "" {
				a.Fault = err.Error()
			}
			a.Cut = true
			return
		}
	}
}

// saying is the text of a choice, in OpenAI's chat.
type saying struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
	Calls     []struct {
		ID       string
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// chunk is what an event or a whole answer may have, in all languages.
type chunk struct {
	ID      string `json:"id"`
	Type    string
	Object  string
	Choices []struct {
		Index          int
		Delta, Message saying
		Text           string
		Finish         string `json:"finish_reason"`
	}
	Usage json.RawMessage
	Error json.RawMessage

	// llama-server's own.
	Content  json.RawMessage
	Stop     bool
	StopType string `json:"stop_type"`

	// Responses, Messages and transcriptions.
	Delta    json.RawMessage
	Text     *string
	Output   json.RawMessage
	Item     json.RawMessage
	Response *chunk
	Message  *chunk
	Block    *contentPart `json:"content_block"`
	Reason   string       `json:"stop_reason"`
	Status   string
}

// contentPart is a part of what Messages and Responses say.
type contentPart struct {
	Type, ID, Name, Text, Thinking string
	Input                          json.RawMessage
	Arguments                      string
	Content                        []contentPart
}

// take reads a chunk, or a whole answer.
func (a *told) take(data []byte) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		a.Fault = fmt.Sprintf("%v in %s", err, data)
		return
	}
	switch {
	case c.Error != nil && string(c.Error) != "null" || c.Type == "error":
		a.Fault = string(data)
	case strings.HasPrefix(c.Type, "response."), c.Object == "response":
		a.takeResponses(&c)
	case c.Type != "" && !strings.HasPrefix(c.Type, "transcript."):
		a.takeMessages(&c)
	case c.Type != "" || c.Text != nil && c.Choices == nil:
		a.takeTranscript(&c)
	case c.Choices != nil:
		a.takeChoices(&c)
	case c.Content != nil:
		a.takeNative(&c)
	default:
		a.Plain = unmoved(string(data))
	}
}

func (a *told) takeChoices(c *chunk) {
	a.IDs[c.ID] = true
	for _, x := range c.Choices {
		text := x.Delta.Content + x.Message.Content + x.Text
		if x.Index == 0 {
			a.Reasoning += x.Delta.Reasoning + x.Message.Reasoning
			a.Content += text
		} else if a.More[x.Index] += text; a.More[x.Index] == "" {
			delete(a.More, x.Index)
		}
		for _, call := range append(x.Delta.Calls, x.Message.Calls...) {
			a.Calls += call.Function.Name + call.Function.Arguments
			if call.ID != "" {
				a.CallIDs++
			}
		}
		if x.Delta.Role != "" {
			a.Roles++
		}
		a.finish(x.Finish)
	}
	a.used(c.Usage)
}

func (a *told) finish(why string) {
	if why != "" {
		a.Finish = why
		a.Finishes++
	}
}

func (a *told) used(u json.RawMessage) {
	if u != nil {
		a.Usage = u
		a.Usages++
	}
}

func (a *told) takeNative(c *chunk) {
	var text string
	_ = json.Unmarshal(c.Content, &text)
	a.Content += text
	if c.Stop {
		a.finish(c.StopType)
	}
}

func (a *told) takeTranscript(c *chunk) {
	switch {
	case c.Type == "transcript.text.delta":
		a.Content += stringOf(c.Delta)
	case a.Content != "" && *c.Text != a.Content:
		a.Fault = fmt.Sprintf("the end says %q after %q", *c.Text, a.Content)
	default:
		a.Content = *c.Text
		a.finish("done")
		a.used(c.Usage)
	}
}

// stringOf reads a delta that is a string.
func stringOf(v json.RawMessage) (s string) {
	_ = json.Unmarshal(v, &s)
	return s
}

func (a *told) takeResponses(c *chunk) {
	switch c.Type {
	case "response.created":
		a.IDs[c.Response.ID] = true
		a.Roles++
	case "response.output_text.delta":
		a.Content += stringOf(c.Delta)
	case "response.reasoning_text.delta":
		a.Reasoning += stringOf(c.Delta)
	case "response.output_text.done":
		if c.Text == nil || *c.Text != a.Content {
			a.Fault = "the text's end says another text than its parts"
		}
	case "response.completed", "response.incomplete", "":
		if c.Response == nil {
			c.Response = c // a whole answer
		} else {
			a.IDs[c.Response.ID] = true
		}
		a.takeOutput(c.Response.Output)
		a.finish(c.Response.Status)
		a.used(c.Response.Usage)
	}
}

// takeOutput reads all that an answer of Responses says, which a stream said before.
func (a *told) takeOutput(list json.RawMessage) {
	var items []contentPart
	_ = json.Unmarshal(list, &items)
	var content, reasoning string
	for _, item := range items {
		for _, part := range item.Content {
			if item.Type == "reasoning" {
				reasoning += part.Text
			} else {
				content += part.Text
			}
		}
		if item.Type == "function_call" {
			a.Calls += item.Name + item.Arguments
			a.CallIDs++
		}
	}
	if a.Events > 0 && (content != a.Content || reasoning != a.Reasoning) {
		a.Fault = "the end says another text than the parts: " + difference(content+reasoning, a.Content+a.Reasoning)
	}
	a.Content, a.Reasoning = content, reasoning
}

func (a *told) takeMessages(c *chunk) {
	switch c.Type {
	case "message_start":
		a.IDs[c.Message.ID] = true
		a.Roles++
	case "content_block_start":
		if c.Block.Type == "tool_use" {
			a.Calls += c.Block.Name
			a.CallIDs++
		}
	case "content_block_delta":
		var d struct {
			Text, Thinking string
			JSON           string `json:"partial_json"`
		}
		_ = json.Unmarshal(c.Delta, &d)
		a.Content += d.Text
		a.Reasoning += d.Thinking
		a.Calls += d.JSON
	case "message_delta":
		var d struct {
			Reason string `json:"stop_reason"`
		}
		_ = json.Unmarshal(c.Delta, &d)
		a.finish(d.Reason)
		a.used(c.Usage)
	case "message": // a whole answer
		var blocks []contentPart
		_ = json.Unmarshal(c.Content, &blocks)
		for _, b := range blocks {
			a.Content += b.Text
			a.Reasoning += b.Thinking
			if b.Type == "tool_use" {
				a.Calls += b.Name + string(b.Input)
				a.CallIDs++
			}
		}
		a.IDs[c.ID] = true
		a.finish(c.Reason)
		a.used(c.Usage)
	}
}

// figures are what an answer costs. What is cached differs from node to node, and
// Messages count pieces of text, give or take one.
type figures struct {
	Completion int `json:"completion_tokens"`
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Output     int `json:"output_tokens"`
}

func (a told) figures() (f figures) {
	_ = json.Unmarshal(a.Usage, &f)
	return f
}

// like reports whether two are of the same answer. Messages count a token too few for
// each text of several that ends with a node.
func (f figures) like(g figures) bool {
	off := f.Output - g.Output
	f.Output = g.Output
	return f == g && off >= -maxMoves && off <= maxMoves
}

// maxMoves is how often an answer can go on elsewhere: the third loss is its end.
const maxMoves = 2

// surplus is what one text has beyond another that it begins with, in tokens of the
// stand-in, each of which is a word, a mark or a space; false: it does not begin so.
func surplus(long, short string) (tokens int, ok bool) {
	if len(long) < len(short) {
		long, short = short, long
	}
	rest, ok := strings.CutPrefix(long, short)
	return len(strings.Fields(rest)), ok
}

// atTheLimit is an answer of Messages that ended with the client's limit: that is kept
// to one token for each node that was lost, see docs/resume.md.
func (a told) atTheLimit(want told) told {
	if want.Finish != "max_tokens" || a.Finish != "" && a.Finish != want.Finish {
		return a
	}
	if n, ok := surplus(a.Reasoning, want.Reasoning); ok && n <= maxMoves && a.Content == "" {
		a.Reasoning = want.Reasoning
	}
	if n, ok := surplus(a.Content, want.Content); ok && n <= maxMoves {
		a.Content = want.Content
	}
	return a
}

// equal says how an answer differs from that of one server left alone; empty: not.
func (a told) equal(want told) string {
	a = a.atTheLimit(want)
	switch {
	case a.Fault != "":
		return "it has a fault: " + a.Fault
	case a.Status != want.Status:
		return fmt.Sprintf("got status %d, want %d", a.Status, want.Status)
	case a.text() != want.text():
		return difference(a.text(), want.text())
	case !a.figures().like(want.figures()) || a.Usages != want.Usages:
		return fmt.Sprintf("got usage %s (%d times), want %s (%d times)", a.Usage, a.Usages, want.Usage, want.Usages)
	case a.Done != want.Done || a.Roles != want.Roles || a.Finishes != want.Finishes || len(a.IDs) != len(want.IDs):
		return fmt.Sprintf("got %d [DONE], %d roles, %d finishes, %d ids; want %d, %d, %d, %d",
			a.Done, a.Roles, a.Finishes, len(a.IDs), want.Done, want.Roles, want.Finishes, len(want.IDs))
	}
	return ""
}

// partOf says what an answer that broke off has that the whole one has not; empty:
// nothing.
func (a told) partOf(want told) string {
	a = a.atTheLimit(want)
	switch {
	case !strings.HasPrefix(want.Content, a.Content):
		return difference(a.Content, want.Content)
	case !strings.HasPrefix(want.Reasoning, a.Reasoning):
		return difference(a.Reasoning, want.Reasoning)
	case !strings.HasPrefix(want.Calls, a.Calls):
		return difference(a.Calls, want.Calls)
	case a.Finishes > want.Finishes-1 && want.Finishes > 0:
		return "it has a finish"
	}
	return ""
}

// difference shows where two texts part.
func difference(got, want string) string {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	part := func(s string) string { return s[max(0, at-30):min(len(s), at+50)] }
	return fmt.Sprintf("the text differs at byte %d of %d:\ngot  …%q…\nwant …%q…", at, len(want), part(got), part(want))
}
