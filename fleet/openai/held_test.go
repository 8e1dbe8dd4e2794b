package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

// allAPIs that give an answer of one choice which can be gone on with.
var allAPIs = []api{apiChat, apiCompletion, apiNative, apiResponses, apiMessages}

// answerOf is a job of so many letters, and the events of a node that answers it.
func answerOf(t *testing.T, a api, streams bool, tool string, letters int) (*Job, *oracle, []string) {
	t.Helper()
	path, body := question(a, streams, 2*letters, 1)
	j := mustParse(t, path, body, Options{})
	assignment, err := j.Request(modernNode)
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{api: a, text: []rune(strings.Repeat("abcdefgh", letters/8)), tool: tool, choices: 1, limit: 2 * letters, pieces: func() int { return 8 }}
	return j, o, o.answer(assignment)
}

func TestHeldGrowsWithWhatIsKept(t *testing.T) {
	for _, a := range allAPIs {
		for _, streams := range []bool{true, false} {
			j, o, events := answerOf(t, a, streams, "", 4096)
			begun := j.Held()
			if begun < int64(len(j.doc.body))/2 {
				t.Errorf("api %d: holds %d bytes for its node, want about the body's %d", a, begun, len(j.doc.body))
			}
			feed(t, j, events[:len(events)/2])
			half := j.Held()
			feed(t, j, events[len(events)/2:])
			text := int64(len(o.text))
			if !streams {
				text *= 2
			}
			if got := j.Held(); half <= begun || got < begun+text || got > begun+8*text+4096 {
				t.Errorf("api %d, stream %t: holds %d bytes, then %d, then %d; its text is %d", a, streams, begun, half, got, len(o.text))
			}
		}
	}
}

func TestHeldCountsToolCallsThatWait(t *testing.T) {
	arguments := `{"a":"` + strings.Repeat("x", 4000) + `"}`
	for _, streams := range []bool{true, false} {
		j, _, events := answerOf(t, apiChat, streams, arguments, 8)
		before := j.Held()
		most := before
		for _, ev := range events {
			feed(t, j, []string{ev})
			most = max(most, j.Held())
		}
		if most < before+int64(len(arguments)) {
			t.Errorf("stream %t: holds %d bytes after %d, want %d more", streams, most, before, len(arguments))
		}
		if got := j.Held(); streams && got > before+1024 {
			t.Errorf("%d bytes are held after the call was handed out, want about %d", got, before)
		}
	}
}

// An answer that let go is the same to its client, keeps nothing more, and ends with
// its node.
func TestAnswerThatLetGoGoesOnAndCannotBeGoneOnWith(t *testing.T) {
	for _, a := range allAPIs {
		for _, tool := range []string{"", `{"a":1}`} {
			if tool != "" && (a == apiCompletion || a == apiNative) {
				continue
			}
			j, o, events := answerOf(t, a, true, tool, 4096)
			for cut := 2; cut < len(events)-3; cut += 37 {
				j, _, _ := answerOf(t, a, true, tool, 4096)
				out := feed(t, j, events[:cut])
				before := j.Held()
				for range 2 {
					if !j.LetGo() {
						t.Fatalf("api %d: it does not let go", a)
					}
				}
				if got := j.Held(); got > before || cut > len(events)/2 && got >= before {
					t.Errorf("api %d, event %d: holds %d bytes after letting go of %d", a, cut, got, before)
				}
				kept := j.Held()
				out += feed(t, j, events[cut:])
				if got := j.Held(); tool == "" && got > kept+1024 {
					t.Errorf("api %d, event %d: keeps %d bytes more after it let go", a, cut, got-kept)
				}
				checkAnswer(t, o, hear(a, out+string(j.End(nil))), out)
			}
			feed(t, j, events[:len(events)/2])
			j.LetGo()
			_, err := j.Needs()
			if e, ok := errors.AsType[*fleet.RequestError](err); !ok || e.Reason != fleet.ReasonLost {
				t.Errorf("api %d: got %v of a lost node, want that nobody can go on", a, err)
			}
			end := string(j.End(&fleet.NodeLost{Node: "a", Cause: fleet.CauseReset}))
			if !strings.Contains(end, "node_lost_unresumable") {
				t.Errorf("api %d: got %s", a, end)
			}
		}
	}
}

func checkAnswer(t *testing.T, o *oracle, got *view, raw string) {
	t.Helper()
	if got.wrong != "" || got.Error != "" || got.Content[0] != string(o.text) || got.Finish[0] == "" || o.tool != "" && !strings.Contains(got.Tools, "f") {
		t.Fatalf("%s %s: got %d letters, tools %q, finish %q: %.2000s", got.wrong, got.Error, len(got.Content[0]), got.Tools, got.Finish[0], raw)
	}
}

// What is kept to be told is not let go of.
func TestTextThatIsTheAnswerIsNotLetGo(t *testing.T) {
	for _, a := range allAPIs {
		j, o, events := answerOf(t, a, false, "", 64)
		feed(t, j, events)
		if j.LetGo() {
			t.Errorf("api %d: a whole answer lets go of its text", a)
		}
		if content, _, _ := wholeView(a, decode(t, string(j.End(nil)))); content != string(o.text) {
			t.Errorf("api %d: got %q", a, content)
		}
	}
	j, o, events := answerOf(t, apiResponses, true, "", 64)
	feed(t, j, events[:6])
	assignment, err := j.Request(modernNode)
	if err != nil {
		t.Fatal(err)
	}
	rest := o.answer(assignment)
	feed(t, j, rest[:len(rest)/2])
	if j.LetGo() {
		t.Error("an answer of Responses by two nodes lets go of the text that its last events say")
	}
}

// The bound of one answer's text frees it, and where the text has to be told once
// more the answer ends.
func TestTextBeyondTheBoundIsNotKept(t *testing.T) {
	piece := strings.Repeat("x", 1<<20)
	j := mustParse(t, chatPath, stream(""), Options{})
	request(t, j, nodeA)
	for range maxText>>20 + 2 {
		feed(t, j, []string{`{"id":"a","choices":[{"index":0,"delta":{"content":"` + piece + `"}}]}`})
	}
	if got := j.Held(); got > 4<<20 {
		t.Errorf("%d bytes are held of an answer that cannot be gone on with", got)
	}

	j, _, events := answerOf(t, apiResponses, true, "", 64)
	feed(t, j, events[:6])
	assignment, err := j.Request(modernNode)
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{api: apiResponses, text: []rune(strings.Repeat("abcdefgh", 8)), choices: 1, limit: 128, pieces: func() int { return 8 }}
	feed(t, j, o.answer(assignment)[:4])
	delta := fmt.Sprintf(`{"type":"response.output_text.delta","item_id":"x","delta":%q}`, piece)
	for range maxText>>20 + 2 {
		var out []byte
		if out, err = j.Take(fleet.Event{Kind: fleet.EventData, Data: []byte(delta)}); err != nil {
			break
		}
		if len(out) > 0 {
			j.Delivered()
		}
	}
	if e, ok := errors.AsType[*fleet.RequestError](err); !ok || e.Reason != fleet.ReasonLost {
		t.Errorf("got %v, want that the answer ends before it says a part of its text as the whole", err)
	}
}
