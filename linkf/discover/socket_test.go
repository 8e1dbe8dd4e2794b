package discover

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// On the networks that this machine has, with all that there is between.
func TestHeadIsFoundOnARealNetwork(t *testing.T) {
	s, err := open()
	if err != nil {
		t.Skipf("the port of multicast DNS cannot be had here: %v", err)
	}
	all, err := s.interfaces()
	_ = s.Close()
	if err != nil || len(all) == 0 {
		t.Skipf("no interface with multicast is up here (%v)", err)
	}
	a, err := Announce(Options{Identity: t.Name(), Port: 8454})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	found := make(chan []Head, 100)
	done := make(chan error, 1)
	go func() {
		done <- Find(ctx, slog.New(slog.DiscardHandler), func(all []Head) { found <- all })
	}()
	defer func() { cancel(); <-done }()
	seen := false
	for {
		select {
		case heads := <-found:
			t.Logf("found %+v", heads)
			if len(heads) > 0 && !seen {
				seen = true
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if len(heads) == 0 && seen {
				return
			}
		case <-ctx.Done():
			t.Fatalf("in 20 s found %v and never heard that it left, want both", seen)
		}
	}
}
