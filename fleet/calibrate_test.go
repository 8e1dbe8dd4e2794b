package fleet

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func TestSpeedIsLearnedFromAnswers(t *testing.T) {
	for name, start := range map[string]Rates{
		"from nothing": {}, "from right": {2500, 70}, "from a tenth": {250, 7}, "from tenfold": {25000, 700},
	} {
		var e estimate
		e.start(start)
		for k := range 200 {
			running := float64(1 + k%4)
			e.read(1000, 1500, 0.6)
			e.wrote(running, 0.012+0.0012*running)
		}
		if !near(e.prefill, 2500, 0.02) || !near(e.step(1), 0.0132, 0.02) || !near(e.step(4), 0.0168, 0.02) {
			t.Errorf("%s: got %+v, want 2500 tokens/s, 0.012 s and 0.0012 s", name, e.speed)
		}
	}
}

func TestOneAnswerOutvotesTheConfiguration(t *testing.T) {
	var e estimate
	e.start(Rates{800, 20})
	e.read(1000, 1000, 1000/2400.)
	e.wrote(1, 1/60.)
	if !near(e.prefill, 2400, 0.2) || !near(1/e.step(1), 60, 0.2) {
		t.Errorf("got %.0f and %.1f tokens/s after one answer, want nearly 2400 and 60", e.prefill, 1/e.step(1))
	}
}

func TestOneWildAnswerMovesLittle(t *testing.T) {
	var e estimate
	for range 100 {
		e.read(1000, 1000, 1)
		e.wrote(2, 0.02)
	}
	before := e.speed
	e.read(1000, 1000, 900)
	e.wrote(2, 90)
	if e.prefill < before.prefill*0.9 || e.step(2) > before.step(2)*1.1 {
		t.Errorf("got %+v, want nearly %+v", e.speed, before)
	}
}

func TestStartDoesNotUndoWhatWasLearned(t *testing.T) {
	var e estimate
	e.read(1000, 1000, 1)
	e.start(Rates{5, 5})
	if e.prefill != 1000 {
		t.Errorf("got %.0f tokens/s, want 1000", e.prefill)
	}
}

func TestShortPromptsTellNoSpeed(t *testing.T) {
	var e estimate
	e.read(enoughCold-1, 5000, 1)
	if e.prefill != 0 || e.answers != 0 {
		t.Errorf("got %+v, want nothing learned", e)
	}
}

func TestSpeedStaysSaneWhateverItIsTold(t *testing.T) {
	figure := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, 1e12, math.Inf(1), math.NaN(), 128, 0.01}))
	rapid.Check(t, func(t *rapid.T) {
		var e estimate
		e.start(Rates{figure.Draw(t, "prefill"), figure.Draw(t, "decode")})
		for range rapid.IntRange(1, 30).Draw(t, "answers") {
			e.read(figure.Draw(t, "own"), figure.Draw(t, "tokens"), figure.Draw(t, "seconds"))
			e.wrote(figure.Draw(t, "running"), figure.Draw(t, "seconds"))
			if e.prefill != 0 && !sane(e.prefill) || e.base != 0 && !(e.step(1) > 0 && e.step(1) <= 2/slowest) || !(e.base >= 0 && e.slope >= 0) {
				t.Fatalf("got %+v, want speeds from %g to %g", e.speed, float64(slowest), float64(fastest))
			}
		}
	})
}

// Until an answer of ours told its timings, each new word of the node is what is known,
// and it outlives the log that told it.
func TestNodesWordIsTheSpeedUntilAnAnswerTells(t *testing.T) {
	m, a := calibrated(1, LowestCost)
	n := a.nodes[0]
	said := func(r Rates) {
		m.report(n, NodeState{Instances: []Instance{{Model: "m", State: StateReady, Lanes: 4, Rates: r}}})
	}
	want := func(what string, prefill float64) {
		t.Helper()
		if got := n.instances[0].speed.prefill; !near(got, prefill, 1e-9) {
			t.Errorf("%s: got %v tokens/s, want %v", what, got, prefill)
		}
	}
	said(Rates{Prefill: 500, Decode: 20})
	want("its first word", 500)
	said(Rates{Prefill: 800, Decode: 20})
	want("its next word", 800)
	said(Rates{})
	want("no word any more", 800)
	n.instances[0].speed.read(1000, 1000, 2.5)
	learned := n.instances[0].speed.prefill
	said(Rates{Prefill: 100, Decode: 20})
	want("after an answer of ours", learned)
}
