package fleet

import (
	"cmp"
	"slices"
	"time"
)

// QueueStatus is who waits for a lane. Times are in seconds.
type QueueStatus struct {
	Waiting int   `json:"waiting"`
	Moving  int   `json:"moving"` // of them, those whose answers are read already
	Bytes   int64 `json:"bytes"`  // of their bodies

	LimitRequests int   `json:"limit_requests,omitempty"` // of the policy in force
	LimitBytes    int64 `json:"limit_bytes,omitempty"`

	Oldest *float64 `json:"oldest_seconds,omitempty"`

	Classes []QueueClass `json:"classes"` // those in which somebody waits, the highest first
	Models  []QueueModel `json:"models"`
}

// QueueClass is who waits in one class. Those that move are in none.
type QueueClass struct {
	Class   int     `json:"class"`
	Waiting int     `json:"waiting"`
	Tenants int     `json:"tenants"`
	Oldest  float64 `json:"oldest_seconds"`
}

// QueueModel is who waits for one model.
type QueueModel struct {
	Model   string `json:"model"` // as it is served; empty: no node that is known serves it
	Waiting int    `json:"waiting"`

	// EstimatedWait is how long one that comes now would wait; absent while nothing is
	// known of how long lanes are held.
	EstimatedWait *float64 `json:"estimated_wait_seconds,omitempty"`
}

// Queue returns who waits for a lane.
func (m *Manager) Queue() QueueStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queue
	s := QueueStatus{Waiting: q.len, Moving: q.moving, Bytes: q.bytes, Classes: []QueueClass{}, Models: []QueueModel{}}
	a := m.inForce()
	if a != nil {
		s.LimitRequests, s.LimitBytes = a.Waiting, a.WaitingBytes
	}
	var since [classMoving + 1]time.Time
	waiting := make(map[string]int)
	for kind, k := range q.kinds {
		for class, l := range k.lines {
			if l == nil {
				continue
			}
			if at := l.oldest().stands.since; since[class].IsZero() || at.Before(since[class]) {
				since[class] = at
			}
			waiting[m.served(a, kind.model)] += l.waiting.Len()
		}
	}
	now := time.Now()
	for class := classMoving; class >= 0; class-- {
		if since[class].IsZero() {
			continue
		}
		age := now.Sub(since[class]).Seconds()
		s.Oldest = new(max(age, value(s.Oldest)))
		if class < classMoving {
			s.Classes = append(s.Classes, QueueClass{class, q.classes[class].waiting, q.classes[class].busy(), age})
		}
	}
	for model, n := range waiting {
		x := QueueModel{Model: model, Waiting: n}
		if wait, ok := m.estimate(a, model, n); ok && model != "" {
			x.EstimatedWait = new(wait.Seconds())
		}
		s.Models = append(s.Models, x)
	}
	slices.SortFunc(s.Models, func(a, b QueueModel) int { return cmp.Compare(a.Model, b.Model) })
	return s
}

// busy is how many tenants wait in the class.
func (c *class) busy() (n int) {
	for _, t := range c.tenants {
		if len(t.flows) > 0 {
			n++
		}
	}
	return n
}

func value(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// served is the name under which a model is served that a client asked for; empty: none.
func (m *Manager) served(a *Applied, model string) string {
	if a == nil {
		return ""
	}
	return m.roster(a, model).model
}
