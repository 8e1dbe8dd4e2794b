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
		{Pattern: "/slotlog/sources", Handler: reading(showSources)},
	}
}

// sourceSlots is one source at /slotlog/slots.
type sourceSlots struct {
	Source string   `json:"source"`
	Also   []string `json:"also,omitempty"` // further names of the same file
	Node   string   `json:"node,omitempty"` // whose log it is

	Ports []portSlots `json:"ports"`

	Degraded bool   `json:"degraded"` // the slots may be missing or old
	Reason   string `json:"reason,omitempty"`

	// Seconds since the log was last read to its end. What no line tells does not
	// change: a silent log is that of an idle server.
	Age *float64 `json:"age_seconds,omitempty"`
}

type portSlots struct {
	Port  int            `json:"port"`
	Model string         `json:"model,omitempty"`
	Slots []slotlog.Slot `json:"slots"`
}

func showSlots(s *state, _ *http.Request) (any, error) {
	now := time.Now()
	answer := struct {
		Sources []sourceSlots `json:"sources"`
	}{[]sourceSlots{}}
	for _, l := range s.look(now) {
		out := sourceSlots{
			Source: l.name, Also: l.also, Node: l.node,
			Ports:    make([]portSlots, 0, len(l.Ports)),
			Degraded: l.Degraded, Reason: l.Reason,
			Age: since(l.LookedAt, now),
		}
		for _, p := range l.Ports {
			out.Ports = append(out.Ports, portSlots{p.Port, p.Model, p.Slots})
		}
		answer.Sources = append(answer.Sources, out)
	}
	return answer, nil
}

// sourceStatus is one source at /slotlog/sources.
type sourceStatus struct {
	Source string   `json:"source"`
	Also   []string `json:"also,omitempty"`
	Node   string   `json:"node,omitempty"`

	Path string            `json:"path"`
	File slotlog.FileState `json:"file"` // whether it can be read

	Lines           uint64 `json:"lines"`
	UnknownLines    uint64 `json:"unknown_lines"`
	Bytes           uint64 `json:"bytes"`
	BytesBehind     int64  `json:"bytes_behind"` // that are there and not read yet
	GeneratedTokens int64  `json:"generated_tokens"`

	Degraded bool     `json:"degraded"`
	Reason   string   `json:"reason,omitempty"`
	Age      *float64 `json:"age_seconds,omitempty"`

	LastLine *time.Time `json:"last_line,omitempty"`
}

func showSources(s *state, _ *http.Request) (any, error) {
	now := time.Now()
	answer := struct {
		Sources []sourceStatus `json:"sources"`
	}{[]sourceStatus{}}
	for _, l := range s.look(now) {
		out := sourceStatus{
			Source: l.name, Also: l.also, Node: l.node,
			Path: l.tail.path, File: l.File,
			Lines: l.Lines, UnknownLines: l.Unknown, Bytes: l.Bytes, BytesBehind: l.Behind,
			GeneratedTokens: l.generated,
			Degraded:        l.Degraded, Reason: l.Reason,
			Age: since(l.LookedAt, now),
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
