package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var queueNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

const queueStep = 6 * time.Second

// lining makes a queue and a function that lets a request wait in it.
func lining() (*queue, func(r Request, cost Tokens) *waiter) {
	q := newQueue()
	return q, func(r Request, cost Tokens) *waiter {
		w := &waiter{Request: r}
		q.push(w, cost, queueNow)
		return w
	}
}

// serve takes the next n out of the queue.
func (q *queue) serve(n int, now time.Time) []*waiter {
	var got []*waiter
	for range n {
		q.begin()
		w := q.next(now, queueStep)
		if w == nil {
			break
		}
		q.remove(w, true)
		got = append(got, w)
	}
	return got
}

func wantServed(t *testing.T, what string, got []*waiter, want ...*waiter) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	show := func(list []*waiter) (s []string) {
		for _, w := range list {
			s = append(s, fmt.Sprintf("%s/%d/%s", w.Tenant, w.Class, w.Session))
		}
		return s
	}
	t.Errorf("%s: got %v served, want %v", what, show(got), show(want))
}

func TestHigherClassesGoFirst(t *testing.T) {
	q, wait := lining()
	low := wait(Request{Class: 0}, 1)
	high := wait(Request{Class: 9}, 1)
	mid := wait(Request{Class: 5}, 1)
	wantServed(t, "at once", q.serve(3, queueNow), high, mid, low)
}

func TestWaitRaisesTheClass(t *testing.T) {
	q, wait := lining()
	low := wait(Request{Class: 0, Session: "low"}, 1)
	for n := range 9 {
		now := queueNow.Add(time.Duration(n) * queueStep)
		high := &waiter{Request: Request{Class: 9}}
		q.push(high, 1, now)
		wantServed(t, fmt.Sprint("after steps: ", n), q.serve(1, now), high)
	}
	now := queueNow.Add(9 * queueStep)
	high := &waiter{Request: Request{Class: 9}}
	q.push(high, 1, now)
	wantServed(t, "after nine steps", q.serve(2, now), low, high)
}

// However many of the highest class come, and however long they wait themselves.
func TestLowestClassIsServedBeforeItExpires(t *testing.T) {
	q := newQueue()
	low := &waiter{}
	q.push(low, 1, queueNow)
	for n := range 60 { // two come each second, one is served
		now := queueNow.Add(time.Duration(n) * time.Second)
		q.push(&waiter{Request: Request{Class: 9}}, 1, now)
		q.push(&waiter{Request: Request{Class: 9}}, 1, now)
		if got := q.serve(1, now); got[0] == low {
			return
		}
	}
	t.Error("it was not served in ten steps")
}

func TestRequestsThatMoveGoBeforeAllOthers(t *testing.T) {
	q, wait := lining()
	wait(Request{Class: 9}, 1)
	one, two := &waiter{Request: Request{Tenant: "b"}, first: true}, &waiter{Request: Request{Tenant: "a", Model: "n"}, first: true}
	q.push(one, 1000, queueNow)
	q.push(two, 1, queueNow)
	wantServed(t, "in the order in which they came", q.serve(2, queueNow.Add(time.Hour)), one, two)
	if q.moving != 0 || q.len != 1 {
		t.Errorf("got %d waiting and %d moving, want 1 and none", q.len, q.moving)
	}
}

// Who sends large prompts gets as many tokens read as who sends small ones, and who
// sends many requests no more than who sends few.
func TestTenantsShareInTokens(t *testing.T) {
	q, wait := lining()
	for range 100 {
		wait(Request{Tenant: "large"}, 1000)
	}
	for range 1000 {
		wait(Request{Tenant: "small"}, 100)
		wait(Request{Tenant: "other"}, 100)
	}
	read := make(map[string]Tokens)
	for _, w := range q.serve(630, queueNow) {
		read[w.Tenant] += w.stands.cost
	}
	for _, name := range []string{"large", "small", "other"} {
		if got := read[name]; got < 29000 || got > 31000 {
			t.Errorf("got %d tokens read for %s, want about 30000 for each", got, name)
		}
	}
}

func TestTenantThatComesLateBeginsWhereTheOthersAre(t *testing.T) {
	q, wait := lining()
	for range 100 {
		wait(Request{Tenant: "early"}, 100)
	}
	q.serve(50, queueNow)
	for range 100 {
		wait(Request{Tenant: "late"}, 100)
	}
	read := make(map[string]int)
	for _, w := range q.serve(40, queueNow) {
		read[w.Tenant]++
	}
	if read["early"] < 19 || read["late"] < 19 {
		t.Errorf("got %v served, want 20 of each", read)
	}
}

func TestTenantThatLeavesOwesNothing(t *testing.T) {
	q, wait := lining()
	var gone []*waiter
	for range 1000 {
		gone = append(gone, wait(Request{Tenant: "gone"}, 1000))
	}
	keep := wait(Request{Tenant: "gone", Session: "kept"}, 1)
	other := wait(Request{Tenant: "other"}, 1)
	for _, w := range gone {
		q.remove(w, false)
	}
	wantServed(t, "as if they had never been there", q.serve(2, queueNow), keep, other)
}

func TestWhatFoundNoLaneIsPassedOver(t *testing.T) {
	q, wait := lining()
	for range 100 {
		wait(Request{Model: "full", Class: 9}, 1)
	}
	want := wait(Request{Model: "free", Class: 0}, 1)
	q.begin()
	tries := 0
	for w := q.next(queueNow, queueStep); w != nil; w = q.next(queueNow, queueStep) {
		if tries++; w == want {
			q.remove(w, true)
			break
		}
		q.pass(w)
	}
	if want.stands.flow != nil || tries != 2 {
		t.Errorf("got %d tries, want 2: one for each model", tries)
	}
}

// Whatever comes and goes: nobody is lost or counted twice, and next follows the
// rules in their order.
func TestQueueKeepsItsOrderUnderAnySchedule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := newQueue()
		now := queueNow
		var in []*waiter
		out := func(w *waiter) { in = slices.DeleteFunc(in, func(x *waiter) bool { return x == w }) }
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				w := &waiter{first: rapid.IntRange(0, 9).Draw(rt, "moves") == 0}
				w.Class = rapid.IntRange(0, 2).Draw(rt, "class")
				w.Tenant = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "tenant")
				w.Model = rapid.SampledFrom([]string{"m", "n"}).Draw(rt, "model")
				w.Bytes = rapid.Int64Range(0, 100).Draw(rt, "bytes")
				cost := Tokens(rapid.IntRange(0, 50).Draw(rt, "cost"))
				q.push(w, cost, now)
				in = append(in, w)
			},
			"leave": func(rt *rapid.T) {
				if len(in) == 0 {
					rt.Skip("nobody waits")
				}
				w := rapid.SampledFrom(in).Draw(rt, "who")
				q.remove(w, false)
				out(w)
			},
			"change": func(rt *rapid.T) {
				if len(in) == 0 {
					rt.Skip("nobody waits")
				}
				w := rapid.SampledFrom(in).Draw(rt, "who")
				w.needs.Anew = !w.needs.Anew
				q.move(w)
			},
			"time": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 10).Draw(rt, "seconds")) * time.Second)
			},
			"serve": func(rt *rapid.T) {
				full := rapid.SampledFrom([]string{"", "m", "n"}).Draw(rt, "full")
				q.begin()
				w := q.next(now, queueStep)
				for w != nil && w.Model == full {
					q.pass(w)
					w = q.next(now, queueStep)
				}
				able := slices.DeleteFunc(slices.Clone(in), func(x *waiter) bool { return x.Model == full })
				if w == nil {
					if len(able) > 0 {
						rt.Fatalf("got nobody, and %d wait that can be placed", len(able))
					}
					return
				}
				follows(rt, q, w, able, now)
				q.remove(w, true)
				out(w)
			},
			"": func(rt *rapid.T) {
				var bytes int64
				moving := 0
				for _, w := range in {
					bytes += w.Bytes
					if w.first {
						moving++
					}
				}
				if q.len != len(in) || q.bytes != bytes || q.moving != moving {
					rt.Fatalf("got %d waiting, %d moving, %d bytes; want %d, %d and %d", q.len, q.moving, q.bytes, len(in), moving, bytes)
				}
				n := 0
				q.each(func(*waiter) { n++ })
				if n != len(in) {
					rt.Fatalf("got %d in the lines, want %d", n, len(in))
				}
				if len(in) == 0 && len(q.kinds) > 0 {
					rt.Fatal("lines are left where nobody waits")
				}
			},
		})
	})
}

// follows fails unless w is one that the rules allow to be next.
func follows(rt *rapid.T, q *queue, w *waiter, able []*waiter, now time.Time) {
	rank := func(x *waiter) int {
		if x.first {
			return 1000
		}
		oldest := x.stands.since
		for _, y := range able {
			if y.stands.class == x.stands.class && y.stands.kind == x.stands.kind && y.stands.since.Before(oldest) {
				oldest = y.stands.since
			}
		}
		return min(x.Class+int(now.Sub(oldest)/queueStep), 9)
	}
	for _, x := range able {
		switch same := x.stands.kind == w.stands.kind && x.first == w.first; {
		case rank(x) > rank(w):
			rt.Fatalf("class %d (%d) goes before class %d (%d)", w.Class, rank(w), x.Class, rank(x))
		case x.first && w.first && x.stands.came < w.stands.came:
			rt.Fatal("of those that move, a later one goes first")
		case same && x.Class == w.Class && x.Tenant == w.Tenant && x.stands.came < w.stands.came:
			rt.Fatal("of one tenant, a later request goes first")
		}
	}
}

// Of two tenants that wait all the time neither gets ahead by more than one request
// of each, whatever their requests cost.
func TestNoTenantGetsAheadByMoreThanARequest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q, wait := lining()
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		names := []string{"a", "b", "c"}
		var most Tokens
		push := func(name string) {
			cost := Tokens(1 + r.IntN(1+r.IntN(2000)))
			most = max(most, cost)
			wait(Request{Tenant: name, Model: []string{"m", "n"}[r.IntN(2)]}, cost)
		}
		for _, name := range names {
			push(name)
			push(name)
		}
		read := make(map[string]Tokens)
		for range 200 {
			w := q.serve(1, queueNow)[0]
			read[w.Tenant] += w.stands.cost
			push(w.Tenant)
			for _, a := range names {
				for _, b := range names {
					if ahead := read[a] - read[b]; ahead > 2*most {
						rt.Fatalf("got %s ahead of %s by %d tokens, want %d at most", a, b, ahead, 2*most)
					}
				}
			}
		}
	})
}

func TestTenantsThatComeAndGoAreForgotten(t *testing.T) {
	q, wait := lining()
	wait(Request{Tenant: "stays"}, 1)
	for n := range 10000 {
		w := wait(Request{Tenant: fmt.Sprint(n)}, 1)
		q.remove(w, false)
	}
	if got := len(q.classes[0].tenants); got > 100 {
		t.Errorf("got %d tenants remembered, want about as many as wait", got)
	}
}

// BenchmarkQueueLeave is ten thousand that all leave at once.
func BenchmarkQueueLeave(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		q, wait := lining()
		all := make([]*waiter, 10000)
		for i := range all {
			all[i] = wait(Request{Tenant: fmt.Sprint(i % 100), Class: i % 10}, Tokens(i%777))
		}
		b.StartTimer()
		for _, w := range all {
			q.remove(w, false)
		}
	}
}
