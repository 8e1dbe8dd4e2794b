package llamacpp

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestFiguresEqualThoseOfAnObjectDecoder(t *testing.T) {
	seen := 0
	for name, body := range streams(t) {
		events, err := frames(&pieces{[]byte(body), []int{1 << 20}}, maxEvent)
		if err != nil {
			t.Fatal(err)
		}
		var all figures // of the stream, one payload after the other
		late := figures{late: true}
		for _, e := range events {
			var p struct {
				Timings *struct {
					Cache     fleet.Tokens `json:"cache_n"`
					Prompt    fleet.Tokens `json:"prompt_n"`
					Predicted fleet.Tokens `json:"predicted_n"`
					Prefill   float64      `json:"prompt_per_second"`
					Decode    float64      `json:"predicted_per_second"`
				} `json:"timings"`
				Progress *struct {
					Total     fleet.Tokens `json:"total"`
					Cache     fleet.Tokens `json:"cache"`
					Processed fleet.Tokens `json:"processed"`
				} `json:"prompt_progress"`
			}
			_ = json.Unmarshal([]byte(e.Data), &p)
			var f figures
			timings, progress := f.read([]byte(e.Data))
			following, _ := all.read([]byte(e.Data))
			if late.read([]byte(e.Data)); timings != nil {
				if last, ok := late.last(); !ok || last != *timings {
					t.Errorf("%s: %s\nthe last timings are %+v, want %+v", name, e.Data, last, *timings)
				}
			}
			var wantT *fleet.Timings
			var wantP *fleet.Progress
			if p.Timings != nil {
				wantT = &fleet.Timings{
					Cached: p.Timings.Cache, Prompt: p.Timings.Prompt, Predicted: p.Timings.Predicted,
					PromptPerSecond: p.Timings.Prefill, PredictedPerSecond: p.Timings.Decode,
				}
				seen++
			}
			if p.Progress != nil {
				wantP = &fleet.Progress{Total: p.Progress.Total, Cached: p.Progress.Cache, Processed: p.Progress.Processed}
				seen++
			}
			if d := cmp.Diff(wantT, timings) + cmp.Diff(wantT, following) + cmp.Diff(wantP, progress); d != "" {
				t.Errorf("%s: %s\n(-want +got):\n%s", name, e.Data, d)
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d figures in the recordings, want more", seen)
	}
}

// oddPayloads are no chunks as servers send them, and what figures they have.
var oddPayloads = []struct {
	name, in string
	timings  *fleet.Timings
	progress *fleet.Progress
}{
	{"quoted by the model", `{"content":"\"timings\":{\"cache_n\":1} \"prompt_progress\":{"}`, nil, nil},
	{"null", `{"timings":null,"prompt_progress":null}`, nil, nil},
	{
		"null numbers", `{"timings":{"cache_n":null,"prompt_n":5,"prompt_per_second":null,"predicted_n":2}}`,
		&fleet.Timings{Prompt: 5, Predicted: 2}, nil,
	},
	{
		"stale beside progress", `{"prompt_progress":{"total":9,"cache":3,"processed":4,"time_ms":1},"timings":{"prompt_n":5}}`,
		nil, &fleet.Progress{Total: 9, Cached: 3, Processed: 4},
	},
	{
		"stale before progress", `{"timings":{"prompt_n":5},"prompt_progress":{"total":9,"cache":3,"processed":4}}`,
		nil, &fleet.Progress{Total: 9, Cached: 3, Processed: 4},
	},
	{
		"exponents, unknown and wrong ones", `{"timings":{"x":true,"predicted_per_second":1.5e+2,"prompt_n":-3,"cache_n":1.5,"prompt_per_second":-2}}`,
		&fleet.Timings{PredictedPerSecond: 150}, nil,
	},
	{"a nested one ends it", `{"timings":{"prompt_n":5,"more":{"cache_n":3}}}`, &fleet.Timings{Prompt: 5}, nil},
	{"spaces", `{"timings":{ "prompt_n" : 5 , "cache_n":3 }}`, &fleet.Timings{Prompt: 5, Cached: 3}, nil},
	{"torn", `{"timings":{"prompt_n":5,"cach`, &fleet.Timings{Prompt: 5}, nil},
	{"too many digits", `{"timings":{"prompt_n":99999999999999999999,"prompt_per_second":1e999}}`, &fleet.Timings{}, nil},
	{"half of what came before", `{"timings":{"prompt_n":5,"prompt_per_second":7.5}}`, &fleet.Timings{Prompt: 5, PromptPerSecond: 7.5}, nil},
	{"more than came before", `{"timings":{"prompt_n":6,"prompt_per_second":7.5,"predicted_n":3}}`, &fleet.Timings{Prompt: 6, PromptPerSecond: 7.5, Predicted: 3}, nil},
	{"the same with another speed", `{"timings":{"prompt_n":6,"prompt_per_second":8,"predicted_n":14}}`, &fleet.Timings{Prompt: 6, PromptPerSecond: 8, Predicted: 14}, nil},
	{"the same with a value that is none", `{"timings":{"prompt_n":6,"prompt_per_second":8,"predicted_n":"14"}}`, &fleet.Timings{Prompt: 6, PromptPerSecond: 8}, nil},
	{"the same, torn", `{"timings":{"prompt_n":6,"prompt_per_second":8,"predicted_n":14`, &fleet.Timings{Prompt: 6, PromptPerSecond: 8, Predicted: 14}, nil},
}

func TestFiguresOfOddPayloads(t *testing.T) {
	for _, tt := range oddPayloads {
		t.Run(tt.name, func(t *testing.T) {
			var f figures
			timings, progress := f.read([]byte(tt.in))
			if d := cmp.Diff(tt.timings, timings) + cmp.Diff(tt.progress, progress); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestFiguresDoNotDependOnThoseBefore(t *testing.T) {
	for _, first := range oddPayloads {
		for _, then := range oddPayloads {
			var f figures
			f.read([]byte(first.in))
			timings, progress := f.read([]byte(then.in))
			if d := cmp.Diff(then.timings, timings) + cmp.Diff(then.progress, progress); d != "" {
				t.Errorf("%s after %s (-want +got):\n%s", then.in, first.in, d)
			}
		}
	}
}
