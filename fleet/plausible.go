package fleet

import "time"

// saneMost is more than any count of lanes, requests or tokens of a server can be.
const saneMost = 1 << 40

// plausible makes what a node says of itself such that it can be reckoned with: what is no
// figure is unknown, and a moment that is yet to come is now. More generations than
// lanes is no nonsense: others may have more of them there than we were told.
func plausible(i Instance, now time.Time) Instance {
	i.Lanes, i.Context, i.Leaving = plausibleCount(i.Lanes), plausibleCount(i.Context), plausibleCount(i.Leaving)
	l := &i.Load
	l.Active, l.Queued, l.Ours = plausibleCount(l.Active), plausibleCount(l.Queued), plausibleCount(l.Ours)
	l.KVUsed, l.KVTotal = plausibleCount(l.KVUsed), plausibleCount(l.KVTotal)
	if l.At.After(now) {
		l.At = now
	}
	i.Rates.Prefill, i.Rates.Decode = plausibleRate(i.Rates.Prefill), plausibleRate(i.Rates.Decode)
	return i
}

func plausibleCount[T ~int | ~int64](n T) T {
	if n < 0 || int64(n) > saneMost {
		return 0
	}
	return n
}

func plausibleRate(rate float64) float64 {
	if !sane(rate) {
		return 0
	}
	return rate
}
