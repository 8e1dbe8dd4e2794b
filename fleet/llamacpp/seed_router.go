package llamacpp

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/slotfleet/slotfleet/slotlog"
)

// routed is a child of a router, by its router's word.
type routed struct {
	port   int
	model  string
	status string
}

// seedChildren reads the slots of a router's children, after the router said which
// there are. Children that load or sleep are not asked.
func (s *Seeder) seedChildren(ctx context.Context, snap slotlog.Snapshot, now time.Time) {
	marks := make(map[int]uint64)
	for _, p := range snap.Ports {
		if p.Port != snap.OwnPort && s.to.NeedsSeed(p.Port, now, p.Lanes) {
			marks[p.Port] = s.to.BeginSeed(p.Port, now)
		}
	}
	if len(marks) == 0 {
		return
	}
	s.readChildren(ctx, s.confirm(ctx), marks)
}

// confirm asks the router for its children and tells the log.
func (s *Seeder) confirm(ctx context.Context) []routed {
	models, err := s.link.get(ctx, "/v1/models")
	if err != nil {
		s.fail(ctx, err)
		return nil
	}
	children := readChildren(models["data"])
	byPort := make(map[int]string, len(children))
	for _, c := range children {
		byPort[c.port] = c.model
	}
	s.to.Confirm(byPort)
	return children
}

func (s *Seeder) readChildren(ctx context.Context, children []routed, marks map[int]uint64) {
	for _, c := range children {
		mark, due := marks[c.port]
		switch {
		case !due:
		case c.status == "sleeping":
			s.note(ctx, slotlog.SeedAsleep, "")
		case c.status == "loaded":
			from, path := s.link.client.child(c)
			s.read(ctx, from, path, c.port, mark)
		}
	}
}

// readChildren finds the models of a router's list that a process serves.
func readChildren(raw json.RawMessage) []routed {
	var list []struct {
		ID     string `json:"id"`
		Status struct {
			Value string   `json:"value"`
			Args  []string `json:"args"`
		} `json:"status"`
	}
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	var out []routed
	for _, m := range list {
		i := slices.Index(m.Status.Args, "--port")
		if i < 0 || i+1 >= len(m.Status.Args) {
			continue
		}
		// One that is not loaded has the port 0.
		if port, err := strconv.ParseUint(m.Status.Args[i+1], 10, 16); err == nil && port > 0 {
			out = append(out, routed{port: int(port), model: m.ID, status: m.Status.Value})
		}
	}
	return out
}

// child says whom to ask for the slots of a router's child, and how: itself, or from
// another machine the router, which passes it on.
func (c *client) child(r routed) (*client, string) {
	u, err := url.Parse(c.base)
	if err == nil && u.Scheme == "http" && c.port != "" && loopback(u.Hostname()) {
		at := *c
		u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port))
		at.base, at.port = u.String(), strconv.Itoa(r.port)
		return &at, "/slots"
	}
	return c, "/slots?autoload=false&model=" + url.QueryEscape(r.model)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
