package llamacpp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

// fingerprintText is tokenised to tell vocabularies apart: several scripts, digits,
// white space and marks at which tokenizers differ. Changing it makes every
// fingerprint new.
const fingerprintText = "The 3 quick foxes' den: 1234567.89\n\t  naïve Straße, Ωμέγα Жизнь שלום مرحبا नमस्ते 日本語 한국어 🦊👩🏽‍🚀 <|im_end|> {\"k\":[1, -2e3]}"

// offer is what a server was learned to offer.
type offer struct {
	instances []fleet.Instance
	router    bool
	places    int  // of a router: how many models it has loaded at once; 0: no limit
	loads     bool // a router loads what a request asks for
}

// find returns the instance of a model; nil: there is none.
func (o *offer) find(model string) *fleet.Instance {
	if o == nil {
		return nil
	}
	for i := range o.instances {
		if o.instances[i].Model == model {
			return &o.instances[i]
		}
	}
	return nil
}

// probe asks the server what it is and tells every Watch.
func (l *Link) probe(ctx context.Context) error {
	select {
	case l.learn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.learn }()
	l.mu.Lock()
	before := l.offer
	l.mu.Unlock()
	o, err := l.identify(ctx, before)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offer = o
	l.tellAll()
	return nil
}

// woke has a server learned again that slept, or had not loaded the model, until now:
// what could not be asked then can be now.
func (l *Link) woke(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.offer == nil {
		return
	}
	i := l.offer.find(model)
	if !l.offer.router {
		i = &l.offer.instances[0]
	}
	if i != nil && i.State != fleet.StateReady {
		l.recheck()
	}
}

// recheck has what was learned looked at again. mu is held.
func (l *Link) recheck() {
	for w := range l.watchers {
		signal(w.woken)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// identify returns what the server says it is. A sleeping server is asked only for
// /v1/models and /props, which let it sleep; the rest is as it was before.
func (l *Link) identify(ctx context.Context, before *offer) (*offer, error) {
	models, err := l.get(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	props, err := l.get(ctx, "/props")
	if err != nil {
		return nil, err
	}
	if text(props["role"]) == "router" {
		return l.identifyRouter(ctx, models, props, before)
	}
	i, meta := readModel(models, props)
	if i.Model == "" {
		return nil, fmt.Errorf("node %s: /v1/models names no model: is it a llama-server?", l.name)
	}
	if flag(props["is_sleeping"]) {
		i.State = fleet.StateSleeping
		if before := before.find(i.Model); before != nil {
			i.Fingerprint, i.Features = before.Fingerprint, before.Features
		}
	} else if err := l.deepen(ctx, target{link: l}, i, meta, props); err != nil {
		return nil, err
	}
	return &offer{instances: []fleet.Instance{*i}}, nil
}

// deepen asks what can be asked of an instance that is awake.
func (l *Link) deepen(ctx context.Context, t target, i *fleet.Instance, meta, props map[string]json.RawMessage) (err error) {
	if i.Fingerprint, err = t.fingerprint(ctx, meta, props); err != nil {
		return err
	}
	i.Features, err = t.features(ctx, props)
	return err
}

// target is the server of one model: a llama-server, or what a router has behind it.
type target struct {
	link  *Link
	model string // that a router is told; empty: no router
}

// path returns where to ask. A router that has the model not loaded is not to load it
// for a question of ours.
func (t target) path(path string) string {
	if t.model == "" {
		return path
	}
	return path + "?autoload=false&model=" + url.QueryEscape(t.model)
}

// readModel takes the instance out of the answers. What they do not say stays zero.
func readModel(models, props map[string]json.RawMessage) (i *fleet.Instance, meta map[string]json.RawMessage) {
	i = &fleet.Instance{State: fleet.StateReady}
	var entries []json.RawMessage
	var entry map[string]json.RawMessage
	if json.Unmarshal(models["data"], &entries) == nil && len(entries) > 0 {
		entry = object(entries[0])
	}
	meta = object(entry["meta"])
	settings := object(props["default_generation_settings"])

	if i.Model = publicName(text(entry["id"])); i.Model == "" {
		i.Model = publicName(text(props["model_alias"]))
	}
	var aliases []json.RawMessage
	_ = json.Unmarshal(entry["aliases"], &aliases)
	for _, a := range aliases {
		if s := publicName(text(a)); s != "" && s != i.Model {
			i.Aliases = append(i.Aliases, s)
		}
	}
	i.Lanes = int(min(figure(props["total_slots"]), math.MaxInt32))
	if i.Context = fleet.Tokens(figure(meta["n_ctx"])); i.Context == 0 {
		i.Context = fleet.Tokens(figure(settings["n_ctx"]))
	}
	return i, meta
}

// publicName is the name of a model without its place on the server's disk: a server
// that was given no alias calls its model by the path of the file.
func publicName(id string) string {
	if !strings.HasSuffix(id, ".gguf") {
		return id
	}
	return id[strings.LastIndexAny(id, `/\`)+1:]
}

// fingerprint is equal for servers that can go on with each other's answers. It is
// empty where a part of it cannot be known.
func (t target) fingerprint(ctx context.Context, meta, props map[string]json.RawMessage) (string, error) {
	vocabulary, parameters := figure(meta["n_vocab"]), figure(meta["n_params"])
	template, known := props["chat_template"]
	a, err := t.post(ctx, "/tokenize", map[string]any{"content": fingerprintText, "add_special": true})
	if err != nil {
		return "", err
	}
	var tokens []json.RawMessage
	if a.Status == http.StatusOK {
		_ = json.Unmarshal(object(a.Body)["tokens"], &tokens)
	}
	if vocabulary == 0 || parameters == 0 || !known || len(tokens) == 0 {
		return "", nil
	}
	h := xxhash.New()
	b := strconv.AppendInt(nil, vocabulary, 10)
	b = strconv.AppendInt(append(b, ' '), parameters, 10)
	b = append(append(b, ' '), text(template)...)
	for _, t := range tokens {
		if o := object(t); o != nil {
			t = o["id"]
		}
		b = strconv.AppendInt(append(b, ' '), figure(t), 10)
	}
	_, _ = h.Write(b)
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// get asks for an object that every llama-server has; a server without the path
// gives an empty one.
func (l *Link) get(ctx context.Context, path string) (map[string]json.RawMessage, error) {
	a, err := l.ask(ctx, l.client.keep, probeLimit, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	switch a.Status {
	case http.StatusOK:
		return object(a.Body), nil
	case http.StatusNotFound, http.StatusNotImplemented:
		return nil, nil
	}
	return nil, l.objection(a)
}

// post asks a question that not every server knows: an answer that says so is no
// error, but one that says that the server is not there is.
func (t target) post(ctx context.Context, path string, question map[string]any) (fleet.Reply, error) {
	if t.model != "" {
		question["model"] = t.model
	}
	body, err := json.Marshal(question)
	if err != nil {
		return fleet.Reply{}, err
	}
	l := t.link
	a, err := l.ask(ctx, l.client.keep, probeLimit, http.MethodPost, t.path(path), body)
	if err != nil || a.Status == http.StatusOK {
		return a, err
	}
	var lost *fleet.NodeLost
	if err := l.objection(a); errors.As(err, &lost) || a.Status == http.StatusUnauthorized {
		return fleet.Reply{}, err
	}
	return a, nil
}

// The shapes of these answers changed over the versions (a flag became a number, an
// object null), so each field is read by itself, and what does not fit is absent.

func object(raw json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

func flag(raw json.RawMessage) bool { return bytes.Equal(raw, []byte("true")) }

func figure(raw json.RawMessage) int64 {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 || f >= 1<<53 {
		return 0
	}
	return int64(f)
}
