package fleet

import "time"

// Patience bounds how long a link waits in silence. Its clock runs only while it
// waits for the node, not while the client is slow; progress and pings wind it up
// again.
type Patience struct {
	// First is the limit until the first data; 0: none, because the instance may
	// rightly be silent (loading, waking, all lanes taken).
	First time.Duration

	// Stall is the limit from then on; 0: none.
	Stall time.Duration
}

// Silence of a healthy stream is bounded by the prefill of others: each pass of
// llama-server's loop takes up to n_batch prompt tokens and gives every running
// generation one token.
const (
	batchTokens  = 2048 // n_batch, as servers have it by default
	stallMin     = 15 * time.Second
	stallUnknown = 120 * time.Second
)

// patience returns the limits for a request of so many prompt tokens, where the
// instance runs others besides. stall is the configured limit, 0 for the one that
// follows from the measured speed.
func patience(i *Instance, others int, prompt Tokens, stall time.Duration, now time.Time) Patience {
	p := Patience{Stall: stall}
	if p.Stall == 0 {
		p.Stall = stallUnknown
		if i.Rates.Prefill > 0 {
			p.Stall = max(stallMin, seconds(3*batchTokens/i.Rates.Prefill))
		}
	}
	full := i.Load.fresh(now) && i.Load.Active >= i.lanes()
	if i.State != StateReady || others >= i.lanes() || full {
		return p
	}
	// Servers before May 2026 send not even headers before the first token.
	p.First = p.Stall
	if i.Rates.Prefill > 0 {
		p.First += seconds(float64(prompt) / i.Rates.Prefill)
	}
	return p
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
