package linkf

import (
	"strings"
	"testing"
)

func TestEventsThatWereLostOnTheWayComeAgainAndOthersDoNot(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	for range 3 {
		w.say(run, 12)
	}
	w.run(t)
	w.dark = true
	w.say(run, 12)
	w.settle()
	if got := w.clients[id].got; got != 3 {
		t.Fatalf("the client has %d events, want 3", got)
	}
	w.cut(true, true)
	w.say(run, 12)
	w.connect()
	w.run(t) // fails if one comes twice or out of order
	if got := w.clients[id].got; got != 5 {
		t.Errorf("the client has %d events, want all 5", got)
	}
	if len(w.started) != 1 {
		t.Errorf("%d generations ran, want 1", len(w.started))
	}
}

func TestHeadTakesEventsOnceAndInOrder(t *testing.T) {
	w := connected(t)
	id, run := opened(t, w)
	w.say(run, 12)
	w.run(t)
	s := w.head.sessions[id]
	item := []event{{Kind: eventData, Data: make([]byte, 12)}}
	for name, m := range map[string]events{
		"again":                 {key{id, s.epoch}, s.generation, 0, item},
		"of an older epoch":     {key{id, s.epoch - 1}, s.generation, 1, item},
		"of no session":         {key{99, s.epoch}, s.generation, 1, item},
		"of a generation to be": {key{id, s.epoch}, s.generation + 1, 1, item},
	} {
		if err := w.head.events(m); err != nil || len(w.head.actions()) != 0 || s.next != 1 {
			t.Errorf("an event %s: got %v and event %d next, want it ignored", name, err, s.next)
		}
	}
	if err := w.head.events(events{key{id, s.epoch}, s.generation, 2, item}); err == nil {
		t.Error("event 2 after 0: got no error, want one")
	}
}

func TestSlowClientStopsItsOwnStreamOnly(t *testing.T) {
	w := connected(t)
	slow, run := opened(t, w)
	said := 0
	for ; !w.runs[run].waits; said++ {
		if said > 2*retryRoom/maxPiece {
			t.Fatal("the generation is never told to wait")
		}
		w.say(run, maxPiece-1)
		w.run(t)
	}
	if s := w.head.sessions[slow]; s.cost-s.paid > creditRoom || s.cost-s.paid < creditRoom/2 {
		t.Errorf("%d bytes wait for the client, want nearly %d", s.cost-s.paid, creditRoom)
	}
	fast, other := opened(t, w)
	w.say(other, 12)
	w.run(t)
	if got := w.clients[fast].got; got != 1 {
		t.Errorf("the other stream has %d events, want 1", got)
	}
	for i := 0; w.clients[slow].got < uint32(said); i++ {
		if i > said {
			t.Fatalf("the slow client has %d of %d events", w.clients[slow].got, said)
		}
		c := w.clients[slow]
		w.head.took(w.headTime(), slow, c.gen, c.seen)
		w.run(t)
	}
	if w.runs[run].waits {
		t.Error("the generation still waits after its client read all")
	}
}

func TestEventsBeyondTheCreditEndTheLink(t *testing.T) {
	w := connected(t)
	id, _ := opened(t, w)
	s := w.head.sessions[id]
	item := event{Kind: eventData, Data: make([]byte, maxPiece)}
	err := w.head.events(events{key{id, s.epoch}, s.generation, 0, []event{item, item, item, item, item, item, item, item}})
	if err == nil || !strings.Contains(err.Error(), "credit") {
		t.Errorf("got %v, want an error about the credit", err)
	}
}
