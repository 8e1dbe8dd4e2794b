package fleet

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A node that went after the session got its lane there, and before it began, is
// replaced: the answer is whole, and known to come from the other.
func TestNodeThatIsGoneBeforeTheStartIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := serving("m", 1), serving("m", 1, "one", "two.")
		x.run = losing(CauseRefused)
		m, a := fleetOf(t, func(p *Policy) { p.Placement = RoundRobin }, x, y)
		s, err := m.Admit(t.Context(), a, Request{Model: "m"})
		if err != nil || s.Instance().Node != "a" {
			t.Fatalf("got %v, want a lane of a", err)
		}
		time.Sleep(500 * time.Millisecond)
		var got string
		err = s.Run(t.Context(), &fakeJob{}, func(b []byte) error {
			got += string(b) + " "
			return nil
		})
		if err != nil || got != "one two. [done] " || s.Instance().Node != "b" {
			t.Errorf("got %q, %v from %s, want the whole answer from b", got, err, s.Instance().Node)
		}
		quietNow(t, m)
	})
}

// Many that run at one moment, on all nodes, each get their own answer.
func TestManyAtOnceGetEachItsOwnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions = 12
		begin := make(chan struct{})
		echo := func(ctx context.Context, a Assignment, take func(Event) error) error {
			<-begin
			return saying(string(a.Body), "end.")(ctx, a, take)
		}
		var links []*fakeLink
		for range 3 {
			l := serving("m", sessions/3)
			l.run = echo
			links = append(links, l)
		}
		m, a := fleetOf(t, func(p *Policy) { p.Placement = LeastLoaded }, links...)
		ended := make([]<-chan answered, sessions)
		for k := range ended {
			ended[k] = running(m, a, Request{}, &namedJob{name: fmt.Sprint("answer ", k)})
			synctest.Wait()
		}
		for k, l := range links {
			if got := l.ran(); got != sessions/3 {
				t.Errorf("node %d runs %d, want %d", k, got, sessions/3)
			}
		}
		close(begin)
		for k, c := range ended {
			if got, want := <-c, fmt.Sprintf("answer %d end. [done]", k); got.text != want || got.err != nil {
				t.Errorf("got %q, %v, want %q", got.text, got.err, want)
			}
		}
		quietNow(t, m)
	})
}

// namedJob asks for its name.
type namedJob struct {
	fakeJob
	name string
}

func (j *namedJob) Request(Instance) (Assignment, error) {
	return Assignment{Body: []byte(j.name)}, nil
}

// What a node says of its load while it generates shows at once, next to the lanes that
// are held there, which are ours to count.
func TestLoadIsSeenDuringAGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, a, x, end := holding(t, 4, nil)
		ended := running(m, a, Request{}, &fakeJob{})
		synctest.Wait()
		i := x.instances[0]
		i.Load = Load{Active: 3, Queued: 2, Ours: 1, At: time.Now()}
		x.tell(NodeState{Instances: []Instance{i}})
		st := m.Status().Nodes[0].Instances[0]
		if st.Load == nil || st.Load.Active != 3 || st.LanesActive != 1 {
			t.Errorf("got load %+v and %d lanes active, want 3 active by its word and 1 lane of ours", st.Load, st.LanesActive)
		}
		close(end)
		if got := <-ended; got.err != nil {
			t.Error(got.err)
		}
		quietNow(t, m)
	})
}
