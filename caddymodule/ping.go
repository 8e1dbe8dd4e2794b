package caddymodule

import "time"

// defaultPing is the value of `ping` that is not given: proxies and clients end what
// was silent for a minute, some after half of one.
const defaultPing = 15 * time.Second

// pingText is a comment, which clients of event streams pass over.
const pingText = ":\n\n"

// ping writes a comment whenever the stream has been silent for so long, until the
// returned function is called, which waits for a comment that is being written. The
// first one begins the answer, so that a later error is an error end. lost is called
// once, if the client is gone.
func (p *reply) ping(every time.Duration, lost func()) (end func()) {
	if every <= 0 {
		return func() {}
	}
	p.last = time.Since(p.born)
	stop, done := make(chan struct{}), make(chan struct{})
	var fault any
	go func() {
		defer close(done)
		// Of a panic here nobody would know whose it is, and the process would end.
		defer func() {
			if fault = recover(); fault != nil {
				lost()
			}
		}()
		timer := time.NewTimer(every)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			left, err := p.speak(every)
			if err != nil {
				lost()
				return
			}
			timer.Reset(left)
		}
	}()
	return func() {
		close(stop)
		<-done
		if fault != nil {
			panic(fault)
		}
	}
}

// speak writes a comment if the stream has been silent for so long, and returns how
// long it may be silent yet.
func (p *reply) speak(every time.Duration) (left time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := every - (time.Since(p.born) - p.last); left > 0 {
		return left, nil
	}
	if p.ending {
		return every, nil
	}
	return every, p.push([]byte(pingText))
}

// ends lets no ping come after the last bytes of an answer, which are next.
func (p *reply) ends() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
}
