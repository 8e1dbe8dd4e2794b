package caddymodule

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/slotlog"
)

// slotlogAdmin shows on the admin API what logs say.
//
//	GET /slotlog/slots     what each slot does, by source and port
//	GET /slotlog/events    the same, and each change of it, as it happens
//	GET /slotlog/sources   how the reading goes
type slotlogAdmin struct{}

// CaddyModule returns the Caddy module information.
func (slotlogAdmin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.slotfleet_slotlog",
		New: func() caddy.Module { return new(slotlogAdmin) },
	}
}

// Routes returns the routes.
func (*slotlogAdmin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/slotlog/slots", Handler: reading(showSlots)},
		{Pattern: "/slotlog/events", Handler: caddy.AdminHandlerFunc(showEvents)},
		{Pattern: "/slotlog/sources", Handler: reading(showSources)},
	}
}

// allSlots is the answer at /slotlog/slots.
type allSlots struct {
	Sources []sourceSlots `json:"sources"`
}

// sourceSlots is one source at /slotlog/slots.
type sourceSlots struct {
	Source string   `json:"source"`
	Also   []string `json:"also,omitempty"` // further names of the same log
	Node   string   `json:"node,omitempty"` // whose log it is

	Ports []portSlots `json:"ports"`

	Degraded bool   `json:"degraded"`        // the slots may be missing or old
	Stale    bool   `json:"stale,omitempty"` // they are the last that the node said before its link was lost
	Reason   string `json:"reason,omitempty"`

	// Seconds since the log was last read to its end. What no line tells does not
	// change: a silent log is that of an idle server.
	Age *float64 `json:"age_seconds,omitempty"`
}

// portSlots is one llama-server. Slots are what the tracker says, Details what else
// is known of each.
type portSlots struct {
	Port    int                  `json:"port"`
	Model   string               `json:"model,omitempty"`
	Slots   []slotlog.Slot       `json:"slots"`
	Server  slotlog.ServerDetail `json:"server"`
	Details []slotlog.Detail     `json:"details"`
}

func showSlots(s *state, _ *http.Request) (any, error) { return slotsOf(s, time.Now()), nil }

func slotsOf(s *state, now time.Time) allSlots {
	answer := allSlots{[]sourceSlots{}}
	for _, l := range s.look(now) {
		out := sourceSlots{
			Source: l.name, Also: l.also, Node: l.node,
			Ports:    slotsByPort(l.Ports),
			Degraded: l.Degraded, Reason: l.Reason,
			Age: since(l.LookedAt, now),
		}
		answer.Sources = append(answer.Sources, out)
	}
	for _, r := range s.remoteLogs() {
		answer.Sources = append(answer.Sources, r.slots(now))
	}
	return answer
}

func slotsByPort(ports []slotlog.PortState) []portSlots {
	out := make([]portSlots, 0, len(ports))
	for _, p := range ports {
		out = append(out, portSlots{p.Port, p.Model, p.Slots, p.Server, p.Details})
	}
	return out
}

// sourceStatus is one source at /slotlog/sources.
type sourceStatus struct {
	Source string   `json:"source"`
	Also   []string `json:"also,omitempty"`
	Node   string   `json:"node,omitempty"`

	Log  string             `json:"log"` // where it comes from, in words
	Kind slotlog.SourceKind `json:"kind"`
	Path string             `json:"path,omitempty"`
	File slotlog.FileState  `json:"file"` // whether it can be read

	Lines           uint64 `json:"lines"`
	UnknownLines    uint64 `json:"unknown_lines"`
	LongLines       uint64 `json:"long_lines"` // of which only the beginning was looked at
	Bytes           uint64 `json:"bytes"`
	BytesBehind     int64  `json:"bytes_behind"` // that are there and not read yet
	GeneratedTokens int64  `json:"generated_tokens"`

	Resyncs   uint64 `json:"resyncs"`
	Overflows uint64 `json:"overflows"`
	Restarts  uint64 `json:"restarts"`
	NoEvents  string `json:"no_events,omitempty"` // why it is looked at once a second only

	Degraded bool     `json:"degraded"`
	Reason   string   `json:"reason,omitempty"`
	Age      *float64 `json:"age_seconds,omitempty"`

	LastLine    *time.Time `json:"last_line,omitempty"`
	LastLineAge *float64   `json:"last_line_age_seconds,omitempty"`

	Seed slotlog.SeedNote `json:"seed,omitzero"`
}

func showSources(s *state, _ *http.Request) (any, error) {
	now := time.Now()
	answer := struct {
		Sources []sourceStatus `json:"sources"`
	}{[]sourceStatus{}}
	for _, l := range s.look(now) {
		out := sourceStatus{
			Source: l.name, Also: l.also, Node: l.node,
			Log: l.tail.o.String(), Kind: l.tail.o.Kind, Path: l.tail.o.Path, File: l.File,
			Lines: l.Lines, UnknownLines: l.Unknown, LongLines: l.Long,
			Bytes: l.Bytes, BytesBehind: l.Behind, GeneratedTokens: l.generated,
			Resyncs: l.Resyncs, Overflows: l.Overflows, Restarts: l.Restarts, NoEvents: l.NoEvents,
			Degraded: l.Degraded, Reason: l.Reason,
			Age: since(l.LookedAt, now), LastLineAge: since(l.LastLine, now), Seed: l.Seed,
		}
		if !l.LastLine.IsZero() {
			out.LastLine = &l.LastLine
		}
		answer.Sources = append(answer.Sources, out)
	}
	return answer, nil
}

// since is how many seconds ago something was; nil: never.
func since(t, now time.Time) *float64 {
	if t.IsZero() {
		return nil
	}
	return new(max(0, now.Sub(t).Seconds()))
}

// Interface guards.
var _ caddy.AdminRouter = (*slotlogAdmin)(nil)
