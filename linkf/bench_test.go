package linkf

import (
	"context"
	"testing"

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

// BenchmarkShortGeneration is the time of a whole generation that says nothing, over
// loopback TCP: the first event comes before.
func BenchmarkShortGeneration(b *testing.B) {
	s := newServer()
	h, err := NewHead(HeadOptions{Identity: "edge"})
	if err != nil {
		b.Fatal(err)
	}
	ln := listen(b)
	n, err := NewNode(NodeOptions{Identity: "box-a", Upstream: s})
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	l := h.Dial("box-a", ln.Addr().String())
	if _, err := l.Call(context.Background(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		b.Fatal(err)
	}
	close(s.say)
	for b.Loop() {
		if err := l.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(fleet.Event) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	_ = l.Close("over")
	_ = ln.Close()
	_ = n.Close()
	<-served
}
