package linkf

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// What comes after the end of a link is not kept while its last words wait to go out.
func TestNothingIsKeptBehindTheEnd(t *testing.T) {
	w := new(wire)
	w.fail("over")
	for range 1000 {
		if err := w.read(make([]byte, 64<<10), 0, func(frame) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got := cap(w.dec.buf); got > 0 {
		t.Errorf("%d bytes are kept, want none", got)
	}
}

// grown is how much more is held than before f, in bytes.
func grown(f func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// A million frames as small as they can be leave nothing, at either side.
func TestMillionTinyFramesLeaveNothing(t *testing.T) {
	frames := 1_000_000
	if testing.Short() {
		frames = 50_000
	}
	w := connected(t)
	one := new(wire)
	one.seqOut = w.agent.conns[w.conn].wire.seqIn
	other := new(wire)
	other.seqOut = w.head.wire.seqIn
	var b []byte
	got := grown(func() {
		for i := 0; i < frames; i += 1000 {
			for range 1000 {
				b = one.put(b, typeKeepalive, empty{}, 0)
			}
			w.nodeGets(b)
			b = b[:0]
			for range 1000 {
				b = other.put(b, typeKeepalive, empty{}, 0)
			}
			w.headGets(b)
			b = b[:0]
		}
	})
	if one.seqOut < uint64(frames) || w.agent.conns[w.conn].wire.bye != "" || w.head.wire.bye != "" {
		t.Errorf("the link ended: %q, %q", w.agent.conns[w.conn].wire.bye, w.head.wire.bye)
	}
	if got > 4<<20 {
		t.Errorf("%d bytes more are held, want next to none", got)
	}
}

// Whatever a peer that does not read says many times over, what is held for it is
// bounded.
func TestFloodOfAnyMessageIsBounded(t *testing.T) {
	times := uint64(20_000)
	if testing.Short() {
		times = 5_000
	}
	for _, v := range vectors() {
		t.Run(v.typ.String(), func(t *testing.T) {
			w := connected(t)
			opened(t, w)
			flood := func(get func([]byte), seq uint64) {
				x := &wire{seqOut: seq}
				for i := range times {
					get(x.put(nil, v.typ, renumbered(v.msg, i+100), 0))
				}
			}
			got := grown(func() {
				flood(w.nodeGets, w.agent.conns[w.conn].wire.seqIn)
				flood(w.headGets, w.head.wire.seqIn)
				w.head.actions() // the driver takes them
				w.agent.actions()
			})
			if got > 16<<20 {
				t.Errorf("%d bytes are held after %d of them, want at most 16 MiB", got, times)
			}
			runtime.KeepAlive(w)
		})
	}
}

// renumbered is the message as if it were about another session, call or transfer.
func renumbered(m any, n uint64) any {
	switch m := m.(type) {
	case assign:
		m.key = key{n, n}
		return m
	case appendContent:
		m.key = key{n, n}
		return m
	case generate:
		m.key = key{n, n}
		return m
	case command:
		m.key = key{n, n}
		return m
	case key:
		return key{n, n}
	case grant:
		m.key = key{n, n}
		return m
	case gone:
		m.key = key{n, n}
		return m
	case call:
		m.ID = n
		return m
	case callID:
		return callID{n}
	case reply:
		m.ID = n
		return m
	case transfer:
		m.ID = n
		return m
	}
	return m
}

// One text that a node cannot read would end the link of all: it is not sent.
func TestTextThatNoMessageCarriesIsDeclined(t *testing.T) {
	w := connected(t)
	for name, a := range map[string]fleet.Assignment{
		"no UTF-8":     {Model: "m", Path: "/x", ContentType: "multipart/form-data; boundary=\xff"},
		"too long":     {Model: "m", Path: "/x", ContentType: strings.Repeat("x", maxText)},
		"model":        {Model: "\xff", Path: "/x"},
		"body too big": {Model: "m", Path: "/x", Body: make([]byte, maxTransfer+1)},
	} {
		_, err := w.head.open(w.headTime(), a)
		var refused *fleet.RequestError
		if !errors.As(err, &refused) || refused.Reason != fleet.ReasonDeclined || !refused.Again {
			t.Errorf("%s: got %v, want it declined, for another node to take", name, err)
		}
		if _, err := w.head.call(w.headTime(), fleet.Call{Path: a.Path, ContentType: a.ContentType, Model: a.Model, Body: a.Body}); !errors.As(err, &refused) {
			t.Errorf("%s, a call: got %v, want it declined", name, err)
		}
		w.run(t)
	}
	if len(w.head.sessions) != 0 || w.head.wire.bye != "" || w.agent.conns[w.conn].wire.bye != "" {
		t.Errorf("%d sessions are left, the link ended with %q; want none, and the link", len(w.head.sessions), w.head.wire.bye)
	}
}

// Anybody can dial in all day, and fill no disk with it.
func TestRefusedPeersAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		h, err := NewHead(HeadOptions{Identity: "edge", Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		come := func() {
			its, mine := net.Pipe()
			go func() {
				_, _ = mine.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				_ = mine.Close()
			}()
			h.Accept(from{its, "10.0.0.1"}, func(*Joiner) error { return nil })
		}
		for range 1000 {
			come()
		}
		if got := strings.Count(said.String(), "was not taken"); got != logBurst {
			t.Errorf("1000 strangers at once: got %d lines, want %d", got, logBurst)
		}
		time.Sleep(time.Second)
		said.Reset()
		come()
		if got := said.String(); !strings.Contains(got, "not_logged_before=990") {
			t.Errorf("a second later: got %q, want a line that counts the others", got)
		}
	})
}
