package caddymodule

import (
	"sync/atomic"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// defaultBuffer is the value of `buffer` that is not given.
const defaultBuffer = 1 << 30

// memory counts the bytes that are set aside for the bodies of requests, of all
// configurations together. Each request goes by the limit of its own one.
type memory struct{ used atomic.Int64 }

// take sets n more bytes aside, unless that made more than limit. Nobody waits: a
// request that waited for memory would need some itself.
func (m *memory) take(n, limit int64) bool {
	for {
		used := m.used.Load()
		if n > limit-used {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// share is what one request holds of the memory. It is the request's own: its
// methods are not for several goroutines.
type share struct {
	of    *memory
	limit int64
	held  int64
}

// grow takes n more bytes, before they are allocated. Its errors are for the client:
// one that alone wants more than there is need not come again.
func (s *share) grow(n int64) error {
	if n > s.limit-s.held {
		return errTooLarge(s.limit)
	}
	if !s.of.take(n, s.limit) {
		return errNoMemory
	}
	s.held += n
	return nil
}

// atMost is n or what is left of the limit for this request, and never nothing: a
// step may be shorter than usual before it is too long.
func (s *share) atMost(n int64) int64 { return max(1, min(n, s.limit-s.held)) }

// release gives everything back.
func (s *share) release() {
	s.of.used.Add(-s.held)
	s.held = 0
}

var errNoMemory = &fleet.RequestError{
	Reason:     fleet.ReasonOverloaded,
	Message:    "the requests that are here take up all memory that is meant for them; try again later",
	RetryAfter: 2 * time.Second,
}
