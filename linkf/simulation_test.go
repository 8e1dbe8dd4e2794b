package linkf

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// play runs one schedule.
func play(pick choices, steps int) error {
	w := newWorld(pick)
	for i := 0; i < steps && w.failed == nil; i++ {
		w.step()
	}
	if w.failed == nil {
		w.rest()
	}
	return w.failed
}

// TestNothingIsLostRepeatedOrLeftUnderAnySchedule runs many schedules. A failure names
// the seed of its schedule; LINKF_SEED runs that one alone.
func TestNothingIsLostRepeatedOrLeftUnderAnySchedule(t *testing.T) {
	if s := os.Getenv("LINKF_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := play(rand.New(rand.NewPCG(seed, 0)), 60); err != nil {
			t.Fatal(err)
		}
		return
	}
	schedules := uint64(100_000)
	if testing.Short() {
		schedules = 2_000
	}
	var wg sync.WaitGroup
	var played atomic.Uint64
	failures := make(chan string, runtime.GOMAXPROCS(0))
	end := time.Now().Add(time.Minute)
	for range cap(failures) {
		wg.Go(func() {
			for len(failures) == 0 && time.Now().Before(end) {
				seed := played.Add(1) - 1
				if seed >= schedules {
					return
				}
				if err := play(rand.New(rand.NewPCG(seed, 0)), 60); err != nil {
					failures <- fmt.Sprintf("LINKF_SEED=%d: %v", seed, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	t.Logf("%d of %d schedules", min(played.Load(), schedules), schedules)
}

// drawn takes choices from rapid, which makes a schedule that fails as short as it can.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

func TestScheduleThatFailsIsMadeShort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if err := play(drawn{rt}, rapid.IntRange(0, 100).Draw(rt, "steps")); err != nil {
			rt.Fatal(err)
		}
	})
}

func FuzzSchedule(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		if err := play(rand.New(rand.NewPCG(seed, 1)), int(steps)); err != nil {
			t.Fatal(err)
		}
	})
}
