package fleet

import (
	"math"
	"slices"
)

// Choice is one candidate of a placement, and what it would have cost.
type Choice struct {
	Node  string  `json:"node"`
	Cost  float64 `json:"cost"`  // seconds
	Terms Terms   `json:"terms"` // that add up to it
}

// shown is how many candidates of a decision are kept for who asks why.
const shown = 4

// choices are the candidates of a decision, the chosen one first, then those that
// cost least.
type choices [shown]Choice

// explain keeps why best was chosen.
func (m *Manager) explain(w *waiter, q *query, able []candidate, best int) {
	s := &m.scratch
	w.lane.choices = choices{}
	at := [shown]int{best, -1, -1, -1}
	for k := range able {
		for n := 1; n < shown && k != best && !math.IsInf(s.costs[k], 1); n++ {
			if at[n] < 0 || s.costs[k] < s.costs[at[n]] {
				copy(at[n+1:], at[n:])
				at[n] = k
				break
			}
		}
	}
	for n, k := range at {
		if k >= 0 {
			o := m.outlook(w, q, &able[k])
			w.lane.choices[n] = Choice{Node: able[k].Node, Cost: s.costs[k], Terms: o.cost()}
		}
	}
}

// placement are the candidates of the session's last placement and their costs, the
// chosen one first, then those that cost least; none where lowest_cost did not decide.
// It is called under the manager's mutex.
func (s *Session) placement() []Choice {
	if s.claim == nil {
		return nil
	}
	made := slices.IndexFunc(s.claim.choices[:], func(c Choice) bool { return c.Node == "" })
	if made < 0 {
		made = shown
	}
	return slices.Clone(s.claim.choices[:made])
}
