package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// control asks the admin API for an action.
func (e *edge) control(path, body string) answer {
	e.t.Helper()
	r, err := http.NewRequest(http.MethodPost, e.Admin+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return e.do(r)
}

// sessions are those that the admin API shows.
func (e *edge) sessions() []sessionStatus {
	e.t.Helper()
	var list sessionList
	decode(e.t, e.get(e.Admin+"/fleet/sessions").Body, &list)
	return list.Sessions
}

// stream starts a chat and returns where its end comes, once it has begun.
func (e *edge) stream(tokens int) <-chan streamed {
	e.t.Helper()
	begun, ended := make(chan struct{}), make(chan streamed, 1)
	begins := sync.OnceFunc(func() { close(begun) })
	go func() {
		defer begins()
		resp, err := e.Client.Do(e.request(context.Background(), "/v1/chat/completions", strings.NewReader(chatBody("m", "hi", tokens, true))))
		if err != nil {
			ended <- streamed{Err: err}
			return
		}
		defer resp.Body.Close()
		ended <- readStream(resp.Body, func(n int) {
			if n == 3 {
				begins()
			}
		})
	}()
	select {
	case <-begun:
	case <-time.After(10 * time.Second):
		e.t.Fatal("no answer began within 10 s")
	}
	return ended
}

// command runs a subcommand against the edge and returns its exit code.
func (e *edge) command(s subcommand, args ...string) (int, error) {
	e.t.Helper()
	cmd := s.cobra()
	if err := cmd.ParseFlags(append(args, "--address", strings.TrimPrefix(e.Admin, "http://"))); err != nil {
		e.t.Fatal(err)
	}
	return s.run(caddycmd.Flags{FlagSet: cmd.Flags()})
}

func TestSessionTellsWhyItRunsThere(t *testing.T) {
	o := llamasim.Options{Model: "m", Slots: 2, Decode: 50}
	e := startEdge(t, nodes("policy lowest_cost", startSim(t, o), startSim(t, o)), "fleet")
	e.ready()
	await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == 2 })
	<-e.stream(60) // teaches how fast a node is
	ended := e.stream(60)
	s := e.sessions()[0]
	for _, when := range []string{"while it runs", "after its end"} {
		var got sessionStatus
		decode(t, e.get(e.Admin+"/fleet/sessions/"+s.ID).Body, &got)
		if len(got.Placement) != 2 || got.Placement[0].Node != s.Node || got.Placement[0].Terms.Write <= 0 {
			t.Errorf("%s: got %+v, want both nodes, %s first, with the seconds of writing", when, got.Placement, s.Node)
		}
		if when == "while it runs" {
			<-ended
		}
	}
	if len(s.Placement) > 0 {
		t.Errorf("in the list of sessions: got %+v, want no placement", s.Placement)
	}
}

func TestSessionsAreParkedResumedMovedAndCancelled(t *testing.T) {
	o := llamasim.Options{Model: "m", Slots: 2, Decode: 50}
	sims := map[string]*llamasim.Server{"a": startSim(t, o), "b": startSim(t, o)}
	e := startEdge(t, nodes("policy round_robin", sims["a"], sims["b"]), "fleet")
	e.ready()
	await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == 2 })
	alone := e.stream(60)
	whole := <-alone
	if wrong := whole.whole(); wrong != "" {
		t.Fatal(wrong)
	}

	ended := e.stream(60)
	list := e.sessions()
	if len(list) != 1 || list[0].State != "decode" || list[0].Model != "m" || list[0].DeliveredBytes == 0 || list[0].Tenant == "127.0.0.1" {
		t.Fatalf("got sessions %+v", list)
	}
	s := list[0]
	if code, err := e.command(sessionsCommand); code != 0 || err != nil {
		t.Errorf("sessions: got %d, %v", code, err)
	}
	if code, err := e.command(parkCommand, s.ID); code != 0 || err != nil {
		t.Fatalf("park: got %d, %v", code, err)
	}
	await(t, "the lane to be free", func() bool { return sims["a"].Stats().Active+sims["b"].Stats().Active == 0 })
	if a := e.control("/fleet/control/sessions/"+s.ID+"/park", ""); a.Status != http.StatusOK || !strings.Contains(a.Body, `"state":"parked"`) {
		t.Errorf("parked again: got %d %s", a.Status, a.Body)
	}
	if code, err := e.command(moveCommand, s.ID); code != exitRefused || err == nil {
		t.Errorf("moving what is parked: got %d, %v, want %d", code, err, exitRefused)
	}
	if code, err := e.command(resumeCommand, s.ID); code != 0 || err != nil {
		t.Fatalf("resume: got %d, %v", code, err)
	}
	await(t, "it to run again", func() bool { l := e.sessions(); return len(l) == 1 && l[0].State == "decode" })
	from := e.sessions()[0].Node
	a := e.control("/fleet/control/sessions/"+s.ID+"/move", "{}")
	var moved sessionStatus
	decode(t, a.Body, &moved)
	if a.Status != http.StatusOK || moved.Moves != 2 || moved.Node == from {
		t.Errorf("move from %s: got %d %s", from, a.Status, a.Body)
	}
	got := <-ended
	if wrong := got.whole(); wrong != "" || got.Text != whole.Text {
		t.Errorf("%s; got\n%s\nwant\n%s", wrong, got.Text, whole.Text)
	}
	if a := e.get(e.Admin + "/fleet/sessions/" + s.ID); a.Status != http.StatusOK || !strings.Contains(a.Body, `"outcome":"whole"`) {
		t.Errorf("after its end: got %d %s", a.Status, a.Body)
	}

	ended = e.stream(1000)
	if code, err := e.command(cancelCommand, e.sessions()[0].ID); code != 0 || err != nil {
		t.Fatalf("cancel: got %d, %v", code, err)
	}
	if got := <-ended; !strings.Contains(got.Error, `"aborted"`) || got.Done != 0 {
		t.Errorf("got %+v, want the error event", got)
	}
	if code, err := e.command(cancelCommand, s.ID); code != 1 || err == nil || !strings.Contains(err.Error(), "no session") {
		t.Errorf("cancelling what has ended: got %d, %v", code, err)
	}
}

func TestDrainMovesStreamsAndTellsHowMany(t *testing.T) {
	o := llamasim.Options{Model: "m", Slots: 4, Decode: 50}
	a, b := startSim(t, o), startSim(t, o)
	e := startEdge(t, nodes("policy round_robin\n\t\tdrain_timeout 10s", a, b), "fleet")
	e.ready()
	await(t, "all nodes to be up", func() bool { return strings.Count(e.get(e.Admin+"/fleet/nodes").Body, `"up":true`) == 2 })
	events, err := e.Client.Get(e.Admin + "/fleet/events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	if got := events.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("events: got content type %q", got)
	}
	results := streams(e, 4, 60, func() {
		if code, err := e.command(drainCommand, "a"); code != 0 || err != nil {
			t.Errorf("drain: got %d, %v", code, err)
		}
		var n nodeStatus
		decode(t, e.get(e.Admin+"/fleet/nodes/a").Body, &n)
		if n.Drain == nil || !n.Drain.Drained || n.Drain.Moved != 2 || n.Drain.Ended != 0 {
			t.Errorf("got %+v, want 2 moved", n.Drain)
		}
	})
	wantWhole(t, results)
	if code, err := e.command(drainCommand, "a", "--no-wait"); code != 0 || err != nil {
		t.Errorf("drain again: got %d, %v", code, err)
	}
	before := a.Stats().Requests
	if r := e.post("/v1/chat/completions", chatBody("m", "hi", 2, false)); r.Status != http.StatusOK || a.Stats().Requests != before {
		t.Errorf("got %d, and the drained node was asked", r.Status)
	}
	if code, err := e.command(undrainCommand, "a"); code != 0 || err != nil {
		t.Errorf("undrain: got %d, %v", code, err)
	}
	if r := e.control("/fleet/control/nodes/a/probe", ""); r.Status != http.StatusOK || !strings.Contains(r.Body, `"up":true`) {
		t.Errorf("probe: got %d %s", r.Status, r.Body)
	}
	want := map[string]int{"placed": 5, "moved": 2, "ended": 5, "node_draining": 1, "node_drained": 1, "node_undrained": 1}
	lines := bufio.NewScanner(events.Body)
	for len(want) > 0 && lines.Scan() {
		kind, ok := strings.CutPrefix(lines.Text(), "event: ")
		if !ok {
			continue
		}
		if want[kind]--; want[kind] == 0 {
			delete(want, kind)
		}
	}
	if len(want) > 0 {
		t.Errorf("of the events these were missing: %v", want)
	}
	// A reload ends the stream of events, not after Caddy's 10 s.
	began := time.Now()
	if err := e.load(nodes("", a, b), "fleet"); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the stream of events outlived its configuration by %s", took)
	}
}

func TestActionsAreRefusedInTheFormOfTheAdminAPI(t *testing.T) {
	e := startEdge(t, nodes("", startSim(t, llamasim.Options{Model: "m"})), "fleet")
	e.ready()
	for _, c := range []struct {
		path, kind, body string
		want             int
	}{
		{"/fleet/control/nodes/a/drain", "text/plain", "{}", http.StatusUnsupportedMediaType},
		{"/fleet/control/nodes/a/drain", "", "", http.StatusUnsupportedMediaType},
		{"/fleet/control/nodes/a/drain", "application/json", `{"x":1}`, http.StatusBadRequest},
		{"/fleet/control/nodes/a/drain", "application/json", `{} {}`, http.StatusBadRequest},
		{"/fleet/control/nodes/a/drain", "application/json", strings.Repeat(" ", maxControl+1), http.StatusRequestEntityTooLarge},
		{"/fleet/control/nodes/z/drain", "application/json", "", http.StatusNotFound},
		{"/fleet/control/nodes/a/explode", "application/json", "", http.StatusNotFound},
		{"/fleet/control/sessions/z/park", "application/json", "", http.StatusNotFound},
		{"/fleet/control/sessions/z/explode", "application/json; charset=utf-8", "", http.StatusNotFound},
	} {
		r, _ := http.NewRequest(http.MethodPost, e.Admin+c.path, strings.NewReader(c.body))
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		}
		a := e.do(r)
		var said struct{ Error string }
		if a.Status != c.want || json.Unmarshal([]byte(a.Body), &said) != nil || said.Error == "" {
			t.Errorf("%s %q %.20q: got %d %s, want %d", c.path, c.kind, c.body, a.Status, a.Body, c.want)
		}
	}
	for _, path := range []string{"/fleet/control/nodes/a/drain", "/fleet/control/sessions/z/park"} {
		if a := e.get(e.Admin + path); a.Status != http.StatusMethodNotAllowed || a.Header.Get("Allow") != "POST" {
			t.Errorf("GET %s: got %d", path, a.Status)
		}
	}
	if a := e.get(e.Admin + "/fleet/nodes/a"); strings.Contains(a.Body, "drain") {
		t.Errorf("a refused action did something: %s", a.Body)
	}
}
