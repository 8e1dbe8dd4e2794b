package llamacpp

import (
	"math"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

func ended(read, wrote int64, prefill, decode float64) slotlog.Detail {
	return slotlog.Detail{Last: &slotlog.RequestRecord{
		PromptProcessed: &read, Generated: &wrote, PrefillRate: &prefill, Rate: &decode,
	}}
}

func TestSpeedsAreReadFromTheLog(t *testing.T) {
	for name, tt := range map[string]struct {
		details []slotlog.Detail
		want    fleet.Rates
	}{
		"no task ended":      {[]slotlog.Detail{{}}, fleet.Rates{}},
		"one":                {[]slotlog.Detail{ended(1000, 200, 500, 25)}, fleet.Rates{Prefill: 500, Decode: 25}},
		"by their tokens":    {[]slotlog.Detail{ended(1000, 100, 500, 10), ended(3000, 300, 1500, 30)}, fleet.Rates{Prefill: 1000, Decode: 20}},
		"too little to tell": {[]slotlog.Detail{ended(63, 15, 9, 900), ended(64, 16, 500, 25)}, fleet.Rates{Prefill: 500, Decode: 25}},
		"no figures":         {[]slotlog.Detail{{Last: &slotlog.RequestRecord{}}, ended(1000, 200, 0, 0)}, fleet.Rates{}},
	} {
		got := logRates(tt.details)
		if math.Abs(got.Prefill-tt.want.Prefill) > 1e-9 || math.Abs(got.Decode-tt.want.Decode) > 1e-9 {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// Each task that ends corrects what is known, whoever asked for it.
func TestSpeedsFollowTheLog(t *testing.T) {
	at := time.Unix(1000, 0)
	s := slotlog.Snapshot{LookedAt: at, Ports: []slotlog.PortState{{Port: 1}}}
	var i fleet.Instance
	for _, rate := range []float64{500, 700, 300} {
		s.Ports[0].Details = []slotlog.Detail{ended(1000, 200, rate, rate/20)}
		addLoad(&i, s, "8080", 0)
		if i.Rates != (fleet.Rates{Prefill: rate, Decode: rate / 20}) {
			t.Errorf("got %+v, want %v and %v", i.Rates, rate, rate/20)
		}
	}
}
