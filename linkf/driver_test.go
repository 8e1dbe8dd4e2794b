package linkf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

func TestGenerationAndCallOverTCP(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, end := r.stream(context.Background(), "the body")
		r.says("body")
		if got := get(t, words, "the word"); got != "the body" {
			t.Errorf("got %q, want the body that was sent", got)
		}
		close(r.server.say)
		if err := get(t, end, "the end"); err != nil {
			t.Errorf("got %v, want the end of a whole answer", err)
		}
		large := strings.Repeat("large", 100_000)
		got, err := r.link.Call(context.Background(), fleet.Call{Op: fleet.OpAsk, Path: "/tokenize", Body: []byte(large)})
		if err != nil || got.Status != 200 || string(got.Body) != "/tokenize "+large {
			t.Errorf("got status %d, %d bytes, %v; want the request back", got.Status, len(got.Body), err)
		}
	})
}

func TestEventsOfAnySizeCrossTheLink(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, _ := r.stream(context.Background(), "")
		for _, n := range []int{1, maxPiece, maxPiece + 1, 3 << 20} {
			want := strings.Repeat("x", n)
			r.says(want)
			if got := get(t, words, "the event"); got != want {
				t.Errorf("got %d bytes, want %d", len(got), n)
			}
		}
	})
}

// What came together may be written together: the head tells of each event whether
// another one is here.
func TestEventsThatAreHereTogetherAreToldSo(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		first, goOn, end := make(chan bool), make(chan bool), make(chan error, 1)
		var told []string
		go func() {
			end <- r.link.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(e fleet.Event) error {
				if e.Kind != fleet.EventData {
					return nil
				}
				if told = append(told, fmt.Sprint(string(e.Data), " ", e.More)); len(told) == 1 {
					first <- true
					<-goOn
				}
				return nil
			})
		}()
		r.says("a")
		get(t, first, "the first event")
		for _, word := range []string{"b", "c", "d"} {
			r.says(word)
		}
		for deadline := time.Now().Add(20 * time.Second); r.waiting() < 3; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("the other events did not come")
			}
		}
		close(goOn)
		close(r.server.say)
		if err := get(t, end, "the end"); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(told, ", "), "a false, b true, c true, d false"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	})
}

// waiting is how many events the head has that nobody took.
func (r *rig) waiting() (n int) {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	for _, x := range r.link.runs {
		n += len(x.events)
	}
	return n
}

func TestStreamsSurviveTheLossOfTheirLink(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, end := r.stream(context.Background(), "")
		came := 0
		for i := range 60 {
			if i%20 == 10 {
				r.way.cut()
			}
			r.says(fmt.Sprint(i))
			if i%20 < 10 {
				continue
			}
			// After the cut they come once the link is back.
			for ; came <= i; came++ {
				if got := get(t, words, "an event"); got != fmt.Sprint(came) {
					t.Fatalf("got event %s, want %d", got, came)
				}
			}
		}
		close(r.server.say)
		if err := get(t, end, "the end"); err != nil {
			t.Errorf("got %v, want a whole answer", err)
		}
	})
}

func TestLinkThatIsLostAtOnceIsDialledAgain(t *testing.T) {
	h := newEdge(t, "")
	ln := listen(t)
	n := newNode(t, newServer())
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	link := h.Dial("box-a", ln.Addr().String())
	defer func() {
		_ = link.Close("the test is over")
		_ = ln.Close()
		_ = n.Close()
		<-served
	}()
	if err := link.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	var last *headConn
	for i := range 100 {
		for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
			link.mu.Lock()
			x := link.conn
			link.mu.Unlock()
			if x != nil && x != last {
				last = x
				_ = x.c.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after loss %d nobody dialled", i)
			}
		}
	}
}

// Of a link that is lost again and again, only the last loss is being dealt with.
func TestLossesDoNotPileUp(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		words, _ := r.stream(context.Background(), "")
		for i := range 4 {
			r.says(fmt.Sprint(i))
			get(t, words, "an event")
			r.way.cut()
			r.until("that was lost", func(s fleet.NodeState) bool { return s.Away != nil })
			r.until("that is back", func(s fleet.NodeState) bool { return s.Away == nil })
		}
		dealing := func() int {
			all := make([]byte, 1<<20)
			return strings.Count(string(all[:runtime.Stack(all, true)]), "(*Link).goOn(")
		}
		for deadline := time.Now().Add(10 * time.Second); dealing() > 0; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("the link is back, and %d of its losses are still dealt with", dealing())
			}
		}
	})
}

func TestClientThatLeavesEndsItsGeneration(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancelCause(context.Background())
		_, end := r.stream(ctx, "")
		r.says("one")
		gone := errors.New("the client left")
		cancel(gone)
		if err := get(t, end, "the end"); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
		get(t, r.server.ended, "the end of the generation")
	})
}

func TestNodeThatStopsEndsItsGenerationsAsLost(t *testing.T) {
	rigs(t, func(t *testing.T, r *rig) {
		_, end := r.stream(context.Background(), "")
		r.says("one")
		if err := r.node.Close(); err != nil {
			t.Fatal(err)
		}
		var lost *fleet.NodeLost
		if err := get(t, end, "the end"); !errors.As(err, &lost) {
			t.Errorf("got %v, want a lost node", err)
		}
		get(t, r.server.ended, "the end of the generation")
	})
}

// deaf is a connection that is not read any more once it is told so.
type deaf struct {
	net.Conn
	now    chan struct{}
	closed context.Context
}

func (c deaf) Read(b []byte) (int, error) {
	select {
	case <-c.now:
		<-c.closed.Done()
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(b)
	}
}

// Who closes a link does not wait for a node that reads nothing.
func TestLinkToANodeThatDoesNotReadCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEdge(t, "")
		n, link := newNode(t, newServer()), h.Joined("box-a")
		its, mine := net.Pipe()
		closed, end := context.WithCancel(t.Context())
		c := deaf{mine, make(chan struct{}), closed}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_, _ = n.serve(c, "head", func() {})
		}()
		h.Accept(its, "10.0.0.1", func(j *Joiner) error { return j.Attach(link) })
		synctest.Wait()
		close(c.now)
		called := make(chan error, 1)
		go func() {
			_, err := link.Call(t.Context(), fleet.Call{Op: fleet.OpAsk, Path: "/x", Body: make([]byte, 1<<20)})
			called <- err
		}()
		synctest.Wait()
		began := time.Now()
		_ = link.Close("the test is over")
		if took := time.Since(began); took > closeLimit {
			t.Errorf("it took %v to close, want at most %v", took, closeLimit)
		}
		if err := <-called; err == nil {
			t.Error("the call was answered")
		}
		end()
		<-served
		_ = n.Close()
	})
}

// A node that is dialled and refuses is dead: nobody waits for it to come back.
func TestNodeThatRefusesIsLostAtOnce(t *testing.T) {
	s := newServer()
	h := newEdge(t, "")
	ln := listen(t)
	n := newNode(t, s)
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	link := h.Dial("box-a", ln.Addr().String())
	defer func() { _ = link.Close("over") }()
	r := &rig{t: t, server: s, node: n, link: link, states: make(chan fleet.NodeState, 100)}
	if _, err := link.Call(context.Background(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	r.watch()
	_, end := r.stream(context.Background(), "")
	r.says("one")
	_ = ln.Close()
	<-served
	link.mu.Lock()
	_ = link.conn.c.Close() // as if the process had been killed
	link.mu.Unlock()
	var gone *fleet.NodeLost
	if err := get(t, end, "the end"); !errors.As(err, &gone) || gone.Cause != fleet.CauseRefused {
		t.Errorf("got %v, want the node lost, refused", err)
	}
	r.until("that is down", func(s fleet.NodeState) bool { return s.Down != nil })
	_ = n.Close()
}

// A node that began anew holds nothing of what its predecessor ran, and says so; it is one
// that failed at nothing.
func TestLossToANodeThatBeganAnewSaysSo(t *testing.T) {
	h := newEdge(t, "")
	var nodes [2]*Node
	var doors [2]net.Listener
	served := make(chan error, 2)
	s := newServer()
	for k := range nodes {
		doors[k], nodes[k] = listen(t), newNode(t, s)
		go func() { served <- nodes[k].Serve(doors[k]) }()
	}
	w := newWay(t, doors[0].Addr().String())
	link := h.Dial("box-a", w.ln.Addr().String())
	r := &rig{t: t, server: s, link: link, states: make(chan fleet.NodeState, 100)}
	if _, err := link.Call(t.Context(), fleet.Call{Op: fleet.OpProbe}); err != nil {
		t.Fatal(err)
	}
	r.watch()
	words, end := r.stream(t.Context(), "")
	r.says("one")
	get(t, words, "the first word")
	w.lead(doors[1].Addr().String())
	w.cut()
	var gone *fleet.NodeLost
	if err := get(t, end, "the end"); !errors.As(err, &gone) || !gone.Anew {
		t.Errorf("got %v, want the node lost and another run there", err)
	}
	_ = link.Close("the test is over")
	for k := range nodes {
		_ = doors[k].Close()
		_ = nodes[k].Close()
		<-served
	}
}

func TestWrongTokenIsToldOnBothSides(t *testing.T) {
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenB)})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	n := newNode(t, newServer(), token(t, tokenA))
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	link := h.Dial("box-a", ln.Addr().String())
	_, err = link.Call(context.Background(), fleet.Call{Op: fleet.OpProbe})
	if !errors.Is(err, RefusedToken) {
		t.Errorf("the head: got %v, want %v", err, RefusedToken)
	}
	_ = link.Close("over")
	_ = ln.Close()
	_ = n.Close()
	<-served

	ln = listen(t)
	n = newNode(t, newServer(), token(t, tokenA))
	go func() { served <- h.Serve(ln, func(*Joiner) error { t.Error("a stranger was adopted"); return nil }) }()
	_, err = n.dial(context.Background(), ln.Addr().String())
	if !errors.Is(err, RefusedToken) {
		t.Errorf("the node: got %v, want %v", err, RefusedToken)
	}
	_ = ln.Close()
	<-served
	_ = n.Close()
}

// While tokens are rotated a node has two, and comes in with the one that is known.
func TestNodeUsesItsOtherToken(t *testing.T) {
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keysOf(t, tokenB)})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	joined := make(chan string, 1)
	link := h.Joined("box-a")
	served := make(chan error, 1)
	go func() {
		served <- h.Serve(ln, func(j *Joiner) error {
			err := j.Attach(link)
			joined <- j.Identity
			return err
		})
	}()
	n := newNode(t, newServer(), token(t, tokenA), token(t, tokenB))
	go n.Join(context.Background(), ln.Addr().String())
	if got := get(t, joined, "the node"); got != "box-a" {
		t.Errorf("got %q, want box-a", got)
	}
	_ = n.Close()
	_ = ln.Close()
	<-served
	_ = link.Close("over")
}

func TestTokenOfAnotherIdentityIsRefusedWithTheReason(t *testing.T) {
	keys := new(Keyring)
	keys.Add(token(t, tokenA), "box-b")
	h, err := NewHead(HeadOptions{Identity: "edge", Tokens: keys})
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	served := make(chan error, 1)
	go func() { served <- h.Serve(ln, func(*Joiner) error { t.Error("it was adopted"); return nil }) }()
	n := newNode(t, newServer(), token(t, tokenA))
	_, err = n.dial(context.Background(), ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), `may not be used by "box-a"`) {
		t.Errorf("got %v, want the reason", err)
	}
	_ = ln.Close()
	<-served
	_ = n.Close()
}

// Heads that share a node share its lanes: who comes when all are taken is told so.
func TestHeadsShareTheLanesOfANode(t *testing.T) {
	s := newServer()
	n := newNode(t, s)
	ln := listen(t)
	served := make(chan error, 1)
	go func() { served <- n.Serve(ln) }()
	var links []*Link
	for _, name := range []string{"edge-1", "edge-2"} {
		h, err := NewHead(HeadOptions{Identity: name})
		if err != nil {
			t.Fatal(err)
		}
		l := h.Dial("box-a", ln.Addr().String())
		if _, err := l.Call(context.Background(), fleet.Call{Op: fleet.OpProbe}); err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	opened, ends := make(chan struct{}, 10), make(chan error, 10)
	run := func(l *Link) {
		ends <- l.Run(context.Background(), fleet.Assignment{Model: "m", Path: "/x"}, func(e fleet.Event) error {
			if e.Kind == fleet.EventOpen {
				opened <- struct{}{}
			}
			return nil
		})
	}
	for range s.stood.Instances[0].Lanes {
		go run(links[0])
		get(t, opened, "the start of a generation")
	}
	run(links[1])
	var refused *fleet.RequestError
	if err := get(t, ends, "the answer to one more"); !errors.As(err, &refused) || refused.Reason != fleet.ReasonOverloaded || !refused.Again {
		t.Errorf("one more than the lanes, of another head: got %v, want it refused for now", err)
	}
	taken := func(k, want int) {
		t.Helper()
		r := &rig{t: t, link: links[k], states: make(chan fleet.NodeState, 100)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.link.Watch(ctx, func(x fleet.NodeState) { r.states <- x })
		}()
		r.until(fmt.Sprintf("where %d lanes are not to be had", want), func(x fleet.NodeState) bool { return len(x.Instances) == 1 && x.Instances[0].Leaving == want })
		cancel()
		<-done
	}
	taken(0, 0) // its own ones
	taken(1, s.stood.Instances[0].Lanes)
	close(s.say)
	for range s.stood.Instances[0].Lanes {
		if err := get(t, ends, "the end"); err != nil {
			t.Error(err)
		}
	}
	taken(1, 0)
	for declined := true; declined; { // until the first head's word that it is done is there
		run(links[1])
		err := get(t, ends, "the end")
		if declined = errors.As(err, &refused); err != nil && !declined {
			t.Errorf("when lanes are free again: got %v, want an answer", err)
		}
	}
	for _, l := range links {
		_ = l.Close("over")
	}
	_ = ln.Close()
	_ = n.Close()
	<-served
}

// A name that is in use is not given to somebody at another address, who is told so, as
// are the log of the head and the one who has it, both once.
func TestTakenNameIsRefusedWithTheReason(t *testing.T) {
	var ofHead, ofFirst kept
	h, err := NewHead(HeadOptions{Identity: "edge", Logger: ofHead.log()})
	if err != nil {
		t.Fatal(err)
	}
	m := fleet.New()
	defer m.Close()
	if _, err := m.Apply(fleet.Policy{Joins: true}); err != nil {
		t.Fatal(err)
	}
	come := func(n *Node, address string) (adopted, served chan error) {
		its, mine := net.Pipe()
		adopted, served = make(chan error, 1), make(chan error, 1)
		go h.Accept(from{its, address}, address, func(j *Joiner) error {
			_, err := m.Adopt(j.Joining())
			adopted <- err
			return err
		})
		go func() {
			_, err := n.serve(mine, "head", func() {})
			served <- err
		}()
		return adopted, served
	}
	first, err := NewNode(NodeOptions{Identity: "box-a", Upstream: newServer(), Logger: ofFirst.log()})
	if err != nil {
		t.Fatal(err)
	}
	second := newNode(t, newServer())
	adopted, served := come(first, "10.0.0.1")
	if err := get(t, adopted, "the first"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !m.Status().Nodes[0].Up; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the first is not alive for the manager")
		}
	}
	for range 2 {
		refused, told := come(second, "10.0.0.2")
		if err := get(t, refused, "the second"); !errors.Is(err, fleet.ErrNameInUse) {
			t.Errorf("the head: got %v, want %v", err, fleet.ErrNameInUse)
		}
		if err := get(t, told, "the second's end"); err == nil || !strings.Contains(err.Error(), "identity of its own") {
			t.Errorf("the second node: got %v, want to be told what to do", err)
		}
	}
	const want = "two nodes call themselves box-a, at 10.0.0.1 and 10.0.0.2"
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(strings.Join(ofFirst.lines(), ""), want); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the first node's log does not say %q", want)
		}
	}
	if all := ofHead.lines(); len(all) != 1 || !strings.Contains(all[0], want) {
		t.Errorf("the head's log says %q, want once %q", all, want)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	<-served
}

// Peers that say nothing hold a bounded number of places, for a bounded time, and keep
// no other address out.
func TestSilentPeersDoNotKeepOthersOut(t *testing.T) {
	var d admission
	for i := range handshakesAddress {
		if !d.enter("one") {
			t.Fatalf("handshake %d of an address is refused", i+1)
		}
	}
	if d.enter("one") {
		t.Error("one more of the same address is taken")
	}
	if !d.enter("other") {
		t.Error("another address is refused")
	}
	for i := range handshakesMost {
		d.enter(fmt.Sprint(i))
	}
	if d.enter("late") {
		t.Errorf("more than %d handshakes are open", handshakesMost)
	}
	d.leave("one")
	if !d.enter("late") {
		t.Error("a place that was left is not given again")
	}
}

// A place that is full says so at once.
func TestPeerAboveTheBoundIsTold(t *testing.T) {
	h := newEdge(t, "")
	ln := listen(t)
	served := make(chan error, 1)
	go func() { served <- h.Serve(ln, func(*Joiner) error { return nil }) }()
	var conns []net.Conn
	for range handshakesAddress + 1 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	// Which of them it is depends on who was scheduled first.
	told := make(chan []byte, len(conns))
	for _, c := range conns {
		go func() {
			b, _ := io.ReadAll(c)
			told <- b
		}()
	}
	if got := get(t, told, "a refusal"); string(got) != string(refusal(RefusedFull)) {
		t.Errorf("got %x, want the refusal %x", got, refusal(RefusedFull))
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for range len(conns) - 1 {
		<-told
	}
	_ = ln.Close()
	<-served
}
