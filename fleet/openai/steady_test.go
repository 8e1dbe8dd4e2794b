package openai

import (
	"reflect"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

// both is a request twice; one of its jobs goes the whole way with every event.
type both struct {
	short, long *Job
	steady      int // events that the other one did not
}

func newBoth(t testing.TB, path, body string, o Options) *both {
	return &both{short: mustParse(t, path, body, o), long: mustParse(t, path, body, o)}
}

// begins reports whether there is another attempt, and has both begin it.
func (b *both) begins(t testing.TB) bool {
	t.Helper()
	_, err := b.short.Request(modernNode)
	if _, want := b.long.Request(modernNode); (err == nil) != (want == nil) {
		t.Fatalf("got %v, want %v", err, want)
	}
	return err == nil
}

// take has both take an event, and asks that it makes no difference.
func (b *both) take(t testing.TB, ev fleet.Event, delivered bool) {
	t.Helper()
	before := b.short.relay.steady.on
	b.long.relay.steady = steady{}
	got, err := b.short.Take(ev)
	want, wantErr := b.long.Take(ev)
	if string(got) != string(want) || !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("%s: got %q, %v, want %q, %v", ev.Data, got, err, want, wantErr)
	}
	if delivered && len(got) > 0 {
		b.short.Delivered()
		b.long.Delivered()
	}
	s, l := &b.short.relay, &b.long.relay
	if before && s.chunk.stale {
		b.steady++
	}
	for name, pair := range map[string][2]any{
		"now":     {s.now, l.now},
		"done":    {s.done, l.done},
		"choices": {s.choices, l.choices},
		"figures": {s.cur, l.cur},
		"size":    {s.size, l.size},
		"begun":   {s.begun, l.begun},
		"taken":   {s.taken, l.taken},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Fatalf("%s after %s:\ngot  %+v\nwant %+v", name, ev.Data, pair[0], pair[1])
		}
	}
}

func TestSteadyEventsOfRecordedStreams(t *testing.T) {
	steady := 0
	for _, e := range captures(t) {
		if !e.streams() {
			continue
		}
		for _, o := range []Options{{}, {Resume: ResumeOff}} {
			path := e.Request.Path
			if _, err := Parse(path, []byte(e.Request.Body), o); err != nil {
				continue // of no path that generates
			}
			b := newBoth(t, path, e.Request.Body, o)
			for range 2 {
				if !b.begins(t) {
					break
				}
				for i, p := range e.events() {
					b.take(t, fleet.Event{Kind: fleet.EventData, Data: []byte(p)}, i%11 != 10)
				}
			}
			steady += b.steady
		}
	}
	if steady < 1000 {
		t.Errorf("only %d events were taken the short way", steady)
	}
}

// Whatever differs between events: to take the short way changes neither what goes out
// nor what is kept.
func FuzzSteady(f *testing.F) {
	f.Add(uint64(0), `{"choices":[{"finish_reason":null,"index":0,"delta":{"content":`, `"a"`, `"\"longer\n"`, `}}],"id":"x","timings":`, `{"predicted_n":1}`, `{"predicted_n":12}`, `,"model":"m"}`)
	f.Add(uint64(1), `{"id":"x","choices":[{"index":1,"delta":{"reasoning_content":`, `"a"`, `""`, `,"content":null}}],"created":1`, ``, ``, `,"model":"m"}`)
	f.Add(uint64(2), `{"choices":[{"text":`, `"a"`, `null`, `,"index":0,"logprobs":null}],"id":"a","timings":`, `{}`, `null`, `}`)
	f.Add(uint64(3), `{"timings":{"predicted_n":2},"id":"", "choices":[{"delta":{"content":`, `"a"`, `"b"`, `}}],"usage":`, `null`, `1`, `}`)
	f.Add(uint64(5), `{"choices":[{"delta":{"content":`, `"\ud83d"`, `"\ude00"`, "}}],\n\"id\":\"x\",\"timings\":", `{}`, `{"predicted_n":-1}`, ` }`)
	f.Add(uint64(77), `{"id":"x","choices":[{"delta":{"content":`, `"a"`, `"ab"`, `}}],"timings":{"cache_n":1,"prompt_n":2,"predicted_n":3`, `,"prompt_ms":1.5,"predicted_ms":`, `9,"prompt_ms":12,"predicted_ms":1e`, `1},"id":"x"}`)
	f.Fuzz(func(t *testing.T, how uint64, head, text1, text2, middle, timings1, timings2, tail string) {
		one, two := head+text1+middle+timings1+tail, head+text2+middle+timings2+tail
		three := head + text2 + middle + timings1 + tail
		q := fuzzed[how%uint64(len(fuzzed))]
		b := newBoth(t, q[0], q[1], Options{Resume: Resume(how >> 5 % 3)})
		var told *fleet.Timings
		if how>>7%2 == 1 {
			told = &fleet.Timings{Predicted: 7}
		}
		for k := range 2 {
			if !b.begins(t) {
				return
			}
			for i, data := range []string{one, two, three, one, two, head, three, three, two} {
				b.take(t, fleet.Event{Kind: fleet.EventData, Data: []byte(data), Timings: told}, how>>(8+9*k+i)%2 == 0)
			}
		}
	})
}
