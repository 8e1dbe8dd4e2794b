package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

var drainCommand = subcommand{
	use:   "drain <node> [--no-wait] " + adminUsage,
	short: "Takes a node out of service and waits until nothing runs there",
	long: `
Takes a node out of service: it gets no new request. What can go on elsewhere
exactly moves there, the rest may finish until drain_timeout is over (2 minutes
unless configured otherwise) and ends with an error then. Waits until nothing of
the fleet runs on the node, and prints how many requests moved, finished and were
ended.

The node stays out of service, over reloads, too, until 'caddy fleet undrain'.

Exit codes:
  0  nothing runs there any more, and no request was ended (with --no-wait: it began)
  1  no node has this name, or the admin API cannot be reached
  3  requests were ended with an error
`,
	args: cobra.ExactArgs(1),
	flags: func(cmd *cobra.Command) {
		adminAndJSON(cmd)
		cmd.Flags().Bool("no-wait", false, "Return at once")
	},
	run: cmdDrain,
}

var undrainCommand = subcommand{
	use:   "undrain <node> " + adminUsage,
	short: "Gives a drained node back to service",
	long: `
Gives a node that was drained back to service. One that was not stays as it is.

Exit codes:
  0  it is in service
  1  no node has this name, or the admin API cannot be reached
`,
	args:  cobra.ExactArgs(1),
	flags: adminAndJSON,
	run: func(fl caddycmd.Flags) (int, error) {
		var n nodeStatus
		raw, err := post(fl, "/fleet/control/nodes/"+url.PathEscape(fl.Arg(0))+"/undrain", &n)
		if err == nil {
			err = show(fl, raw, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "node %s is in service\n", printable(n.Name))
				return err
			})
		}
		return exitOf(err), err
	},
}

// drainAsk is how often `drain` asks whether it is over.
const drainAsk = 500 * time.Millisecond

func cmdDrain(fl caddycmd.Flags) (int, error) {
	path := url.PathEscape(fl.Arg(0))
	var n nodeStatus
	raw, err := post(fl, "/fleet/control/nodes/"+path+"/drain", &n)
	told := -1
	again := time.NewTicker(drainAsk)
	defer again.Stop()
	for err == nil && !fl.Bool("no-wait") && n.Drain != nil && !n.Drain.Drained {
		if n.Drain.Left != told {
			told = n.Drain.Left
			fmt.Fprintf(os.Stderr, "%s left on %s\n", plural(told, "request"), printable(n.Name))
		}
		<-again.C
		n = nodeStatus{}
		raw, err = askAdmin(fl, http.MethodGet, "/fleet/nodes/"+path, nil, &n)
	}
	if err != nil {
		return exitOf(err), err
	}
	if n.Drain == nil {
		return exitRefused, fmt.Errorf("node %s was given back to service meanwhile", printable(n.Name))
	}
	if err := show(fl, raw, func(w io.Writer) error { return writeDrain(w, n.Name, *n.Drain) }); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	if n.Drain.Ended > 0 {
		return exitRefused, nil
	}
	return caddy.ExitCodeSuccess, nil
}

func writeDrain(w io.Writer, name string, d fleet.DrainStatus) error {
	state := "is drained"
	if !d.Drained {
		state = fmt.Sprintf("gets nothing new; %s left, until %s at the latest", plural(d.Left, "request"), d.Until.Format(time.TimeOnly))
	}
	_, err := fmt.Fprintf(w, "node %s %s: %d moved, %d finished, %d ended\n", printable(name), state, d.Moved, d.Finished, d.Ended)
	return err
}
