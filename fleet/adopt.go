package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Why a node that dials in is not taken.
var (
	// ErrNameInUse: another node has its identity for a name.
	ErrNameInUse = errors.New("its name is in use")

	// ErrFull: so many nodes dialled in that no further one is taken.
	ErrFull = errors.New("too many nodes have dialled in")

	// ErrNotTaken: the policy in force takes no nodes that dial in.
	ErrNotTaken = errors.New("no node that dials in is taken")
)

const (
	// joinedMost is how many nodes that dialled in are kept.
	joinedMost = 1000

	// joinedKept is how long one that is down is kept, and with it its name.
	joinedKept = time.Hour

	// namesakeKept is how long it is shown that another node came with a node's name: one
	// that is turned away comes again within half a minute.
	namesakeKept = 10 * time.Minute
)

// DefaultRelink is how long a node that lost its link may stay away, where the policy
// does not say otherwise.
const DefaultRelink = 5 * time.Second

// Joining is a node that dialled in and proved who it is.
type Joining struct {
	// Identity is what it may call itself: its name here.
	Identity string

	// Address is the host that it dialled from, to tell two of a name apart.
	Address string

	// Open makes the link of a node that is new.
	Open func() (Link, error)

	// Attach gives the link of a node that is known its new connection. Both are called
	// outside of all locks but one that keeps policies and other joiners waiting.
	Attach func(Link) error

	// Rival tells the link of the node that has the name, and dialled in from another
	// address, that this one is turned away for it. Default: nobody is told.
	Rival func(l Link, from string)
}

// Adopt takes a node that dialled in. A known one gets its place back, with its link,
// its speeds and what runs there; new tells which it is. From the moment a new node is
// listed, requests may wait for what it will say that it offers.
//
// Errors: [ErrNameInUse] while the node of that name is alive at another address, or if
// the configuration names one so; [ErrFull]; [ErrNotTaken]; what Open or Attach said.
func (m *Manager) Adopt(j Joining) (isNew bool, err error) {
	if j.Identity == "" {
		return false, errors.New("a node that dials in needs an identity")
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	n, err := m.joiner(j)
	if n != nil {
		return false, m.comesBack(n, j, err)
	}
	if err != nil {
		return false, err
	}
	link, err := j.Open()
	if err != nil {
		return false, fmt.Errorf("node %s: %w", j.Identity, err)
	}
	if err := m.list(j, link); err != nil {
		_ = link.Close("it was not taken")
		return false, err
	}
	return true, nil
}

// comesBack gives a node that is known its new connection, unless err is that its name is
// in use.
func (m *Manager) comesBack(n *node, j Joining, err error) error {
	if err != nil && j.Rival != nil {
		j.Rival(n.link, n.peer)
	}
	if err == nil {
		if err = j.Attach(n.link); err != nil {
			err = fmt.Errorf("node %s: %w", j.Identity, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && n.down != nil {
		signal(n.back)
	}
	switch {
	case err == nil && n.peer != j.Address:
		n.peer, n.address, n.namesake = j.Address, j.Address, NamesakeStatus{}
	case err == nil:
	case errors.Is(err, ErrNameInUse):
		n.namesake = NamesakeStatus{Address: j.Address, At: time.Now()}
	}
	return err
}

// joiner returns the node that the joiner was before, with an error if another one is
// that now; nil: it is new.
func (m *Manager) joiner(j Joining) (*node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.inForce()
	switch {
	case m.closed:
		return nil, errEnded
	case a == nil || !a.Joins:
		return nil, ErrNotTaken
	}
	m.forgetJoined(time.Now())
	joined := 0
	for _, n := range m.nodes {
		switch {
		case n.wanted == 0:
		case n.peer == "" && n.name == j.Identity:
			return nil, fmt.Errorf("%w: the configuration names a node %s; give the agent another identity", ErrNameInUse, j.Identity)
		case n.peer != "" && n.name == j.Identity:
			alive := n.away.IsZero() && n.up()
			if alive && n.peer != j.Address {
				return n, fmt.Errorf("%w: %s dialled in from %s, another machine, and is alive; give this one an identity of its own", ErrNameInUse, j.Identity, n.peer)
			}
			return n, nil
		case n.peer != "":
			joined++
		}
	}
	if joined >= joinedMost {
		return nil, ErrFull
	}
	return nil, nil
}

// list makes a new node one of all policies that take it.
func (m *Manager) list(j Joining, link Link) error {
	n := newNode(NodeSpec{Name: j.Identity, Address: j.Address, Identity: "joined:" + j.Identity}, link)
	n.peer = j.Address
	log, err := m.enlist(n)
	if err != nil {
		return err
	}
	log.Info("node dialled in", "node", n.name)
	m.tell(Change{Kind: ChangeJoined, Node: n.name})
	return nil
}

func (m *Manager) enlist(n *node) (*slog.Logger, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errEnded
	}
	for _, a := range m.applied {
		if a.Joins && !a.released {
			a.nodes = append(a.nodes, n)
			n.wanted++
		}
	}
	if n.wanted == 0 {
		return nil, ErrNotTaken
	}
	n.index = len(m.nodes)
	m.nodes = append(m.nodes, n)
	m.start(n)
	m.pump()
	return m.logger(), nil
}

// holdJoined makes the nodes that dialled in those of a policy, too, if it takes them.
// One that the policy names itself is not. Called under the mutex.
func (m *Manager) holdJoined(a *Applied) {
	if !a.Joins {
		return
	}
	for _, n := range m.nodes {
		named := slices.ContainsFunc(a.Nodes, func(s NodeSpec) bool { return s.Name == n.name })
		if n.peer != "" && n.wanted > 0 && !named {
			n.wanted++
			a.nodes = append(a.nodes, n)
		}
	}
}

// forgetJoined drops nodes that dialled in once and are away for long. Called under
// the mutex.
func (m *Manager) forgetJoined(now time.Time) {
	for _, n := range m.nodes {
		if n.peer == "" || n.down == nil || now.Sub(n.down.since) < joinedKept || n.busy() {
			continue
		}
		for _, a := range m.applied {
			a.nodes = slices.DeleteFunc(a.nodes, func(x *node) bool { return x == n })
		}
		n.wanted = 0
		m.offers++
	}
	m.dropUnwanted()
}

// goesAway notes that the link lost its connection. That is not the node's death: it
// goes on with what it has, and may be back within the policy's Relink. Only then what
// runs there is lost.
func (m *Manager) goesAway(n *node, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !n.away.IsZero() || n.down != nil || m.closed {
		return
	}
	left := time.Now()
	n.away = left
	wait := DefaultRelink
	if a, _ := m.policyOf(n); a != nil {
		wait = a.Relink
	}
	m.wg.Go(func() {
		if pause(n.life, wait) {
			m.stayedAway(n, left, why)
		}
	})
}

// stayedAway ends what runs on a node that did not come back in time.
func (m *Manager) stayedAway(n *node, left time.Time, why error) {
	m.mu.Lock()
	if !n.away.Equal(left) {
		m.mu.Unlock()
		return
	}
	n.away = time.Time{}
	lost := &NodeLost{Node: n.name, Cause: CauseClosed, Err: fmt.Errorf("its link did not come back: %w", why)}
	for _, s := range m.on(n) {
		if s.stop != nil {
			s.stop(lost)
		}
	}
	m.mu.Unlock()
	if m.markDown(n, lost) {
		m.cameAndWent(n)
	}
	n.nudge()
}

// lifetime is a context that ends with the node.
func (m *Manager) lifetime(n *node) context.Context {
	ctx, cancel := context.WithCancel(m.ctx)
	n.life, n.cancel = ctx, cancel
	return ctx
}
