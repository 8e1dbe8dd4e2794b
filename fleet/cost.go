package fleet

import "math"

// The cost of running a request on an instance, in seconds; the least wins.
// docs/placement.md has the formula in words, and where its constants come from.
const (
	// externality weighs what a request does to those that run beside it against
	// what it suffers itself. From 0.5 to 2 the fleet stays stable near its limit;
	// without it, it does not.
	externality = 0.5

	// writing weighs the seconds in which the answer comes against those before it
	// begins, when there is nothing to look at yet. With more weight requests wait for
	// fast servers while slow ones idle, and on average even whole answers come later;
	// with less, the slowest answers get slower.
	writing = 0.1

	// poolWeight is how many seconds a KV pool that is half full costs. The price
	// rises without bound as the pool fills, up to poolEdge: no cliff, and always
	// some instance left.
	poolWeight = 0.15
	poolEdge   = 0.98

	// most bounds each figure that enters, in tokens, generations or seconds.
	most = 1e9
)

// speed is how fast an instance reads and writes.
type speed struct {
	prefill float64 // prompt tokens/s that it reads, all lanes together
	base    float64 // seconds of one decode step
	slope   float64 // that each running generation adds to a step
}

// step is how long one token of each takes while n generations run.
func (s speed) step(n int) float64 { return s.base + s.slope*float64(n) }

// outlook is what awaits a request on an instance.
type outlook struct {
	speed  speed
	lanes  int
	ahead  int     // requests that run there or wait for it
	queued float64 // prompt tokens of theirs that are still unread
	prompt float64 // tokens of this request's prompt
	unread float64 // of these, those that are not in a cache there
	out    float64 // tokens that its answer will have
	pool   float64 // share of the KV pool that is taken; 0: unknown, too
	load   float64 // seconds until the model is in memory
	evicts float64 // seconds to load again what goes for it
}

// Terms are the parts of a cost, in seconds.
type Terms struct {
	Load   float64 `json:"load"`   // until the model is in memory
	Wait   float64 `json:"wait"`   // until a lane is free
	Queued float64 `json:"queued"` // reading prompts that came before
	Read   float64 `json:"read"`   // reading what of the prompt is in no cache there
	Write  float64 `json:"write"`  // writing the answer, weighed
	Others float64 `json:"others"` // delay to those that run there, weighed
	Pool   float64 `json:"pool"`   // price of a KV pool that fills up
}

// Total is the cost.
func (t Terms) Total() float64 {
	return t.Load + t.Wait + t.Queued + t.Read + t.Write + t.Others + t.Pool
}

func (o *outlook) cost() Terms {
	running := min(o.ahead, o.lanes)
	step := o.speed.step(min(running+1, o.lanes))
	t := Terms{
		Load:   o.load,
		Queued: o.queued / o.speed.prefill,
		Read:   o.unread / o.speed.prefill,
		Write:  writing * o.out * step,
	}
	if over := o.ahead - o.lanes; over >= 0 {
		t.Wait = (float64(over) + 0.5) * (o.out*step + o.prompt/o.speed.prefill/2) / float64(o.lanes)
	}
	t.Others = externality * (float64(o.ahead)*t.Read + float64(running)*o.speed.slope*o.out + o.evicts)
	if o.pool > 0 {
		k := min(o.pool, poolEdge)
		t.Pool = poolWeight * k / (1 - k)
	}
	return t
}

// bounded makes a figure that others told fit for reckoning: NaN is 0.
func bounded(x, least, most float64) float64 {
	if math.IsNaN(x) {
		return least
	}
	return max(least, min(x, most))
}
