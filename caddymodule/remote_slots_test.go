package caddymodule

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
	"github.com/slotfleet/slotfleet/slotlog"
)

// agentWithLog runs an agent that dials a head and reads a log.
func agentWithLog(t testing.TB, head, token, name, log, upstream string) {
	t.Helper()
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	src := slotlog.Open(slotlog.SourceOptions{Kind: slotlog.SourceFile, Path: log})
	a, err := agent.Start(agent.Options{Heads: []string{head}, Tokens: []linkf.Token{k}, Identity: name, Upstream: upstream, Log: src})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.Close()
		_ = src.Close()
	})
}

// slotsOfSource are those at /slotlog/slots; ok is false where it has no such source.
func (e *edge) slotsOfSource(name string) (s sourceSlots, ok bool) {
	e.t.Helper()
	var all allSlots
	if err := json.Unmarshal([]byte(e.get(e.Admin+"/slotlog/slots").Body), &all); err != nil {
		e.t.Fatal(err)
	}
	for _, s := range all.Sources {
		if s.Source == name {
			return s, true
		}
	}
	return s, false
}

func TestSlotsOfANodeAreShownAtTheHead(t *testing.T) {
	const odd = "box<c>é 1"
	token, address := linkf.NewToken(), freeAddr(t)
	log := filepath.Join(t.TempDir(), "server.log")
	file := openLog(t, log)
	config := func(more string) string {
		return fmt.Sprintf("fleet {\n\t\tlisten %s\n\t\ttoken %s\n\t\trelink 1s\n\t}\n\t%s", address, token, more)
	}
	e := startEdge(t, config(""), "fleet")
	w := newWay(t, "127.0.0.1:0", address, nil)
	agentWithLog(t, w.addr, token, odd, log, startSim(t, llamasim.Options{Model: "m", Slots: 2, Decode: 100, Log: file}).URL())
	e.ready()
	events := e.events(t.Context())
	streamed := make(chan streamed, 1)
	go func() { streamed <- e.chatOf("tell me", 100, nil) }()
	events.next("port", `"state":"processing"`)
	if wrong := (<-streamed).whole(); wrong != "" {
		t.Error(wrong)
	}
	s, ok := e.slotsOfSource(odd)
	if !ok || s.Node != odd || s.Degraded || s.Stale || s.Age == nil || *s.Age > 60 || len(s.Ports) != 1 || len(s.Ports[0].Slots) != 2 {
		t.Fatalf("got %+v, want the node's two slots", s)
	}
	if got := e.get(e.Admin + "/fleet/nodes").Body; !strings.Contains(got, `"status_age_seconds":`) {
		t.Errorf("got %s, want the age of the node's word", got)
	}
	metrics := e.get(e.Admin + "/metrics").Body
	for _, want := range []string{
		fmt.Sprintf(`slotfleet_slotlog_slots{port="%d",source="%s",state="processing"} `, s.Ports[0].Port, odd),
		fmt.Sprintf(`slotfleet_slotlog_degraded{source="%s"} 0`, odd),
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not hold %s", want)
		}
	}
	var text strings.Builder
	if err := (allSlots{[]sourceSlots{s}}).write(&text); err != nil || !strings.Contains(text.String(), odd) {
		t.Errorf("the table has not the node's name: %q, %v", text.String(), err)
	}

	// A source that is read here has the name, and the node's slots another.
	if err := e.load(config("slotlog {\n\t\tsource "+`"`+odd+`"`+" file "+log+"x\n\t}"), "fleet"); err != nil {
		t.Fatal(err)
	}
	if s, _ := e.slotsOfSource(odd); s.Node != "" {
		t.Errorf("got %+v, want the source that is read here", s)
	}
	if s, ok := e.slotsOfSource("node " + odd); !ok || s.Node != odd {
		t.Errorf("got %+v, want the node's under a name of its own", s)
	}
	if err := e.load(config(""), "fleet"); err != nil {
		t.Fatal(err)
	}

	w.refuse()
	events.next("source", "last word")
	if s, ok := e.slotsOfSource(odd); ok && (!s.Stale || !s.Degraded || len(s.Ports[0].Slots) == 0) {
		t.Errorf("got %+v, want the last word, marked stale", s)
	}
	await(t, "the slots of a node that did not come back to go", func() bool {
		_, ok := e.slotsOfSource(odd)
		return !ok
	})
}
