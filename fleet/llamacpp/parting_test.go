package llamacpp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

var errGone = errors.New("the client left")

// holder is a server that reads a request, says when it has it and sees that its client
// does not ask on, and closes only when it is told to.
type holder struct {
	*rawServer
	has, sees, end chan struct{}
}

func holding(t *testing.T, head string) *holder {
	h := &holder{has: make(chan struct{}, 4), sees: make(chan struct{}, 4), end: make(chan struct{})}
	h.rawServer = serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, head)
		h.has <- struct{}{}
		_, _ = r.ReadByte()
		h.sees <- struct{}{}
		<-h.end
	})
	return h
}

func TestGenerationThatTheServerHoldsCountsUntilItEnds(t *testing.T) {
	s := holding(t, "")
	l := newLink(t, Options{URL: s.url()})
	l.offer = offerOf(fleet.Instance{Model: "m", State: fleet.StateReady})
	states, stop := watching(t, l)
	defer stop()
	<-states
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, fleet.Assignment{Path: chat.Path, Body: chat.Body, Model: "m"}, discard) }()
	waitFor(t, "the request", s.has)
	cancel(errGone)
	waitFor(t, "the end of our half", s.sees)
	if err := <-done; err != errGone {
		t.Fatalf("got %v, want the cause of the context", err)
	}
	if i := <-states; i.Leaving != 1 {
		t.Fatalf("got %d leaving, want 1: the server did not end it", i.Leaving)
	}
	close(s.end)
	if i := <-states; i.Leaving != 0 {
		t.Fatalf("got %d leaving after the server's end, want 0", i.Leaving)
	}
	if n := len(s.has); n != 0 {
		t.Errorf("the request went out %d times more", n)
	}
}

func TestRunWaitsForTheServersEndOfAStream(t *testing.T) {
	s := holding(t, streamHead+chunk("data: {\"a\":1}\n\n"))
	l := newLink(t, Options{URL: s.url()})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.Run(ctx, chat, func(e fleet.Event) error {
			if e.Kind == fleet.EventData {
				cancel(errGone)
			}
			return nil
		})
	}()
	waitFor(t, "the end of our half", s.sees)
	select {
	case err := <-done:
		t.Fatalf("got %v before the server ended the generation", err)
	default:
	}
	close(s.end)
	if err := <-done; err != errGone {
		t.Fatalf("got %v, want the cause of the context", err)
	}
}

func TestStreamThatGoesOnIsClosedWhole(t *testing.T) {
	closed := make(chan struct{})
	s := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, _, err := request(r); err != nil {
			return
		}
		fmt.Fprint(c, streamHead)
		for { // something between that passes our half's end over
			if _, err := io.WriteString(c, chunk("data: {\"a\":1}\n\n")); err != nil {
				close(closed)
				return
			}
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	err := newLink(t, Options{URL: s.url()}).Run(ctx, chat, func(e fleet.Event) error {
		if e.Kind == fleet.EventData {
			cancel(errGone)
		}
		return nil
	})
	if err != errGone {
		t.Fatalf("got %v, want the cause of the context", err)
	}
	waitFor(t, "the end of the connection", closed)
}

func TestCloseOfTheLinkEndsWhatIsLeft(t *testing.T) {
	s := holding(t, "")
	l := newLink(t, Options{URL: s.url()})
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, chat, discard) }()
	waitFor(t, "the request", s.has)
	cancel(errGone)
	if err := <-done; err != errGone {
		t.Fatalf("got %v, want the cause of the context", err)
	}
	_ = l.Close("it is over") // waits for what is left; goleak sees the rest
	close(s.end)
}
