package slotlog

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestColumnsSayWhatAnyOtherWidthSays reads readouts in columns, some with a byte that
// is out of place, and the same with a blank more, which no column allows.
func TestColumnsSayWhatAnyOtherWidthSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 1200000).Draw(t, "tokens")
		rate := rapid.Float64Range(0, 120000).Draw(t, "rate")
		mean := rapid.Float64Range(0, 1200).Draw(t, "mean")
		line := fmt.Sprintf("       eval time = %10.2f ms / %5d tokens (%8.2f ms per token, %8.2f tokens per second)", rate, tokens, mean, rate)
		wide := fmt.Sprintf("       eval time = %10.2f ms /  %5d tokens (%8.2f ms per token,  %8.2f tokens per second)", rate, tokens, mean, rate)
		if rapid.Bool().Draw(t, "running") {
			line = fmt.Sprintf("n_gen = %6d, tg = %6.2f t/s, tg_3s = %6.2f t/s", tokens, mean, rate)
			wide = fmt.Sprintf("n_gen =  %6d, tg =  %6.2f t/s, tg_3s =  %6.2f t/s", tokens, mean, rate)
		}
		e, want := Event{Task: 1}, Event{Task: 1}
		e.read([]byte(line))
		want.read([]byte(wide))
		if e != want || want.Kind == KindFrame {
			t.Fatalf("%q:\n got %+v\nwant %+v", line, e, want)
		}
	})
}

func TestColumnWithAByteOutOfPlaceIsNoFigure(t *testing.T) {
	for _, text := range []string{
		"        ", "     .00", "    17 0", "  1 7.00", "1234.567", "  177.0 ", "   1!.00", "   -1.00", "     nan", "   17,00",
		"   17.x0", "   \x107.00", "   \xb07.00",
	} {
		if n, ok := hundredths(eight([]byte(text), 0)); ok {
			t.Errorf("%q: got %v, want no figure", text, n)
		}
	}
	for text, want := range map[string]float64{"    0.00": 0, "12345.67": 12345.67, "   20.05": 20.05, "    7.10": 7.1} {
		if n, ok := hundredths(eight([]byte(text), 0)); !ok || n != want {
			t.Errorf("%q: got %v %t, want %v", text, n, ok, want)
		}
	}
}
