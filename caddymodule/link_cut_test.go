package caddymodule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/agent"
)

// pair is a Caddy with two nodes over linkf, each behind a way that can be broken: one
// that is dialled, and one that dials in.
type pair struct {
	*edge
	sims []*llamasim.Server // dialled, dials in
	ways []*way
}

func startPair(t testing.TB, o llamasim.Options, more string) *pair {
	t.Helper()
	o.Model = "m"
	p := &pair{sims: []*llamasim.Server{startSim(t, o), startSim(t, o)}}
	token := linkf.NewToken()
	k, err := linkf.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := listenTCP(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	door := freeAddr(t)
	p.ways = []*way{newWay(t, freeAddr(t), ln.Addr().String(), nil), newWay(t, freeAddr(t), door, nil)}
	for i, o := range []agent.Options{
		{Listener: ln, Identity: "dialled"},
		{Heads: []string{p.ways[1].addr}, Identity: "dials-in"},
	} {
		o.Tokens, o.Upstream = []linkf.Token{k}, p.sims[i].URL()
		a, err := agent.Start(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
	}
	p.edge = startEdge(t, fmt.Sprintf(`fleet {
		listen %s
		token %s
		node dialled linkf://%s {
			token %s
		}
		%s
	}`, door, token, p.ways[0].addr, token, more), "fleet")
	p.allUp(2)
	return p
}

// requests is how many both servers got.
func (p *pair) requests() int { return p.sims[0].Stats().Requests + p.sims[1].Stats().Requests }

// Both links are cut for two seconds while streams run over them: no byte is lost or
// repeated, and no request goes elsewhere.
func TestStreamsSurviveACutOfTheirLink(t *testing.T) {
	const clients, tokens, cut = 50, 450, 2 * time.Second
	p := startPair(t, llamasim.Options{Slots: clients, Decode: 100, Context: 8192}, "")
	want := streams(p.edge, clients, tokens, nil)
	wantWhole(t, want)
	for _, how := range []struct {
		name  string
		begin func(*way)
	}{
		{"reset, and unreachable", func(w *way) { w.darken(); w.reset() }},
		{"silent", (*way).darken},
		{"silent, and forgotten", func(w *way) { w.darken(); w.forget() }},
	} {
		t.Run(how.name, func(t *testing.T) {
			before := p.requests()
			moves := p.moves()
			results := streams(p.edge, clients, tokens, func() {
				for i, s := range p.sims {
					if s.Stats().Active == 0 {
						t.Errorf("node %d runs none of %d streams: the test shows nothing", i, clients)
					}
				}
				for _, w := range p.ways {
					how.begin(w)
				}
				time.Sleep(cut)
				for i, w := range p.ways {
					if p.sims[i].Stats().Active == 0 {
						t.Errorf("node %d runs nothing at the end of the cut: the test shows nothing", i)
					}
					w.lighten()
				}
			})
			wantWhole(t, results)
			for i, s := range results {
				if s.Text != want[i].Text {
					t.Errorf("stream %d differs from an answer without a cut:\n got %.200q\nwant %.200q", i, s.Text, want[i].Text)
				}
			}
			if moves, asked := p.moves()-moves, p.requests()-before; moves != 0 || asked != clients {
				t.Errorf("%d requests of %d went to another node, and the servers got %d", moves, clients, asked)
			}
			p.allUp(2)
		})
	}
}

// A node whose process is gone is lost as soon as that can be known.
func BenchmarkKillToNextTokenOverLinks(b *testing.B) {
	o := llamasim.Options{Slots: 4, Decode: 200}
	for i, name := range []string{"dialled", "dials_in_relink_1s"} {
		b.Run(name, func(b *testing.B) {
			p := startPair(b, o, "relink 1s\n\t\tretry 250ms")
			measureGaps(b, p, i, p.ways[i].refuse, func() {
				_ = p.sims[i].Restart()
				p.ways[i].open(b)
			})
		})
		if i == 0 {
			b.Run("its_server_dies", func(b *testing.B) {
				p := startPair(b, o, "relink 1s\n\t\tretry 250ms")
				measureGaps(b, p, 0, p.sims[0].Kill, func() { _ = p.sims[0].Restart() })
			})
		}
	}
}

// A node of which nothing comes any more, and no word that it is gone, is lost when it was
// silent for too long: three heartbeats and the wait for its return where there is an
// agent, the limit of stall and that of a question where there is none.
func BenchmarkSilenceToNextToken(b *testing.B) {
	o := llamasim.Options{Slots: 4, Decode: 200}
	silence := func(b *testing.B, p *pair, which int) {
		measureGaps(b, p, which, p.ways[which].darken, p.ways[which].lighten)
	}
	for i, name := range []string{"dialled", "dials_in"} {
		for _, relink := range []string{"1s", "5s"} {
			b.Run(name+"_relink_"+relink, func(b *testing.B) { silence(b, startPair(b, o, "retry 250ms\n\t\trelink "+relink), i) })
		}
	}
	b.Run("without_an_agent_stall_15s", func(b *testing.B) {
		o.Model = "m"
		p := &pair{sims: []*llamasim.Server{startSim(b, o), startSim(b, o)}}
		p.ways = []*way{newWay(b, freeAddr(b), strings.TrimPrefix(p.sims[0].URL(), "http://"), nil)}
		p.edge = startEdge(b, fmt.Sprintf("fleet {\n\t\tretry 250ms\n\t\tstall 15s\n\t\tnode a http://%s\n\t\tnode b %s\n\t}", p.ways[0].addr, p.sims[1].URL()), "fleet")
		p.allUp(2)
		silence(b, p, 0)
	})
}

// measureGaps has one of the nodes go while it answers, and takes the longest gap between
// two chunks that the client sees.
func measureGaps(b *testing.B, p *pair, which int, lose, mend func()) {
	var gaps []time.Duration
	for b.Loop() {
		for served := false; !served; {
			var gap time.Duration
			var last time.Time
			got := p.chatOf("tell me", 40, func(chunks int) {
				now := time.Now()
				if served {
					gap = max(gap, now.Sub(last))
				}
				if last = now; chunks == 10 && p.sims[which].Stats().Active > 0 {
					served = true
					lose()
				}
			})
			if wrong := got.whole(); wrong != "" {
				b.Fatal(wrong)
			}
			if served {
				gaps = append(gaps, gap)
			}
		}
		mend()
		p.allUp(2)
	}
	report(b, gaps)
}
