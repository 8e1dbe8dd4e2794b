package openai

import (
	"reflect"
	"testing"
)

// seen is all that a scan found. Figures are noted in f.
func seen(a api, c *chunk, f *figures, data string) (s chunk, ok bool) {
	ok = c.scan(a, []byte(data))
	if ok && c.timings.ok() {
		f.noteTimings(c)
	}
	s = *c
	s.alike, s.numbers, s.told = alike{}, nil, [timingKinds]int{}
	if len(s.parts) == 0 {
		s.parts = nil
	}
	return s, ok
}

// A chunk that is compared with the one before must be found the same as one that is
// scanned, whatever differs between them.
func FuzzAlike(f *testing.F) {
	f.Add(`{"choices":[{"finish_reason":null,"index":0,"delta":{"content":`, `"a"`, `"\"longer"`, `}}],"id":"x","timings":`, `{"a":1}`, `{"a":[12]}`, `,"model":"m"}`)
	f.Add(`{"id":"x","choices":[{"index":1,"delta":{"reasoning_content":`, `"a"`, `""`, `,"content":null}}],"created":1`, ``, ``, `,"model":"m"}`)
	f.Add(`{"choices":[{"text":`, `"a"`, `null`, `,"index":0,"logprobs":null}],"timings":`, `{}`, `null`, `}`)
	f.Add(`{"choices":[{"delta":{"content":"a"}}],"timings":`, `"a"`, `"b"`, `,"timings":`, `{}`, `1`, `}`)
	f.Add(`{"choices":[{"delta":{"content":`, `"a"`, `"b"`, `}}],"timings":`, `{`, `{}`, `}`)
	f.Add(`{"choices":[{"delta":{"content":`, `"a"`, `"ab"`, `}}],"timings":{"cache_n":1,"prompt_n":2,"predicted_n":3`, `,"prompt_ms":1.5,"predicted_ms":`, `9,"prompt_ms":12,"predicted_ms":1e`, `1},"id":"x"}`)
	f.Add(`{"choices":[{"delta":{"content":`, `"a"`, `"ab"`, `}}],"timings":{"cache_n":`, `7`, `-12`, `,"prompt_n":2,"predicted_n":0,"more":null}}`)
	f.Fuzz(func(t *testing.T, head, text1, text2, middle, timings1, timings2, tail string) {
		one, two := head+text1+middle+timings1+tail, head+text2+middle+timings2+tail
		for _, a := range []api{apiChat, apiCompletion, apiNative} {
			var c chunk
			var figures, exact figures
			for _, data := range []string{one, two, one, head, two, two} {
				got, ok := seen(a, &c, &figures, data)
				want, valid := seen(a, new(chunk), &exact, data)
				if ok != valid || ok && (!reflect.DeepEqual(got, want) || figures != exact) {
					t.Fatalf("%q after %q:\ngot  %v %+v %+v\nwant %v %+v %+v", data, one, ok, got, figures, valid, want, exact)
				}
			}
		}
	})
}

func TestWordsOfAnAnswerAreCompared(t *testing.T) {
	var c chunk
	c.scan(apiChat, []byte(counted(content(" a"), 20, 7)))
	for _, next := range []string{counted(content(" longer"), 20, 8), counted(content(""), 20, 10)} {
		if !c.follow([]byte(next)) {
			t.Errorf("%s has all in common with the chunk before, and was not taken for that", next)
		}
	}
	for _, other := range []string{content(" a"), finishChunk("stop"), toolCall("x"), usageChunk(1, 2), counted(content(" a"), 20, 7) + "x"} {
		if c.follow([]byte(other)) {
			t.Errorf("%s was taken for one that has all in common with those before", other)
		}
	}
}
