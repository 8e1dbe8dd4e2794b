package linkf

import (
	"bytes"
	"testing"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestLargeBodyArrivesWholeAndLetsEventsPass(t *testing.T) {
	w := connected(t)
	_, run := opened(t, w)
	body := bytes.Repeat([]byte("0123456789abcdef"), (window+3)*chunkLen/16+1)
	id, err := w.head.open(w.headTime(), fleet.Assignment{Model: "m", Path: "/big", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	w.clients[id] = &client{}
	w.settle()
	if got := len(w.toNode); got > window+2 {
		t.Errorf("%d pieces were sent without an ack, want the window of %d and the assign", got, window)
	}
	w.say(run, 12)
	w.run(t)
	s := w.session(id)
	if s == nil || s.content == nil || !bytes.Equal(joined(s.content.Body, s.parts), body) {
		t.Fatal("the body did not arrive whole")
	}
	if got := w.agent.conns[w.conn].wire.in.held; got != 0 {
		t.Errorf("%d bytes of transfers are held, want none", got)
	}
}

func TestTransferThatIsTooLargeIsRefusedNotTheLink(t *testing.T) {
	w := &wire{}
	if err := w.transfer(typeTransferBegin, transfer{ID: 1, Size: maxTransfer + 1}); err != nil {
		t.Fatal(err)
	}
	if len(w.aborts) != 1 {
		t.Errorf("%d aborts, want 1", len(w.aborts))
	}
	for name, c := range map[string][]transfer{
		"a chunk that leaves a gap": {{ID: 2, Size: 10}, {ID: 2, Offset: 1, Data: []byte("a")}},
		"a chunk beyond the size":   {{ID: 3, Size: 1}, {ID: 3, Data: []byte("ab")}},
		"a number that was used":    {{ID: 4, Size: 1}, {ID: 4, Size: 1}},
	} {
		w := &wire{}
		if err := w.transfer(typeTransferBegin, c[0]); err != nil {
			t.Fatal(err)
		}
		typ := typeTransferChunk
		if c[1].Size > 0 {
			typ = typeTransferBegin
		}
		if err := w.transfer(typ, c[1]); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}
