package llamasim

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Options says what the stand-in pretends to be. The zero value is a server with
// two slots of 4096 tokens that is as fast as the machine.
type Options struct {
	// Addr is where it listens, a loopback address: a fake has no business on a
	// network. Default 127.0.0.1:0.
	Addr string

	// Version is the llama-server to look like. Default V040.
	Version Version

	// Model is the name it answers with. Default sim-model.
	Model string

	// Aliases are further names, shown in /v1/models. As with the real server in
	// single mode, the model a request asks for is ignored.
	Aliases []string

	// Models makes it a router with these models, each in a server of its own on a
	// loopback port of its own. Model and Aliases count for nothing then; the other
	// options are those of every model.
	Models []Model

	// ModelsMax is how many models a router has loaded at once. Default 4.
	ModelsMax int

	// NoAutoload makes a router refuse requests for models that are not loaded.
	NoAutoload bool

	// Slots is how many generations run at once. Default 2.
	Slots int

	// Context is how many tokens one slot holds. Default 4096.
	Context int

	// KVUnified makes Context what all slots hold together. When it is full, every
	// generation that runs fails (section 3.3).
	KVUnified bool

	// ContextShift lets a generation that fills its slot forget the older half of it
	// and go on, where it would end with "length" (--context-shift).
	ContextShift bool

	// CacheRAM is how many tokens of prompts stay in memory outside the slots
	// (section 3.1). Default 1048576; -1 for none.
	CacheRAM int

	// Prefill and Decode are speeds in tokens per second, each slot on its own.
	// Default 0: as fast as it can.
	Prefill, Decode float64

	// LoadTime is how long a model takes to load, at the start, on a router's demand
	// and when waking. Meanwhile a single server answers 503. Default 0.
	LoadTime time.Duration

	// SleepIdle puts a model to sleep when nothing was asked of it for so long.
	// Default 0: never.
	SleepIdle time.Duration

	// Thinking gives the chat template a think block; answers begin with reasoning.
	Thinking bool

	// NoPrefill ends the automatic going on with a trailing assistant message
	// (--no-prefill-assistant); that on demand stays.
	NoPrefill bool

	// Vision and Audio let messages have images and sounds, of 64 tokens each, and
	// Audio opens /v1/audio/transcriptions.
	Vision, Audio bool

	// Embeddings, Reranking and Infill open the routes of that kind.
	Embeddings, Reranking, Infill bool

	// Adapters is how many LoRA adapters it was started with (--lora), all of scale 1.
	Adapters int

	// NoSlots and NoMetrics close /slots and /metrics.
	NoSlots, NoMetrics bool

	// APIKey is demanded on every route but the health ones, if not empty; of
	// several, with commas between them, any.
	APIKey string

	// Log gets the server's log at default verbosity, one Write a line. Default none.
	Log io.Writer

	// Ping is the interval of SSE comments between events; a request may set its own
	// with sse_ping_interval. Default 30s.
	Ping time.Duration

	folder string // of the model, with a slash; a router's children have one
}

// Model is one that a router has.
type Model struct {
	// Name is what requests call it.
	Name string

	// Aliases are other names of it.
	Aliases []string

	// Thinking is as in Options, for this model alone.
	Thinking bool

	// Slots, Context and LoadTime are as in Options. Default those.
	Slots, Context int
	LoadTime       time.Duration

	// FailLoad makes every attempt to load it fail, with exit code 1.
	FailLoad bool
}

// cacheRAM is some 8 GiB of a small model's prompts, the real default.
const cacheRAM = 1 << 20

func (o Options) withDefaults() Options {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Version == "" {
		o.Version = V040
	}
	if o.Model == "" {
		o.Model = "sim-model"
	}
	if o.ModelsMax <= 0 {
		o.ModelsMax = 4
	}
	if o.Slots <= 0 {
		o.Slots = 2
	}
	if o.Context <= 0 {
		o.Context = 4096
	}
	if o.CacheRAM == 0 {
		o.CacheRAM = cacheRAM
	}
	if o.Ping <= 0 {
		o.Ping = 30 * time.Second
	}
	o.Aliases = slices.Clone(o.Aliases)
	o.Models = slices.Clone(o.Models)
	return o
}

func (o Options) check() error {
	if err := checkLoopback(o.Addr); err != nil {
		return err
	}
	if _, err := o.Version.features(); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, m := range o.Models {
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			switch {
			case name == "":
				return errors.New("stand-in server: a model has no name")
			case names[name]:
				return fmt.Errorf("stand-in server: two models are called %q", name)
			}
			names[name] = true
		}
	}
	if len(o.Models) > 0 && o.Version == VFeb25 {
		return fmt.Errorf("stand-in server: %s had no router mode", VFeb25)
	}
	return nil
}

// child are the options of the server that has one model of a router.
func (o Options) child(m Model) Options {
	o.Addr, o.folder = "127.0.0.1:0", modelsDir+"/"
	o.Model, o.Aliases, o.Models = m.Name, m.Aliases, nil
	o.Thinking = o.Thinking || m.Thinking
	if m.Slots > 0 {
		o.Slots = m.Slots
	}
	if m.Context > 0 {
		o.Context = m.Context
	}
	if m.LoadTime > 0 {
		o.LoadTime = m.LoadTime
	}
	// Whoever may ask the router may ask them: they are asked by nobody else.
	o.APIKey = ""
	return o
}
