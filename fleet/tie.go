package fleet

import (
	"math"
	"slices"
)

// among returns the candidate, of those that cost no more than most, that taught
// least so far, and of these the one that the key prefers. A request of which nobody
// holds anything goes where it drives least out of the cache.
func (m *Manager) among(q *query, able []candidate, most float64) int {
	best, high, least := 0, uint64(0), math.Inf(1)
	fresh := false
	anew := !slices.ContainsFunc(able, func(x candidate) bool { return x.cached > 0 })
	for k, cost := range m.scratch.costs {
		if cost > most {
			continue
		}
		i := able[k].instance
		new, filled := i.speed.answers == 0, 0.0
		if anew {
			filled = m.filled(i)
		}
		if fresh && !new || new == fresh && filled > least {
			continue
		}
		if h := mix(q.key, i.seed) | 1; h > high || new && !fresh || filled < least {
			best, high, least, fresh = k, h, filled, new
		}
	}
	return best
}

// filled is the share of the instance's cache that is in use, as far as is known.
func (m *Manager) filled(i *instance) float64 {
	return float64(m.warm.index.instances[m.warmID(i)].held) / float64(max(1, i.cacheBlocks()))
}

// tieKey is the same for the turns of a conversation. Requests without one spread.
func tieKey(w *waiter) uint64 {
	switch {
	case w.Session != "":
		return hash(w.Session)
	case len(w.Blocks) > 0:
		return w.Blocks[0]
	default:
		return uint64(w.cursor)
	}
}

// hash is FNV-1a: the same in every process, so that several edges agree.
func hash(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// mix makes one well-spread number of two.
func mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 ^ b
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// rotate lets the list begin at another place each turn.
func rotate(able []candidate, turn int) {
	at := turn % max(1, len(able))
	slices.Reverse(able[:at])
	slices.Reverse(able[at:])
	slices.Reverse(able)
}
