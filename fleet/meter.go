package fleet

import "time"

// meter counts one attempt.
type meter struct {
	Timings
	chunks   Tokens   // data events, each of one token or more
	progress Progress // the last that was told
}

// saw takes an event and reports whether it is data of the answer.
func (m *meter) saw(e Event) bool {
	if e.Progress != nil {
		m.progress = *e.Progress
	}
	if e.Kind != EventData || e.Progress != nil {
		return false
	}
	m.chunks++
	if e.Timings != nil {
		m.Timings = *e.Timings
	}
	return true
}

// generated is how many tokens the node generated: as it said, or, if it was lost
// before it said anything, at least one for each chunk after the role's.
func (m *meter) generated() Tokens {
	if m.Predicted > 0 {
		return m.Predicted
	}
	return max(0, m.chunks-1)
}

// Below these a speed is mostly overhead and tells nothing.
const (
	enoughPrompt    = 64
	enoughPredicted = 16
)

// learn takes in what an answer of ours took. r is what its client asked for.
func (m *Manager) learn(c *claim, r *Request, t Timings) {
	if t == (Timings{}) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := c.instance
	i.measure(m.specOf(i.node), t)
	i.tick(time.Now())
	c.calibrate(t)
	m.figures(i.Model).learn(r, t)
	c.warm.prompt, c.warm.whole = t.Cached+t.Prompt, t.Cached+t.Prompt+t.Predicted
	if !c.warm.rest {
		m.endings.ended(c.warm.id, c.warm.blocks, c.warm.whole)
	}
}

// measure corrects the instance's speeds as load_aware reads them: each answer moves
// them a quarter of the way.
func (i *instance) measure(spec NodeSpec, t Timings) {
	if t.Prompt >= enoughPrompt {
		blend(&i.measured.Prefill, t.PromptPerSecond)
	}
	if t.Predicted >= enoughPredicted {
		blend(&i.measured.Decode, t.PredictedPerSecond)
	}
	i.settle(spec)
}

// blend leaves out what is no speed: servers print absurd ones for tiny answers.
func blend(old *float64, now float64) {
	const absurd = 1e6
	if !(now > 0 && now < absurd) {
		return
	}
	if *old == 0 {
		*old = now
		return
	}
	*old += (now - *old) / 4
}
