package fleet

import "time"

// saneMost is more than any count of lanes, requests or tokens of a server can be.
const saneMost = 1 << 40

// fastest is a speed in tokens per second that no server has.
const fastest = 1e6

// sane makes what a node says of itself such that it can be reckoned with: what is no
// figure is unknown, and a moment that is yet to come is now. More generations than
// lanes is no nonsense: others may have more of them there than we were told.
func sane(i Instance, now time.Time) Instance {
	i.Lanes, i.Context = count(i.Lanes), count(i.Context)
	l := &i.Load
	l.Active, l.Queued, l.Ours = count(l.Active), count(l.Queued), count(l.Ours)
	l.KVUsed, l.KVTotal = count(l.KVUsed), count(l.KVTotal)
	if l.At.After(now) {
		l.At = now
	}
	i.Rates.Prefill, i.Rates.Decode = speed(i.Rates.Prefill), speed(i.Rates.Decode)
	return i
}

func count[T ~int | ~int64](n T) T {
	if n < 0 || int64(n) > saneMost {
		return 0
	}
	return n
}

func speed(rate float64) float64 {
	if !(rate > 0 && rate < fastest) { // NaN is neither
		return 0
	}
	return rate
}
