package linkf

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// oneConn is a listener that has one connection, made in memory.
type oneConn struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	close(l.closed)
	return nil
}

func (l *oneConn) Addr() net.Addr { return new(net.TCPAddr) }

// A node that is being taken while the listener closes keeps its link: what began goes on.
func TestLinkOutlivesAListenerThatClosesWhileItIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEdge(t, "")
		n, link := newNode(t, newServer()), h.Joined("box-a")
		its, mine := net.Pipe()
		ln := &oneConn{make(chan net.Conn, 1), make(chan struct{})}
		ln.conns <- its
		served, ended := make(chan error, 1), make(chan struct{})
		go func() {
			served <- h.Serve(ln, func(j *Joiner) error {
				err := j.Attach(link)
				_ = ln.Close()
				time.Sleep(time.Second) // all that follows from that has happened
				return err
			})
		}()
		go func() {
			defer close(ended)
			_, _ = n.serve(mine, "head", func() {})
		}()
		<-served
		if _, err := link.Call(t.Context(), fleet.Call{Op: fleet.OpHealth}); err != nil {
			t.Errorf("got %v, want the link to stand", err)
		}
		_ = link.Close("the test is over")
		<-ended
		_ = n.Close()
	})
}
