//go:build unix

package linkf

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// chunkOfToken is about what a token of a chat is on the wire.
var chunkOfToken = []byte(`{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" word"}}],"created":1780000000,"id":"chatcmpl-abcdefghijklmnopqrstuvwxyz","model":"model.gguf","object":"chat.completion.chunk"}`)

// BenchmarkEvents is what one event costs both machines and the encryption between
// them, where 16 are said between two writes.
func BenchmarkEvents(b *testing.B) {
	h, n, _, err := shake(b, ring(token(b, tokenA)), ring(token(b, tokenA)), 4096)
	if err != nil {
		b.Fatal(err)
	}
	w := newWorld(always{})
	w.connect()
	w.settle()
	w.exchange()
	w.open()
	w.settle()
	w.exchange()
	if len(w.runs) != 1 {
		b.Fatal("no generation runs")
	}
	var run uint64
	for run = range w.runs {
	}
	var buf, sealed []byte
	b.SetBytes(int64(len(chunkOfToken)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w.agent.emit(w.nodeTime(), run, fleet.Event{Kind: fleet.EventData, Data: chunkOfToken})
		if i%16 != 15 {
			continue
		}
		buf = w.agent.pull(w.nodeTime(), w.conn, buf[:0], chunkLen)
		sealed, _ = n.seal(sealed[:0], buf, 0)
		plain, err := h.open(sealed)
		if err != nil {
			b.Fatal(err)
		}
		w.head.receive(w.headTime(), plain)
		for _, x := range w.head.actions() {
			w.head.took(w.headTime(), x.session, x.generation, x.seq)
		}
		buf = w.head.pull(w.headTime(), buf[:0], chunkLen)
		w.agent.receive(w.nodeTime(), w.conn, buf)
	}
}

// speaker is a model server whose generations say what they are told to.
type speaker struct {
	fleet.Link
	say func(ctx context.Context, take func(fleet.Event) error) error
}

func (s *speaker) Run(ctx context.Context, _ fleet.Assignment, take func(fleet.Event) error) error {
	return s.say(ctx, take)
}

// linked returns a head's link to a node on the loopback that has this server.
func linked(b *testing.B, s fleet.Link) *Link {
	b.Helper()
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: ring(token(b, tokenA))})
	if err != nil {
		b.Fatal(err)
	}
	n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: s, Tokens: []Token{token(b, tokenA)}})
	if err != nil {
		b.Fatal(err)
	}
	ln := listen(b)
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	l := h.Dial("box-a", ln.Addr().String())
	b.Cleanup(func() {
		_ = l.Close("over")
		_ = ln.Close()
		_ = n.Close()
		<-served
	})
	if _, err := l.Call(context.Background(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkShortGeneration is the time of a whole generation that says nothing, over
// loopback TCP: the first event comes before.
func BenchmarkShortGeneration(b *testing.B) {
	l := linked(b, &speaker{newServer(), func(context.Context, func(fleet.Event) error) error { return nil }})
	for b.Loop() {
		if err := l.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEventsOverTCP is what an event costs in CPU from the model server's word to the
// caller's hand, at both ends of a loopback connection. The server says them as fast as
// they are taken, or, so that each goes alone, when the one before was taken. With -cpu 1
// both ends share a core.
func BenchmarkEventsOverTCP(b *testing.B) {
	for name, room := range map[string]int{"many_under_way": 1 << 20, "one_by_one": 1} {
		b.Run(name, func(b *testing.B) {
			taken := make(chan struct{}, room)
			l := linked(b, &speaker{newServer(), func(_ context.Context, take func(fleet.Event) error) error {
				for range b.N {
					if err := take(fleet.Event{Kind: fleet.EventData, Data: chunkOfToken}); err != nil {
						return err
					}
					if room == 1 {
						<-taken
					}
				}
				return nil
			}})
			b.ReportAllocs()
			b.ResetTimer()
			n, before := 0, cpu(b)
			err := l.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error {
				n++
				if room == 1 {
					taken <- struct{}{}
				}
				return nil
			})
			b.StopTimer()
			if err != nil || n != b.N {
				b.Fatalf("got %d of %d events, %v", n, b.N, err)
			}
			b.ReportMetric(float64(b.N)/(cpu(b)-before).Seconds(), "events/cpu-s")
		})
	}
}

// cpu is what this process took so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTokensBesideABody is how long events of one stream are under way, one each
// millisecond, while bodies of 64 MiB cross the same link: none, to the node, back to
// the head. To tell what of that is the machine's, bare sends bytes and tokens over a TCP
// connection without anything else, at about the rate of the link.
func BenchmarkTokensBesideABody(b *testing.B) {
	large := make([]byte, 64<<20)
	for _, way := range []string{"alone", "to_node", "to_head"} {
		b.Run(way, func(b *testing.B) {
			var late lateness
			s := &speaker{&answering{server: newServer(), large: large}, func(ctx context.Context, take func(fleet.Event) error) error {
				return eachMillisecond(ctx, func(now []byte) error { return take(fleet.Event{Kind: fleet.EventData, Data: now}) })
			}}
			l := linked(b, s)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() {
				ended <- l.Run(ctx, fleet.Assignment{Model: "m", Path: "/x"}, func(e fleet.Event) error {
					late.note(e.Data)
					return nil
				})
			}()
			began := time.Now()
			for b.Loop() {
				c := fleet.Call{Op: fleet.OpAsk, Path: "/" + way}
				switch way {
				case "alone":
					time.Sleep(100 * time.Millisecond)
				case "to_node":
					c.Body = large
				}
				if r, err := l.Call(ctx, c); err != nil || way == "to_head" && len(r.Body) != len(large) {
					b.Fatalf("got %d bytes, %v", len(r.Body), err)
				}
			}
			if way != "alone" {
				b.ReportMetric(float64(b.N*len(large)>>20)/time.Since(began).Seconds(), "MiB/s")
			}
			cancel()
			<-ended
			late.report(b)
		})
	}
	b.Run("bare", func(b *testing.B) { benchmarkBare(b, large) })
}

// eachMillisecond says the time until ctx ends.
func eachMillisecond(ctx context.Context, say func(now []byte) error) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := say(binary.LittleEndian.AppendUint64(nil, uint64(clockNow()))); err != nil {
			return err
		}
	}
}

// lateness is how long tokens were under way, by the time that they say.
type lateness []time.Duration

func (l *lateness) note(said []byte) {
	*l = append(*l, clockNow()-time.Duration(binary.LittleEndian.Uint64(said)))
}

func (l *lateness) report(b *testing.B) {
	slices.Sort(*l)
	for name, share := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
		b.ReportMetric(float64((*l)[int(share*float64(len(*l)-1))])/1e6, "ms-"+name)
	}
	b.ReportMetric(0, "ns/op")
}

// bareRecord is a part of a body, behind the time of a token if there is one.
const bareRecord = 8 + chunkLen

// benchmarkBare has bytes and tokens over a connection as a link has them, as few steps
// apart as can be. Both ends hash the bytes, which takes about as long as to encrypt them.
func benchmarkBare(b *testing.B, large []byte) {
	to, from := barePair(b)
	tokens, taken := make(chan []byte, 1000), make(chan []byte, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = eachMillisecond(ctx, func(now []byte) error { tokens <- now; return nil })
	})
	var late lateness
	wg.Go(func() {
		for t := range taken {
			late.note(t)
		}
	})
	wg.Go(func() { readBare(from, taken) })
	began, buf := time.Now(), make([]byte, bareRecord)
	for b.Loop() {
		for sent := 0; sent < len(large); sent += chunkLen {
			clear(buf[:8])
			select {
			case now := <-tokens:
				copy(buf, now)
			default:
			}
			sha256.Sum256(buf)
			if _, err := to.Write(buf); err != nil {
				b.Fatal(err)
			}
			giveWay(len(buf))
		}
	}
	b.ReportMetric(float64(b.N*len(large)>>20)/time.Since(began).Seconds(), "MiB/s")
	cancel()
	_ = to.Close()
	wg.Wait()
	_ = from.Close()
	late.report(b)
}

// barePair is a connection and its other end. A link has at most 512 KiB on the way; what
// the kernel holds counts twice in it.
func barePair(b *testing.B) (to, from net.Conn) {
	b.Helper()
	ln := listen(b)
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := ln.Accept()
		accepted <- c
	}()
	to, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	from = <-accepted
	_ = to.(*net.TCPConn).SetWriteBuffer(window * chunkLen / 4)
	_ = from.(*net.TCPConn).SetReadBuffer(window * chunkLen / 4)
	return to, from
}

func readBare(from net.Conn, taken chan<- []byte) {
	defer close(taken)
	r, buf := bufio.NewReaderSize(from, readMost), make([]byte, bareRecord)
	for {
		if _, err := io.ReadFull(r, buf); err != nil {
			return
		}
		sha256.Sum256(buf)
		if now := buf[:8]; binary.LittleEndian.Uint64(now) != 0 {
			taken <- bytes.Clone(now)
		}
		giveWay(len(buf))
	}
}

// answering answers calls with nothing, or something large.
type answering struct {
	*server
	large []byte
}

func (a *answering) Call(ctx context.Context, c fleet.Call) (fleet.Reply, error) {
	switch c.Path {
	case "/to_head":
		return fleet.Reply{Status: 200, Body: a.large}, nil
	case "":
		return a.server.Call(ctx, c)
	}
	return fleet.Reply{Status: 200}, nil
}
