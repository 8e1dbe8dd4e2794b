package caddymodule

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/linkf/discover"
)

// announcement says what the local network is told of where nodes dial in; nil: nothing.
func (a *FleetApp) announcement(listen string) (*discover.Options, error) {
	if !a.Announce {
		return nil, nil
	}
	host, service, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("listen %q: want :port or host:port", listen)
	}
	port, err := net.LookupPort("tcp", service)
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", listen, err)
	}
	o := &discover.Options{Port: uint16(port)}
	if host == "" {
		return o, nil
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return nil, fmt.Errorf("announce needs an address that it can tell, and listen has the name %s: write its IP address, or the port alone", host)
	case addr.IsLoopback():
		return nil, fmt.Errorf("announce tells other machines of listen %s, which none can reach: leave announce out, or listen elsewhere", listen)
	case !addr.IsUnspecified():
		o.Address = addr.Unmap().WithZone("")
	}
	return o, nil
}

// sign is an announcement. It stays while one configuration after the other has it.
type sign struct{ *discover.Announcer }

// Destruct takes it back.
func (s sign) Destruct() error { return s.Close() }

// signKey is one for all configurations that announce the same. The name on the network is
// made of it, too, so that the end of one announcement does not end another.
func (j joins) signKey() string { return headIdentity() + "/" + j.listen }

// hangOut announces where nodes dial in, if that is wanted.
func (j joins) hangOut(r *fleetRun) error {
	if j.announced == nil {
		return nil
	}
	_, _, err := signs.LoadOrNew(j.signKey(), func() (caddy.Destructor, error) {
		o := *j.announced
		o.Identity, o.Logger = j.signKey(), r.policy.Log
		a, err := discover.Announce(o)
		return sign{a}, err
	})
	return err
}

// takeIn ends that, unless another configuration announces the same.
func (j joins) takeIn() error {
	if j.announced == nil {
		return nil
	}
	_, err := signs.Delete(j.signKey())
	return err
}

// Interface guards.
var _ caddy.Destructor = sign{}
