package fleet

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// The worked examples of the placement rules: the same numbers stand in
// docs/placement.md.

var placeNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// at makes the i-th node's candidate, with a load that was read a while ago.
func at(index int, age time.Duration, set func(*candidate)) candidate {
	c := candidate{instance: &instance{node: &node{index: index}, Instance: Instance{State: StateReady, Lanes: 8}}}
	c.Load.At = placeNow.Add(-age)
	if set != nil {
		set(&c)
	}
	return c
}

func order(c chooser, s shape, cand ...candidate) []int {
	var got []int
	for _, x := range c.rank(slices.Clone(cand), s) {
		got = append(got, x.node.index)
	}
	return got
}

func loadAware() chooser {
	return chooser{placement: LoadAware, poolHigh: 90, now: placeNow}
}

func wantOrder(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got order %v, want %v", what, got, want)
	}
}

func wantTime(t *testing.T, what string, x candidate, s shape, decode, prefill, want uint64) {
	t.Helper()
	if got := loadAware().time(x, s, decode, prefill); got != want {
		t.Errorf("%s: got %d ms, want %d ms", what, got, want)
	}
}

func TestNothingKnownIsATie(t *testing.T) {
	s := shape{prompt: 1000, out: 256}
	a, b := at(0, 0, nil), at(1, 0, nil)
	wantTime(t, "nominal speeds", a, s, 0, 0, 17800)
	wantOrder(t, "both idle", order(loadAware(), s, a, b), 0, 1)
	a.held, a.sessions = 1, 1
	wantOrder(t, "the first holds one", order(loadAware(), s, a, b), 1, 0)
	b.held, b.sessions = 1, 1
	wantOrder(t, "each holds one", order(loadAware(), s, a, b), 0, 1)
}

func TestFewerSessionsBreakATie(t *testing.T) {
	a := at(0, 0, func(c *candidate) { c.sessions = 1 })
	wantOrder(t, "equal times", order(loadAware(), shape{prompt: 1000, out: 256}, a, at(1, 0, nil)), 1, 0)
}

func TestBusyFastNodeAgainstOneThatNeverServed(t *testing.T) {
	s := shape{prompt: 2048, out: 512}
	a := at(0, 0, func(c *candidate) {
		c.Rates, c.Load.Active, c.Load.Queued, c.held = Rates{1200, 80}, 3, 1, 2
	})
	b := at(1, 0, nil)
	wantTime(t, "busy", a, s, 80, 1200, 46506)
	wantTime(t, "never served, at the pace of its peers", b, s, 80, 1200, 8106)
	wantOrder(t, "both", order(loadAware(), s, a, b), 1, 0)
}

func TestTypicalRateRoundsDown(t *testing.T) {
	s := shape{prompt: 700, out: 300}
	a := at(0, 0, func(c *candidate) { c.Rates, c.Load.Active = Rates{900, 37}, 1 })
	b := at(1, 0, func(c *candidate) { c.Rates.Decode, c.held = 50, 1 })
	d := at(2, 0, nil)
	wantTime(t, "first", a, s, 43, 900, 16993)
	wantTime(t, "second", b, s, 43, 900, 12777)
	wantTime(t, "third", d, s, 43, 900, 7753)
	wantOrder(t, "all", order(loadAware(), s, a, b, d), 2, 1, 0)
}

func TestOldLoadDoesNotCountButOwnLanesDo(t *testing.T) {
	s := shape{prompt: 600, out: 200}
	busy := func(c *candidate) {
		c.Rates, c.Load.Active, c.Load.Queued, c.held = Rates{900, 100}, 8, 4, 1
	}
	idle := at(1, 0, func(c *candidate) { c.Rates = Rates{400, 40} })
	wantTime(t, "12 s old", at(0, 12*time.Second, busy), s, 0, 0, 4666)
	wantTime(t, "9 s old", at(0, 9*time.Second, busy), s, 0, 0, 28666)
	wantTime(t, "idle", idle, s, 0, 0, 6500)
	wantOrder(t, "12 s old", order(loadAware(), s, at(0, 12*time.Second, busy), idle), 0, 1)
	wantOrder(t, "9 s old", order(loadAware(), s, at(0, 9*time.Second, busy), idle), 1, 0)
	wantOrder(t, "exactly 10 s old", order(loadAware(), s, at(0, 10*time.Second, busy), idle), 0, 1)
}

func TestPoolFilterAndContexts(t *testing.T) {
	pool := func(percent Tokens) func(*candidate) {
		return func(c *candidate) { c.Load.KVUsed, c.Load.KVTotal = percent*20, 2000 }
	}
	for _, c := range []struct {
		used Tokens
		hot  bool
	}{{1819, true}, {1800, true}, {1799, false}} {
		x := at(0, 0, func(x *candidate) { x.Load.KVUsed, x.Load.KVTotal = c.used, 2000 })
		got := order(loadAware(), shape{prompt: 1}, x, at(1, 0, pool(0)))
		if hot := len(got) == 1; hot != c.hot {
			t.Errorf("%d of 2000: got hot %v, want %v", c.used, hot, c.hot)
		}
	}

	h := at(0, 0, func(c *candidate) { c.Context, c.Rates = 4096, Rates{1500, 90}; pool(20)(c) })
	i := at(1, 0, func(c *candidate) {
		c.Context, c.Rates, c.Load.Active, c.held = 32768, Rates{700, 45}, 2, 1
		pool(95)(c)
	})
	j := at(2, 0, func(c *candidate) {
		c.Context, c.Rates, c.Load.Active = 32768, Rates{700, 45}, 1
		pool(95)(c)
	})
	s := shape{prompt: 8000, out: 500}
	wantTime(t, "narrow", h, s, 0, 0, 10888)
	wantTime(t, "busier", i, s, 0, 0, 55872)
	wantTime(t, "busy", j, s, 0, 0, 33650)
	wantOrder(t, "all that fit are hot", order(loadAware(), s, h, i, j), 0, 2, 1)
	cool := at(2, 0, func(c *candidate) { c.Instance = j.Instance; pool(80)(c) })
	wantOrder(t, "one that fits is cool", order(loadAware(), s, h, i, cool), 0, 2)
	wantOrder(t, "nothing fits, all are judged", order(loadAware(), shape{prompt: 40000, out: 500}, h, i, j), 0)
}

func TestWarmNodeGoesFirstWhileALaneIsFree(t *testing.T) {
	s := shape{prompt: 6000, out: 300}
	k := at(0, 0, func(c *candidate) { c.Rates, c.Load.Active, c.held = Rates{1000, 70}, 7, 7 })
	l := at(1, 0, func(c *candidate) { c.Rates = Rates{1000, 70} })
	wantTime(t, "warm", k, s, 0, 0, 70285)
	wantTime(t, "cold", l, s, 0, 0, 10285)
	s.warm = k.instance
	wantOrder(t, "7 of 8 lanes", order(loadAware(), s, k, l), 0, 1)
	k.held = 8
	wantOrder(t, "8 of 8 lanes", order(loadAware(), s, k, l), 1, 0)
	k.held = 7
	rr := chooser{placement: RoundRobin, cursor: 1, nodes: 2}
	wantOrder(t, "round robin does not care", order(rr, s, k, l), 1, 0)
}

func TestResumeHasNoQueueTerm(t *testing.T) {
	s := shape{prompt: 2048}
	a := at(0, 0, func(c *candidate) { c.Rates, c.Load.Active, c.held, c.sessions = Rates{1200, 80}, 3, 2, 2 })
	wantTime(t, "busy", a, s, 80, 1200, 1706)
	wantOrder(t, "sessions decide", order(loadAware(), s, a, at(1, 0, nil)), 1, 0)
}

func TestRoundRobinKeepsThePlaceOfNodesThatAreDown(t *testing.T) {
	rr := chooser{placement: RoundRobin, cursor: 4, nodes: 3}
	a, b, c := at(0, 0, nil), at(1, 0, nil), at(2, 0, nil)
	wantOrder(t, "all up", order(rr, shape{}, a, b, c), 1, 2, 0)
	wantOrder(t, "the second is down", order(rr, shape{}, a, c), 2, 0)
	rr.cursor = 5
	wantOrder(t, "the next request", order(rr, shape{}, a, c), 2, 0)
}

func TestLeastLoadedCountsRecordsAndOpenGenerations(t *testing.T) {
	ll := chooser{placement: LeastLoaded, now: placeNow}
	a := at(0, 0, func(c *candidate) { c.sessions, c.held = 1, 1 })
	b := at(1, 0, func(c *candidate) { c.sessions = 1 })
	wantOrder(t, "a open, b ended", order(ll, shape{prompt: 9999}, a, b), 1, 0)
	wantOrder(t, "equal", order(ll, shape{}, at(0, 0, nil), at(1, 0, nil)), 0, 1)
}

func TestHugeFiguresStopAtTheLargestNumber(t *testing.T) {
	x := at(0, 0, func(c *candidate) { c.Load.Queued = 1 << 40 })
	if got := loadAware().time(x, shape{prompt: 1 << 62, out: 1 << 62}, 0, 0); got < 1<<58 {
		t.Errorf("got %d ms, want a number near the largest", got)
	}
}

func BenchmarkRank(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var all []candidate
			for i := range n {
				all = append(all, at(i, 0, func(c *candidate) { c.held = i % 5; c.Rates = Rates{900, float64(30 + i%7)} }))
			}
			scratch := make([]candidate, n)
			b.ReportAllocs()
			for b.Loop() {
				copy(scratch, all)
				loadAware().rank(scratch, shape{prompt: 1000, out: 256})
			}
		})
	}
}
