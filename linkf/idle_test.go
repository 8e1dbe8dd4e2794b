package linkf

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// couple is a head and a node with a connection between them, whose writes are counted
// and can be lost.
type couple struct {
	link   *Link
	node   *Node
	ends   map[string]*observed // by whose writes they see
	served chan error           // what the node says of its connection
}

// newCouple links a model server to a head, in a bubble of which time is told.
func newCouple(t *testing.T, s fleet.Link) *couple {
	t.Helper()
	h := newEdge(t, "")
	n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: s, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	its, mine := net.Pipe()
	c := &couple{
		link: h.Joined("box-a"), node: n, served: make(chan error, 1),
		ends: map[string]*observed{"head": {Conn: its}, "node": {Conn: mine}},
	}
	go h.Accept(c.ends["head"], "192.0.2.1", func(j *Joiner) error { return j.Attach(c.link) })
	go func() {
		_, err := n.serve(c.ends["node"], "head", func() {})
		c.served <- err
	}()
	t.Cleanup(func() {
		if err := errors.Join(c.link.Close("over"), n.Close()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
	synctest.Wait() // it knows its server, and its head
	return c
}

// watched returns the states that the head hears of, from now on.
func (c *couple) watched(t *testing.T) func() fleet.NodeState {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var last fleet.NodeState
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.link.Watch(ctx, func(s fleet.NodeState) {
			mu.Lock()
			defer mu.Unlock()
			last = s
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() fleet.NodeState {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// observed is an end of a connection.
type observed struct {
	net.Conn
	dark atomic.Bool // what is written is lost, and nobody is told

	mu     sync.Mutex
	writes []time.Time
}

func (o *observed) Write(b []byte) (int, error) {
	o.mu.Lock()
	o.writes = append(o.writes, time.Now())
	o.mu.Unlock()
	if o.dark.Load() {
		return len(b), nil
	}
	return o.Conn.Write(b)
}

// wrote returns when it was written to since.
func (o *observed) wrote(since time.Time) (at []time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.writes {
		if w.After(since) {
			at = append(at, w)
		}
	}
	return at
}

// An idle link costs a heartbeat now and then, and both sides have theirs at one moment.
func TestIdleLinkSaysHeartbeatsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		c := newCouple(t, s)
		time.Sleep(12300 * time.Millisecond)
		s.tell(s.stood) // the node has another beat from here on, until it hears the head's
		time.Sleep(10 * time.Second)
		began := time.Now()
		time.Sleep(time.Minute)
		heads, nodes := c.ends["head"].wrote(began), c.ends["node"].wrote(began)
		if want := int(time.Minute / heartbeatIdle); len(heads) != want || len(nodes) != want {
			t.Fatalf("the head wrote %d times in a minute and the node %d times, want %d", len(heads), len(nodes), want)
		}
		for i := range heads {
			if !heads[i].Equal(nodes[i]) {
				t.Errorf("the node wrote %v after the head, want it at once", nodes[i].Sub(heads[i]))
			}
		}
	})
}

// The keepalives of a head's links go together, and none is late.
func TestKeepalivesOfManyLinksGoTogether(t *testing.T) {
	for _, heartbeat := range []time.Duration{heartbeatBusy, heartbeatIdle} {
		moments := make(map[time.Duration]bool)
		for last := time.Duration(0); last < heartbeat; last += heartbeat / 1000 {
			at := (&wire{lastOut: last}).beatAt(heartbeat)
			if d := at - last; d > heartbeat || d <= heartbeat-heartbeat/beatsTogether {
				t.Fatalf("a heartbeat of %v: a keepalive %v after what was sent before, want it at most %v early", heartbeat, d, heartbeat/beatsTogether)
			}
			moments[at] = true
		}
		if len(moments) > beatsTogether+1 {
			t.Errorf("a heartbeat of %v: a thousand links wake up %d times in it, want %d", heartbeat, len(moments), beatsTogether)
		}
	}
}

// Silence is noticed by either side after three heartbeats, of the shorter kind where
// something runs, and not before two: one may be late.
func TestSilentLinkIsLostAfterThreeHeartbeats(t *testing.T) {
	for name, heartbeat := range map[string]time.Duration{"idle": heartbeatIdle, "busy": heartbeatBusy} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t, newServer())
				if heartbeat == heartbeatBusy {
					ctx, cancel := context.WithCancel(context.Background())
					ended := make(chan error)
					go func() {
						ended <- c.link.Run(ctx, fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error { return nil })
					}()
					defer func() { cancel(); <-ended }()
				}
				state := c.watched(t)
				time.Sleep(17300 * time.Millisecond)
				for _, e := range c.ends {
					e.dark.Store(true)
				}
				time.Sleep(2*heartbeat - time.Millisecond)
				if s := state(); s.Away != nil || s.Down != nil || len(c.served) != 0 {
					t.Errorf("before two heartbeats of silence: got %+v", s)
				}
				time.Sleep(heartbeat + time.Millisecond)
				if s := state(); s.Away == nil {
					t.Errorf("after three heartbeats of silence the head has the state %+v, want the node away", s)
				}
				select {
				case <-c.served:
				default:
					t.Error("after three heartbeats of silence the node has its connection still")
				}
			})
		})
	}
}
