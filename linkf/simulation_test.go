package linkf

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
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

var (
	manySchedules = flag.Uint64("schedules", 100_000, "how many TestNothingIsLostRepeatedOrLeftUnderAnySchedule plays")
	oneSchedule   = flag.Int64("seed", -1, "the one schedule that it plays")
)

var raced bool // set where the race detector is built in

// stepsOfASchedule is its length before everything is let come to its end.
const stepsOfASchedule = 60

// TestNothingIsLostRepeatedOrLeftUnderAnySchedule plays many schedules. A failure names
// the seed of its schedule.
func TestNothingIsLostRepeatedOrLeftUnderAnySchedule(t *testing.T) {
	if *oneSchedule >= 0 {
		if err := play(rand.New(rand.NewPCG(uint64(*oneSchedule), 0)), stepsOfASchedule); err != nil {
			t.Fatal(err)
		}
		return
	}
	schedules, limit := *manySchedules, time.Minute
	if testing.Short() || raced && schedules == 100_000 {
		schedules = 2_000
	} else if schedules > 100_000 {
		limit = time.Hour // that many were asked for
	}
	var wg sync.WaitGroup
	var played atomic.Uint64
	failures := make(chan string, runtime.GOMAXPROCS(0))
	end := time.Now().Add(limit)
	for range cap(failures) {
		wg.Go(func() {
			for len(failures) == 0 && time.Now().Before(end) {
				seed := played.Add(1) - 1
				if seed >= schedules {
					return
				}
				if err := play(rand.New(rand.NewPCG(seed, 0)), stepsOfASchedule); err != nil {
					failures <- fmt.Sprintf("go test ./linkf -run '%s' -args -seed %d: %v", t.Name(), seed, err)
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

// given takes choices from bytes, which a fuzzer can make more of.
type given []byte

func (g *given) IntN(n int) int {
	v := 0
	for most := 1; most < n && len(*g) > 0; most <<= 8 {
		v = v<<8 | int((*g)[0])
		*g = (*g)[1:]
	}
	return v % n
}

func FuzzSchedule(f *testing.F) {
	for seed := range 20 {
		b := make([]byte, 300)
		for i, r := 0, rand.New(rand.NewPCG(uint64(seed), 2)); i < len(b); i++ {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		if len(choices) > 2000 {
			return
		}
		if err := play((*given)(&choices), len(choices)/2); err != nil {
			t.Fatal(err)
		}
	})
}
