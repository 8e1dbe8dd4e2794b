package fleet

import "testing"

func TestSpeedsAreLearnedFromAnswers(t *testing.T) {
	i := &instance{node: &node{}}
	for _, c := range []struct {
		timings Timings
		want    Rates
	}{
		{Timings{Prompt: 10, PromptPerSecond: 5, Predicted: 3, PredictedPerSecond: 900}, Rates{}},
		{Timings{Prompt: 100, PromptPerSecond: 800, Predicted: 100, PredictedPerSecond: 40}, Rates{800, 40}},
		{Timings{Prompt: 100, PromptPerSecond: 400, Predicted: 100, PredictedPerSecond: 80}, Rates{700, 50}},
		{Timings{Prompt: 100, PromptPerSecond: 1e300, Predicted: 100, PredictedPerSecond: -1}, Rates{700, 50}},
	} {
		i.measure(NodeSpec{}, c.timings)
		if i.Rates != c.want {
			t.Errorf("after %+v: got %+v, want %+v", c.timings, i.Rates, c.want)
		}
	}
}
