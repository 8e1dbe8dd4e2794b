package caddymodule

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slotfleet/slotfleet/fleet"
)

// statusOf reads a status back as the command does.
func statusOf(t *testing.T, s fleet.Status) fleetStatus {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got fleetStatus
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return got
}

func TestStatusTable(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	s := statusOf(t, fleet.Status{
		Up: 2, Known: 3, Waiting: 1,
		Serving: []fleet.ModelStatus{
			{Model: "big", Nodes: 1},
			{Model: "qwen3-32b", Nodes: 2, Ready: 2, Lanes: 5},
		},
		Nodes: []fleet.NodeStatus{
			{Name: "box-a", Up: true, Instances: []fleet.InstanceStatus{{
				Model: "qwen3-32b", State: fleet.StateReady, Lanes: 4, LanesActive: 1, Context: 16384,
				Load:        &fleet.LoadStatus{Active: 2, At: now.Add(-3 * time.Second), Fresh: true},
				PrefillRate: 900, DecodeRate: 45.26,
			}}},
			{Name: "box-b", Up: true, Namesake: &fleet.NamesakeStatus{Address: "10.0.0.2", At: now}, Instances: []fleet.InstanceStatus{{Model: "qwen3-32b", State: fleet.StateLoading}}},
			{Name: "box-\x1b[2J", Down: &fleet.DownStatus{
				Since: now.Add(-2 * time.Minute), Cause: fleet.CauseRefused,
				Error: "node box-\x1b[2J lost: refused: connect: connection refused", NextProbe: now.Add(4 * time.Second),
			}, Instances: []fleet.InstanceStatus{}},
		},
	})
	var b strings.Builder
	if err := s.write(&b, now); err != nil {
		t.Fatal(err)
	}
	const want = `2 of 3 nodes up; serving qwen3-32b (5 lanes); not ready: big; 1 request waiting for a lane

NODE         STATE    MODEL      LANES  CONTEXT  LOAD              SPEED
box-a        ready    qwen3-32b  1/4    16,384   2 active, 3s old  900/45.3
box-b        loading  qwen3-32b  0/-    -        -                 -
box-\x1b[2J  down     -          -      -        -                 -

another node that calls itself box-b dials in from 10.0.0.2 and is turned away: give one of the two another identity

box-\x1b[2J has been down for 2 minutes (refused): connect: connection refused; next try in 4s
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if s.serves() {
		t.Error("serves although one model has no ready instance")
	}
}

func TestStatusOfNothing(t *testing.T) {
	s := statusOf(t, fleet.Status{})
	if s.serves() {
		t.Error("a fleet without nodes serves")
	}
	var b strings.Builder
	if err := s.write(&b, time.Now()); err != nil {
		t.Fatal(err)
	}
	if want := "no nodes: the running configuration names none\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestShortSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:            "0s",
		1400 * time.Millisecond: "1s",
		99 * time.Second:        "99s",
		5 * time.Minute:         "5 minutes",
		49 * time.Hour:          "2 days",
	} {
		if got := shortSpan(d); got != want {
			t.Errorf("shortSpan(%s) = %q, want %q", d, got, want)
		}
	}
}
