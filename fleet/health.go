package fleet

import (
	"context"
	"errors"
	"math"
	"time"
)

// A node's health is what requests and its link show of it; /health is asked only
// where nothing else speaks. What follows is about nodes that are up, and yet do not
// serve: those that fail far more than others, those that come and go, and those that
// let a request lie.

const (
	tallyHalf   = 30 * time.Second // after which an outcome counts half
	enoughFails = 4.5              // fresh failures below which nobody is judged
	restFirst   = 30 * time.Second
	restLongest = 5 * time.Minute

	// flapsAllowed is how many outages, each counting half after tallyHalf, a node may
	// have before it has to rest.
	flapsAllowed = 4.5
)

// tally counts outcomes that fade.
type tally struct {
	good, bad float64
	at        time.Time
}

func (t *tally) add(now time.Time, good, bad float64) {
	t.fade(now)
	t.good += good
	t.bad += bad
}

// fade lets time pass. A clock that went back lets none pass.
func (t *tally) fade(now time.Time) {
	if d := now.Sub(t.at); d > 0 {
		f := math.Exp2(-d.Seconds() / tallyHalf.Seconds())
		t.good *= f
		t.bad *= f
		t.at = now
	}
}

// share is that of failures; 0 where nothing was counted.
func (t *tally) share() float64 {
	if t.good+t.bad < 1 {
		return 0
	}
	return t.bad / (t.good + t.bad)
}

// judge counts how an attempt on a node ended, and lets a node rest that fails far
// more than the others do.
func (m *Manager) judge(n *node, failed bool) {
	m.mu.Lock()
	now := time.Now()
	good, bad := 1.0, 0.0
	if failed {
		good, bad = 0, 1
	}
	n.outcomes.add(now, good, bad)
	tell := failed && m.isOutlier(n, now) && m.rest(n, now)
	m.mu.Unlock()
	if tell {
		m.tellRest(n, "it fails far more requests than others")
	}
}

// isOutlier: at least half of what it was given failed, and of the others' not half
// as much.
func (m *Manager) isOutlier(n *node, now time.Time) bool {
	var others tally
	for _, x := range m.nodes {
		if x != n {
			x.outcomes.fade(now)
			others.good += x.outcomes.good
			others.bad += x.outcomes.bad
		}
	}
	mine := n.outcomes.share()
	return n.outcomes.bad >= enoughFails && mine >= 0.5 && others.good+others.bad >= enoughFails && others.share() < mine/2
}

// cameAndWent counts an outage that was no matter of one connection, and lets a node
// rest that comes and goes.
func (m *Manager) cameAndWent(n *node) {
	m.mu.Lock()
	now := time.Now()
	n.outages.add(now, 0, 1)
	tell := n.outages.bad >= flapsAllowed && m.rest(n, now)
	m.mu.Unlock()
	if tell {
		m.tellRest(n, "it comes and goes")
	}
}

// flaps is how many outages it had more than is allowed, lately.
func (n *node) flaps(now time.Time) int {
	n.outages.fade(now)
	return max(0, int(n.outages.bad-flapsAllowed+1))
}

// rest makes a node one that is used only if nobody else is there, for a while that
// doubles each time. At most a third of the nodes rest; one always may, if it is not
// alone.
func (m *Manager) rest(n *node, now time.Time) bool {
	if n.rests(now) {
		return false
	}
	resting := 0
	for _, x := range m.nodes {
		if x.rests(now) {
			resting++
		}
	}
	if len(m.nodes) < 2 || resting+1 > max(1, len(m.nodes)/3) {
		return false
	}
	if now.Sub(n.restUntil) > restLongest {
		n.restFor = 0
	}
	n.restFor = min(max(restFirst, 2*n.restFor), restLongest)
	n.restUntil = now.Add(n.restFor)
	n.outcomes = tally{}
	return true
}

func (n *node) rests(now time.Time) bool { return now.Before(n.restUntil) }

func (m *Manager) tellRest(n *node, why string) {
	m.mu.Lock()
	log, until := m.logger(), n.restUntil
	m.mu.Unlock()
	log.Warn("node rests: it is used only if nobody else is there", "node", n.name, "why", why, "until", until)
	m.tell(Change{Kind: ChangeEjected, Node: n.name, Why: why})
}

const (
	// suspectAfter is how long a server may show itself idle while it should read a
	// prompt of ours, besides the time it takes to prepare that, before it is asked
	// whether it lives.
	suspectAfter = 5 * time.Second

	// suspectLimit is how long it may take to answer.
	suspectLimit = 2 * time.Second

	// letLie is how long a server that answers may let a request lie, likewise.
	letLie = stallMin

	// Before a slot begins, a server applies the template and makes tokens of the text,
	// and no log tells of that. It is one thread's work: many times as fast as the
	// reading that follows on a slow machine, and on any some 100,000 tokens/s, of which
	// a tenth is reckoned with.
	prepares     = 10_000 // tokens/s
	preparesOver = 10     // times as fast as it reads
)

// preparation is how long a server may take to prepare a prompt.
func preparation(prompt Tokens, r Rates) time.Duration {
	rate := float64(prepares)
	if r.Prefill > 0 {
		rate = min(rate, preparesOver*r.Prefill)
	}
	return seconds(min(float64(prompt)/rate, mostEstimate))
}

// lies is how long the session's request may lie where it is, from when it was sent.
func (s *Session) lies(limit time.Duration) time.Duration {
	return limit + preparation(s.request.Prompt, s.claim.state.Rates)
}

// suspicious returns the sessions of which a server that shows itself idle must know
// nothing: they should be read there, nothing came of them, and it says that it runs
// nothing. A long prefill is no such thing: it shows as a slot that runs. Called under
// the mutex.
func (m *Manager) suspicious(n *node, now time.Time) []*Session {
	var list []*Session
	for _, s := range m.on(n) {
		i := s.claim.instance
		idle := i.Load.fresh(now) && i.Load.Active == 0 && i.State == StateReady && s.claim.state.State == StateReady
		if idle && !s.claim.light && s.stop != nil && !s.spoke.Load() && i.Load.At.Sub(s.tried) >= s.lies(suspectAfter) {
			list = append(list, s)
		}
	}
	return list
}

// examine asks a node about which there is a suspicion. Sessions that it let lie go
// elsewhere: at once if it does not answer, else when it let them lie for too long.
func (m *Manager) examine(ctx context.Context, n *node) {
	m.mu.Lock()
	waiting := len(m.suspicious(n, time.Now())) > 0
	m.mu.Unlock()
	if !waiting {
		return
	}
	limited, cancel := context.WithTimeout(ctx, suspectLimit)
	_, err := n.link.Call(limited, Call{Op: OpHealth})
	cancel()
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, s := range m.suspicious(n, now) {
		if err == nil && now.Sub(s.tried) < s.lies(letLie) {
			continue
		}
		if err == nil {
			err = errors.New("its log shows it idle, and it let the request lie")
		}
		s.stop(&NodeLost{Node: n.name, Cause: CauseStalled, Err: err})
	}
}
