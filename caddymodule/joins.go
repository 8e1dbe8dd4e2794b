package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
	"github.com/slotfleet/slotfleet/linkf"
	"github.com/slotfleet/slotfleet/linkf/discover"
)

// joins is what a fleet says of nodes that dial in.
type joins struct {
	listen string         // empty: none may
	sites  bool           // those that dial a fleet_join may
	ring   *linkf.Keyring // nil: whoever comes is taken
	lease  time.Duration  // 0: the default

	announced *discover.Options // nil: it is not
}

func (j joins) any() bool { return j.listen != "" || j.sites }

// provisionJoins checks who may dial in.
func (a *FleetApp) provisionJoins() (joins, error) {
	if err := a.checkLease(); err != nil {
		return joins{}, err
	}
	if a.Announce && a.Listen == "" {
		return joins{}, errors.New("announce is about where nodes dial in: add `listen`")
	}
	repl := caddy.NewReplacer()
	var listen string
	if a.Listen != "" {
		var err error
		if listen, err = listenAddress(repl, a.Listen); err != nil {
			return joins{}, err
		}
	}
	tokens, _, err := readTokens(repl, a.Tokens)
	if err != nil {
		return joins{}, err
	}
	ring := ringOf(tokens)
	if a.TokensFile != "" {
		if ring, err = a.readTokensFile(repl, tokens); err != nil {
			return joins{}, fmt.Errorf("tokens_file: %w", err)
		}
	}
	if listen != "" && ring == nil && !a.Insecure && !onThisMachine(listen) {
		return joins{}, fmt.Errorf("listen %s is open to other machines, and there is no token: add `token` or `tokens_file`, or `insecure`", listen)
	}
	announced, err := a.announcement(listen)
	return joins{listen: listen, ring: ring, lease: time.Duration(a.Lease), announced: announced}, err
}

// takeJoins has nodes dial in through a site of the configuration.
func (a *FleetApp) takeJoins() error {
	if a.run.joins.ring == nil && !a.Insecure {
		return errors.New("fleet_join is open to other machines, and there is no token: add `token` or `tokens_file` to the global option fleet, or `insecure`")
	}
	a.run.joins.sites, a.run.policy.Joins = true, true
	return nil
}

// checkLease refuses leases that end before the requests of a node that may come back
// are given up.
func (a *FleetApp) checkLease() error {
	relink := cmp.Or(time.Duration(a.Relink), fleet.DefaultRelink)
	lease := cmp.Or(time.Duration(a.Lease), linkf.DefaultLease)
	if relink < 0 || lease > linkf.MaxLease || lease <= relink+linkf.Silence {
		return fmt.Errorf("relink %s, lease %s: want a lease above relink and %s, and at most %s", relink, lease, linkf.Silence, linkf.MaxLease)
	}
	return nil
}

func (a *FleetApp) readTokensFile(repl *caddy.Replacer, tokens []linkf.Token) (*linkf.Keyring, error) {
	path, err := repl.ReplaceOrErr(a.TokensFile, true, true)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ring, err := linkf.ParseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, t := range tokens {
		ring.Add(t)
	}
	return ring, nil
}

// admit begins to take nodes that dial in, as this configuration has it.
func (s *state) admit(r *fleetRun) error {
	if !r.joins.any() {
		if r.joins.ring != nil {
			r.policy.Log.Warn("a token of the fleet has no use: nodes dial in where the fleet has `listen`, or a site fleet_join; one for a node that is dialled belongs into its block")
		}
		return nil
	}
	head, err := s.linkHead(r)
	if err != nil {
		return err
	}
	head.Trust(r.joins.ring)
	head.Lend(r.joins.lease)
	if r.joins.listen == "" {
		return nil
	}
	_, _, err = doors.LoadOrNew(r.joins.listen, func() (caddy.Destructor, error) { return openDoor(s, head, r.joins.listen) })
	if err != nil {
		s.trustLast()
		return fmt.Errorf("fleet: listen %s: %w", r.joins.listen, err)
	}
	if err := r.joins.hangOut(r); err != nil {
		_, closing := doors.Delete(r.joins.listen)
		s.trustLast()
		return errors.Join(fmt.Errorf("fleet: announce: %w", err), closing)
	}
	return nil
}

// dismiss ends that, unless another configuration takes them at the same place.
func (s *state) dismiss(r *fleetRun) error {
	if !r.joins.any() {
		return nil
	}
	err := r.joins.takeIn()
	if r.joins.listen != "" {
		_, closing := doors.Delete(r.joins.listen)
		err = errors.Join(err, closing)
	}
	s.trustLast()
	return err
}

// trustLast takes the tokens of the configuration in force.
func (s *state) trustLast() {
	s.linking.Lock()
	defer s.linking.Unlock()
	if app := s.apps.last(); app != nil && app.run.joins.any() && s.head != nil {
		s.head.Trust(app.run.joins.ring)
		s.head.Lend(app.run.joins.lease)
	}
}

// linkHead is this process as nodes that dial in see it: one over all configurations,
// for what runs on them is numbered by it.
func (s *state) linkHead(r *fleetRun) (*linkf.Head, error) {
	s.linking.Lock()
	defer s.linking.Unlock()
	if s.head != nil {
		return s.head, nil
	}
	var err error
	s.head, err = linkf.NewHead(linkf.HeadOptions{Identity: headIdentity(), Tokens: r.joins.ring, Lease: r.joins.lease, Logger: r.policy.Log})
	return s.head, err
}

// joinHead is who takes nodes that dial in; nil: no configuration does.
func (s *state) joinHead() *linkf.Head {
	s.linking.Lock()
	defer s.linking.Unlock()
	return s.head
}

// adopt makes a node that dialled in one of the fleet.
func (s *state) adopt(j *linkf.Joiner) error {
	_, err := s.manager.Adopt(j.Joining())
	return err
}

// door is where nodes dial in. It stays open while one configuration after the other
// has it.
type door struct {
	ln     net.Listener
	closed chan error
}

func openDoor(s *state, head *linkf.Head, address string) (*door, error) {
	ln, err := listenTCP(address)
	if err != nil {
		return nil, err
	}
	d := &door{ln: ln, closed: make(chan error, 1)}
	go func() { d.closed <- head.Serve(ln, s.adopt) }()
	return d, nil
}

// Destruct closes it and waits for those that are in it.
func (d *door) Destruct() error { return errors.Join(d.ln.Close(), <-d.closed) }

// Interface guards.
var _ caddy.Destructor = (*door)(nil)
