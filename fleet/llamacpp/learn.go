package llamacpp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

// fingerprintText is tokenised to tell vocabularies apart: several scripts, digits,
// white space and marks at which tokenizers differ. Changing it makes every
// fingerprint new.
const fingerprintText = "The 3 quick foxes' den: 1234567.89\n\t  naïve Straße, Ωμέγα Жизнь שלום مرحبا नमस्ते 日本語 한국어 🦊👩🏽‍🚀 <|im_end|> {\"k\":[1, -2e3]}"

// Texts that stand at the end of a rendered prompt if the server goes on from them.
const (
	contentProbe   = "PROBE"
	reasoningProbe = "RPROBE"
)

// probe asks the server what it is and tells every Watch.
func (l *Link) probe(ctx context.Context) error {
	select {
	case l.learn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.learn }()
	l.mu.Lock()
	before := l.instance
	l.mu.Unlock()
	i, err := l.identify(ctx, before)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.instance = i
	for w := range l.watchers {
		signal(w.learned)
	}
	return nil
}

// woke has a server that slept until now learned again: what could not be asked
// then can be now.
func (l *Link) woke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.instance == nil || l.instance.State != fleet.StateSleeping {
		return
	}
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
func (l *Link) identify(ctx context.Context, before *fleet.Instance) (*fleet.Instance, error) {
	models, err := l.get(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	props, err := l.get(ctx, "/props")
	if err != nil {
		return nil, err
	}
	if text(props["role"]) == "router" {
		e := declined("the model server cannot be used", nil)
		e.Err = fmt.Errorf("node %s is a llama-server in router mode, which is not supported yet: "+
			"start it with a model (-m), or give the address of a server that has one", l.name)
		return nil, e
	}
	i, meta := readModel(models, props)
	if i.Model == "" {
		return nil, fmt.Errorf("node %s: /v1/models names no model: is it a llama-server?", l.name)
	}
	if flag(props["is_sleeping"]) {
		i.State = fleet.StateSleeping
		if before != nil && before.Model == i.Model {
			i.Fingerprint, i.Features = before.Fingerprint, before.Features
		}
		return i, nil
	}
	if i.Fingerprint, err = l.fingerprint(ctx, meta, props); err != nil {
		return nil, err
	}
	i.Features, err = l.features(ctx)
	return i, err
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
func (l *Link) fingerprint(ctx context.Context, meta, props map[string]json.RawMessage) (string, error) {
	vocabulary, parameters := figure(meta["n_vocab"]), figure(meta["n_params"])
	template, known := props["chat_template"]
	a, err := l.post(ctx, "/tokenize", map[string]any{"content": fingerprintText, "add_special": true})
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

// features finds out what the server can go on with, by having it render prompts:
// that takes no slot and generates nothing. Build numbers tell nothing, packagers
// set their own.
func (l *Link) features(ctx context.Context) (fleet.Features, error) {
	user := map[string]string{"role": "user", "content": "x"}
	render := func(last map[string]string, goOn any, generate bool) (fleet.Reply, error) {
		return l.post(ctx, "/apply-template", map[string]any{
			"messages": []any{user, last}, "continue_final_message": goOn, "add_generation_prompt": generate,
		})
	}
	content := map[string]string{"role": "assistant", "content": contentProbe}
	reasoning := map[string]string{"role": "assistant", "content": "", "reasoning_content": reasoningProbe}

	// Only servers that know the field object to both being set.
	a, err := render(content, true, true)
	if err != nil {
		return 0, err
	}
	if a.Status != http.StatusBadRequest || !strings.HasPrefix(readComplaint(a.Body).Message, "Cannot set both") {
		return 0, nil
	}
	var f fleet.Features
	// With --no-jinja the field is known, but the turn gets closed all the same.
	if a, err = render(content, "content", false); err != nil {
		return 0, err
	}
	if endsWith(a, contentProbe) {
		f |= fleet.ContinueContent
	}
	if a, err = render(reasoning, "reasoning_content", false); err != nil {
		return 0, err
	}
	if endsWith(a, reasoningProbe) {
		f |= fleet.ContinueReasoning
	}
	return f, nil
}

func endsWith(a fleet.Reply, probe string) bool {
	return a.Status == http.StatusOK && strings.HasSuffix(text(object(a.Body)["prompt"]), probe)
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
func (l *Link) post(ctx context.Context, path string, question map[string]any) (fleet.Reply, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return fleet.Reply{}, err
	}
	a, err := l.ask(ctx, l.client.keep, probeLimit, http.MethodPost, path, body)
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
