package slotlog

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func markedLaunch(port, slot int) string {
	return fmt.Sprintf("[%5d] 0.01.000.000 I slot launch_slot_: id %2d | task 1 | processing task\n", port, slot)
}

func markedLanes(port, lanes int) string {
	return fmt.Sprintf("[%5d] 0.00.900.000 I srv    load_model: initializing, n_slots = %d, n_ctx_slot = 4096\n", port, lanes)
}

func spawned(model string, port int) string {
	return fmt.Sprintf("0.01.000.000 I srv          load: spawning server instance with name=%s on port %d\n", model, port)
}

// held counts what a reader and its tracker remember, and checks that they agree.
func held(t *testing.T, r *Reader, tr *Tracker) (ports, slots int) {
	t.Helper()
	for _, port := range tr.Ports() {
		if r.procs.get(port) == nil {
			t.Errorf("port %d: the tracker knows it, the reader does not", port)
		}
		slots += len(tr.Resolve(port, noon))
	}
	return max(len(tr.Ports()), len(r.procs)), slots
}

func TestForgedLogHoldsBoundedMemory(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ports        int
		log          func(port int) string
		atMost, kept int // slots, ports
	}{
		{"many ports with slots", 2000, func(port int) string {
			return markedLaunch(port, 0) + markedLaunch(port, 255) + markedLaunch(port, 256) + markedLaunch(port, 4095)
		}, 2 * 64, 64},
		{"servers that say they have many slots", 40, func(port int) string { return markedLanes(port, 4096) }, 16384, 4},
		{"servers that say they have too many slots", 40, func(port int) string { return markedLanes(port, 4097) }, 0, 256},
		{"servers that say they have one slot", 2000, func(port int) string { return markedLanes(port, 1) }, 256, 256},
		{"one server with many slots", 1, func(port int) string {
			return markedLanes(port, 4096) + markedLaunch(port, 4095) + markedLaunch(port, 4096)
		}, 4096, 1},
		{"a router with many children", 2000, func(port int) string { return spawned("m", port) }, 0, 256},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, tr := NewReader(SourceOptions{}), NewTracker()
			for port := 2; port < 2+tt.ports; port++ {
				r.Feed([]byte(tt.log(port)), noon, tr.Apply)
			}
			ports, slots := held(t, r, tr)
			if ports > tt.kept || slots != tt.atMost {
				t.Errorf("got %d ports, %d slots, want at most %d ports, %d slots", ports, slots, tt.kept, tt.atMost)
			}
		})
	}
}

func TestForgedLinesAloneHoldBoundedMemory(t *testing.T) {
	tr := NewTracker()
	seq := uint64(0)
	for port := 2; port < 2000; port++ {
		for _, slot := range []int{0, 255, 256, 4095, 1_000_000} {
			l := ParseLine([]byte(markedLaunch(port, slot)))
			seq++
			l.Seq, l.Time = seq, noon
			tr.Observe(l)
		}
	}
	ports := tr.Ports()
	if len(ports) != 256 || ports[255] != 1999 || len(tr.Resolve(1999, noon)) != 2 {
		t.Errorf("got %d ports, %d slots on port 1999, want the last 256 with 2 each", len(ports), len(tr.Resolve(1999, noon)))
	}
}

func TestServerThatSpeaksIsNotForgottenForThoseThatDoNot(t *testing.T) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	r.Feed([]byte(markedLanes(9101, 2)), noon, tr.Apply)
	for port := 10000; port < 12000; port++ {
		r.Feed([]byte(markedLaunch(port, 0)), noon, tr.Apply)
		if port%200 == 0 {
			r.Feed([]byte(markedLaunch(9101, 1)), noon, tr.Apply)
		}
	}
	if got := len(tr.Resolve(9101, noon)); got != 2 {
		t.Errorf("slots of the server that speaks: got %d, want 2", got)
	}
	if ports := tr.Ports(); slices.Contains(ports, 10000) || !slices.Contains(ports, 11999) {
		t.Error("want the port heard longest ago to go and the last one to stay")
	}
}

func TestWhatASourceKnowsOfItsPortsIsForgottenTogether(t *testing.T) {
	var b strings.Builder
	for port := 2; port < 1000; port++ {
		b.WriteString(spawned("m", port) + markedLaunch(port, 0))
	}
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, b.String())
	s := follow(t, SourceOptions{Path: path})
	awaitRead(t, s)
	ports := s.Snapshot(time.Now()).Ports
	if n := len(ports); n < 250 || n > 256 {
		t.Errorf("ports: got %d, want at most 256 and no less than a router's share of that", n)
	}
	for _, p := range ports {
		if p.Model != "m" || len(p.Slots) != 1 {
			t.Errorf("port %d: got model %q, %d slots, want both of them known", p.Port, p.Model, len(p.Slots))
		}
	}
}

func TestLongNameOfAModelIsCut(t *testing.T) {
	long := strings.Repeat("ä", 200) // 400 bytes
	names := map[int]string{}
	var gone []int
	take := func(e Event) {
		switch e.Kind {
		case KindModel:
			names[e.Port] = e.Model
		case KindGone:
			gone = append(gone, e.Port)
		}
	}
	r := NewReader(SourceOptions{})
	r.Feed([]byte(spawned("x"+long, 5001)+spawned(long, 5002)+spawned("short", 5003)), noon, take)
	want := map[int]string{5001: "x" + long[:254], 5002: long[:256], 5003: "short"}
	for port, name := range want {
		if names[port] != name {
			t.Errorf("port %d: got %d bytes of a name, want %d, whole letters", port, len(names[port]), len(name))
		}
	}
	r.Feed([]byte("0.02.000.000 I srv    operator(): instance name=x"+long+" exited with status 0\n"), noon, take)
	if !slices.Equal(gone, []int{5001}) {
		t.Errorf("ports that are gone after the exit: got %v, want 5001", gone)
	}
}

func TestNewerLineWinsOverAnOlderAnswerOfTheServer(t *testing.T) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	r.Feed([]byte(launchLine(1)), noon, tr.Apply)
	if !tr.NeedsSeed(1, noon, 2) {
		t.Error("needs seed: got false, want true")
	}
	mark := tr.BeginSeed(1, noon)
	n := int64(40)
	r.Feed([]byte(releaseLine(1)), noon, tr.Apply)
	tr.ApplySeed(1, mark, []SeedSlot{
		{Slot: 0, State: Processing}, // older than the release
		{Slot: 1, State: Processing, Decoded: &n},
		{Slot: maxLanes, State: Processing},
	}, noon)
	want := `[{"slot":0,"state":"idle","task":null,"promptTokens":10,"decoded":null,"rateTps":null},` +
		`{"slot":1,"state":"processing","task":null,"promptTokens":null,"decoded":40,"rateTps":null}]`
	if got := slotsJSON(t, tr, 1); got != want {
		t.Errorf("slots:\n got %s\nwant %s", got, want)
	}
	if tr.NeedsSeed(1, noon, 2) {
		t.Error("needs seed after it was given: got true, want false")
	}
}
