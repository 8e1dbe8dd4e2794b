package llamacpp

import (
	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/slotlog"
)

// Of fewer tokens a speed is mostly overhead.
const (
	enoughRead  = 64
	enoughWrote = 16
)

// logRates are the speeds that a log shows: those of the task that ended last in each
// slot, ours or others', by their tokens.
func logRates(details []slotlog.Detail) fleet.Rates {
	var read, wrote pace
	for _, d := range details {
		if d.Last != nil {
			read.add(d.Last.PromptProcessed, d.Last.PrefillRate, enoughRead)
			wrote.add(d.Last.Generated, d.Last.Rate, enoughWrote)
		}
	}
	return fleet.Rates{Prefill: read.rate(), Decode: wrote.rate()}
}

// pace is how many tokens took how long.
type pace struct{ tokens, seconds float64 }

func (p *pace) add(tokens *int64, rate *float64, enough int64) {
	if tokens != nil && rate != nil && *tokens >= enough && *rate > 0 {
		p.tokens += float64(*tokens)
		p.seconds += float64(*tokens) / *rate
	}
}

// rate is in tokens per second; 0: unknown.
func (p pace) rate() float64 {
	if p.seconds == 0 {
		return 0
	}
	return p.tokens / p.seconds
}
