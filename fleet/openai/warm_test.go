package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func blocksOf(t testing.TB, path, body string) []uint64 {
	t.Helper()
	return mustParse(t, path, body, Options{}).Want().Blocks
}

// long is a text of about so many bytes, with letters that JSON may write in several
// ways.
func long(n int) string { return strings.Repeat(pattern, n/len(pattern)) }

const pattern = "a/é\n\"😀 "

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func TestSamePromptHasTheSameBlocks(t *testing.T) {
	text := long(1200)
	// Every letter escaped, and half of a pair alone.
	var escaped strings.Builder
	for _, r := range text {
		if r > 0xffff {
			r -= 0x10000
			fmt.Fprintf(&escaped, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			continue
		}
		fmt.Fprintf(&escaped, `\u%04X`, r)
	}
	want := blocksOf(t, chatPath, `{"model":"m","messages":[{"role":"user","content":`+quoted(text)+`}]}`)
	if len(want) != (1200+8)/256 {
		t.Fatalf("%d blocks", len(want))
	}
	for name, body := range map[string]string{
		"escapes":       `{"model":"m","messages":[{"role":"user","content":"` + escaped.String() + `"}]}`,
		"a part":        `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":` + quoted(text) + `}]}]}`,
		"two parts":     `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":` + quoted(text[:50*len(pattern)]) + `},{"text":` + quoted(text[50*len(pattern):]) + `}]}]}`,
		"other order":   `{"messages":[ {"content" : ` + quoted(text) + `, "name":"x","role":"us\u0065r"}],"temperature":1,"stream":true,"model":"m"}`,
		"null is gone":  `{"model":"m","tools":null,"messages":[{"role":"user","reasoning_content":null,"content":` + quoted(text) + `}]}`,
		"other sampler": `{"model":"m","top_p":0.1,"max_tokens":9,"messages":[{"role":"user","content":` + quoted(text) + `}]}`,
	} {
		if got := blocksOf(t, chatPath, body); !slices.Equal(got, want) {
			t.Errorf("%s: got %x, want %x", name, got, want)
		}
	}
	for name, body := range map[string]string{
		"model":  `{"model":"n","messages":[{"role":"user","content":` + quoted(text) + `}]}`,
		"role":   `{"model":"m","messages":[{"role":"tool","content":` + quoted(text) + `}]}`,
		"tools":  `{"model":"m","tools":[{"a":1}],"messages":[{"role":"user","content":` + quoted(text) + `}]}`,
		"letter": `{"model":"m","messages":[{"role":"user","content":` + quoted("b"+text[1:]) + `}]}`,
		"split":  `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":` + quoted(text[1:]) + `}]}`,
	} {
		if got := blocksOf(t, chatPath, body); len(got) == 0 || got[0] == want[0] {
			t.Errorf("%s: the first block is the same", name)
		}
	}
}

func TestLongerPromptKeepsItsBlocks(t *testing.T) {
	turn := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"role":"user","content":%s},{"role":"assistant","content":"fine %d","tool_calls":[{ "id": "a" }]}`, quoted(long(360)), i)
		}
		return `{"model":"m","tools":[ {"type":"function"} ],"messages":[` + b.String()[1:] + `]}`
	}
	short, more := blocksOf(t, chatPath, turn(5)), blocksOf(t, chatPath, turn(9))
	if len(short) < 5 || len(more) <= len(short) || !slices.Equal(short, more[:len(short)]) {
		t.Errorf("%d blocks of 5 turns are not the first of the %d of 9", len(short), len(more))
	}
}

func TestImagesCountByTheirHash(t *testing.T) {
	body := func(image string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + image + `"}},{"type":"text","text":` + quoted(long(600)) + `}]}]}`
	}
	a, b := blocksOf(t, chatPath, body(strings.Repeat("A", 1<<20))), blocksOf(t, chatPath, body(strings.Repeat("A", 1<<20-1)+"B"))
	if len(a) != 2 || len(b) != 2 {
		t.Fatalf("an image of 1 MiB makes %d blocks, want those of the text, 2", len(a))
	}
	if a[0] == b[0] {
		t.Error("two images are the same")
	}
}

func TestEveryPathHasBlocks(t *testing.T) {
	text := quoted(long(600))
	for path, bodies := range map[string][]string{
		"/v1/completions": {`{"prompt":` + text + `}`},
		"/completion":     {`{"prompt":[1,2,` + text + `]}`},
		"/infill":         {`{"input_prefix":` + text + `,"input_suffix":"x"}`},
		"/v1/responses": {
			`{"input":` + text + `}`, `{"input":[{"role":"user","content":` + text + `}]}`,
			`{"input":[{"role":"user","content":[{"type":"input_text","text":` + text + `}]}]}`,
			`{"instructions":` + text + `,"input":"x"}`, `{"input":[{"type":"function_call_output","call_id":"x","output":` + text + `}]}`,
		},
		"/v1/messages": {
			`{"messages":[{"role":"user","content":` + text + `}]}`, `{"system":` + text + `,"messages":[]}`,
			`{"system":[{"type":"text","text":` + text + `}],"messages":[]}`,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":` + text + `}]}]}`,
			`{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":` + text + `}]}]}`,
		},
	} {
		for _, body := range bodies {
			if got := blocksOf(t, path, body); len(got) < 2 {
				t.Errorf("%s %.60s: %d blocks, want 2", path, body, len(got))
			}
		}
	}
	one, two := blocksOf(t, "/v1/responses", `{"input":`+text+`}`), blocksOf(t, "/v1/responses", `{"input":[{"role":"user","content":`+text+`}]}`)
	if !slices.Equal(one, two) {
		t.Error("an input that is a text differs from a message that says it")
	}
}

func TestBlocksAreKeyed(t *testing.T) {
	body := []byte(`{"messages":[{"role":"user","content":` + quoted(long(600)) + `}]}`)
	a, _ := Parse(chatPath, body, Options{BlockKey: [16]byte{1}})
	b, _ := Parse(chatPath, body, Options{BlockKey: [16]byte{15: 1}})
	x, y := a.Want().Blocks, b.Want().Blocks
	for i := range x {
		if x[i] == y[i] {
			t.Errorf("block %d is the same under two keys", i)
		}
	}
}

// rendered is the rendering of a chat by encoding/json: what the blocks stand for, as
// far as the texts go.
func rendered(body []byte) (s string, ok bool) {
	var m struct {
		Messages []struct {
			Role    string
			Content any
		}
	}
	if json.Unmarshal(body, &m) != nil {
		return "", false
	}
	for _, x := range m.Messages {
		s += "\xff" + x.Role
		switch c := x.Content.(type) {
		case string:
			s += "\xfe" + c
		case nil:
		default:
			return "", false
		}
	}
	return s, true
}

func FuzzBlocks(f *testing.F) {
	f.Add("user", long(700), "assistant", "b")
	f.Add("\\", "\x00", "é", strings.Repeat("\"", 300))
	f.Fuzz(func(t *testing.T, role1, text1, role2, text2 string) {
		body := []byte(`{"messages":[{"role":` + quoted(role1) + `,"content":` + quoted(text1) + `},{"content":` + quoted(text2) + `,"role":` + quoted(role2) + `}]}`)
		got := mustParse(t, chatPath, string(body), Options{}).Want().Blocks
		want, ok := rendered(body)
		if !ok {
			return
		}
		r := rendering{}
		r.write([]byte("\xfe" + want))
		if !slices.Equal(got, r.sums) {
			t.Errorf("%s: got %x, want %x", body, got, r.sums)
		}
	})
}

// What was scanned once is gone over faster, and must end where it ended.
func FuzzKnownScan(f *testing.F) {
	f.Add([]byte(`{"a":"\\","b\"":["\\\"",{"":"x\\\\"}],"c":" \u005c"}`))
	f.Add([]byte(`[1, "a" , {"b" : null}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		one := scanner{b: b}
		want := one.value()
		if one.fault != "" {
			return
		}
		two := scanner{b: b, known: true}
		if got := two.value(); got != want || two.i != one.i || two.fault != "" {
			t.Fatalf("%q: got %v, %s, want %v", b, got, two.fault, want)
		}
		var r, compact rendering
		r.json(want.of(b))
		var c bytes.Buffer
		if json.Compact(&c, want.of(b)) == nil {
			compact.write(c.Bytes())
			if !slices.Equal(r.sums, compact.sums) || r.n != compact.n || !bytes.Equal(r.buf[:], compact.buf[:]) {
				t.Fatalf("%q is rendered in another way than compact", b)
			}
		}
	})
}

// The blocks must not depend on where the text is cut while it is written.
func TestRenderingInPieces(t *testing.T) {
	text := []byte(long(5000))
	var one rendering
	one.write(text)
	for range 50 {
		var r rendering
		for rest := text; len(rest) > 0; {
			n := min(len(rest), rand.IntN(700))
			r.write(rest[:n])
			rest = rest[n:]
		}
		if !slices.Equal(r.sums, one.sums) {
			t.Fatal("in pieces it has other hashes")
		}
	}
}

func TestBlocksAllocateOnlyTheirResult(t *testing.T) {
	j := mustParse(t, chatPath, string(chatBody(64<<10)), Options{})
	if n := testing.AllocsPerRun(200, func() { _ = j.blocks() }); n > 2 {
		t.Errorf("the blocks allocate %v times, want the result and what it is made with", n)
	}
}
