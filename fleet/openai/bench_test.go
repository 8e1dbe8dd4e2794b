package openai

import (
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

func chatBody(size int) []byte {
	const turn = `{"role":"user","content":"` + "Tell me more about it, please: \\\"what\\\" is it, and why?\\n" + `"},{"role":"assistant","content":"Well."},`
	var b strings.Builder
	b.WriteString(`{"model":"m","stream":true,"max_tokens":100,"temperature":0.7,"messages":[`)
	for b.Len() < size-200 {
		b.WriteString(strings.Replace(turn, "it,", strings.Repeat("it and ", 40), 1))
	}
	b.WriteString(`{"role":"user","content":"end"}],"stop":["x"]}`)
	return []byte(b.String())
}

func benchmarkParse(b *testing.B, size int) {
	body := chatBody(size)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		j, err := Parse(chatPath, body, Options{})
		if err != nil || len(j.Want().Blocks) == 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse4KB(b *testing.B)   { benchmarkParse(b, 4<<10) }
func BenchmarkParse400KB(b *testing.B) { benchmarkParse(b, 400<<10) }

func benchmarkTake(b *testing.B, chunk string) {
	j := mustParse(b, chatPath, stream(`,"max_tokens":100`), Options{})
	if _, err := j.Request(nodeA); err != nil {
		b.Fatal(err)
	}
	ev := fleet.Event{Kind: fleet.EventData, Data: []byte(chunk)}
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		out, err := j.Take(ev)
		if err != nil || len(out) == 0 {
			b.Fatal(err)
		}
		j.Delivered()
	}
}

func BenchmarkTake(b *testing.B)        { benchmarkTake(b, content(" word")) }
func BenchmarkTakeTimings(b *testing.B) { benchmarkTake(b, counted(content(" word"), 20, 7)) }

func TestTakeAllocatesNothing(t *testing.T) {
	for a, ev := range map[api]string{
		apiChat:       counted(content(" word"), 20, 7),
		apiCompletion: withIDs(counted(text(" word"), 20, 7), "[705]", 7),
		apiNative:     `{"index":0,"content":" word","tokens":[705],"stop":false,"id_slot":-1,"tokens_predicted":7,"tokens_evaluated":17}`,
		apiResponses:  counted(`{"type":"response.output_text.delta","item_id":"msg_x","delta":" word"}`, 20, 7),
		apiMessages:   `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" word"}}`,
	} {
		path, body := question(a, true, 100, 1)
		j := mustParse(t, path, body, Options{})
		request(t, j, modernNode)
		event := fleet.Event{Kind: fleet.EventData, Data: []byte(ev)}
		n := testing.AllocsPerRun(2000, func() {
			if _, err := j.Take(event); err != nil {
				t.Fatal(err)
			}
			j.Delivered()
		})
		if n > 0 {
			t.Errorf("%s: a chunk allocates %v times", path, n)
		}
		// What another node adds to it is changed on its way, and that costs nothing either.
		if _, err := j.Request(modernNode); err != nil {
			t.Fatal(err)
		}
		n = testing.AllocsPerRun(2000, func() {
			if a == apiMessages {
				j.relay.choices[0].again = again{}
			}
			if _, err := j.Take(event); err != nil {
				t.Fatal(err)
			}
			j.Delivered()
		})
		if n > 0 {
			t.Errorf("%s: a chunk of a second node allocates %v times", path, n)
		}
	}
}
