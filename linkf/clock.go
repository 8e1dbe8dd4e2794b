package linkf

import "time"

// clock is a machine's time. It goes on from where it was if the one that it is told
// goes back, so that no lease gets longer than the time that was seen to pass.
type clock struct {
	now   time.Duration
	shift time.Duration // from the time that is told
}

func (c *clock) tell(at time.Duration) {
	if at+c.shift < c.now {
		c.shift = c.now - at
	}
	c.now = at + c.shift
}

// told is the time that will be told at a time of the machine.
func (c *clock) told(at time.Duration) time.Duration { return at - c.shift }
