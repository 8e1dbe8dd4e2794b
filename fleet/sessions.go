package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"hash/maphash"
	"slices"
	"strconv"
	"time"
)

// Phase says what a session does.
type Phase int32

// The phases of a session.
const (
	PhaseQueued  Phase = iota // it waits for a lane, at first or again
	PhasePrefill              // its prompt is read; nothing of this attempt came yet
	PhaseDecode               // words come
	PhaseParked               // it holds no lane until it is resumed
	PhaseDone
)

// String returns the phase's name as it stands in JSON.
func (p Phase) String() string {
	switch p {
	case PhaseQueued:
		return "queued"
	case PhasePrefill:
		return "prefill"
	case PhaseDecode:
		return "decode"
	case PhaseParked:
		return "parked"
	case PhaseDone:
		return "done"
	default:
		return "unknown"
	}
}

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// SessionStatus is what is known of a session, for operators. It holds nothing of the
// prompt, the answer or who asked: the tenant stands there as a hash that means
// something in this process only.
type SessionStatus struct {
	ID     string `json:"id"`
	State  Phase  `json:"state"`
	Model  string `json:"model,omitempty"` // as served; absent: it was never placed
	Node   string `json:"node,omitempty"`  // where it runs, or ran last
	Class  int    `json:"class"`
	Tenant string `json:"tenant,omitempty"`

	Began  time.Time `json:"began"`
	Prompt Tokens    `json:"prompt_tokens,omitempty"` // estimated

	DeliveredBytes  int64 `json:"delivered_bytes"`
	DeliveredEvents int64 `json:"delivered_events"`
	Moves           int   `json:"moves"`
	Mixed           bool  `json:"mixed,omitempty"` // another build of the model went on with it

	// Placement says why it runs where it does, or ran last; absent in lists of sessions.
	Placement []Choice `json:"placement,omitempty"`

	// Only of one that is done.
	Outcome Outcome `json:"outcome,omitempty"`
	Reason  Reason  `json:"reason,omitempty"`
}

// remembered is how many sessions can still be looked up after they ended.
const remembered = 256

// Sessions returns the sessions that have not ended, the oldest first.
func (m *Manager) Sessions() []SessionStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]SessionStatus, 0, len(m.live))
	for _, s := range m.live {
		list = append(list, s.status())
	}
	slices.SortFunc(list, func(a, b SessionStatus) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// Phases counts the sessions that have not ended by what they do. Every phase but
// PhaseDone is there.
func (m *Manager) Phases() map[Phase]int {
	count := map[Phase]int{PhaseQueued: 0, PhasePrefill: 0, PhaseDecode: 0, PhaseParked: 0}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.live {
		if !s.ended {
			count[Phase(s.phase.Load())]++
		}
	}
	return count
}

// Session returns one session, which may be one of the last that ended.
func (m *Manager) Session(id string) (SessionStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.live[id]; s != nil {
		return s.whole(), true
	}
	i := slices.IndexFunc(m.done, func(s SessionStatus) bool { return s.ID == id })
	if i < 0 {
		return SessionStatus{}, false
	}
	return m.done[i], true
}

// ID is the session's name: random, and unique in the process.
func (s *Session) ID() string { return s.id }

// status is called under the manager's mutex.
func (s *Session) status() SessionStatus {
	st := SessionStatus{
		ID:              s.id,
		State:           Phase(s.phase.Load()),
		Model:           s.record.Model,
		Node:            s.record.Node,
		Class:           s.request.Class,
		Tenant:          s.m.veil(s.request.Tenant),
		Began:           s.began,
		Prompt:          s.request.Prompt,
		DeliveredBytes:  s.bytes.Load(),
		DeliveredEvents: s.events.Load(),
		Moves:           s.record.Moves,
		Mixed:           s.record.Mixed,
	}
	if s.ended {
		st.Outcome, st.Reason = s.record.Outcome, s.record.Reason
	}
	return st
}

// whole is the status of one session, as asked for by its id.
func (s *Session) whole() SessionStatus {
	st := s.status()
	st.Placement = s.placement()
	return st
}

// veil makes a tenant one that can be told from others and not be guessed.
func (m *Manager) veil(tenant string) string {
	if tenant == "" {
		return ""
	}
	return strconv.FormatUint(maphash.String(m.seed, tenant), 36)
}

// session returns a session that has not ended; nil: there is none.
func (m *Manager) session(id string) *Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// enter lists a session, so that the manager outlives it.
func (m *Manager) enter(s *Session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return stopping()
	}
	for s.id == "" || m.live[s.id] != nil {
		s.id = newID()
	}
	m.live[s.id] = s
	m.came.add(s.began, 1)
	return nil
}

// newID is a random name of 60 bits.
func newID() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	var id [12]byte
	_, _ = rand.Read(id[:]) // it never fails
	for k := range id {
		id[k] = letters[id[k]%byte(len(letters))]
	}
	return string(id[:])
}

// leave takes a session that ended off the list.
func (m *Manager) leave(s *Session) {
	m.mu.Lock()
	delete(m.live, s.id)
	if len(m.done) < remembered {
		m.done = append(m.done, s.whole())
	} else {
		m.done[m.oldest] = s.whole()
		m.oldest = (m.oldest + 1) % remembered
	}
	last := m.retired && len(m.live) == 0
	m.mu.Unlock()
	if last {
		m.Close()
	}
}

// bind derives the context by which the session can be ended from outside. What
// was commanded before holds, too.
func (s *Session) bind(outer context.Context) (ctx context.Context, done func()) {
	ctx, leave := context.WithCancelCause(outer)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.leave = leave
	if s.quit != nil {
		leave(s.quit)
	}
	return ctx, func() {
		s.m.mu.Lock()
		s.leave = nil
		s.m.mu.Unlock()
		leave(nil)
	}
}

func stopping() error {
	return &RequestError{Reason: ReasonStopping, Message: "the server is stopping"}
}
