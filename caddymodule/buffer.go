package caddymodule

import (
	"sync/atomic"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// defaultBuffer is the value of `buffer` that is not given.
const defaultBuffer = 1 << 30

// memory counts the bytes that are set aside for requests: their bodies, and what is
// held of their answers. It is that of all configurations together; each request goes
// by the limit of its own one.
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
	held  int64 // for its body, as it came and unpacked
	kept  int64 // for its answer
}

// grow takes n more bytes, before they are allocated. Its errors are for the client:
// one that alone wants more than there is need not come again.
func (s *share) grow(n int64) error {
	if n > s.limit-s.held-s.kept {
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

// keepStep is in what steps memory for answers is taken: most events need none.
const keepStep = 4 << 10

// keep makes what is held for the answer n bytes, or somewhat more, unless there is no
// memory for that: then nothing changes.
func (s *share) keep(n int64) bool {
	n = (n + keepStep - 1) / keepStep * keepStep
	if n == s.kept {
		return true // what all requests share is touched only if it changes
	}
	if n < s.kept {
		s.of.used.Add(n - s.kept)
	} else if !s.of.take(n-s.kept, s.limit) {
		return false
	}
	s.kept = n
	return true
}

// room is keep for what is answered whole.
func (s *share) room(n int64) error {
	if !s.keep(n) {
		return errNoMemory
	}
	return nil
}

// release gives everything back.
func (s *share) release() {
	s.of.used.Add(-s.held - s.kept)
	s.held, s.kept = 0, 0
}

var errNoMemory = &fleet.RequestError{
	Reason:     fleet.ReasonOverloaded,
	Message:    "the requests that are here take up all memory that is meant for them; try again later",
	RetryAfter: 2 * time.Second,
}
