package fleet

import "math"

// Above so many instances, not all are scored but those with the most of the prompt
// and some that are drawn by what they can carry.
const (
	scoredWhole = 256
	scoredWarm  = 3
	scoredDrawn = 13
)

// sample chooses which of many instances are scored.
func (m *Manager) sample(w *waiter, q *query, able []candidate) []candidate {
	s := &m.scratch
	s.drawn = s.drawn[:0]
	top := [scoredWarm]int{-1, -1, -1}
	var highest float64
	for k := range able {
		highest = max(highest, q.carries(&able[k]))
		if able[k].cached == 0 {
			continue
		}
		for n, at := range top {
			if at < 0 || able[k].cached > able[at].cached {
				copy(top[n+1:], top[n:])
				top[n] = k
				break
			}
		}
	}
	for _, k := range top {
		if k >= 0 {
			s.drawn = append(s.drawn, able[k])
		}
	}
	r := mix(q.key, uint64(w.cursor))
	for tries := 0; len(s.drawn) < scoredWarm+scoredDrawn && tries < 8*scoredDrawn; tries++ {
		r = mix(r, uint64(tries))
		x := &able[r>>32%uint64(len(able))]
		if float64(r&math.MaxUint32)/math.MaxUint32*highest <= q.carries(x) {
			s.drawn = append(s.drawn, *x)
		}
	}
	if len(s.drawn) == 0 {
		return able[:1]
	}
	return s.drawn
}

// carries is how many tokens/s the instance writes with all lanes.
func (q *query) carries(x *candidate) float64 {
	s := x.speed.or(q.typical)
	n := min(x.lanes(), most)
	return float64(n) / s.step(n)
}
