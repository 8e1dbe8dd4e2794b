package fleet

import (
	"sync"
	"time"
)

// Change is something that happened to a node or a session, for who watches.
type Change struct {
	At      time.Time  `json:"at"`
	Kind    ChangeKind `json:"kind"`
	Node    string     `json:"node,omitempty"`
	Model   string     `json:"model,omitempty"`
	Session string     `json:"session,omitempty"`
	Why     string     `json:"why,omitempty"` // a cause, reason or outcome
}

// ChangeKind says what happened.
type ChangeKind string

// The kinds of changes.
const (
	ChangeUp        ChangeKind = "node_up"
	ChangeDown      ChangeKind = "node_down"
	ChangeEjected   ChangeKind = "node_ejected" // it fails far more than others, and rests
	ChangeDraining  ChangeKind = "node_draining"
	ChangeDrained   ChangeKind = "node_drained"
	ChangeUndrained ChangeKind = "node_undrained"
	ChangeJoined    ChangeKind = "node_joined"

	ChangePlaced ChangeKind = "placed" // a session has its first lane
	ChangeMoved  ChangeKind = "moved"  // it has another one
	ChangeEnded  ChangeKind = "ended"
	// Besides: "parked", "preempted" and "drained", for sessions that gave up their lane.
)

// watchers are those who are told of changes. Its mutex is taken last and nothing is
// called under it.
type watchers struct {
	mu  sync.Mutex
	all map[chan Change]struct{}
}

// changesKept is how many changes may wait for one who watches.
const changesKept = 256

// Changes tells of what happens from now on, until cancel is called. Who does not
// keep up is dropped: the channel is closed, so that nobody waits and no gap goes
// unnoticed.
func (m *Manager) Changes() (changes <-chan Change, cancel func()) {
	c := make(chan Change, changesKept)
	w := &m.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[chan Change]struct{})
	}
	w.all[c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drop(c)
	}
}

func (w *watchers) drop(c chan Change) {
	if _, ok := w.all[c]; ok {
		delete(w.all, c)
		close(c)
	}
}

// tell tells everybody who watches. It may be called with and without the manager's
// mutex.
func (m *Manager) tell(c Change) {
	w := &m.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return
	}
	c.At = time.Now()
	for x := range w.all {
		select {
		case x <- c:
		default:
			w.drop(x)
		}
	}
}
