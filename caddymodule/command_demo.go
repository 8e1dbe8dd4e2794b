package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
)

// defaultDemoListen is where the demo is without --listen.
const defaultDemoListen = "127.0.0.1:8088"

// nodesVariable names the servers that the demo uses in place of stand-ins.
const nodesVariable = "LLAMA_NODES"

var demoCommand = subcommand{
	use:   "demo [--listen <addr>] [--admin <addr>]",
	short: "Starts an edge with three stand-in servers, or with your own, and says what to try",
	long: `
Starts Caddy with a fleet in front of the servers in $LLAMA_NODES, a list of
URLs with blanks between them. Where that is empty it starts three stand-ins on
loopback: they have no model, their words are made up. It prints three commands
to try from another terminal and runs until it is interrupted. It writes to a
temporary folder only, and removes that at the end.

It listens on this machine only, unless --listen says otherwise: there is no key,
whoever reaches the address can use the servers behind it.

Exit codes:
  0  interrupted
  1  it could not start: an address is taken, or $LLAMA_NODES is wrong
`,
	flags: func(cmd *cobra.Command) {
		cmd.Flags().String("listen", defaultDemoListen, "Address of the edge")
		cmd.Flags().String("admin", caddy.DefaultAdminListen, "Address of the admin API")
	},
	run: cmdDemo,
}

func cmdDemo(fl caddycmd.Flags) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := demo{listen: fl.String("listen"), admin: fl.String("admin")}
	if err := d.run(ctx, stop); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// demo is an edge and what stands behind it.
type demo struct {
	listen, admin string

	folder   string
	nodes    []demoNode
	standIns []*llamasim.Server // empty: the nodes are somebody's own
}

type demoNode struct {
	name, address string
	log           string // file; empty: not known
}

const (
	comeBack = 15 * time.Second // after which a killed stand-in is there again

	standInModel = "stand-in"
)

// run starts everything, waits for ctx, and ends everything. interruptible is
// called when the end begins: another interrupt then ends the process.
func (d *demo) run(ctx context.Context, interruptible func()) (err error) {
	for flag, addr := range map[string]string{"--listen": d.listen, "--admin": d.admin} {
		if err := checkFree(addr); err != nil {
			return fmt.Errorf("%s %s: %w; name another address with %s", flag, addr, err, flag)
		}
	}
	if d.folder, err = os.MkdirTemp("", "slotfleet-demo-"); err != nil {
		return fmt.Errorf("making a folder for the demo: %w", err)
	}
	defer os.RemoveAll(d.folder)
	// `caddy stop` ends the process without coming back here.
	caddy.OnExit(func(context.Context) { _ = os.RemoveAll(d.folder) })

	if list := strings.Fields(os.Getenv(nodesVariable)); len(list) > 0 {
		if d.nodes, err = ownNodes(list); err != nil {
			return err
		}
	} else if err := d.startStandIns(); err != nil {
		return err
	}
	defer d.close()
	config, err := d.config()
	if err != nil {
		return err
	}
	if err := caddy.Load(config, true); err != nil {
		return fmt.Errorf("starting the edge: %w", err)
	}
	d.greet(d.served(ctx))

	var watchers sync.WaitGroup
	for i, s := range d.standIns {
		watchers.Go(func() { revive(ctx, d.nodes[i].name, s) })
	}
	<-ctx.Done()
	interruptible()
	fmt.Fprintln(os.Stderr, "\nending")
	watchers.Wait()
	if err := caddy.Stop(); err != nil {
		return fmt.Errorf("stopping the edge: %w", err)
	}
	return nil
}

// checkFree says what is wrong with an address that cannot be listened on. Caddy shares
// sockets among processes, and would not notice.
func checkFree(addr string) error {
	a, err := caddy.ParseNetworkAddress(addr)
	if err != nil || a.PortRangeSize() != 1 {
		return errors.New("not an address to listen on")
	}
	if a.IsUnixNetwork() || a.IsFdNetwork() {
		return nil
	}
	ln, err := net.Listen("tcp", a.JoinHostPort(0))
	if errors.Is(err, syscall.EADDRINUSE) {
		return errors.New("the address is taken by another program")
	} else if err != nil {
		return err
	}
	return ln.Close()
}

func (d *demo) startStandIns() error {
	for i := range 3 {
		n := demoNode{name: fmt.Sprintf("stand-in-%d", i+1)}
		n.log = filepath.Join(d.folder, n.name+".log")
		f, err := os.OpenFile(n.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("opening the log of a stand-in: %w", err)
		}
		s, err := llamasim.Start(llamasim.Options{
			Model:   standInModel,
			Slots:   2,
			Context: 4096,
			Prefill: 400,
			Decode:  25,
			Log:     f,
		})
		if err != nil {
			d.close()
			return err
		}
		n.address = s.URL()
		d.nodes, d.standIns = append(d.nodes, n), append(d.standIns, s)
	}
	return nil
}

func (d *demo) close() {
	for _, s := range d.standIns {
		_ = s.Close()
	}
}

// revive starts a stand-in again some time after it was killed, until ctx ends.
func revive(ctx context.Context, name string, s *llamasim.Server) {
	for untilRefused(ctx, s.Addr()) {
		fmt.Fprintf(os.Stderr, "%s was killed; it comes back in %s\n", name, comeBack)
		select {
		case <-ctx.Done():
			return
		case <-time.After(comeBack):
		}
		if err := s.Restart(); err != nil {
			fmt.Fprintf(os.Stderr, "%s does not come back: %v\n", name, err)
			return
		}
		fmt.Fprintf(os.Stderr, "%s is back\n", name)
	}
}

// served waits a little for the nodes to say what they serve, and returns one of
// their models; none, if they do not.
func (d *demo) served(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	model := ""
	for {
		resp, err := caddycmd.AdminAPIRequest(d.admin, "GET", "/fleet/nodes", nil, nil)
		if err == nil {
			var s fleetStatus
			err = json.NewDecoder(resp.Body).Decode(&s)
			_ = resp.Body.Close()
			for _, m := range s.Serving {
				if m.Ready > 0 {
					model = m.Model
				}
			}
			if err == nil && s.Known > 0 && s.Up == s.Known {
				return model
			}
		}
		select {
		case <-ctx.Done():
			return model
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// config is the demo's configuration in Caddy's own form.
func (d *demo) config() ([]byte, error) {
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(d.caddyfile()), map[string]any{"filename": "demo"})
	if err != nil {
		return nil, fmt.Errorf("making the configuration: %w", err)
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, w.Message)
	}
	return config, nil
}
