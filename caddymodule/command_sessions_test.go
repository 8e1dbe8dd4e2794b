package caddymodule

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestSessionsTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	list := sessionList{Sessions: []sessionStatus{
		{State: "decode", SessionStatus: fleet.SessionStatus{
			ID: "4cwzskkhodbm", Model: "qwen3-32b", Node: "box-a", Class: 5,
			Began: now.Add(-12 * time.Second), DeliveredBytes: 3 << 10, Moves: 1,
		}},
		{State: "queued", SessionStatus: fleet.SessionStatus{ID: "qla3d2yqa42j", Began: now.Add(-2 * time.Second)}},
	}}
	var b strings.Builder
	if err := list.write(&b, now); err != nil {
		t.Fatal(err)
	}
	const want = `SESSION       STATE   MODEL      NODE   CLASS  AGE  DELIVERED  MOVES
4cwzskkhodbm  decode  qwen3-32b  box-a  5      12s  3.0 KiB    1
qla3d2yqa42j  queued  -          -      0      2s   0 B        0
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("sessions (-want +got):\n%s", diff)
	}
	b.Reset()
	if err := (sessionList{}).write(&b, now); err != nil || b.String() != "no request runs or waits\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestDrainIsToldInWords(t *testing.T) {
	until := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for want, d := range map[string]fleet.DrainStatus{
		"node a is drained: 2 moved, 1 finished, 0 ended\n":                                                     {Drained: true, Moved: 2, Finished: 1},
		"node a gets nothing new; 1 request left, until 12:00:00 at the latest: 0 moved, 0 finished, 0 ended\n": {Until: until, Left: 1},
	} {
		var b strings.Builder
		if err := writeDrain(&b, "a", d); err != nil || b.String() != want {
			t.Errorf("got %q, %v, want %q", b.String(), err, want)
		}
	}
}
