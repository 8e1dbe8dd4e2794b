package llamasim

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// router is a server without a model of its own (section 1.3): it starts one server
// for each model that is asked for, and passes requests on.
type router struct {
	in    *instance
	waits sync.WaitGroup // goroutines of loads and ends

	// mu guards all below, and is taken before any instance.mu.
	mu      sync.Mutex
	models  []*routed
	queue   []*routed         // wait for room, in their order
	talks   map[string]string // conversation → model
	readers map[chan []byte]bool
	over    bool
}

// routed is one model of a router. Guarded by router.mu.
type routed struct {
	Model
	status   string // unloaded, loading, loaded, sleeping
	failed   bool
	exitCode int
	child    *instance // while not unloaded; nil: its load fails
	port     int
	used     time.Time
	busy     int           // requests that are passed on to it now
	awaited  bool          // a request waits for the load that comes
	changed  chan struct{} // closed, and made anew, when status changed
}

func newRouter(in *instance) *router {
	r := &router{in: in, talks: map[string]string{}, readers: map[chan []byte]bool{}}
	for _, m := range in.o.Models {
		r.models = append(r.models, &routed{Model: m, status: "unloaded", changed: make(chan struct{})})
	}
	in.log.write('I', "srv  llama_server: listening on http://%s", in.addr)
	return r
}

// find looks a model up by its name or an alias. The caller holds r.mu.
func (r *router) find(name string) *routed {
	for _, m := range r.models {
		if m.Name == name || slices.Contains(m.Aliases, name) {
			return m
		}
	}
	return nil
}

func (m *routed) running() bool { return m.status != "unloaded" }

// ensure loads a model, if need be, and waits until it is there; its requests are
// counted until done. An error is the client's answer.
func (r *router) ensure(m *routed, gone <-chan struct{}) error {
	r.mu.Lock()
	asked := false
	for {
		switch {
		case r.over:
			r.mu.Unlock()
			return errClientGone
		case m.status == "loaded" || m.status == "sleeping":
			m.busy++
			r.mu.Unlock()
			return nil
		case m.status == "unloaded" && asked && m.failed:
			r.mu.Unlock()
			return serverError(fmt.Sprintf("model name=%s failed to load", m.Name))
		case m.status == "unloaded" && !r.queued(m):
			r.in.log.write('I', "srv  ensure_model: model name=%s is not loaded, loading...", m.Name)
			m.awaited = true
			r.load(m)
		case !asked:
			r.in.log.write('I', "srv  ensure_model: waiting until model name=%s is fully loaded...", m.Name)
		}
		asked = true
		changed := m.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-gone:
			return errClientGone
		case <-r.in.ctx.Done():
			return errClientGone
		}
		r.mu.Lock()
	}
}

func (r *router) queued(m *routed) bool { return slices.Contains(r.queue, m) }

// done ends a request of a model, which may make room for another model.
func (r *router) done(m *routed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.busy--
	r.makeRoom()
}

// load begins to load a model, or queues it for room. The caller holds r.mu.
func (r *router) load(m *routed) {
	running := 0
	for _, other := range r.models {
		if other.running() {
			running++
		}
	}
	if running >= r.in.o.ModelsMax {
		r.queue = append(r.queue, m)
		if idle := r.leastUsed(); idle != nil {
			r.in.log.write('I', "srv  ensure_model: evicting idle LRU name=%s to make room for name=%s", idle.Name, m.Name)
			r.unload(idle)
		} else {
			r.in.log.write('I', "srv  ensure_model: models_max reached, request for name=%s queued at position %d", m.Name, len(r.queue))
		}
		return
	}
	r.spawn(m)
}

// leastUsed is the idle model that was used least recently. Those that load or end
// already are not idle.
func (r *router) leastUsed() *routed {
	var least *routed
	for _, m := range r.models {
		idle := m.busy == 0 && (m.status == "loaded" || m.status == "sleeping")
		if idle && (least == nil || m.used.Before(least.used)) {
			least = m
		}
	}
	return least
}

// makeRoom serves the queue. The caller holds r.mu.
func (r *router) makeRoom() {
	for len(r.queue) > 0 && !r.over {
		running, ending := 0, false
		for _, m := range r.models {
			if m.running() {
				running++
			}
			ending = ending || m.status == "unloading"
		}
		m := r.queue[0]
		if running < r.in.o.ModelsMax {
			r.queue = r.queue[1:]
			r.in.log.write('I', "srv    operator(): slot available, loading queued model name=%s", m.Name)
			r.spawn(m)
			continue
		}
		idle := r.leastUsed()
		if idle == nil || ending {
			return
		}
		r.in.log.write('I', "srv  ensure_model: evicting idle LRU name=%s to make room for name=%s", idle.Name, m.Name)
		r.unload(idle)
		return
	}
}

// spawn starts a model's server. The caller holds r.mu.
func (r *router) spawn(m *routed) {
	o := r.in.o.child(m.Model)
	ln, err := net.Listen("tcp", o.Addr)
	if err != nil {
		m.failed, m.exitCode = true, 1
		m.tell()
		return
	}
	m.port = ln.Addr().(*net.TCPAddr).Port
	m.failed, m.exitCode, m.used = false, 0, time.Now()
	m.status = "loading"
	log := r.in.log
	log.write('I', "srv          load: spawning server instance with name=%s on port %d", m.Name, m.port)
	log.write('I', "srv          load: spawning server instance with args:")
	for _, arg := range r.args(m) {
		log.write('I', "srv          load:   %s", arg)
	}
	r.say(m, "model_status", fieldList{{"status", "loading"}})
	r.progress(m, 0)
	m.tell()
	if m.awaited {
		m.awaited = false
		log.write('I', "srv  ensure_model: waiting until model name=%s is fully loaded...", m.Name)
	}
	if m.FailLoad {
		r.waits.Go(func() { r.failLoad(m, o, ln) })
		return
	}
	child := newInstance(r.in.server, o, ln, log.child(m.port))
	r.listen(m, child)
	m.child = child
	r.waits.Go(func() { r.watch(m, child) })
}

// listen has a child's sleeping and waking noticed; it cannot sleep before it is
// loaded, and that is noticed under r.mu.
func (r *router) listen(m *routed, child *instance) {
	child.mu.Lock()
	defer child.mu.Unlock()
	child.told = func(state string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m.child != child {
			return
		}
		switch state {
		case "loading":
			r.progress(m, 0)
			r.progress(m, 1)
		case "loaded":
			r.become(m, "loaded", field{"info", r.info(m)})
		default:
			r.become(m, state)
		}
	}
}

// failLoad is a server that ends because it cannot load its model.
func (r *router) failLoad(m *routed, o Options, ln net.Listener) {
	log := r.in.log.child(m.port)
	log.banner(o)
	log.write('I', "srv    load_model: loading model '%s'", modelPath(o))
	_ = ln.Close()
	if r.in.wait(o.LoadTime) {
		log.write('E', "cmn  common_init_: failed to load model '%s'", modelPath(o))
		log.write('E', "srv    load_model: failed to load model, '%s'", modelPath(o))
		log.write('I', "srv    operator(): operator(): cleaning up before exit...")
		log.write('E', "srv  llama_server: exiting due to model loading error")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exited(m, 1)
}

// watch follows a child from its load to its end.
func (r *router) watch(m *routed, child *instance) {
	if loading := child.ready(); loading != nil {
		half := time.NewTimer(child.o.LoadTime / 2)
		defer half.Stop()
		for waiting := true; waiting; {
			select {
			case <-half.C:
				r.mu.Lock()
				r.progress(m, 0.5)
				r.mu.Unlock()
			case <-loading:
				waiting = false
			case <-child.gone:
				waiting = false
			}
		}
	}
	r.mu.Lock()
	if m.status == "loading" && !child.isDead() {
		r.progress(m, 1)
		r.become(m, "loaded", field{"info", r.info(m)})
		r.makeRoom()
	}
	r.mu.Unlock()
	<-child.gone
	r.mu.Lock()
	defer r.mu.Unlock()
	code := 1
	if m.status == "unloading" {
		code = 0
	}
	m.child = nil
	r.exited(m, code)
}

// exited notes the end of a child. The caller holds r.mu.
func (r *router) exited(m *routed, code int) {
	r.in.log.write('I', "srv    operator(): instance name=%s exited with status %d", m.Name, code)
	m.failed, m.exitCode = code != 0, code
	m.port = 0
	r.become(m, "unloaded", field{"exit_code", code})
	r.makeRoom()
}

// unload begins to end a model's server. The caller holds r.mu.
func (r *router) unload(m *routed) {
	child := m.child
	if child == nil || m.status == "unloading" || r.over {
		return
	}
	r.in.log.write('I', "srv        unload: stopping model instance name=%s", m.Name)
	r.stop(m, child)
}

func (r *router) stop(m *routed, child *instance) {
	m.status = "unloading"
	r.in.log.write('I', "srv    operator(): stopping model instance name=%s", m.Name)
	r.waits.Go(func() {
		child.log.write('I', "srv    operator(): exit command received, exiting...")
		child.close()
	})
}

// close ends all children in peace, kill as a crash of the router does.
func (r *router) close() {
	r.mu.Lock()
	r.end()
	for _, m := range r.models {
		if m.child != nil && m.status != "unloading" {
			r.in.log.write('I', "srv    unload_all: stopping model instance name=%s", m.Name)
			r.stop(m, m.child)
		}
	}
	r.mu.Unlock()
	// What still loads, or is asked, ends with the router.
	r.in.cancel()
	r.waits.Wait()
}

func (r *router) kill() {
	r.mu.Lock()
	r.end()
	var children []*instance
	for _, m := range r.models {
		if m.child != nil {
			children = append(children, m.child)
		}
	}
	r.mu.Unlock()
	r.in.cancel()
	for _, child := range children {
		child.kill()
	}
	r.waits.Wait()
}

// end lets nothing new begin. The caller holds r.mu.
func (r *router) end() {
	r.over = true
	r.queue = nil
	for _, m := range r.models {
		m.tell()
	}
}

// load is how much all children do.
func (r *router) loads() (active, queued int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		if m.child != nil {
			a, q := m.child.load()
			active, queued = active+a, queued+q
		}
	}
	return active, queued
}

// tell wakes those who wait for the model. The caller holds router.mu.
func (m *routed) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// args is the command line of a model's server.
func (r *router) args(m *routed) []string {
	o := r.in.o.child(m.Model)
	return []string{
		"/usr/local/bin/llama-server", "--host", "127.0.0.1", "--jinja", "--metrics", "--port", strconv.Itoa(m.port), "--slots",
		"--alias", m.Name, "--ctx-size", strconv.Itoa(o.Slots * o.Context), "--model", modelPath(o),
		"--parallel", strconv.Itoa(o.Slots), "--threads", "1",
	}
}
