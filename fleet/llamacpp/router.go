package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// A router is a llama-server that was started without a model: it runs one llama-server
// for each model that is loaded and hands requests on by their "model". It says which
// models there are at /v1/models, and at /models/sse what becomes of them. A question
// about one model goes with autoload=false, or the router would load it to answer.

// identifyRouter returns all the models of a router. What was learned of one that is
// still loaded is not asked again: the same port is the same process.
func (l *Link) identifyRouter(ctx context.Context, models, props map[string]json.RawMessage, before *offer) (*offer, error) {
	o := &offer{
		router: true,
		places: int(min(figure(props["max_instances"]), math.MaxInt32)),
		loads:  !isFalse(props["models_autoload"]),
	}
	var entries []json.RawMessage
	_ = json.Unmarshal(models["data"], &entries)
	for _, raw := range entries {
		entry := object(raw)
		i := readRouted(entry)
		if i.Model == "" || o.find(i.Model) != nil {
			continue
		}
		was := before.find(i.Model)
		switch {
		case was != nil && (i.State != fleet.StateReady || was.State == fleet.StateReady && was.Port == i.Port):
			i.Lanes, i.Context = was.Lanes, max(i.Context, was.Context)
			i.Fingerprint, i.Features = was.Fingerprint, was.Features
		case i.State == fleet.StateReady:
			if err := l.deepenRouted(ctx, &i, object(entry["meta"])); err != nil {
				return nil, err
			}
		}
		o.instances = append(o.instances, i)
	}
	return o, nil
}

func isFalse(raw json.RawMessage) bool { return string(raw) == "false" }

// readRouted takes an instance out of a router's list. The arguments tell the port of
// one that runs and the lanes of one that does not yet.
func readRouted(entry map[string]json.RawMessage) fleet.Instance {
	i := fleet.Instance{Model: text(entry["id"]), Routed: true}
	var aliases []string
	_ = json.Unmarshal(entry["aliases"], &aliases)
	for _, a := range aliases {
		if a != "" && a != i.Model {
			i.Aliases = append(i.Aliases, a)
		}
	}
	status := object(entry["status"])
	i.State = routedState(text(status["value"]), flag(status["failed"]))
	var args []string
	_ = json.Unmarshal(status["args"], &args)
	i.Lanes = argument(args, "--parallel", "-np")
	if i.State != fleet.StateUnloaded && i.State != fleet.StateFailed {
		i.Port = argument(args, "--port")
	}
	i.Context = fleet.Tokens(figure(object(entry["meta"])["n_ctx"]))
	return i
}

// routedState reads a router's word for the state of a model. A model that failed to
// load is not loaded for the next request too; one that is being downloaded cannot be.
func routedState(value string, failed bool) fleet.State {
	switch {
	case value == "loaded":
		return fleet.StateReady
	case value == "loading":
		return fleet.StateLoading
	case value == "sleeping":
		return fleet.StateSleeping
	case value == "unloaded" && !failed:
		return fleet.StateUnloaded
	}
	return fleet.StateFailed
}

// argument returns the number behind one of the names; 0: there is none.
func argument(args []string, names ...string) int {
	for k, a := range args[:max(0, len(args)-1)] {
		if slices.Contains(names, a) {
			n, err := strconv.Atoi(args[k+1])
			if err == nil && n > 0 && n <= math.MaxUint16 {
				return n
			}
		}
	}
	return 0
}

// adaptersPath sets LoRA adapters. Its body is a list, and a router hands on only what
// names a model in its body: it answers "model name is missing from the request".
const adaptersPath = "/lora-adapters"

var errRouterAdapters = declined("llama-server's router hands on no change of LoRA adapters; "+
	"start the model with --lora-scaled, or send \"lora\" with each request", nil)

// deepenRouted asks what can be asked of a model that is loaded.
func (l *Link) deepenRouted(ctx context.Context, i *fleet.Instance, meta map[string]json.RawMessage) error {
	t := target{link: l, model: i.Model}
	props, err := l.get(ctx, t.path("/props"))
	if err != nil {
		var re *fleet.RequestError
		if errors.As(err, &re) && re.Reason == fleet.ReasonDeclined {
			i.State = fleet.StateUnloaded // it went away meanwhile
			return nil
		}
		return err
	}
	if n := figure(props["total_slots"]); n > 0 {
		i.Lanes = int(min(n, math.MaxInt32))
	}
	if i.Context == 0 {
		i.Context = fleet.Tokens(figure(object(props["default_generation_settings"])["n_ctx"]))
	}
	if flag(props["is_sleeping"]) {
		i.State = fleet.StateSleeping
		return nil
	}
	return l.deepen(ctx, t, i, meta, props)
}

const (
	// subscribed is how long after it asked for them a router may be without having
	// noted that we want its events: it says nothing until there is one.
	subscribed = 250 * time.Millisecond

	followRetry    = time.Second
	followRetryMax = 30 * time.Second
)

// follow listens to what a router says of its models until ctx ends. A router that
// tells nothing (of early 2026) is looked at again only when a request of ours finds a
// model in another state than it was seen in.
func (l *Link) follow(ctx context.Context) {
	wait := followRetry
	for ctx.Err() == nil {
		heard, err := l.followOnce(ctx)
		if errors.Is(err, errNoEvents) {
			return
		}
		if heard {
			wait = followRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, followRetryMax)
	}
}

var errNoEvents = errors.New("the router has no events")

// followOnce listens on one connection; heard: something came.
func (l *Link) followOnce(ctx context.Context) (heard bool, err error) {
	var missed *time.Timer
	asked := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		missed = time.AfterFunc(subscribed, l.lookAgain)
	}})
	resp, err := l.client.send(asked, l.client.fresh, &exchange{
		method: http.MethodGet, path: "/models/sse", accept: "text/event-stream",
	})
	if missed != nil {
		defer missed.Stop()
	}
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, errNoEvents
	}
	in := newSSEReader(resp.Body)
	for {
		f, err := in.next()
		if err != nil {
			return heard, err
		}
		heard = true
		if f.kind == frameData {
			l.hear(f.data)
		}
	}
}

func (l *Link) lookAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recheck()
}

// hear takes an event of a router: {"model","event","data":{"status"}}. Only what
// loading tells is taken as it is; for the rest the router is asked.
func (l *Link) hear(data []byte) {
	e := object(data)
	status := text(object(e["data"])["status"])
	l.mu.Lock()
	defer l.mu.Unlock()
	if status != "loading" {
		l.recheck()
		return
	}
	i := l.offer.find(text(e["model"]))
	if i == nil || i.State == fleet.StateLoading {
		return
	}
	now := *l.offer
	now.instances = slices.Clone(now.instances)
	now.find(i.Model).State = fleet.StateLoading
	l.offer = &now
	l.tellAll()
}

const (
	unloadLimit = 30 * time.Second // a router kills a model that does not end within 10 s
	unloadLook  = 50 * time.Millisecond
)

// makeRoom has a router unload a model that nobody uses, so that it does not choose
// itself which one goes: that may be one that answers. It returns when the place is free.
func (l *Link) makeRoom(outer context.Context, model string) error {
	if model == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(outer, unloadLimit)
	defer cancel()
	body, err := json.Marshal(map[string]string{"model": model})
	if err != nil {
		return err
	}
	defer l.lookAgain()
	a, err := l.ask(ctx, l.client.keep, probeLimit, http.MethodPost, "/models/unload", body)
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK && a.Status != http.StatusBadRequest { // 400: it is not loaded
		return l.objection(a)
	}
	for wait := unloadLook; ; wait *= 2 {
		models, err := l.get(ctx, "/v1/models")
		if err != nil {
			return err
		}
		if !runs(models, model) {
			return nil
		}
		select {
		case <-ctx.Done():
			if outer.Err() != nil {
				return context.Cause(outer)
			}
			return full("the model server did not free the place of another model")
		case <-time.After(wait):
		}
	}
}

// runs reports whether a router has the model loaded.
func runs(models map[string]json.RawMessage, model string) bool {
	var entries []json.RawMessage
	_ = json.Unmarshal(models["data"], &entries)
	for _, raw := range entries {
		if i := readRouted(object(raw)); i.Model == model {
			return i.State != fleet.StateUnloaded && i.State != fleet.StateFailed
		}
	}
	return false
}
