package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// Call has an instance answer a call, an [OpAsk], and returns the answer. While nodes
// are lost under it, it is asked again elsewhere, whole, in the bounds of Run. The
// session is over in any case.
//
// Errors are as those of Run. What the model server itself refused is a
// [*RequestError] with its reply.
func (s *Session) Call(ctx context.Context, c Call) (Reply, error) {
	err := errors.New("it was interrupted by a fault of this program") // should something panic
	defer func() { s.end(err) }()
	q := &question{s: s, call: c}
	err = s.carryOn(ctx, q)
	return q.reply, err
}

// question is a call that is made for a client.
type question struct {
	s     *Session
	call  Call
	reply Reply
	done  bool
	full  error // there is no room for the answer
}

// needs lets any instance of the model answer: nothing was delivered.
func (q *question) needs() (Needs, error) { return Needs{Done: q.done}, q.full }

// room asks for memory for the answer. Of that there is no more elsewhere.
func (q *question) room(n int64) error {
	err := q.call.Room(n)
	if err != nil {
		q.s.gate <- struct{}{}
		q.full = err
		<-q.s.gate
	}
	return err
}

func (q *question) attempt(ctx context.Context) error {
	s := q.s
	c := q.call
	c.Model, c.Unload = s.claim.state.Model, s.claim.unloads()
	c.Patience = s.patience()
	if c.Room != nil {
		c.Room = q.room
	}
	n := s.claim.instance.node
	reply, err := n.link.Call(ctx, c)
	if err != nil {
		return err
	}
	n.hear()
	s.gate <- struct{}{}
	q.reply, q.done = reply, true
	<-s.gate
	return nil
}

// takeLight lets a light request run on the instance with the least to do, if
// possible on one that it need not wake.
func (m *Manager) takeLight(able []candidate) *claim {
	best := slices.MinFunc(able, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(asleep(a.State), asleep(b.State)),
			cmp.Compare(a.occupied()+a.light, b.occupied()+b.light),
		)
	})
	i := best.instance
	c := &claim{instance: i, state: i.Instance, others: i.held, life: i.node.lives, light: true}
	i.light++
	return c
}

func asleep(s State) int {
	if s == StateReady {
		return 0
	}
	return 1
}
