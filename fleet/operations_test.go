package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever operators, clients, nodes and links do, in whatever order: the lanes that
// count as held are the claims that are open, never more than there are and never
// fewer than none, no session has two but in the moment of a move, and when all is
// quiet nothing is held.
func TestClaimsAddUpUnderAllOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		lanes := rapid.SliceOfN(rapid.IntRange(1, 3), 1, 4).Draw(rt, "lanes")
		steps := rapid.SliceOfN(rapid.IntRange(0, 16), 20, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, lanes)
			for _, step := range steps {
				w.step(step)
				w.check()
				time.Sleep(time.Duration(w.r.Int64N(int64(2 * time.Second))))
				w.check()
			}
			for _, n := range w.m.Status().Nodes {
				_ = w.m.Undrain(n.Name)
			}
			time.Sleep(30 * time.Minute)
			w.check()
			quietNow(t, w.m)
			if n := len(w.m.watchers.all); n != 0 {
				t.Errorf("got %d watchers left", n)
			}
		})
	})
}

// world is a fleet to which things happen.
type world struct {
	t     *testing.T
	r     *rand.Rand
	m     *Manager
	a     *Applied
	named []*fakeLink    // by the policy
	links []*fakeLink    // these, and those that dialled in
	lanes map[string]int // by node
}

func newWorld(t *testing.T, seed uint64, lanes []int) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 99)), lanes: make(map[string]int)}
	for i, n := range lanes {
		w.lanes[string(rune('a'+i))] = n
		w.named = append(w.named, moodyNode(rand.New(rand.NewPCG(seed, uint64(i))), n))
	}
	w.links = slices.Clone(w.named)
	w.m, w.a = fleetOf(t, w.policy, w.named...)
	return w
}

func moodyNode(r *rand.Rand, lanes int) *fakeLink {
	l := serving("m", lanes)
	mood := moody(r, l)
	l.run = mood
	l.ask = func(ctx context.Context, _ Call) (Reply, error) {
		err := mood(ctx, Assignment{}, func(Event) error { return nil })
		return Reply{}, err
	}
	return l
}

func (w *world) policy(p *Policy) {
	p.Joins = true
	p.Wait, p.Waiting, p.Preempt, p.DrainTimeout = 20*time.Second, 16, true, 15*time.Second
}

// step does one thing.
func (w *world) step(what int) {
	node := w.r.IntN(len(w.links))
	link := w.links[node]
	switch what {
	case 0, 1, 2, 3:
		w.ask(Request{Model: "m", Class: w.r.IntN(4), Digest: uint64(w.r.IntN(3)), Mixed: w.r.IntN(2) == 0})
	case 4:
		w.ask(Request{Model: "m", Light: true})
	case 5:
		w.onSession(func(id string) error { return w.m.Cancel(id) })
	case 6:
		w.onSession(func(id string) error { return w.m.Park(w.t.Context(), id) })
	case 7:
		for _, s := range w.m.Sessions() {
			if s.State == PhaseParked {
				_ = w.m.Resume(s.ID)
			}
		}
	case 8:
		w.onSession(func(id string) error { return w.m.Move(w.t.Context(), id) })
	case 9:
		nodes := w.m.Status().Nodes
		name := nodes[w.r.IntN(len(nodes))].Name
		if w.r.IntN(2) == 0 {
			_, _ = w.m.Drain(name)
		} else {
			_ = w.m.Undrain(name)
		}
	case 10:
		link.tell(NodeState{Away: errors.New("cut")})
	case 11:
		link.tell(NodeState{Instances: link.instances})
	case 12:
		link.tell(NodeState{Down: &NodeLost{Cause: CauseReset}})
	case 13:
		next := apply(w.t, w.m, w.policy, w.named...)
		w.a.Withdraw()
		w.a.Release()
		w.a = next
	case 14:
		call := Call{Op: OpAsk, Path: fmt.Sprint("/", w.r.IntN(2))}
		go func() { _, _ = w.m.CallAll(w.t.Context(), "m", call) }()
	case 15:
		w.adopt()
	case 16: // its process is another one now, or gone
		i := link.instances[0]
		i.State, i.Port = State(w.r.IntN(int(StateFailed)+1)), w.r.IntN(3)
		link.tell(NodeState{Instances: []Instance{i}, Places: 1, Loads: true})
	}
}

// adopt has one of two nodes dial in, from one of two addresses. It may be away
// afterwards, and back when it dials in again.
func (w *world) adopt() {
	name, address, lanes := fmt.Sprint("joined", w.r.IntN(2)), fmt.Sprint(w.r.IntN(2)), 1+w.r.IntN(2)
	dice := rand.New(rand.NewPCG(w.r.Uint64(), 1))
	_, _ = w.m.Adopt(Joining{
		Identity: name, Address: address,
		Open: func() (Link, error) {
			w.lanes[name] = lanes
			l := moodyNode(dice, lanes)
			w.links = append(w.links, l)
			return l, nil
		},
		Attach: func(known Link) error {
			if l := known.(*fakeLink); l.tell != nil {
				l.tell(NodeState{Instances: l.instances})
			}
			return nil
		},
	})
	synctest.Wait()
}

// ask has a client come, who may leave, and who may only admit its request.
func (w *world) ask(r Request) {
	stay, kind, rigid := time.Duration(w.r.Int64N(int64(40*time.Second))), w.r.IntN(8), w.r.IntN(4) == 0
	a := w.a
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stay)
		defer cancel()
		s, err := w.m.Admit(ctx, a, r)
		if err != nil {
			return
		}
		defer s.Close()
		switch {
		case r.Light || kind == 0:
			_, _ = s.Call(ctx, Call{Op: OpAsk})
		case kind == 1:
		default:
			_ = s.Run(ctx, &fakeJob{rigid: rigid}, func([]byte) error { return nil })
		}
	}()
}

// onSession commands one of the sessions, and does not wait for what comes of it.
func (w *world) onSession(do func(id string) error) {
	if list := w.m.Sessions(); len(list) > 0 {
		id := list[w.r.IntN(len(list))].ID
		go func() { _ = do(id) }()
	}
}

// check compares what is counted with the claims that are open.
func (w *world) check() {
	w.t.Helper()
	synctest.Wait()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	type figures struct{ held, sessions, light int }
	want := make(map[*instance]figures)
	for _, s := range w.m.live {
		for _, c := range []*claim{s.claim, s.next} {
			if c == nil || c.given {
				continue
			}
			f := want[c.instance]
			if c.light {
				f.light++
			} else {
				f.held++
				f.sessions++
			}
			want[c.instance] = f
		}
	}
	for _, n := range w.m.nodes {
		for _, i := range n.instances {
			if got := (figures{i.held, i.sessions, i.light}); got != want[i] {
				w.t.Errorf("node %s: got %+v, want %+v, the claims that are open", n.name, got, want[i])
			}
			if i.held > w.lanes[n.name] || i.held < 0 {
				w.t.Errorf("node %s: got %d lanes held of %d", n.name, i.held, w.lanes[n.name])
			}
		}
	}
}

func TestTenThousandSessionsThatAllCancelAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions, lanes = 10_000, 100
		x := serving("m", lanes)
		x.run = blocking(nil)
		m, a := fleetOf(t, func(p *Policy) { p.Waiting = sessions }, x)
		ended := make(chan error, sessions)
		for range sessions {
			go func() {
				_, err := ask(m, a, &fakeJob{})
				ended <- err
			}()
		}
		synctest.Wait()
		if got := heldOn(m, 0); got != lanes || len(m.Sessions()) != sessions {
			t.Fatalf("got %d lanes held and %d sessions, want %d and %d", got, len(m.Sessions()), lanes, sessions)
		}
		for _, s := range m.Sessions() {
			if err := m.Cancel(s.ID); err != nil {
				t.Fatal(err)
			}
		}
		for range sessions {
			wantReason(t, <-ended, ReasonAborted)
		}
		quietNow(t, m)
	})
}

// What a node says of itself may be nonsense. It is bounded, and nothing breaks.
func TestNonsenseThatANodeSays(t *testing.T) {
	huge := 1e300
	for name, i := range map[string]Instance{
		"negative lanes":         {Lanes: -5},
		"negative context":       {Context: -1},
		"more active than lanes": {Lanes: 2, Load: Load{Active: 99, Queued: 1 << 40, Ours: -3, At: time.Unix(1<<33, 0)}},
		"rates beyond sense":     {Rates: Rates{Prefill: huge, Decode: huge}},
		"rates that are none":    {Rates: Rates{Prefill: huge * 1e300 * 0, Decode: -1}},
		"a pool that is negative": {
			Load: Load{KVUsed: -1, KVTotal: -1, At: time.Unix(1<<33, 0)},
		},
	} {
		for _, placement := range []Placement{LoadAware, LeastLoaded, RoundRobin} {
			t.Run(fmt.Sprint(name, "/", placement), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					x, y := serving("m", 1, "one."), serving("m", 1, "one.")
					i.Model, i.State = "m", StateReady
					x.instances = []Instance{i}
					m, a := fleetOf(t, func(p *Policy) { p.Placement = placement }, x, y)
					for range 4 {
						if got := <-running(m, a, Request{Prompt: 100, Out: 100}, &fakeJob{}); got.err != nil {
							t.Error(got.err)
						}
					}
					st := m.Status().Nodes[0].Instances[0]
					if !(st.PrefillRate >= 0 && st.PrefillRate <= fastest && st.DecodeRate >= 0 && st.DecodeRate <= fastest) ||
						st.Lanes < 0 || st.Context < 0 || st.Load != nil && (st.Load.Active < 0 || st.Load.KVUsed < 0 || st.Load.KVTotal < 0) {
						t.Errorf("got %+v %+v", st, st.Load)
					}
					quietNow(t, m)
				})
			})
		}
	}
}
