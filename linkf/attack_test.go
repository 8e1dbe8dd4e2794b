package linkf

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// What peers that mean ill, or are broken, can do to either side. Who attacks a head
// plays a node, and the other way round.

// target is a side that takes connections.
type target struct {
	role   Role // whose part the attacker plays
	doors  *admission
	accept func(net.Conn) // serves one connection
}

// from is a connection that comes from some address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1}
}

// dial connects somebody to the target, and returns his end.
func (x *target) dial(address string) net.Conn {
	mine, its := net.Pipe()
	go x.accept(from{its, address})
	return mine
}

// targets runs a test against both sides, on a clock of its own.
func targets(t *testing.T, f func(t *testing.T, x *target)) {
	t.Run("head", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newEdge(t, tokenA)
			link := h.Joined("box-a")
			f(t, &target{role: RoleNode, doors: &h.doors, accept: func(c net.Conn) {
				h.Accept(c, hostOf(c), func(j *Joiner) error { return j.Attach(link) })
			}})
			if err := link.Close("the test is over"); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("node", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, newServer(), token(t, tokenA))
			f(t, &target{role: RoleHead, doors: &n.doors, accept: n.accept})
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// peer is somebody with the token, who says what he likes.
type peer struct {
	t *testing.T
	c net.Conn
	s *secure
	w wire
}

// enter does the handshake.
func (x *target) enter(t *testing.T) *peer {
	t.Helper()
	c := x.dial("10.0.0.1")
	_, s, _, err := secured(c, x.role, keysOf(t, tokenA))
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &peer{t: t, c: c, s: s}
}

// greet says who the peer is, as a good one does, and hears the other.
func (p *peer) greet(x *target) {
	p.t.Helper()
	id := bytes.Repeat([]byte{1}, instanceLen)
	if x.role == RoleNode {
		p.hear()
		p.say(p.w.put(nil, typeHelloAck, helloAck{Version: Version, Instance: id, Identity: "box-a"}, 0))
		p.hear()
		p.say(p.w.put(nil, typeReconcileAck, reconcileAck{}, 0))
		return
	}
	p.say(p.w.put(nil, typeHello, hello{From: Version, To: Version, Instance: id, Identity: "edge"}, 0))
	p.hear()
	p.say(p.w.put(nil, typeReconcile, reconcile{}, 0))
}

// say sends bytes, encrypted.
func (p *peer) say(plain []byte) {
	p.t.Helper()
	b, err := p.s.seal(nil, plain, 0)
	if err == nil {
		_, err = p.c.Write(b)
	}
	if err != nil {
		p.t.Error(err)
	}
}

// hear returns what comes next.
func (p *peer) hear() []byte {
	p.t.Helper()
	buf := make([]byte, 64<<10)
	for {
		n, err := p.c.Read(buf)
		if err != nil {
			p.t.Fatal(err)
		}
		plain, err := p.s.open(buf[:n])
		if err != nil {
			p.t.Fatal(err)
		}
		if len(plain) > 0 {
			return bytes.Clone(plain)
		}
	}
}

// last returns all that comes until the connection ends.
func (p *peer) last() string {
	data, _ := io.ReadAll(p.c) // it ends somehow
	plain, _ := p.s.open(data)
	return string(plain)
}

// wantDoors checks how many are between the door and being known.
func (x *target) wantDoors(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	x.doors.mu.Lock()
	defer x.doors.mu.Unlock()
	if x.doors.all != want || want == 0 && len(x.doors.by) != 0 {
		t.Errorf("%d peers are let in and not known, want %d", x.doors.all, want)
	}
}

func TestGarbageAndCutHandshakesLeaveNothing(t *testing.T) {
	targets(t, func(t *testing.T, x *target) {
		good := newPreamble(x.role, token(t, tokenA), [nonceLen]byte{1}).append(nil)
		for name, data := range map[string][]byte{
			"nothing":               nil,
			"HTTP":                  []byte("GET /fleet/join HTTP/1.1\r\nHost: x\r\n\r\n"),
			"TLS":                   {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
			"zeros":                 make([]byte, 10_000),
			"a handshake of zeros":  append(bytes.Clone(good), make([]byte, 10_000)...),
			"a handshake of 64 KiB": append(bytes.Clone(good), 0xFF, 0xFF),
			"another token":         newPreamble(x.role, token(t, tokenB), [nonceLen]byte{1}).append(nil),
		} {
			c := x.dial("10.0.0.1")
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_ = c.SetWriteDeadline(time.Now().Add(2 * greetLimit))
			began := time.Now()
			if _, err := c.Write(data); errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: it is still connected after %v", name, time.Since(began))
			}
			_ = c.Close()
			x.wantDoors(t, 0)
		}
		for cut := range len(good) {
			c := x.dial("10.0.0.1")
			go func() { _, _ = io.Copy(io.Discard, c) }()
			if _, err := c.Write(good[:cut]); err != nil {
				t.Errorf("the first %d bytes of a handshake: %v", cut, err)
			}
			_ = c.Close()
			x.wantDoors(t, 0)
		}
		x.enter(t).greet(x)
	})
}

// Whoever says too little too slowly is let go in time, wherever he stops.
func TestSlowHandshakeEndsInTime(t *testing.T) {
	targets(t, func(t *testing.T, x *target) {
		hello := newPreamble(x.role, token(t, tokenA), [nonceLen]byte{1}).append(nil)
		for name, slow := range map[string]func(c net.Conn) error{
			"in the preamble": func(c net.Conn) error {
				for i := range hello {
					if _, err := c.Write(hello[i : i+1]); err != nil {
						return err
					}
					time.Sleep(time.Second)
				}
				return nil
			},
			"behind the preamble": func(c net.Conn) error {
				_, err := c.Write(hello)
				return err
			},
			"behind the handshake": func(c net.Conn) error {
				_, s, _, err := secured(c, x.role, keysOf(t, tokenA))
				_ = c.SetDeadline(time.Time{})
				go func() { _, _ = io.Copy(io.Discard, c) }()
				if x.role == RoleNode {
					return err // a head wants the answer to its hello as the first word
				}
				for w := new(wire); err == nil; time.Sleep(time.Second) {
					var b []byte
					if b, err = s.seal(nil, w.put(nil, typeKeepalive, empty{}, 0), 0); err == nil {
						_, err = c.Write(b)
					}
				}
				return err
			},
		} {
			t.Log(name)
			c, ended := x.dial("10.0.0.1"), make(chan error)
			x.wantDoors(t, 1)
			go func() { ended <- slow(c) }()
			if name != "behind the handshake" {
				go func() { _, _ = io.Copy(io.Discard, c) }()
			}
			time.Sleep(greetLimit - time.Millisecond)
			x.wantDoors(t, 1)
			time.Sleep(time.Second)
			x.wantDoors(t, 0)
			<-ended
			_ = c.Close()
		}
	})
}

// Who is dialled and says nothing is given up in time, by either side.
func TestMutePeerThatIsDialledIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEdge(t, "")
		n := newNode(t, newServer())
		for name, dialled := range map[string]func(net.Conn) error{
			"head": func(c net.Conn) error { _, _, _, err := h.greet(c); return err },
			"node": func(c net.Conn) error { _, err := n.serve(c, "head", func() {}); return err },
		} {
			mine, its := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, its) }()
			began := time.Now()
			if err := dialled(mine); err == nil || time.Since(began) != greetLimit {
				t.Errorf("a %s that dials: got %v after %v, want an error after %v", name, err, time.Since(began), greetLimit)
			}
			_ = its.Close()
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSilentPeersKeepOthersOutForSecondsOnly(t *testing.T) {
	targets(t, func(t *testing.T, x *target) {
		for i := range handshakesMost {
			c := x.dial(fmt.Sprintf("10.0.1.%d", i/handshakesAddress))
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		x.wantDoors(t, handshakesMost)
		told, err := io.ReadAll(x.dial("10.0.0.1"))
		if err != nil || !bytes.Equal(told, refusal(RefusedFull)) {
			t.Errorf("one more: got %x, %v; want the refusal at once", told, err)
		}
		time.Sleep(greetLimit)
		x.wantDoors(t, 0)
		x.enter(t).greet(x)
		x.wantDoors(t, 0)
	})
}

// A peer with the token that breaks the protocol loses its connection and is told why.
func TestBrokenFramesEndTheLinkWithTheReason(t *testing.T) {
	array := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xA1, 0x01, 0x9A}, n) }
	for name, c := range map[string]struct {
		typ     Type
		seq     uint64
		payload []byte
		want    string
	}{
		"unknown required type": {0x0FFF, 0, []byte{0xA0}, "must be understood"},
		"gap in the sequence":   {typeKeepalive, 7, []byte{0xA0}, "follows frame"},
		"no CBOR":               {typeClose, 0, []byte{0xFF, 0xFF}, "close: "},
		"array of 4 billion":    {typeTransferBegin, 0, array(1<<32 - 1), "transfer begin: "},
		"nested arrays":         {typeTransferBegin, 0, append([]byte{0xA1, 0x05}, bytes.Repeat([]byte{0x81}, 100_000)...), "transfer begin: "},
		"message of the other":  {0, 0, []byte{0xA0}, "sends"},
	} {
		t.Run(name, func(t *testing.T) {
			targets(t, func(t *testing.T, x *target) {
				p := x.enter(t)
				p.greet(x)
				typ := c.typ
				if typ == 0 {
					typ = map[Role]Type{RoleHead: typeRenew, RoleNode: typeGrant}[x.role]
				}
				p.w.seqOut++
				b, err := appendFrame(nil, typ, max(c.seq, p.w.seqOut), c.payload)
				if err != nil {
					t.Fatal(err)
				}
				go p.say(b)
				if got := p.last(); !strings.Contains(got, c.want) {
					t.Errorf("the last words are %q, want them to have %q", got, c.want)
				}
			})
		})
	}
	t.Run("length of 4 GiB", func(t *testing.T) {
		targets(t, func(t *testing.T, x *target) {
			p := x.enter(t)
			p.greet(x)
			go p.say([]byte{0xFF, 0xFF, 0xFF, 0xFF})
			if got := p.last(); !strings.Contains(got, "4294967295 bytes long") {
				t.Errorf("the last words are %q, want the length", got)
			}
		})
	})
}

// A peer that does not read is let go, however much it says.
func TestPeerThatNeverReadsIsLetGo(t *testing.T) {
	targets(t, func(t *testing.T, x *target) {
		p := x.enter(t)
		p.greet(x)
		began := time.Now()
		for {
			b, err := p.s.seal(nil, p.w.put(nil, typeKeepalive, empty{}, 0), 0)
			if err == nil {
				_, err = p.c.Write(b)
			}
			if err != nil {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatal("it is still connected after a minute")
			}
			time.Sleep(time.Second)
		}
	})
}

// A head that reads nothing cannot have a generation run on behind its lease.
func TestLeaseEndsOnTimeThoughTheHeadDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		n := newNode(t, s, token(t, tokenA))
		x := &target{role: RoleHead, doors: &n.doors, accept: n.accept}
		synctest.Wait() // it knows its server
		p := x.enter(t)
		p.greet(x) // the answer to reconcile waits to be written from here on
		k := key{Session: 1, Epoch: 1}
		began := time.Now()
		b := p.w.put(nil, typeAssign, assign{k, 1, 2000, 1000, "m", ""}, 0)
		b = p.w.put(b, typeAppend, appendContent{key: k, Command: 2, Path: "/x"}, 0)
		p.say(p.w.put(b, typeGenerate, generate{key: k, Command: 3, Generation: 1, Credit: creditRoom}, 0))
		<-s.ended
		if got, want := time.Since(began), 2*time.Second; got != want {
			t.Errorf("the generation ended after %v, want %v", got, want)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A million frames of the least size cost neither side memory that stays, and the link goes on.
func TestMillionTinyFramesAreBorne(t *testing.T) {
	many := 1_000_000
	if raced || testing.Short() {
		many = 50_000
	}
	targets(t, func(t *testing.T, x *target) {
		p := x.enter(t)
		p.greet(x)
		heard := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(io.Discard, p.c)
			heard <- n
		}()
		held := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := held()
		for sent := 0; sent < many; {
			var b []byte
			for ; len(b) < 50_000; sent += 2 {
				b = p.w.put(b, typeKeepalive, empty{}, 0)
				b = p.w.put(b, 0x7FFF|Droppable, empty{}, 0)
			}
			p.say(b)
		}
		synctest.Wait()
		if after := held(); after > before+1<<20 {
			t.Errorf("after %d frames %d bytes more are held, want at most 1 MiB", many, after-before)
		}
		p.say(p.w.put(nil, typeKeepalive, empty{}, 0)) // fails if the link is over
		_ = p.c.Close()
		if n := <-heard; n > int64(many) {
			t.Errorf("it answered %d frames with %d bytes", many, n)
		}
	})
}

// Silence is noticed behind a write that waits, which nobody may ever read: a node that is
// to come back by another way has no time for more.
func TestSilenceIsNoticedBehindAWriteThatWaits(t *testing.T) {
	const soon = heartbeats*heartbeatBusy + 2*writeWaits
	t.Run("node", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, newServer(), token(t, tokenA))
			x := &target{role: RoleHead, doors: &n.doors, accept: n.accept}
			synctest.Wait() // it knows its server
			p := x.enter(t)
			p.greet(x) // the answer to reconcile waits to be written from here on
			p.say(p.w.put(nil, typeAssign, assign{key{1, 1}, 1, 30_000, 10_000, "m", ""}, 0))
			time.Sleep(soon)
			synctest.Wait()
			if n := len(n.conns); n != 0 {
				t.Errorf("after %v of silence %d connections stand", soon, n)
			}
			_ = n.Close()
		})
	})
	t.Run("head", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newEdge(t, tokenA)
			link := h.Joined("box-a")
			x := &target{role: RoleNode, doors: &h.doors, accept: func(c net.Conn) {
				h.Accept(c, hostOf(c), func(j *Joiner) error { return j.Attach(link) })
			}}
			p := x.enter(t)
			p.greet(x)
			ended := make(chan error, 1)
			go func() {
				ended <- link.Run(t.Context(), fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error { return nil })
			}()
			time.Sleep(soon)
			synctest.Wait()
			if link.conn != nil {
				t.Errorf("after %v of silence the link stands", soon)
			}
			_ = link.Close("the test is over")
			<-ended
		})
	})
}

// A node's part of a handshake proves nothing when it is said again.
func TestReplayedNodeProvesNothing(t *testing.T) {
	keys := ring(token(t, tokenA))
	h, _, _ := newHandshake(RoleHead, keys, rand.Reader)
	n, one, _ := newHandshake(RoleNode, keys, rand.Reader)
	two, _, _, err := h.receive(one)
	if err != nil {
		t.Fatal(err)
	}
	three, _, _, err := n.receive(two)
	if err != nil {
		t.Fatal(err)
	}
	again, _, _ := newHandshake(RoleHead, keys, rand.Reader)
	if _, s, _, err := again.receive(append(bytes.Clone(one), three...)); err == nil || s != nil {
		t.Errorf("a recorded handshake: got %v, %v; want an error, as the head's part differs", s, err)
	}
}

func TestOtherVersionsOfMessagesAreRefusedWithTheReason(t *testing.T) {
	id := make([]byte, instanceLen)
	w := newWorld(always{})
	w.agent.up(w.nodeTime(), 1, false)
	w.agent.receive(w.nodeTime(), 1, new(wire).put(nil, typeHello, hello{From: 2, To: 9, Instance: id, Identity: "edge"}, 0))
	if b := w.agent.pull(w.nodeTime(), 1, nil, chunkLen); !bytes.Contains(b, []byte("speaks versions 2 to 9, this node 1")) {
		t.Errorf("the node says %q, want both versions", b)
	}
	g := newGreeting(w.head.me, 0)
	err := g.receive(new(wire).put(nil, typeHelloAck, helloAck{Version: 2, Instance: id, Identity: "box-a"}, 0), 0)
	if err == nil || !strings.Contains(err.Error(), "chose version 2") {
		t.Errorf("the head: got %v, want an error with the version", err)
	}
}
