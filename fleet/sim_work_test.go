package fleet

import (
	"math"
	"math/rand"
	"time"
)

// The workloads. Each is a list of conversations, made before the run from one seed,
// so that every policy gets the same requests.

// simTurn is one request.
type simTurn struct {
	after  time.Duration // since the answer before it, or since the conversation began
	prompt []uint64
	whole  []uint64
	in     int
	out    int
}

// simTalk is one conversation.
type simTalk struct {
	at      time.Duration
	session uint64
	turns   []simTurn
}

// simLoad is a workload.
type simLoad struct {
	name  string
	nodes []simSpec
	span  time.Duration
	talks func(r *rand.Rand, span float64) []simTalk
}

// simDice draws the sizes, in the order in which the study drew them whose figures
// the gate holds: one number more for each conversation.
type simDice struct{ *rand.Rand }

// logNormal is a lognormal draw with that mean and standard deviation, clipped.
func (d simDice) logNormal(mean, deviation, least, most float64) float64 {
	v := math.Log(1 + deviation*deviation/mean/mean)
	return bounded(math.Exp(math.Log(mean)-v/2+math.Sqrt(v)*d.NormFloat64()), least, most)
}

func (d simDice) normal(mean, deviation, least, most float64) float64 {
	return bounded(mean+deviation*d.NormFloat64(), least, most)
}

// arrivals calls f at the times of a Poisson process.
func (d simDice) arrivals(rate, span float64, f func(at time.Duration, n uint64)) {
	n := uint64(0)
	for t := 0.0; t < span; t += d.ExpFloat64() / rate {
		n++
		f(seconds(t), n)
	}
}

// simSequence is the tokens of a conversation so far.
type simSequence struct {
	hashes []uint64
	tokens int
	salt   uint64
}

// grow appends tokens that no other sequence has.
func (s *simSequence) grow(tokens int) {
	s.tokens += tokens
	s.hashes = simChain(s.hashes, s.salt, s.tokens/simBlock-len(s.hashes))
}

func simChain(after []uint64, salt uint64, n int) []uint64 {
	chain := append(make([]uint64, 0, len(after)+max(0, n)), after...)
	var h uint64
	if len(after) > 0 {
		h = after[len(after)-1]
	}
	for i := range n {
		h = mix(h, mix(salt, uint64(len(after)+i)))
		chain = append(chain, h)
	}
	return chain
}

// ask appends a turn of the sequence: so many new tokens, so many of the answer.
func (s *simSequence) ask(c *simTalk, after time.Duration, tokens, out int) {
	s.grow(max(1, tokens))
	t := simTurn{after: after, prompt: s.hashes, in: s.tokens, out: out}
	s.grow(out)
	t.whole = s.hashes
	c.turns = append(c.turns, t)
}

// simChat is W1: conversations that share a system prompt of 1,000 tokens and go on
// for some turns.
func simChat(rate float64) func(*rand.Rand, float64) []simTalk {
	return func(r *rand.Rand, span float64) (all []simTalk) {
		d := simDice{r}
		system := simChain(nil, 42, 1000/simBlock)
		d.arrivals(rate, span, func(at time.Duration, n uint64) {
			c := simTalk{at: at, session: mix(n, 5)}
			s := simSequence{hashes: system, tokens: 1000, salt: c.session}
			turns := int(d.logNormal(5, 3, 1, 15))
			s.grow(int(d.logNormal(600, 600, 0, 4000)))
			ask := func(d simDice, after time.Duration) {
				s.ask(&c, after, int(d.logNormal(80, 80, 8, 1000)), int(d.normal(200, 100, 10, 800)))
			}
			ask(d, 0)
			later := simDice{rand.New(rand.NewSource(d.Int63()))}
			for range turns - 1 {
				ask(later, seconds(later.logNormal(30, 25, 2, 300)))
			}
			all = append(all, c)
		})
		return all
	}
}

// simShared is W2: 40 system prompts of 3,000 tokens, some far more popular than
// others, and one question to each.
func simShared(rate float64) func(*rand.Rand, float64) []simTalk {
	return func(r *rand.Rand, span float64) (all []simTalk) {
		const groups = 40
		d := simDice{r}
		zipf := rand.NewZipf(r, 1.1, 4, groups-1)
		var systems [groups][]uint64
		for g := range systems {
			systems[g] = simChain(nil, uint64(g)*31+7, 3000/simBlock)
		}
		d.arrivals(rate, span, func(at time.Duration, n uint64) {
			g := zipf.Uint64()
			c := simTalk{at: at, session: g + 1}
			s := simSequence{hashes: systems[g], tokens: 3000, salt: mix(n, 9)}
			s.ask(&c, 0, int(d.logNormal(300, 150, 20, 1500)), int(d.normal(150, 60, 10, 1e9)))
			d.Int63()
			all = append(all, c)
		})
		return all
	}
}

// simAlone is W3, as people share: nothing in common, answers of any length.
func simAlone(rate float64) func(*rand.Rand, float64) []simTalk {
	return func(r *rand.Rand, span float64) (all []simTalk) {
		d := simDice{r}
		d.arrivals(rate, span, func(at time.Duration, n uint64) {
			c := simTalk{at: at, session: mix(n, 11)}
			s := simSequence{salt: c.session}
			s.ask(&c, 0, int(d.logNormal(161, 250, 4, 4000)), int(d.logNormal(338, 300, 4, 2000)))
			d.Int63()
			all = append(all, c)
		})
		return all
	}
}

// simLongShort is W4: 15 % long prompts with short answers among short prompts.
func simLongShort(rate float64) func(*rand.Rand, float64) []simTalk {
	return func(r *rand.Rand, span float64) (all []simTalk) {
		d := simDice{r}
		d.arrivals(rate, span, func(at time.Duration, n uint64) {
			c := simTalk{at: at, session: mix(n, 13)}
			s := simSequence{salt: c.session}
			if d.Float64() < .15 {
				s.ask(&c, 0, int(d.logNormal(6000, 3000, 2000, 16000)), int(d.logNormal(80, 60, 5, 500)))
			} else {
				s.ask(&c, 0, int(d.logNormal(161, 250, 4, 4000)), int(d.logNormal(250, 220, 4, 1500)))
			}
			d.Int63()
			all = append(all, c)
		})
		return all
	}
}

// simLadder is W10: 150 groups of 5 prompts with a system prompt of 6,000 tokens and
// a question of 1,200 each, in random order, at a rate that rises twentyfold.
func simLadder(from float64) func(*rand.Rand, float64) []simTalk {
	return func(r *rand.Rand, span float64) (all []simTalk) {
		const groups, steps = 150, 5
		d := simDice{r}
		var systems [groups][]uint64
		for g := range systems {
			systems[g] = simChain(nil, uint64(g)*37+5, 6000/simBlock)
		}
		n := uint64(0)
		for step := range steps {
			rate := from * math.Pow(20, float64(step)/(steps-1))
			begin := seconds(span * float64(step) / steps)
			d.arrivals(rate, span/steps, func(at time.Duration, _ uint64) {
				n++
				g := uint64(d.Intn(groups))
				c := simTalk{at: begin + at, session: g + 1}
				s := simSequence{hashes: systems[g], tokens: 6000, salt: mix(n, 17)}
				s.ask(&c, 0, 1200, 1000)
				all = append(all, c)
			})
		}
		return all
	}
}

// simEqual are eight equal nodes, simMixed ten of three kinds.
var (
	simEqual = repeat(8, simSpec{4, 2500, 12 * time.Millisecond, 1200 * time.Microsecond})
	simMixed = append(append(
		repeat(2, simSpec{8, 6000, 9 * time.Millisecond, 800 * time.Microsecond}),
		repeat(4, simSpec{4, 2500, 12 * time.Millisecond, 1200 * time.Microsecond})...),
		repeat(4, simSpec{2, 400, 60 * time.Millisecond, 10 * time.Millisecond})...)
)

func repeat(n int, s simSpec) []simSpec {
	all := make([]simSpec, n)
	for i := range all {
		all[i] = s
	}
	return all
}
