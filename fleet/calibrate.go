package fleet

// estimate learns the speed of one instance from answers, each of which counts
// decay times as much as the one after it.
type estimate struct {
	speed
	answers int // that told something

	// Sums for the reading speed.
	tokens, seconds float64

	// Sums of the regression of the step's length over the number of generations.
	n, x, y, xx, xy float64
}

const (
	decay = 0.98

	// startWeight is what a start counts against one answer.
	startWeight = 0.1

	// slopeShare is the slope against the base before there is anything to learn
	// it from, and slopeWeight how many answers that counts for.
	slopeShare  = 0.1
	slopeWeight = 10

	// wild is the factor by which one answer may differ from what is known and be
	// taken at its word; beyond, it counts as differing by so much.
	wild = 4

	// Speeds outside of these are no speeds.
	slowest, fastest = 0.01, 1e6 // tokens/s

	// mostRunning is how many generations are ever taken to run at once.
	mostRunning = 1000

	// enoughCold is how many tokens have to be read for the time to be more than
	// overhead.
	enoughCold = 128
)

// start sets what the configuration or a log says, until answers say otherwise.
func (e *estimate) start(r Rates) {
	if e.answers > 0 {
		return
	}
	e.speed = speed{}
	if sane(r.Prefill) {
		e.prefill = r.Prefill
	}
	if sane(r.Decode) {
		e.base = 1 / r.Decode / (1 + slopeShare)
		e.slope = slopeShare * e.base
	}
}

func sane(rate float64) bool { return rate >= slowest && rate <= fastest }

// read takes in that a prompt's own uncached tokens, and with them so many in all,
// took so many seconds.
func (e *estimate) read(own, tokens, seconds float64) {
	if own < enoughCold || !(seconds > 0) || !sane(tokens/seconds) {
		return
	}
	if e.tokens == 0 && e.prefill > 0 {
		e.tokens, e.seconds = startWeight*tokens, startWeight*tokens/e.prefill
	}
	if e.prefill > 0 {
		seconds = bounded(seconds, tokens/e.prefill/wild, tokens/e.prefill*wild)
	}
	e.tokens = decay*e.tokens + tokens
	e.seconds = decay*e.seconds + seconds
	e.prefill = e.tokens / e.seconds
	e.answers++
}

// wrote takes in that one token took so many seconds while on average so many
// generations ran.
func (e *estimate) wrote(running, seconds float64) {
	if !(seconds > 0) || !sane(1/seconds) || !(running > 0) {
		return
	}
	running = min(running, mostRunning)
	if e.base > 0 {
		known := e.base + e.slope*running
		seconds = bounded(seconds, known/wild, known*wild)
		if e.n == 0 {
			e.sum(startWeight, 1, e.base+e.slope)
		}
	}
	e.n, e.x, e.y, e.xx, e.xy = decay*e.n, decay*e.x, decay*e.y, decay*e.xx, decay*e.xy
	e.sum(1, running, seconds)
	e.fit()
	e.answers++
}

func (e *estimate) sum(weight, x, y float64) {
	e.n += weight
	e.x += weight * x
	e.y += weight * y
	e.xx += weight * x * x
	e.xy += weight * x * y
}

// fit draws the line through what is known. A line through answers that all ran
// beside as many others could lie anywhere: there the usual slope holds it.
func (e *estimate) fit() {
	meanX, meanY := e.x/e.n, e.y/e.n
	usual := meanY * slopeShare / (1 + slopeShare*meanX)
	slope := (e.xy - e.x*meanY + slopeWeight*usual) / (e.xx - e.x*meanX + slopeWeight)
	e.slope = bounded(slope, 0, 0.9*meanY/meanX)
	e.base = bounded(meanY-e.slope*meanX, 1/fastest, 1/slowest)
}
