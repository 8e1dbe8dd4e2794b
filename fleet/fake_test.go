package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLink is a node under the test's hand.
type fakeLink struct {
	mu        sync.Mutex
	rival     string // what it was told of another node of its name
	instances []Instance
	places    int   // it loads what is asked for, so many at once; 0: what it has is loaded
	down      error // what a probe answers; nil: it is up
	run       func(ctx context.Context, a Assignment, take func(Event) error) error
	ask       func(ctx context.Context, c Call) (Reply, error) // answers an OpAsk
	asks      int
	tell      func(NodeState)
	probes    []time.Time
	running   int
	most      int // generations at once
	runs      int
	closed    string
}

// serving makes a node of one ready instance that answers with say.
func serving(model string, lanes int, say ...string) *fakeLink {
	return &fakeLink{
		instances: []Instance{{Model: model, State: StateReady, Lanes: lanes, Fingerprint: "f", Features: ContinueContent}},
		run:       saying(say...),
	}
}

// saying answers with the words, one an event.
func saying(words ...string) func(context.Context, Assignment, func(Event) error) error {
	return func(_ context.Context, _ Assignment, take func(Event) error) error {
		for _, w := range words {
			if err := take(Event{Kind: EventData, Data: []byte(w)}); err != nil {
				return err
			}
		}
		return nil
	}
}

// losing answers with the words and is lost then.
func losing(cause Cause, words ...string) func(context.Context, Assignment, func(Event) error) error {
	return func(ctx context.Context, a Assignment, take func(Event) error) error {
		if err := saying(words...)(ctx, a, take); err != nil {
			return err
		}
		return &NodeLost{Node: "x", Cause: cause}
	}
}

// blocking runs until the test lets it end or the client leaves.
func blocking(end <-chan struct{}) func(context.Context, Assignment, func(Event) error) error {
	return func(ctx context.Context, a Assignment, take func(Event) error) error {
		select {
		case <-end:
			return saying("end.")(ctx, a, take)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *fakeLink) Run(ctx context.Context, a Assignment, take func(Event) error) error {
	l.mu.Lock()
	l.runs++
	l.running++
	l.most = max(l.most, l.running)
	run := l.run
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.running--
		l.mu.Unlock()
	}()
	return run(ctx, a, take)
}

func (l *fakeLink) Call(ctx context.Context, c Call) (Reply, error) {
	l.mu.Lock()
	if c.Op == OpAsk {
		l.asks++
		ask := l.ask
		l.mu.Unlock()
		return ask(ctx, c)
	}
	defer l.mu.Unlock()
	l.probes = append(l.probes, time.Now())
	if l.down != nil {
		return Reply{}, l.down
	}
	if c.Op == OpProbe && l.tell != nil {
		tell, s := l.tell, l.state()
		l.mu.Unlock()
		tell(s)
		l.mu.Lock()
	}
	return Reply{}, nil
}

func (l *fakeLink) Watch(ctx context.Context, f func(NodeState)) {
	l.mu.Lock()
	l.tell = f
	up, s := l.down == nil, l.state()
	l.mu.Unlock()
	if up {
		f(s)
	}
	<-ctx.Done()
}

func (l *fakeLink) state() NodeState {
	return NodeState{Instances: l.instances, Places: l.places, Loads: l.places > 0}
}

func (l *fakeLink) Close(reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = reason
	return nil
}

func (l *fakeLink) set(f func(*fakeLink)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l)
}

func (l *fakeLink) ran() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs
}

func (l *fakeLink) probed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.probes)
}

// fakeJob wants words up to one that ends with a full stop, and goes on from
// those that were delivered.
type fakeJob struct {
	delivered []string
	last      string
	rigid     bool   // it cannot go on once something is delivered
	anew      bool   // it may begin anew
	repeat    bool   // it may be repeated
	grown     Tokens // the prompt's length with what was delivered
	saw       string // fingerprint of the instance it was last asked for
	requests  []string
	take      func(Event) ([]byte, error) // instead of taking
}

func (j *fakeJob) Request(i Instance) (Assignment, error) {
	j.requests = append(j.requests, i.Node)
	j.saw = i.Fingerprint
	return Assignment{Body: []byte(strings.Join(j.delivered, " "))}, nil
}

func (j *fakeJob) Take(e Event) ([]byte, error) {
	if j.take != nil {
		return j.take(e)
	}
	if e.Kind != EventData {
		return nil, nil
	}
	j.last = string(e.Data)
	return e.Data, nil
}

func (j *fakeJob) Delivered() { j.delivered = append(j.delivered, j.last) }

func (j *fakeJob) Needs() (Needs, error) {
	n := len(j.delivered)
	switch {
	case n == 0:
		return Needs{}, nil
	case strings.HasSuffix(j.delivered[n-1], "."):
		return Needs{Done: true}, nil
	case j.rigid:
		return Needs{}, &RequestError{Reason: ReasonLost, Message: "this answer cannot go on elsewhere"}
	}
	return Needs{Fingerprint: "f", Features: ContinueContent, Anew: j.anew, Repeat: j.repeat, Prompt: j.grown}, nil
}

func (j *fakeJob) End(err error) []byte {
	if err != nil {
		return []byte("error")
	}
	return []byte("[done]")
}

// fleetOf makes a manager with the nodes, named a, b, c… What they have to say is known
// when it returns.
func fleetOf(t *testing.T, change func(*Policy), links ...*fakeLink) (*Manager, *Applied) {
	t.Helper()
	m := New()
	t.Cleanup(m.Close)
	a := apply(t, m, change, links...)
	synctest.Wait()
	return m, a
}

// holding makes a fleet of one node with so many lanes, on which a generation runs until
// the test lets it end.
func holding(t *testing.T, lanes int, change func(*Policy)) (*Manager, *Applied, *fakeLink, chan struct{}) {
	t.Helper()
	x, end := serving("m", lanes), make(chan struct{})
	x.run = blocking(end)
	m, a := fleetOf(t, change, x)
	return m, a, x, end
}

func apply(t *testing.T, m *Manager, change func(*Policy), links ...*fakeLink) *Applied {
	t.Helper()
	p := Policy{}
	for i, l := range links {
		name := string(rune('a' + i))
		p.Nodes = append(p.Nodes, NodeSpec{Name: name, Identity: name, Open: func() (Link, error) { return l, nil }})
	}
	if change != nil {
		change(&p)
	}
	a, err := m.Apply(p)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// ask runs one request and returns what the client got.
func ask(m *Manager, a *Applied, j Job) (string, error) {
	return askCtx(context.Background(), m, a, j)
}

func askCtx(ctx context.Context, m *Manager, a *Applied, j Job) (string, error) {
	s, err := m.Admit(ctx, a, Request{Model: "m"})
	if err != nil {
		return "", err
	}
	var got []string
	err = s.Run(ctx, j, func(b []byte) error {
		got = append(got, string(b))
		return nil
	})
	return strings.Join(got, " "), err
}

// quietNow fails unless nothing is held and nobody waits.
func quietNow(t *testing.T, m *Manager) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		for _, i := range n.instances {
			if i.busy() {
				t.Errorf("node %s: got %d lanes, %d sessions and %d light requests held, want none", n.name, i.held, i.sessions, i.light)
			}
			if w := i.work; w.bound != 0 || w.readers != 0 || w.unread != 0 || w.kv != 0 || m.warm.index.instances[m.warmID(i)].running.len != 0 {
				t.Errorf("node %s: got work %+v and %d runs, want none", n.name, w, m.warm.index.instances[m.warmID(i)].running.len)
			}
		}
	}
	if len(m.live) != 0 || m.queue.len != 0 {
		t.Errorf("got %d sessions and %d waiting, want none", len(m.live), m.queue.len)
	}
}

func wantReason(t *testing.T, err error, want Reason) *RequestError {
	t.Helper()
	re, ok := errors.AsType[*RequestError](err)
	if !ok || re.Reason != want {
		t.Fatalf("got error %v, want the reason %s", err, want)
	}
	return re
}
