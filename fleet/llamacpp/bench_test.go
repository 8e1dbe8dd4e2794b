package llamacpp

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// script is a connection on which a stream comes once something was asked, one event with
// each read.
type script struct {
	net.Conn
	asked       chan struct{}
	once        sync.Once
	head, event []byte
	left        int
}

func (s *script) Read(b []byte) (int, error) {
	<-s.asked
	if len(s.head) > 0 {
		n := copy(b, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	switch s.left--; {
	case s.left >= 0:
		return copy(b, s.event), nil
	case s.left == -1:
		return copy(b, lastChunk), nil
	}
	return 0, io.EOF
}

func (s *script) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.asked) })
	return len(b), nil
}

func (*script) Close() error { return nil }

// BenchmarkStreamedEvent measures what an event costs from the connection, without its
// system calls, to the caller: directly, and through the transport as over TLS.
func BenchmarkStreamedEvent(b *testing.B) {
	const timings = `,"timings":{"cache_n":0,"prompt_n":20,"prompt_ms":123.456,"prompt_per_token_ms":6.1728,"prompt_per_second":162.00103680663557,` +
		`"predicted_n":17,"predicted_ms":424.25,"predicted_per_token_ms":24.955882352941178,"predicted_per_second":40.07071302298173}`
	const event = `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" word"}}],"created":1764500000,` +
		`"id":"chatcmpl-abcdefghijklmnopqrstuvwxyz012345","model":"m","system_fingerprint":"b1-abcdef","object":"chat.completion.chunk"%s}` + "\n\n"
	for _, way := range []string{"direct", "transport"} {
		for name, more := range map[string]string{"bare": "", "timings": timings} {
			b.Run(way+"/"+name, func(b *testing.B) {
				l := newLink(b, Options{URL: "http://127.0.0.1:1"})
				dial := func(context.Context, string, string) (net.Conn, error) {
					return &script{asked: make(chan struct{}), head: []byte(streamHead), event: []byte(chunk(fmt.Sprintf(event, more))), left: b.N}, nil
				}
				c, err := newClient(Options{URL: "http://127.0.0.1:1"}, dial)
				if err != nil {
					b.Fatal(err)
				}
				if l.client = c; way == "transport" {
					c.addr = ""
				}
				a := chat
				a.Patience = fleet.Patience{First: time.Minute, Stall: time.Minute}
				a.Measured = func(fleet.Timings) {}
				n := 0
				b.ReportAllocs()
				b.ResetTimer()
				if err := l.Run(b.Context(), a, func(fleet.Event) error { n++; return nil }); err != nil || n != b.N+1 {
					b.Fatalf("%d events of %d: %v", n-1, b.N, err)
				}
			})
		}
	}
}
