package fleet

import (
	"testing"
	"time"
)

func TestPatienceFollowsTheMeasuredSpeed(t *testing.T) {
	ready := Instance{State: StateReady, Lanes: 2}
	fast, slow := ready, ready
	fast.Rates.Prefill, slow.Rates.Prefill = 2000, 100
	loading := ready
	loading.State = StateLoading
	now := time.Now()
	full := ready
	full.Load.Active, full.Load.At = 2, now
	once := full
	once.Load.At = now.Add(-time.Minute)
	for _, c := range []struct {
		name   string
		i      Instance
		others int
		stall  time.Duration
		want   Patience
	}{
		{"unknown", ready, 0, 0, Patience{120 * time.Second, 120 * time.Second}},
		{"fast", fast, 1, 0, Patience{20 * time.Second, 15 * time.Second}},
		{"slow", slow, 0, 0, Patience{161440 * time.Millisecond, 61440 * time.Millisecond}},
		{"configured", ready, 0, time.Second, Patience{time.Second, time.Second}},
		{"no free lane of ours", fast, 2, 0, Patience{0, 15 * time.Second}},
		{"no free lane at all", full, 0, 0, Patience{0, 120 * time.Second}},
		{"full a while ago", once, 0, 0, Patience{120 * time.Second, 120 * time.Second}},
		{"loading", loading, 0, 0, Patience{0, 120 * time.Second}},
	} {
		if got := patience(&c.i, c.others, 10000, c.stall, now); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}
