package linkf

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// endless is a connection that takes and has bytes without end, and never waits.
type endless struct {
	net.Conn
	data []byte // that it has; io.EOF follows
}

func (e *endless) Write(b []byte) (int, error)      { return len(b), nil }
func (e *endless) SetWriteDeadline(time.Time) error { return nil }
func (e *endless) Close() error                     { return nil }

func (e *endless) Read(b []byte) (int, error) {
	if len(e.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, e.data)
	e.data = e.data[n:]
	return n, nil
}

// chunks are a machine's end with so many of a body to send.
type chunks int

func (c *chunks) receive([]byte) {}

func (c *chunks) late() error { return nil }

func (c *chunks) pull(b []byte) ([]byte, time.Duration, error) {
	if *c == 0 {
		return b, 0, io.EOF
	}
	*c--
	return append(b, make([]byte, chunkLen)...), time.Second, nil
}

// A body keeps nobody waiting who has a token to pass on: there is a step for others
// behind each of its parts, where it is sent, where it is read, and where it is put
// together.
func TestBodyOnItsWayLetsOthersRun(t *testing.T) {
	const parts = 200
	h, n, _, err := shake(t, ring(token(t, tokenA)), ring(token(t, tokenA)), 4096)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := n.seal(nil, make([]byte, parts*chunkLen), 0)
	if err != nil {
		t.Fatal(err)
	}
	body := make([][]byte, parts)
	for i := range body {
		body[i] = make([]byte, chunkLen)
	}
	for what, work := range map[string]func(){
		"sent":         func() { _ = send(&endless{}, h, new(chunks(parts)), nil, make(chan struct{})) },
		"read":         func() { _ = read(&endless{data: sealed}, h, new(chunks)) },
		"put together": func() { joined(nil, body) },
	} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			var steps atomic.Int64
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for ; ; runtime.Gosched() {
					select {
					case <-end:
						return
					default:
						steps.Add(1)
					}
				}
			}()
			work()
			if got := steps.Load(); got < parts/2 {
				t.Errorf("another goroutine had %d turns while a body of %d parts was %s, want one for each", got, parts, what)
			}
			close(end)
			<-ended
		}()
	}
}
