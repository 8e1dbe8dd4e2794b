package caddymodule

import (
	"slices"
	"sync"
	"time"
)

// usage is what a key has used up.
type usage struct {
	mu      sync.Mutex
	running int
	begun   []time.Time // the requests of the last minute, oldest first
}

// quota is what is left to a key with a limit for each minute.
type quota struct {
	limit, left int
	renewed     time.Duration // until all of it is there again
}

// excess says which limit a request met.
type excess struct {
	concurrent bool          // else the one for each minute
	again      time.Duration // when the next one may begin; 0: when another one ended
}

// begin counts a request and says what is left, or why it may not begin. One that may
// needs an end.
func (u *usage) begin(now time.Time, concurrent, perMinute int) (quota, *excess) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(now)
	q := quota{limit: perMinute}
	if perMinute > 0 && len(u.begun) >= perMinute {
		// The limit may have been lowered: then more than one has to grow old.
		oldest := u.begun[len(u.begun)-perMinute]
		q.renewed = u.renewed(now)
		return q, &excess{again: oldest.Add(time.Minute).Sub(now)}
	}
	q.left = max(0, perMinute-len(u.begun))
	if concurrent > 0 && u.running >= concurrent {
		q.renewed = u.renewed(now)
		return q, &excess{concurrent: true}
	}
	u.running++
	if perMinute > 0 {
		u.begun = append(u.begun, now)
		q.left--
		q.renewed = u.renewed(now)
	}
	return q, nil
}

func (u *usage) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running--
}

// forget drops what is a minute old.
func (u *usage) forget(now time.Time) {
	old, _ := slices.BinarySearchFunc(u.begun, now.Add(-time.Minute), func(t, limit time.Time) int {
		if t.After(limit) {
			return 1
		}
		return -1
	})
	if u.begun = u.begun[old:]; len(u.begun) == 0 {
		u.begun = nil
	}
}

func (u *usage) renewed(now time.Time) time.Duration {
	if len(u.begun) == 0 {
		return 0
	}
	return u.begun[len(u.begun)-1].Add(time.Minute).Sub(now)
}
