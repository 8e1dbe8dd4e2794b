package linkf

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An idle link costs a heartbeat now and then, at both sides.
func TestIdleLinkSaysHeartbeatsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := NewHead(HeadOptions{Identity: "edge"})
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, newServer())
		link := h.Joined("box-a")
		its, mine := net.Pipe()
		one, other := &counted{Conn: its}, &counted{Conn: mine}
		go h.Accept(one, hostOf(one), func(j *Joiner) error { return j.Attach(link) })
		served := make(chan error)
		go func() {
			_, err := n.serve(other, "head", func() {})
			served <- err
		}()
		time.Sleep(time.Second)
		for name, c := range map[string]*counted{"head": one, "node": other} {
			c.writes.Store(0)
			defer func() {
				if got, most := c.writes.Load(), int64(time.Minute/heartbeatIdle+1); got < 1 || got > most {
					t.Errorf("the %s wrote %d times in a minute, want 1 to %d", name, got, most)
				}
			}()
		}
		time.Sleep(time.Minute)
		if err := errors.Join(link.Close("over"), n.Close()); err != nil {
			t.Error(err)
		}
		<-served
	})
}

// counted counts the writes to a connection.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}
