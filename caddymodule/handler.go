package caddymodule

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/slotfleet/slotfleet/fleet/openai"
)

// Handler answers the OpenAI API with the nodes of the `fleet` app. Each request goes
// to the node that will have answered it soonest; when that one fails, another goes
// on from what the client has.
//
// It serves the paths of llama-server, with and without `/v1` as that does: all kinds of
// generation (chat, completions, Responses, Messages, infill, transcription), embeddings,
// rerank, tokenize and the like, `/v1/models`, `/v1/models/{id}`, `/props` and
// `/v1/health`. Paths by which a llama-server is managed are answered 404. Anything
// else, and every OPTIONS, goes to the next handler.
//
// With a file of keys, everything but `/health` needs one of them. No header of a client
// goes to a node and none of a node's to a client. Errors are
// answered in the form of the API that was asked, OpenAI's or Anthropic's, not through
// error routes.
//
// These placeholders are set once a request was answered:
//
// Placeholder | Description
// ------------|---------------
// `{http.fleet.request_id}` | The request's id, as in `X-Request-Id`; set at the beginning
// `{http.fleet.node}` | The node that answered, the last one if there were several
// `{http.fleet.model}` | The model that answered
// `{http.fleet.outcome}` | `whole`, `cancelled`, `refused` or `broken`
// `{http.fleet.reason}` | Why, unless whole
// `{http.fleet.queue}` | How long the request waited for a lane
// `{http.fleet.first_token}` | How long it took until the model said something
// `{http.fleet.moves}` | How often the request went on to another node
// `{http.fleet.tokens}` | How many tokens were generated
//
// With a file of keys, `{http.auth.user.id}` is the name of the key.
//
// The access log gets the same as fields: `request_id`, `node`, `model`, `outcome`,
// `reason`, `session`, `queue`, `first_token`, `moves`, `tokens` and `mixed`.
type Handler struct {
	// The file that says who may ask, with which key and how much; see docs/keys.md. May
	// have placeholders, such as `{env.KEYS}`. It is read again when it changes. Default:
	// none, whoever reaches the site may ask.
	Keys string `json:"keys,omitempty"`

	// Further names of models: what clients say, and what is served. Default: none.
	Aliases map[string]string `json:"aliases,omitempty"`

	// Take any model name while exactly one model is served. Default: false.
	AnyModel bool `json:"any_model,omitempty"`

	// The largest request body in bytes, as sent and also when unpacked.
	// At most 1 TiB. Default: 67108864 (64 MiB).
	MaxBody int64 `json:"max_body,omitempty"`

	// How long the body of a request may take to arrive. Default: 60s.
	ReadTimeout caddy.Duration `json:"read_timeout,omitempty"`

	// What becomes of an answer whose node is lost: `on` goes on with it on another
	// node, `before_first_byte` does so only while the client has nothing of it, `off`
	// never. Default: `on`.
	Resume string `json:"resume,omitempty"`

	// The header that tells conversations apart, so that the turns of one go where the
	// earlier ones are cached; it comes before all others that are known for that. Only a
	// hash of it is kept. Default: `X-Session-Id`, `X-Session-Affinity` and those of
	// coding tools and front ends, then fields of the body.
	SessionHeader string `json:"session_header,omitempty"`

	// Let another build of the model, with another vocabulary or template, go on with
	// an answer where no node of the same build is left. The answer is marked `mixed` in
	// the access log. Default: false.
	Mixed bool `json:"mixed,omitempty"`

	// What becomes of the parts of a tool call: `hold` keeps them until the answer's
	// finish, so that a lost node costs nothing, `stream` passes them on at once, and a
	// loss inside a call ends the answer. Default: `hold`.
	ToolCalls string `json:"tool_calls,omitempty"`

	// Tell clients in `X-Slotfleet-Node` which node answered and in
	// `X-Slotfleet-Reason` why there is no whole answer. Default: false.
	NodeHeaders bool `json:"node_headers,omitempty"`

	// Who a request counts for where requests wait: the tenants of a class share what is
	// served. May have placeholders; what is longer than 255 bytes is cut. Default, and
	// where it comes out empty: the name of the key, without keys the client's address, of
	// IPv6 its first 64 bits.
	Tenant string `json:"tenant,omitempty"`

	// The class of requests, a number from 0 to 9: higher ones wait less. May be a
	// placeholder; where it comes out as anything else, the default holds. That of a key
	// comes before it. Default: 5.
	Class string `json:"class,omitempty"`

	app    *FleetApp
	keys   *keyFile // nil: no key is needed
	logger *slog.Logger
}

// The defaults of a handler.
const (
	defaultMaxBody     = 64 << 20
	defaultReadTimeout = 60 * time.Second
)

// resumes are the values of `resume`.
var resumes = map[string]openai.Resume{
	"":                  openai.ResumeOn,
	"on":                openai.ResumeOn,
	"before_first_byte": openai.ResumeBeforeFirstByte,
	"off":               openai.ResumeOff,
}

// The values of `tool_calls`.
const (
	toolCallsHold   = "hold"
	toolCallsStream = "stream"
)

func checkToolCalls(s string) error {
	if s != toolCallsHold && s != toolCallsStream {
		return fmt.Errorf("tool_calls %q: one of %s, %s", s, toolCallsHold, toolCallsStream)
	}
	return nil
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.fleet",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision finds the fleet app and fills in defaults.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Slogger()
	app, err := ctx.AppIfConfigured("fleet")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return errors.New("the fleet handler needs the fleet app, which says what nodes there are: add a global `fleet` block with at least one `node NAME URL`")
	}
	if err != nil {
		return err
	}
	h.app = app.(*FleetApp)
	if h.MaxBody == 0 {
		h.MaxBody = defaultMaxBody
	}
	if h.ReadTimeout == 0 {
		h.ReadTimeout = caddy.Duration(defaultReadTimeout)
	}
	if h.Keys != "" {
		h.keys, err = openKeys(h.Keys)
	}
	return err
}

// Cleanup leaves the file of keys.
func (h *Handler) Cleanup() error { return closeKeys(&h.keys) }

// Validate checks the configuration.
func (h *Handler) Validate() error {
	if h.MaxBody < 0 || h.ReadTimeout < 0 {
		return errors.New("max_body and read_timeout cannot be negative")
	}
	if h.MaxBody > maxSize {
		return fmt.Errorf("max_body %d: the most is %d (1 TiB)", h.MaxBody, int64(maxSize))
	}
	if h.Resume != "" {
		if err := checkResume(h.Resume); err != nil {
			return err
		}
	}
	if h.ToolCalls != "" {
		if err := checkToolCalls(h.ToolCalls); err != nil {
			return err
		}
	}
	if h.SessionHeader != "" {
		if err := checkHeaderName(h.SessionHeader); err != nil {
			return err
		}
	}
	if h.Class != "" {
		if err := checkClass(h.Class); err != nil {
			return err
		}
	}
	for name, model := range h.Aliases {
		if name == "" || model == "" {
			return fmt.Errorf("alias %q %q: neither the name nor the model may be empty", name, model)
		}
	}
	return nil
}

func checkHeaderName(name string) error {
	odd := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("session_header %q is not the name of a header", name)
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
