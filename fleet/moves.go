package fleet

import "time"

// The bound on moves: when all nodes fail, or one thing makes them fail, requests that
// are sent on and on only add to the trouble.
const (
	movesWindow = time.Minute

	// movesLeast is how many moves in the window are always allowed: several small nodes
	// may die in a minute, and who came once must not lose for that.
	movesLeast = 256
)

// counts has what happened in each second of the last minute.
type counts struct {
	second int64 // Unix time of the newest
	per    [int(movesWindow / time.Second)]int
	sum    int
}

func (c *counts) add(now time.Time, n int) {
	c.forget(now)
	c.per[c.second%int64(len(c.per))] += n
	c.sum += n
}

// total is what was counted in the last minute.
func (c *counts) total(now time.Time) int {
	c.forget(now)
	return c.sum
}

// forget drops what is too old. A clock that went back drops nothing.
func (c *counts) forget(now time.Time) {
	s := now.Unix()
	if s-c.second >= int64(len(c.per)) {
		*c = counts{second: s}
		return
	}
	for c.second < s {
		c.second++
		at := &c.per[c.second%int64(len(c.per))]
		c.sum -= *at
		*at = 0
	}
}

// mayMove counts a request that was lost and wants to go on elsewhere, and reports
// whether it may: while in the last minute not more did than a share of the requests
// that came, and one whole node's worth besides.
func (m *Manager) mayMove(a *Applied) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	whole := 0
	for _, n := range a.nodes {
		lanes := 0
		for _, i := range n.instances {
			lanes += i.lanes()
		}
		whole = max(whole, lanes)
	}
	if m.moved.total(now) >= max(whole, movesLeast)+m.came.total(now)*a.Moves/100 {
		return false
	}
	m.moved.add(now, 1)
	return true
}
