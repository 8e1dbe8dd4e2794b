package llamacpp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// answering says how /health is answered in a pipeServer.
type answering int

const (
	healthAnswers answering = iota
	healthRefused
	healthSilent
)

// pipeLink is a link in a synctest bubble to a server without a network. stream
// writes the answer to a generation, after its request was read.
func pipeLink(t *testing.T, health answering, asked *atomic.Int32, stream func(c net.Conn)) *Link {
	t.Helper()
	var dials atomic.Int32
	dial := func(context.Context, string, string) (net.Conn, error) {
		if dials.Add(1) > 1 && health == healthRefused {
			asked.Add(1)
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			req, _, err := request(bufio.NewReader(theirs))
			if err != nil {
				return
			}
			if req.URL.Path != "/health" {
				stream(theirs)
				return
			}
			asked.Add(1)
			if health == healthSilent {
				_, _ = theirs.Read(make([]byte, 1))
				return
			}
			fmt.Fprint(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{\"status\":\"ok\"}")
		}()
		return ours, nil
	}
	l, err := New(Options{Name: "n1", URL: "http://pipe"})
	if err != nil {
		t.Fatal(err)
	}
	if l.client, err = newClient(Options{URL: "http://pipe"}, dial); err != nil {
		t.Fatal(err)
	}
	return l
}

// untilClosed waits until the link closes the connection.
func untilClosed(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }

const second = time.Second

func wait(d time.Duration) { <-time.After(d) }

var ping = chunk(":\n\n")

// pinging is a server whose engine hangs.
func pinging(c net.Conn, every time.Duration) {
	closed := make(chan struct{})
	go func() {
		untilClosed(c)
		close(closed)
	}()
	for {
		select {
		case <-time.After(every):
			fmt.Fprint(c, ping)
		case <-closed:
			return
		}
	}
}

func TestSilenceIsBounded(t *testing.T) {
	data := chunk("data: {\"a\":1}\n\n")
	progress := chunk(`data: {"prompt_progress":{"total":9,"cache":0,"processed":1}}` + "\n\n")
	for _, tt := range []struct {
		name     string
		patience fleet.Patience
		health   answering
		stream   func(c net.Conn)
		after    time.Duration // the end
		asked    int32         // how often health was
		lost     bool
	}{
		{
			"a server that answers gets twice the time",
			fleet.Patience{Stall: 15 * second},
			healthAnswers,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); untilClosed(c) }, 30 * second, 1, true,
		},
		{
			"one that refuses is lost at once",
			fleet.Patience{Stall: 15 * second},
			healthRefused,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); untilClosed(c) }, 15 * second, 1, true,
		},
		{
			"one that does not answer is lost in 2 s",
			fleet.Patience{Stall: 15 * second},
			healthSilent,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); untilClosed(c) }, 17 * second, 1, true,
		},
		{
			"the first limit holds for the headers",
			fleet.Patience{First: 20 * second, Stall: 5 * second},
			healthAnswers,
			untilClosed, 40 * second, 1, true,
		},
		{
			"no first limit: as long as it takes",
			fleet.Patience{Stall: 5 * second},
			healthAnswers,
			func(c net.Conn) {
				wait(time.Hour)
				fmt.Fprint(c, streamHead)
				wait(time.Hour)
				fmt.Fprint(c, data+lastChunk)
			}, 2 * time.Hour, 0, false,
		},
		{
			"progress is no first data",
			fleet.Patience{First: 20 * second, Stall: 5 * second},
			healthAnswers,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead)
				for range 5 {
					wait(19 * second)
					fmt.Fprint(c, progress)
				}
				untilClosed(c)
			}, (5*19 + 40) * second, 1, true,
		},
		{
			"no limits at all",
			fleet.Patience{},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead+data)
				wait(time.Hour)
				fmt.Fprint(c, lastChunk)
			}, time.Hour, 0, false,
		},
		{
			"pings wind the clock up",
			fleet.Patience{First: 5 * second, Stall: 5 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead+data)
				for range 29 {
					wait(4 * second)
					fmt.Fprint(c, ping)
				}
				fmt.Fprint(c, lastChunk)
			}, 116 * second, 0, false,
		},
		{
			"pings alone wind it up for 2 minutes, and nobody is asked then",
			fleet.Patience{First: 5 * second, Stall: 5 * second},
			healthAnswers,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); pinging(c, 4*second) }, 120 * second, 0, true,
		},
		{
			"or for ten times a longer limit",
			fleet.Patience{First: 5 * second, Stall: 30 * second},
			healthAnswers,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); pinging(c, 4*second) }, 300 * second, 0, true,
		},
		{
			"before the first data, too",
			fleet.Patience{First: 20 * second, Stall: 5 * second},
			healthAnswers,
			func(c net.Conn) { fmt.Fprint(c, streamHead); pinging(c, 4*second) }, 200 * second, 0, true,
		},
		{
			"a server that answers its health does not get round it",
			fleet.Patience{First: 5 * second, Stall: 5 * second},
			healthAnswers,
			func(c net.Conn) { fmt.Fprint(c, streamHead+data); pinging(c, 9*second) }, 120 * second, 13, true,
		},
		{
			"data between pings begins it anew",
			fleet.Patience{First: 5 * second, Stall: 5 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead)
				for range 10 {
					fmt.Fprint(c, data)
					for range 25 {
						wait(4 * second)
						fmt.Fprint(c, ping)
					}
				}
				fmt.Fprint(c, lastChunk)
			}, 1000 * second, 0, false,
		},
		{
			"progress between pings, too",
			fleet.Patience{First: 5 * second, Stall: 5 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead)
				for range 10 {
					fmt.Fprint(c, progress)
					for range 25 {
						wait(4 * second)
						fmt.Fprint(c, ping)
					}
				}
				fmt.Fprint(c, lastChunk)
			}, 1000 * second, 0, false,
		},
		{
			"no first limit: pings for as long as it takes",
			fleet.Patience{Stall: 5 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead)
				for range 1000 {
					wait(4 * second)
					fmt.Fprint(c, ping)
				}
				fmt.Fprint(c, data+lastChunk)
			}, 4000 * second, 0, false,
		},
		{
			"each silence is doubled once",
			fleet.Patience{Stall: 10 * second},
			healthAnswers,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead+data)
				for range 3 {
					wait(19 * second)
					fmt.Fprint(c, data)
				}
				untilClosed(c)
			}, (3*19 + 20) * second, 4, true,
		},
		{
			"a sign of life counts more than a silent health",
			fleet.Patience{Stall: 10 * second},
			healthSilent,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead+data)
				wait(11 * second)
				fmt.Fprint(c, data)
				wait(9 * second)
				fmt.Fprint(c, lastChunk)
			}, 20 * second, 1, false,
		},
		{
			"half an event is a sign of life",
			fleet.Patience{Stall: 10 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, streamHead+data)
				for _, b := range "data: {}\n\n" {
					wait(9 * second)
					fmt.Fprint(c, chunk(string(b)))
				}
				fmt.Fprint(c, lastChunk)
			}, 90 * second, 0, false,
		},
		{
			"an answer that is no stream is bounded too",
			fleet.Patience{First: 10 * second},
			healthRefused,
			func(c net.Conn) {
				fmt.Fprint(c, "HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nabc")
				untilClosed(c)
			}, 10 * second, 1, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int32
				l := pipeLink(t, tt.health, &asked, tt.stream)
				a := chat
				a.Patience = tt.patience
				begin := time.Now()
				err := l.Run(t.Context(), a, discard)
				if tt.lost {
					wantLost(t, err, fleet.CauseStalled)
				} else if err != nil {
					t.Errorf("got %v, want no error", err)
				}
				if d := time.Since(begin); d != tt.after {
					t.Errorf("ended after %v, want %v", d, tt.after)
				}
				if n := asked.Load(); n != tt.asked {
					t.Errorf("health was asked %d times, want %d", n, tt.asked)
				}
				_ = l.Close("done")
				synctest.Wait()
			})
		})
	}
}

func TestSlowClientCostsNoPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		l := pipeLink(t, healthRefused, &asked, func(c net.Conn) {
			fmt.Fprint(c, streamHead)
			for range 10 {
				fmt.Fprint(c, chunk("data: {\"a\":1}\n\n"))
			}
			fmt.Fprint(c, lastChunk)
		})
		a := chat
		a.Patience = fleet.Patience{First: second, Stall: second}
		n := 0
		if err := l.Run(t.Context(), a, func(fleet.Event) error { n++; wait(time.Minute); return nil }); err != nil || n != 11 {
			t.Errorf("got %d events, %v, want all 11", n, err)
		}
		if asked.Load() != 0 {
			t.Error("the server was asked whether it is there")
		}
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestSlowClientIsNoHungEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		l := pipeLink(t, healthRefused, &asked, func(c net.Conn) {
			fmt.Fprint(c, streamHead)
			for range 10 {
				fmt.Fprint(c, ping)
			}
			fmt.Fprint(c, lastChunk)
		})
		a := chat
		a.Patience = fleet.Patience{First: second, Stall: second}
		n := 0
		if err := l.Run(t.Context(), a, func(fleet.Event) error { n++; wait(time.Minute); return nil }); err != nil || n != 11 {
			t.Errorf("got %d events, %v, want all 11 in 11 minutes", n, err)
		}
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestClientDoesNotWaitForTheEndOfTheConnectionAfterDone(t *testing.T) {
	for _, tt := range []struct {
		name, end string
		after     time.Duration
	}{
		{"the end is there", lastChunk, 0},
		{"the end does not come", "", 5 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int32
				closed := make(chan struct{})
				l := pipeLink(t, healthRefused, &asked, func(c net.Conn) {
					fmt.Fprint(c, streamHead+chunk("data: {\"a\":1}\n\ndata: [DONE]\n\n")+tt.end)
					untilClosed(c)
					close(closed)
				})
				begin := time.Now()
				if err := l.Run(t.Context(), chat, discard); err != nil {
					t.Errorf("got %v, want no error", err)
				}
				if d := time.Since(begin); d != tt.after {
					t.Errorf("ended after %v, want %v", d, tt.after)
				}
				_ = l.Close("done")
				<-closed
				synctest.Wait()
			})
		})
	}
}

func TestEndOfTheContextWhileHealthIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		l := pipeLink(t, healthSilent, &asked, untilClosed)
		a := chat
		a.Patience = fleet.Patience{First: 10 * second}
		ctx, cancel := context.WithTimeout(t.Context(), 11*second)
		defer cancel()
		begin := time.Now()
		if err := l.Run(ctx, a, discard); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the context", err)
		}
		if d := time.Since(begin); d != 11*second || asked.Load() != 1 {
			t.Errorf("ended after %v, health asked %d times", d, asked.Load())
		}
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestProbeThatGetsNoAnswerEndsIn5s(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		l := pipeLink(t, healthAnswers, &asked, untilClosed)
		begin := time.Now()
		_, err := l.Call(t.Context(), fleet.Call{Op: fleet.OpProbe})
		wantLost(t, err, fleet.CauseTimedOut)
		if d := time.Since(begin); d != 5*second {
			t.Errorf("ended after %v, want 5 s", d)
		}
		_ = l.Close("done")
		synctest.Wait()
	})
}

func TestConnectionIsClosedWithoutReadingOn(t *testing.T) {
	// A server that goes on sending must see the end, not be drained.
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, streamHead)
		for {
			if _, err := io.WriteString(c, chunk("data: {\"a\":\""+strings.Repeat("x", 1000)+"\"}\n\n")); err != nil {
				return
			}
		}
	})
	stop := errors.New("stop")
	err := newLink(t, Options{URL: s.url()}).Run(t.Context(), chat, func(e fleet.Event) error {
		if e.Kind == fleet.EventData {
			return stop
		}
		return nil
	})
	if err != stop {
		t.Fatalf("got %v", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.ln.Close()
		s.wg.Wait()
		close(ended)
	}()
	waitFor(t, "the end of the connection", ended)
}
