package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// timed answers after a while, as a server of that speed does.
func timed(first time.Duration, cached Tokens) func(context.Context, Assignment, func(Event) error) error {
	return func(ctx context.Context, _ Assignment, take func(Event) error) error {
		if !pause(ctx, first) {
			return context.Cause(ctx)
		}
		if err := take(Event{Kind: EventData, Data: []byte("word")}); err != nil {
			return err
		}
		if !pause(ctx, time.Second) {
			return context.Cause(ctx)
		}
		return take(Event{Kind: EventData, Data: []byte("end."), Timings: &Timings{
			Cached: cached, Prompt: 1000, Predicted: 50,
			PromptPerSecond: 1000 / first.Seconds(), PredictedPerSecond: 50,
		}})
	}
}

// stated gives all nodes the same speed from the start.
func stated(p *Policy) {
	for i := range p.Nodes {
		p.Nodes[i].Rates = Rates{Prefill: 1000, Decode: 50}
	}
}

func run(m *Manager, a *Applied, r Request) (*Session, error) {
	r.Model = "m"
	s, err := m.Admit(context.Background(), a, r)
	if err != nil {
		return nil, err
	}
	return s, s.Run(context.Background(), &fakeJob{}, func([]byte) error { return nil })
}

func blocksOf(n int, salt uint64) []uint64 { return simChain(nil, salt, n) }

func TestBurstIsSpreadBeforeAnythingIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := serving("m", 20), serving("m", 20)
		a.run, b.run = timed(5*time.Second, 0), timed(5*time.Second, 0)
		m, p := fleetOf(t, stated, a, b)
		var wg sync.WaitGroup
		for k := range 20 {
			wg.Go(func() { _, _ = run(m, p, Request{Prompt: 1000, Blocks: blocksOf(10, uint64(k))}) })
		}
		wg.Wait()
		if n := a.ran(); n < 9 || n > 11 {
			t.Errorf("got %d of 20 on the first node, want 10 ± 1", n)
		}
		quietNow(t, m)
	})
}

func TestEqualNodesTakeTurns(t *testing.T) {
	for name, change := range map[string]func(*Policy){"speeds stated": stated, "speeds unknown": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				links := []*fakeLink{serving("m", 2), serving("m", 2), serving("m", 2)}
				for _, l := range links {
					l.run = timed(time.Second, 0)
				}
				m, p := fleetOf(t, change, links...)
				for k := range 30 {
					if _, err := run(m, p, Request{Prompt: 1000, Blocks: blocksOf(10, uint64(k))}); err != nil {
						t.Fatal(err)
					}
					if k == 2 && !slices.Equal([]int{links[0].ran(), links[1].ran(), links[2].ran()}, []int{1, 1, 1}) {
						t.Errorf("got %d, %d, %d of the first three, want one each", links[0].ran(), links[1].ran(), links[2].ran())
					}
				}
				for i, l := range links {
					if l.ran() > 15 {
						t.Errorf("got %d of 30 on node %d, want at most 15", l.ran(), i)
					}
				}
			})
		})
	}
}

// Affinity is a term of the cost: a node that has the prompt is left when it is full,
// and preferred when it is about as busy as others.
func TestSharedPromptSpillsOverAndNobodyWaitsBesideAFreeLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		for range 4 {
			l := serving("m", 2)
			l.run = timed(8*time.Second, 0)
			links = append(links, l)
		}
		m, p := fleetOf(t, stated, links...)
		shared := blocksOf(120, 1)
		var wg sync.WaitGroup
		for k := range 40 {
			wg.Go(func() {
				_, _ = run(m, p, Request{Prompt: 8000, Blocks: simChain(shared, uint64(k)+2, 4)})
			})
		}
		wg.Wait()
		for i, l := range links {
			if l.ran() < 4 {
				t.Errorf("got %d of 40 on node %d, want 4 at least", l.ran(), i)
			}
			if l.most > 2 {
				t.Errorf("got %d generations at once on node %d, want 2 at most", l.most, i)
			}
		}
		quietNow(t, m)
	})
}

func TestWarmNodeIsPreferredNearTheLeastLoad(t *testing.T) {
	m, a := calibrated(4, LowestCost)
	prompt := blocksOf(300, 1)
	for k, held := range []int{3, 1, 1, 0} {
		a.nodes[k].instances[0].held = held
	}
	m.warm.index.ran(m.warmID(a.nodes[2].instances[0]), prompt, 1000)
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 20000, Blocks: prompt}, blocks: prompt}
	if c, err := m.choose(w); c == nil || c.instance != a.nodes[2].instances[0] {
		t.Errorf("got %+v, %v, want the third node, which has the prompt", c, err)
	}
	full := a.nodes[2].instances[0]
	full.held = full.lanes()
	w = &waiter{policy: a, Request: Request{Model: "m", Prompt: 200, Blocks: prompt[:3]}, blocks: prompt[:3]}
	if c, err := m.choose(w); c == nil || c.instance != a.nodes[3].instances[0] {
		t.Errorf("got %+v, %v, want the idle node for a short prompt", c, err)
	}
}

// A warm request waits for the node that has its prompt, a cold one for whichever
// lane is free first.
func TestWarmWaitsForItsNodeAndColdForAnyLane(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	one, two := a.nodes[0].instances[0], a.nodes[1].instances[0]
	one.held, two.held = 4, 4
	prompt := blocksOf(100, 1)
	m.warm.index.ran(m.warmID(one), prompt, 1000)
	warm := &waiter{policy: a, Request: Request{Model: "m", Prompt: 6400, Blocks: prompt}, blocks: prompt}
	cold := &waiter{policy: a, Request: Request{Model: "m", Prompt: 6400, Blocks: blocksOf(100, 2)}, blocks: blocksOf(100, 2)}
	for _, w := range []*waiter{warm, cold} {
		if c, err := m.choose(w); c != nil || err != nil {
			t.Fatalf("got %v, %v with all lanes taken, want it to wait", c, err)
		}
	}
	if warm.bound != one || one.work.bound != 1 || cold.bound != nil {
		t.Fatalf("got the warm one bound to %v and the cold one to %v, want the first node and none", warm.bound, cold.bound)
	}
	if wait := time.Until(cold.again); wait <= 0 || wait > holdMost {
		t.Errorf("got %s until the cold one is looked at again, want at most %s", wait, holdMost)
	}
	two.held--
	if c, _ := m.choose(warm); c != nil {
		t.Error("the warm one took another node's lane")
	}
	if c, _ := m.choose(cold); c == nil || c.instance != two {
		t.Errorf("got %v for the cold one, want the lane that became free", c)
	}
	one.held--
	if c, _ := m.choose(warm); c == nil || c.instance != one || one.work.bound != 0 {
		t.Errorf("got %v for the warm one, want the lane of its node", c)
	}
}

func TestColdOneIsBoundWhenItWaitedLongEnough(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	a.nodes[0].instances[0].held, a.nodes[1].instances[0].held = 4, 9
	w := &waiter{policy: a, held: time.Now().Add(-holdMost), Request: Request{Model: "m", Prompt: 6400}}
	if c, _ := m.choose(w); c != nil || w.bound != a.nodes[0].instances[0] {
		t.Errorf("got %v, bound to %v, want it bound to the node that is less behind", c, w.bound)
	}
}

func TestBoundOneLooksElsewhereWhenItsNodeIsLost(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	one, two := a.nodes[0].instances[0], a.nodes[1].instances[0]
	one.held, two.held = 4, 4
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 100}}
	m.bind(w, one)
	one.node.down = &downtime{since: time.Now()}
	two.held--
	if c, _ := m.choose(w); c == nil || c.instance != two || one.work != (work{}) {
		t.Errorf("got %v and work %+v left, want a lane of the other node and none", c, one.work)
	}
}

func TestPromptGoesWhereItFits(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	a.nodes[0].instances[0].Context, a.nodes[1].instances[0].held = 4096, 3
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 3000}}
	if c, _ := m.choose(w); c == nil || c.instance != a.nodes[0].instances[0] {
		t.Errorf("got %v, want the idle node", c)
	}
	m.figures("m").stretch = 1.5 // prompts turned out longer than estimated
	w = &waiter{policy: a, Request: Request{Model: "m", Prompt: 3000}}
	if c, _ := m.choose(w); c == nil || c.instance != a.nodes[1].instances[0] {
		t.Errorf("got %v, want the node with the larger context", c)
	}
	w = &waiter{policy: a, Request: Request{Model: "m", Prompt: 90000}}
	if c, _ := m.choose(w); c == nil {
		t.Error("got no lane for a prompt that seems to fit nowhere, want one: the estimate may be wrong")
	}
}

func TestSleepingNodeIsWokenOnlyWhereOthersAreBusy(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	one, two := a.nodes[0].instances[0], a.nodes[1].instances[0]
	one.State = StateSleeping
	two.held = 1
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 500, Out: 50}}
	if c, _ := m.choose(w); c == nil || c.instance != two {
		t.Errorf("got %v, want the node that is awake", c)
	}
	two.held, two.work.unread = 4, 50000
	w = &waiter{policy: a, Request: Request{Model: "m", Prompt: 500, Out: 50}}
	if c, _ := m.choose(w); c == nil || c.instance != one {
		t.Errorf("got %v, want the node that has to load the model first", c)
	}
}

func TestChoicesSayWhatEachTermCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := serving("m", 2), serving("m", 2)
		a.run, b.run = timed(time.Second, 0), timed(time.Second, 0)
		m, p := fleetOf(t, stated, a, b)
		s, err := run(m, p, Request{Prompt: 2000, Out: 100})
		if err != nil {
			t.Fatal(err)
		}
		st, _ := m.Session(s.ID())
		got := st.Placement
		if len(got) != 2 || got[0].Node != s.Instance().Node || got[0].Terms.Read != 2 || got[0].Cost != got[0].Terms.Total() {
			t.Errorf("got %+v, want two, the chosen one first, with 2 s of reading", got)
		}
	})
}

// A new prompt goes to the idle node, however much is known of what that one holds.
func TestNewPromptGoesToTheIdleNode(t *testing.T) {
	m, a := calibrated(2, LowestCost)
	busy, idle := a.nodes[0].instances[0], a.nodes[1].instances[0]
	for salt := range uint64(50) {
		m.warm.index.ran(m.warmID(idle), blocksOf(20, salt), 1<<14)
	}
	busy.held, busy.work.unread = 4, 4000
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 1000, Out: 100, Blocks: blocksOf(16, 99)}}
	w.blocks = w.Blocks
	if c, _ := m.choose(w); c == nil || c.instance != idle {
		t.Errorf("got %v, want the node that is idle", c)
	}
}

// A short request of which nobody knows anything leaves the lane of a long
// conversation alone while another node is idle, and the conversation finds it as it was.
func TestLittleHelperSparesTheConversation(t *testing.T) {
	for warm := range 2 { // whichever it is, so that no hash decides
		m, a := calibrated(2, LowestCost)
		for _, n := range a.nodes {
			i := n.instances[0]
			i.said.Lanes = 1
			i.settle(NodeSpec{Rates: Rates{900, 30}})
		}
		here, other := a.nodes[warm].instances[0], a.nodes[1-warm].instances[0]
		talk := blocksOf(469, 7) // 30,000 tokens
		m.warm.index.ran(m.warmID(here), talk, here.cacheBlocks())
		ask := func(what string, blocks []uint64, prompt Tokens, want *instance) {
			t.Helper()
			w := &waiter{policy: a, Request: Request{Model: "m", Prompt: prompt, Out: 1000, Blocks: blocks}}
			w.blocks = w.Blocks
			c, err := m.choose(w)
			if c == nil || c.instance != want {
				t.Fatalf("%s: got %v, %v, want node %s", what, c, err, want.node.name)
			}
			m.giveBack(c)
		}
		for k := range uint64(20) {
			ask("title", blocksOf(6, 100+k), 400, other)
		}
		ask("next turn", simChain(talk, 8, 3), 30200, here)
	}
}

func TestConversationComesBackToItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		for range 4 {
			l := serving("m", 2)
			l.run = timed(time.Second, 0)
			links = append(links, l)
		}
		m, p := fleetOf(t, stated, links...)
		blocks, node := []uint64(nil), ""
		for turn := range 6 {
			blocks = simChain(blocks, 5, 8)
			s, err := run(m, p, Request{Session: "c", Prompt: Tokens(64 * len(blocks)), Blocks: blocks})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Instance().Node; turn > 0 && got != node {
				t.Errorf("turn %d: got node %s, want %s", turn, got, node)
			}
			node = s.Instance().Node
		}
	})
}

func TestAnswerLengthsAreExpectedByRoute(t *testing.T) {
	m := New()
	defer m.Close()
	f := m.figures("m")
	for range 200 {
		f.learn(&Request{Route: "title", Prompt: 100}, Timings{Prompt: 120, Predicted: 12})
		f.learn(&Request{Route: "chat", Prompt: 100}, Timings{Cached: 60, Prompt: 60, Predicted: 600})
	}
	for _, c := range []struct {
		w    waiter
		want float64
	}{
		{waiter{Request: Request{Route: "title"}}, 12},
		{waiter{Request: Request{Route: "chat"}}, 600},
		{waiter{Request: Request{Route: "chat", Out: 50}}, 50},
		{waiter{Request: Request{Route: "chat", Out: 50}, needs: Needs{Left: 20}}, 20},
		{waiter{Request: Request{Route: "new"}}, usualOut},
	} {
		if got := f.outOf(&c.w); !near(got, c.want, 0.001) {
			t.Errorf("%+v: got %.1f tokens, want %.1f", c.w.Request, got, c.want)
		}
	}
	if got := f.promptOf(&waiter{Request: Request{Prompt: 1000}}); !near(got, 1200, 0.001) {
		t.Errorf("got %.0f tokens for an estimate of 1000, want 1200", got)
	}
}

func TestManyNodesAreSampledButNobodyWaitsBesideAFreeLane(t *testing.T) {
	m, a := calibrated(1000, LowestCost)
	prompt := blocksOf(100, 1)
	warm := a.nodes[777].instances[0]
	m.warm.index.ran(m.warmID(warm), prompt, 1000)
	w := &waiter{policy: a, Request: Request{Model: "m", Prompt: 6400, Blocks: prompt}, blocks: prompt}
	if c, _ := m.choose(w); c == nil || c.instance != warm {
		t.Errorf("got %v, want the one of 1000 that has the prompt", c)
	}
	for _, n := range a.nodes {
		n.instances[0].held = 4
	}
	a.nodes[123].instances[0].held = 3
	w = &waiter{policy: a, Request: Request{Model: "m", Prompt: 6400}}
	if c, _ := m.choose(w); c == nil || c.instance != a.nodes[123].instances[0] {
		t.Errorf("got %v, want the only free lane of 1000 nodes", c)
	}
}

// A generation that was given up has its lane until its server ended it. Nobody takes
// that for a free one, whether all instances are scored or few.
func TestNobodyWaitsForALaneThatIsBeingLeftBesideAFreeOne(t *testing.T) {
	for _, placement := range []Placement{LowestCost, LoadAware, LeastLoaded, RoundRobin} {
		for _, nodes := range []int{2, 300} {
			t.Run(fmt.Sprintf("%s of %d", placement, nodes), func(t *testing.T) {
				m, a := calibrated(nodes, placement)
				left, free := a.nodes[:nodes-1], a.nodes[nodes-1].instances[0]
				prompt := blocksOf(10, 1)
				for _, n := range left {
					n.instances[0].Leaving = n.instances[0].lanes()
					m.warm.index.ran(m.warmID(n.instances[0]), prompt, 1000)
				}
				var before []sequenceRun
				for range free.lanes() { // each has the prompt, too
					before = append(before, m.warm.index.begins(m.warmID(free), prompt, 1000))
				}
				for _, r := range before {
					m.warm.index.ends(r, 0, 0)
				}
				for lane := range free.lanes() {
					w := &waiter{policy: a, cursor: lane, blocks: prompt, Request: Request{Model: "m", Prompt: 640, Out: 256, Blocks: prompt}}
					c, err := m.choose(w)
					if c == nil || c.instance != free {
						t.Fatalf("request %d: got %v, %v, bound to %v, want the free lane", lane, c, err, w.bound)
					}
				}
				w := &waiter{policy: a, blocks: prompt, Request: Request{Model: "m", Prompt: 640, Out: 256, Blocks: prompt}}
				if c, err := m.choose(w); c != nil || err != nil {
					t.Fatalf("got %v, %v with no lane free, want it to wait", c, err)
				}
				left[0].instances[0].Leaving--
				if c, err := m.choose(w); c == nil || c.instance != left[0].instances[0] {
					t.Errorf("got %v, %v, bound to %v, want the lane that was left at last", c, err, w.bound)
				}
			})
		}
	}
}
