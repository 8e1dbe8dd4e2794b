package linkf

import (
	"errors"
	"fmt"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// Two nodes of one name that dial in from one address, such as two machines behind one
// router, look like one that began anew: the newer connection takes the place of the
// older. A node whose place was taken and who comes again shows that both are there. From
// two addresses the manager knows them apart, while the first is alive.

// twinKept is how long a node whose place was taken, or that was turned away, is
// remembered since it came last.
const twinKept = 10 * time.Minute

// twinsMost bounds how many are.
const twinsMost = 16

// errTwins: the node has the name of another one that is linked.
var errTwins = fmt.Errorf("%w by another node at the same address, which is linked", fleet.ErrNameInUse)

type instanceID = [instanceLen]byte

// twins are the runs of nodes that the link saw.
type twins struct {
	linked instanceID // the run that is, or was last
	ousted map[instanceID]time.Time
	came   time.Time // when one was turned away last: both are told once, and not each time
}

// contest decides whose the link is when a node comes while it has a connection: the
// run that it has, unless that may be over. Both of two nodes of one name, and the log,
// are told so once. Called under the mutex.
func (l *Link) contest(came instanceID, host string) error {
	t, now := &l.twins, time.Now()
	for i, at := range t.ousted {
		if now.Sub(at) > twinKept {
			delete(t.ousted, i)
		}
	}
	_, twin := t.ousted[came]
	switch {
	case l.conn == nil || l.conn.over != nil || came == t.linked || l.dial != "":
		delete(t.ousted, came)
	case twin:
		t.ousted[came] = now
		l.tellTwins("both at " + host)
		return fmt.Errorf("%w; give one of the two another `identity`", errTwins)
	case len(t.ousted) < twinsMost:
		if t.ousted == nil {
			t.ousted = make(map[instanceID]time.Time)
		}
		t.ousted[t.linked] = now
	}
	t.linked = came
	return nil
}

// rival is told of a node that came from another address than the one that is linked, and
// is turned away for its name.
func (j *Joiner) rival(link fleet.Link, from string) {
	l, ok := link.(*Link)
	if !ok {
		return
	}
	j.said = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tellTwins(fmt.Sprintf("at %s and %s", from, j.Address))
}

// tellTwins says that two nodes have the link's name, here and to the one that is linked,
// unless they did so shortly before. Called under the mutex.
func (l *Link) tellTwins(where string) {
	t, now := &l.twins, time.Now()
	known := !t.came.IsZero() && now.Sub(t.came) < twinKept
	if t.came = now; known {
		return
	}
	text := fmt.Sprintf("two nodes call themselves %s, %s: one is turned away until one of the two has another `identity`", l.name, where)
	l.head.log.Warn(text, "node", l.name)
	l.m.notice(text)
	l.stir()
}

// notice has the node's operator told something.
func (h *headMachine) notice(text string) { h.word = text }

// noticed is a word of a head to the operator.
func (a *agentMachine) noticed(c *agentConn, m notice) error {
	a.act(agentAction{kind: agentNotice, identity: c.head.identity, err: errors.New(clip(m.Text, maxText))})
	return nil
}
