package fleet

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// simNode is a link to a simulated server. Its engine runs in Watch.
type simNode struct {
	engine *simEngine
	tasks  chan *simTask
	world  *simWorld
	start  time.Time
	offset time.Duration // of its polls, so that no two nodes do anything at one moment
}

// simWorld is what the links of one run share.
type simWorld struct {
	mu    sync.Mutex
	tasks map[uint64]*simTask // that run, by the number in the assignment's body
	next  uint64
}

func (w *simWorld) put(t *simTask) (body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	w.tasks[w.next] = t
	return binary.LittleEndian.AppendUint64(nil, w.next)
}

func (w *simWorld) take(body []byte) *simTask {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := binary.LittleEndian.Uint64(body)
	t := w.tasks[n]
	delete(w.tasks, n)
	return t
}

// Run hands the request to the engine and tells of its first token and of its end.
func (n *simNode) Run(ctx context.Context, a Assignment, take func(Event) error) error {
	t := n.world.take(a.Body)
	n.tasks <- t
	<-t.token
	if err := take(Event{Kind: EventData}); err != nil {
		return err
	}
	<-t.over
	return take(Event{Kind: EventData, Timings: &Timings{
		Cached:             Tokens(t.cached),
		Prompt:             Tokens(t.in - t.cached),
		Predicted:          Tokens(t.out),
		PromptPerSecond:    float64(t.in-t.cached) / (t.first - t.began).Seconds(),
		PredictedPerSecond: float64(t.out) / max(time.Millisecond, t.end-t.first).Seconds(),
	}})
}

func (n *simNode) Call(context.Context, Call) (Reply, error) { return Reply{}, nil }

// simPoll is how often a node says what it carries.
const simPoll = time.Second

func (n *simNode) Watch(ctx context.Context, f func(NodeState)) {
	n.say(f)
	time.Sleep(n.offset)
	poll := time.NewTicker(simPoll)
	defer poll.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case t := <-n.tasks:
			n.engine.add(t, time.Since(n.start))
		case <-wake.C:
			if at, busy := n.engine.due(); busy && time.Since(n.start) >= at {
				n.engine.advance()
				n.tell()
			}
		case <-poll.C:
			n.say(f)
		case <-ctx.Done():
			return
		}
		if at, busy := n.engine.due(); busy {
			wake.Reset(at - time.Since(n.start))
		}
	}
}

// tell gives the news one after the other: time passes only when nothing is left to
// do, so a moment between them makes the order of what follows from them certain.
func (n *simNode) tell() {
	for _, c := range n.engine.news {
		close(c)
		time.Sleep(time.Nanosecond)
	}
	n.engine.news = n.engine.news[:0]
}

func (n *simNode) say(f func(NodeState)) {
	f(NodeState{Instances: []Instance{{
		Model: "m", State: StateReady, Lanes: n.engine.simSpec.slots,
		KVUnified: true,
		Context:   Tokens(n.engine.simSpec.slots*simContext+simStore) / (1 + hiddenRoom), // what it holds is expected
		Load: Load{
			KVTotal: 1 << 40, // the pool is no limit here
			Active:  n.engine.occupied, Queued: len(n.engine.waiting), Ours: n.engine.occupied, At: time.Now(),
		},
	}}})
}

func (n *simNode) Close(string) error { return nil }

// simJob is the client's side of a task.
type simJob struct {
	body []byte
	task *simTask
}

func (j *simJob) Request(Instance) (Assignment, error) { return Assignment{Body: j.body}, nil }
func (j *simJob) Take(Event) ([]byte, error)           { return nil, nil }
func (j *simJob) Delivered()                           {}
func (j *simJob) Needs() (Needs, error)                { return Needs{Done: j.task.end >= 0}, nil }
func (j *simJob) End(error) []byte                     { return nil }

// simPolicy is how a run places.
type simPolicy struct {
	name      string
	placement Placement                 // through the manager as it is
	placer    func(r *rand.Rand) placer // instead of the manager's
	speeds    func(node int, s *Rates)  // wrong beliefs; nil: the right ones
}

// simAnswer is what came of one request.
type simAnswer struct {
	at         time.Duration
	first, all time.Duration
	in, cached int
	out        int
}

// simRun runs a workload of one seed and returns the answers in the order of arrival.
func simRun(t *testing.T, load simLoad, p simPolicy, seed int64) (answers []simAnswer) {
	synctest.Test(t, func(t *testing.T) {
		w := &simWorld{tasks: make(map[uint64]*simTask)}
		start := time.Now()
		policy := Policy{Placement: p.placement, Wait: 1000 * time.Hour, Waiting: 1 << 20}
		for i, s := range load.nodes {
			n := &simNode{engine: newSimEngine(s), tasks: make(chan *simTask), world: w, start: start, offset: time.Duration(i)}
			name := fmt.Sprintf("node-%d", i)
			rates := Rates{s.prefill, 1 / (s.base + s.slope).Seconds()}
			if p.speeds != nil {
				p.speeds(i, &rates)
			}
			policy.Nodes = append(policy.Nodes, NodeSpec{
				Name: name, Identity: name, Rates: rates,
				Open: func() (Link, error) { return n, nil },
			})
		}
		m := New()
		defer m.Close()
		a, err := m.Apply(policy)
		if err != nil {
			t.Fatal(err)
		}
		if p.placer != nil {
			a.placer = p.placer(rand.New(rand.NewSource(77 + seed)))
		}
		synctest.Wait()

		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, c := range load.talks(simSource(seed, len(load.nodes)), load.span.Seconds()) {
			time.Sleep(c.at - time.Since(start))
			wg.Go(func() {
				for _, turn := range c.turns {
					time.Sleep(turn.after)
					at := time.Since(start)
					if at >= load.span {
						return
					}
					got, err := simAsk(m, a, w, c.session, turn)
					if err != nil {
						t.Errorf("%s, %s: %v", load.name, p.name, err)
						return
					}
					got.at = at
					mu.Lock()
					answers = append(answers, got)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		quietNow(t, m)
	})
	slices.SortFunc(answers, func(a, b simAnswer) int { return cmp.Compare(a.at, b.at) })
	return answers
}

// simSource is where the sizes of a seed are drawn. The study whose figures the gate
// holds drew three numbers for each node before.
func simSource(seed int64, nodes int) *rand.Rand {
	r := rand.New(rand.NewSource(1000 + seed))
	for range 3 * nodes {
		r.Float64()
	}
	return r
}

func simAsk(m *Manager, a *Applied, w *simWorld, session uint64, turn simTurn) (simAnswer, error) {
	began := time.Now()
	task := &simTask{prompt: turn.prompt, whole: turn.whole, in: turn.in, out: turn.out, token: make(chan struct{}), over: make(chan struct{})}
	blocks := make([]uint64, 0, len(turn.prompt)/2)
	for i := 1; i < len(turn.prompt); i += 2 { // of 256 bytes, 4 bytes a token
		blocks = append(blocks, turn.prompt[i])
	}
	s, err := m.Admit(context.Background(), a, Request{
		Model: "m", Session: fmt.Sprint(session), Prompt: Tokens(turn.in),
		Blocks: blocks, Bytes: int64(4 * turn.in),
	})
	if err != nil {
		return simAnswer{}, err
	}
	if err := s.Run(context.Background(), &simJob{w.put(task), task}, func([]byte) error { return nil }); err != nil {
		return simAnswer{}, err
	}
	return simAnswer{
		first: s.Record().FirstToken, all: time.Since(began),
		in: turn.in, cached: task.cached, out: turn.out,
	}, nil
}

// simFigures are the results of the runs of all seeds.
type simFigures struct {
	mean, median, p99 float64 // seconds to the first token
	hits              float64 // share of prompt tokens that came from a cache
	goodput           float64 // share of answers with the first token in 2 s and the others 100 ms apart
	end99             float64 // seconds to the last token
	answers           int
}

// simStudy runs the seeds, and leaves out the beginning and the end of each run.
func simStudy(t *testing.T, load simLoad, p simPolicy, seeds int) simFigures {
	t.Helper()
	var all []simAnswer
	for seed := range seeds {
		for _, x := range simRun(t, load, p, int64(seed)) {
			if x.at >= load.span*15/100 && x.at <= load.span*95/100 {
				all = append(all, x)
			}
		}
	}
	return figures(all)
}

func figures(all []simAnswer) (f simFigures) {
	f.answers = len(all)
	if f.answers == 0 {
		return f
	}
	var firsts, ends []float64
	var in, cached, good int
	for _, x := range all {
		firsts = append(firsts, x.first.Seconds())
		ends = append(ends, x.all.Seconds())
		f.mean += x.first.Seconds() / float64(len(all))
		in += x.in
		cached += x.cached
		if x.first <= 2*time.Second && x.all-x.first <= time.Duration(x.out)*100*time.Millisecond {
			good++
		}
	}
	slices.Sort(firsts)
	slices.Sort(ends)
	f.median, f.p99, f.end99 = firsts[len(firsts)/2], firsts[len(firsts)*99/100], ends[len(ends)*99/100]
	f.hits = float64(cached) / float64(in)
	f.goodput = float64(good) / float64(len(all))
	return f
}
