package caddymodule

import (
	"io"
	"net"
	"sync"
	"testing"
)

// way is what lies between a head and a node: connections to its address go on to
// another one, as long as they are let.
type way struct {
	addr string   // where it is dialled
	to   string   // where it leads
	from net.Addr // whence it seems to come; nil: any

	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	free  *sync.Cond
	dark  bool           // nothing passes, and nobody is told
	conns map[*pipe]bool // those that stand
	taken int            // connections so far
}

// pipe is one connection on the way.
type pipe struct {
	a, b net.Conn
	dead bool // nothing passes any more, and nobody is told
}

// newWay opens a way that the test closes.
func newWay(t testing.TB, addr, to string, from net.Addr) *way {
	t.Helper()
	w := &way{addr: addr, to: to, from: from, conns: make(map[*pipe]bool)}
	w.free = sync.NewCond(&w.mu)
	w.open(t)
	t.Cleanup(func() {
		w.refuse()
		w.wg.Wait()
	})
	return w
}

// open takes connections.
func (w *way) open(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	w.ln, w.addr = ln, ln.Addr().String()
	w.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.carry(c) })
		}
	})
}

// carry passes the bytes of one connection on, in both directions.
func (w *way) carry(c net.Conn) {
	d, err := (&net.Dialer{LocalAddr: w.from}).Dial("tcp", w.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p := &pipe{a: c, b: d}
	w.mu.Lock()
	w.conns[p] = true
	w.taken++
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pass(p, c, d) })
	both.Go(func() { w.pass(p, d, c) })
	both.Wait()
	w.mu.Lock()
	delete(w.conns, p)
	w.mu.Unlock()
}

func (w *way) pass(p *pipe, from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !w.wait(p) {
			err = io.EOF
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			_ = from.Close()
			_ = to.Close()
			return
		}
	}
}

// wait returns when something may pass; false: never.
func (w *way) wait(p *pipe) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.conns[p] && (w.dark || p.dead) {
		w.free.Wait()
	}
	return w.conns[p]
}

// darken has nothing pass until lighten; nobody is told.
func (w *way) darken() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dark = true
}

func (w *way) lighten() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dark = false
	w.free.Broadcast()
}

// forget has what stands now never pass anything again, as a router does that restarted.
func (w *way) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.conns {
		p.dead = true
	}
}

// reset breaks what stands now, and tells both ends.
func (w *way) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.conns {
		for _, c := range []net.Conn{p.a, p.b} {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		delete(w.conns, p)
	}
	w.free.Broadcast()
}

// refuse breaks what stands and takes nothing more, as a host whose process died.
func (w *way) refuse() {
	_ = w.ln.Close()
	w.reset()
}
