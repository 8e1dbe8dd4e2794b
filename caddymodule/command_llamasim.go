package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

var llamasimCommand = subcommand{
	use: "llamasim [--listen <addr>] [--model <name> | --models <names> [--models-max <n>]] [--slots <n>] [--context <n>] [--kv-unified] " +
		"[--prefill <n>] [--decode <n>] [--load-time <time>] [--sleep-idle <time>] [--thinking] [--like <version>] [--log <file>]",
	short: "Runs a stand-in for a llama-server, to try a fleet without models",
	long: `
Runs one stand-in for a llama-server in the foreground, on loopback only. It has
the API, the slots and the log of a llama-server but no model: its words come
from a hash of the conversation. Speeds are in tokens per second and slot; 0 is
as fast as it can.

With --models it is a router, which loads each model when a request asks for it.

A POST to /sim/kill ends it the way a crash would.

Exit codes:
  0  interrupted
  1  it could not start, or was killed through /sim/kill
`,
	flags: func(cmd *cobra.Command) {
		cmd.Flags().String("listen", "127.0.0.1:9931", "Loopback address to listen on")
		cmd.Flags().String("model", "stand-in", "Name of the model it pretends to serve")
		cmd.Flags().String("models", "", "Names of the models of a router, with commas between them")
		cmd.Flags().Int("models-max", 4, "How many models a router has loaded at once")
		cmd.Flags().Int("slots", 2, "How many generations run at once")
		cmd.Flags().Int("context", 4096, "Tokens that a slot holds")
		cmd.Flags().Float64("prefill", 400, "Speed of reading a prompt")
		cmd.Flags().Float64("decode", 25, "Speed of generating")
		cmd.Flags().Bool("kv-unified", false, "Let all slots share --context")
		cmd.Flags().Duration("load-time", 0, "How long loading a model takes")
		cmd.Flags().Duration("sleep-idle", 0, "Sleep when nothing was asked for so long (default never)")
		cmd.Flags().String("like", string(llamasim.V040), "Version to look like: v0.4.0, feb26 or feb25")
		cmd.Flags().Bool("thinking", false, "Think before answering")
		cmd.Flags().String("log", "", "File to append the server's log to")
	},
	run:   cmdLlamasim,
	below: []subcommand{llamasimKillCommand},
}

func cmdLlamasim(fl caddycmd.Flags) (int, error) {
	o := llamasim.Options{
		Addr:      fl.String("listen"),
		Version:   llamasim.Version(fl.String("like")),
		Model:     fl.String("model"),
		ModelsMax: fl.Int("models-max"),
		Slots:     fl.Int("slots"),
		Context:   fl.Int("context"),
		KVUnified: fl.Bool("kv-unified"),
		Prefill:   fl.Float64("prefill"),
		Decode:    fl.Float64("decode"),
		LoadTime:  fl.Duration("load-time"),
		SleepIdle: fl.Duration("sleep-idle"),
		Thinking:  fl.Bool("thinking"),
	}
	if names := fl.String("models"); names != "" {
		for name := range strings.SplitSeq(names, ",") {
			o.Models = append(o.Models, llamasim.Model{Name: strings.TrimSpace(name)})
		}
	}
	if o.Slots < 1 || o.Context < 1 || o.ModelsMax < 1 {
		return caddy.ExitCodeFailedStartup, errors.New("--slots, --context and --models-max must be at least 1")
	}
	if o.Prefill < 0 || o.Decode < 0 || o.LoadTime < 0 || o.SleepIdle < 0 {
		return caddy.ExitCodeFailedStartup, errors.New("--prefill, --decode, --load-time and --sleep-idle must be at least 0")
	}
	if path := fl.String("log"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("opening the stand-in's log: %w", err)
		}
		defer f.Close()
		o.Log = f
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := llamasim.Start(o)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	defer s.Close()
	fmt.Fprintf(os.Stderr, "A stand-in for a llama-server (no model, made-up words) listens on %s; Ctrl-C ends it.\n", s.URL())
	if untilRefused(ctx, s.Addr()) {
		return caddy.ExitCodeFailedStartup, errors.New("the stand-in was killed through /sim/kill")
	}
	return caddy.ExitCodeSuccess, nil
}

// untilRefused waits until nobody listens on a local address any more, and returns
// false if ctx ends first.
func untilRefused(ctx context.Context, addr string) bool {
	look := time.NewTicker(250 * time.Millisecond)
	defer look.Stop()
	var d net.Dialer
	for {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		c, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = c.Close()
		} else if ctx.Err() == nil {
			return true
		}
	}
}

var llamasimKillCommand = subcommand{
	use:   "kill [--address <interface>] [--config <path> [--adapter <name>]]",
	short: "Kills the stand-in that is serving something, to see the stream go on elsewhere",
	long: `
Asks the admin API which node is serving a request right now, and kills it if it
is a stand-in on this machine: it drops dead in the middle of the stream. A
real llama-server is never touched.

Exit codes:
  0  killed
  1  nothing is being served, what serves is no stand-in of this machine, or
     the admin API cannot be reached
`,
	flags: adminFlags,
	run:   cmdLlamasimKill,
}

func cmdLlamasimKill(fl caddycmd.Flags) (int, error) {
	s, _, err := askStatus(fl)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	n, ok := s.busiest()
	if !ok {
		return caddy.ExitCodeFailedStartup, errors.New("nothing is being served right now: start a stream first")
	}
	if err := killStandIn(n.Address); err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("node %s: %w", printable(n.Name), err)
	}
	fmt.Fprintf(os.Stderr, "killed %s (%s)\n", printable(n.Name), printable(n.Address))
	return caddy.ExitCodeSuccess, nil
}

// busiest is the node that runs most for us.
func (s fleetStatus) busiest() (most nodeStatus, ok bool) {
	lanes := 0
	for _, n := range s.Nodes {
		here := 0
		for _, i := range n.Instances {
			here += i.LanesActive
		}
		if here > lanes {
			most, lanes, ok = n, here, true
		}
	}
	return most, ok
}

// killStandIn kills the stand-in at the base address of its API. It asks first
// whether it is one.
func killStandIn(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || !onLoopback(u.Hostname()) {
		return fmt.Errorf("%q is not on this machine's loopback, so it is no stand-in: not killed", address)
	}
	base := strings.TrimSuffix(u.String(), "/")
	c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	if err := ask(c, http.MethodGet, base+"/sim/stats"); err != nil {
		return fmt.Errorf("%s is not a stand-in, so it was not killed: %w", base, err)
	}
	if err := ask(c, http.MethodPost, base+"/sim/kill"); err != nil {
		return fmt.Errorf("killing the stand-in: %w", err)
	}
	return nil
}

func ask(c *http.Client, method, address string) error {
	req, err := http.NewRequest(method, address, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s answered %s", method, address, resp.Status)
	}
	return nil
}

func onLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
