package fleet

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLinkThatSaysItIsDownIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		m, _ := fleetOf(t, nil, x)
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseTimedOut} })
		x.tell(NodeState{Down: &NodeLost{Cause: CauseClosed}})
		synctest.Wait()
		if st := m.Status(); st.Up != 0 {
			t.Error("the node is still up")
		}
	})
}

func TestFlappingNodeDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		x := serving("m", 1)
		x.run = losing(CauseReset)
		m, a := fleetOf(t, func(p *Policy) { p.Log = slog.New(slog.NewTextHandler(&out, nil)) }, x)
		for range 100 {
			_, _ = ask(m, a, &fakeJob{})
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n == 0 || n > 4 {
			t.Errorf("got %d lines for 100 losses in 5 s:\n%s", n, out.String())
		}
	})
}

// A rolling restart: the answer goes back to a server that failed it and came back
// since. One that did not come back is not waited for.
func TestServerThatWasRestartedMayGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1)
		x.run = losing(CauseReset, "one")
		cut := make(chan struct{})
		y.run = func(ctx context.Context, a Assignment, take func(Event) error) error {
			if err := take(Event{Kind: EventData, Data: []byte("two")}); err != nil {
				return err
			}
			<-cut
			return &NodeLost{Cause: CauseReset}
		}
		m, a := fleetOf(t, nil, x, y)
		got := make(chan string)
		go func() { text, _ := ask(m, a, &fakeJob{}); got <- text }()
		x.set(func(l *fakeLink) { l.down = &NodeLost{Cause: CauseRefused} })
		time.Sleep(2 * time.Second)
		x.set(func(l *fakeLink) { l.down, l.run = nil, saying("three.") })
		time.Sleep(10 * time.Second)
		close(cut)
		if text := <-got; text != "one two three. [done]" {
			t.Errorf("got %q", text)
		}

		x.set(func(l *fakeLink) { l.down, l.run = &NodeLost{Cause: CauseRefused}, losing(CauseReset, "one") })
		y.set(func(l *fakeLink) { l.run = losing(CauseReset, "two") })
		x.set(func(l *fakeLink) { l.down = nil })
		time.Sleep(20 * time.Second)
		began := time.Now()
		_, err := ask(m, a, &fakeJob{})
		wantReason(t, err, ReasonLost)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %s for servers that failed the request", took)
		}
	})
}

func TestOutageTellsTheOperatorWhatToChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := serving("m", 1)
		x.down = &RequestError{Reason: ReasonNoNode, Message: "for clients", Err: errors.New("the key is wrong")}
		m, _ := fleetOf(t, nil, x)
		d := m.Status().Nodes[0].Down
		if d == nil || d.Cause != CauseUnusable || d.Error != "the key is wrong" {
			t.Errorf("got %+v", d)
		}
	})
}
