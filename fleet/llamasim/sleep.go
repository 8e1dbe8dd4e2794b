package llamasim

import (
	"context"
	"time"
)

// Loading and sleeping (section 3.4). A model that sleeps has nothing in its slots
// and comes back, as after a load, with the first request that needs it.

// emptySlots makes the slots anew. The caller holds in.mu, or nobody else has in yet.
func (in *instance) emptySlots() {
	in.slots = nil
	for i := range in.o.Slots {
		in.slots = append(in.slots, &slot{id: i})
	}
	in.ram = nil
	in.used = time.Now()
}

// load1 is the load at the start of a server that answers meanwhile.
func (in *instance) load1() {
	if !in.wait(in.o.LoadTime) {
		return
	}
	in.log.loaded(in.o)
	in.log.listening(in.addr)
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.loading)
	in.loading = nil
	in.used = time.Now()
}

// wait is for the time to pass; false: the server died.
func (in *instance) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-in.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// ready is closed when the model is loaded; nil: it is.
func (in *instance) ready() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.loading
}

// isLoading is for the time from the start on. One that wakes lets requests wait.
func (in *instance) isLoading() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.loading != nil && !in.asleep
}

// use keeps the model awake until release, and wakes it if need be. False: the
// client or the server went before it was there.
func (in *instance) use(ctx context.Context) bool {
	in.mu.Lock()
	in.users++
	if in.asleep && in.loading == nil {
		in.loading = make(chan struct{})
		in.handlers.Add(1) // joined by a handler, so none waits for it yet
		go in.wake()
	}
	loading := in.loading
	in.mu.Unlock()
	if loading == nil {
		return true
	}
	select {
	case <-loading:
		return true
	case <-ctx.Done():
	case <-in.ctx.Done():
	case <-in.term:
	}
	in.unuse()
	return false
}

func (in *instance) unuse() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.users--
	in.used = time.Now()
}

func (in *instance) wake() {
	defer in.handlers.Done()
	in.log.write('I', "que    start_loop: exiting sleeping state")
	in.log.write('I', "srv  handle_sleep: server is exiting sleeping state")
	in.log.write('I', "srv    load_model: loading model '%s'", modelPath(in.o))
	in.tell("loading")
	if !in.wait(in.o.LoadTime) {
		return
	}
	in.log.loaded(in.o)
	in.mu.Lock()
	in.asleep = false
	close(in.loading)
	in.loading = nil
	in.used = time.Now()
	in.mu.Unlock()
	in.tell("loaded")
}

// tell says a new state to the router that has this server, if one does.
func (in *instance) tell(state string) {
	in.mu.Lock()
	told := in.told
	in.mu.Unlock()
	if told != nil {
		told(state)
	}
}

func (in *instance) isAsleep() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.asleep
}

// watchIdle puts the model to sleep when its time has come.
func (in *instance) watchIdle() {
	for {
		in.mu.Lock()
		left := in.o.SleepIdle - time.Since(in.used)
		if in.users > 0 || in.loading != nil || in.asleep {
			left = in.o.SleepIdle
		}
		if left <= 0 {
			in.asleep = true
			in.emptySlots()
		}
		in.mu.Unlock()
		if left <= 0 {
			in.log.write('I', "que    start_loop: entering sleeping state")
			in.log.write('I', "srv  handle_sleep: server is entering sleeping state")
			in.tell("sleeping")
			continue
		}
		if !in.wait(left) {
			return
		}
	}
}
